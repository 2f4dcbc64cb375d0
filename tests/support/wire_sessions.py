"""The recorded sessions of a real broker and client, frame by frame (tests/fixtures/README.md)."""

import json
import tarfile
from dataclasses import dataclass
from pathlib import Path

WIRE = Path(__file__).parents[1] / "fixtures" / "wire"
SESSIONS = ("session-json", "session-rocketmq")


@dataclass(frozen=True, slots=True)
class RecordedFrame:
    """A frame and what the recorder wrote about it."""

    about: dict[str, object]
    data: bytes

    @property
    def connection(self) -> int:
        number = self.about["connection"]
        assert isinstance(number, int)
        return number

    @property
    def is_from_client(self) -> bool:
        return self.about["direction"] == "c2s"


def recorded_streams() -> list[Path]:
    """Return all recorded directions of all connections."""
    return sorted(path for name in SESSIONS for path in WIRE.glob(f"{name}-c*.bin"))


def recorded_frames(session: str) -> list[RecordedFrame]:
    """Every frame of a session in the order of the recording."""
    index = json.loads((WIRE / f"{session}.index.json").read_text())
    files: dict[str, bytes] = {}
    frames = []
    for about in index["frames"]:
        name = about["file"]
        if name not in files:
            files[name] = (WIRE / name).read_bytes()
        data = files[name][about["offset"] : about["offset"] + about["length"]]
        frames.append(RecordedFrame(about, data))
    return frames


def recorded(name: str) -> bytes:
    """The bytes of one recorded file."""
    return (WIRE / name).read_bytes()


def recorded_log(name: str) -> dict[int, bytes]:
    """Files of a recorded commit log by their first offset."""
    files = {}
    with tarfile.open(WIRE / name) as archive:
        for member in archive:
            base = member.name.rpartition("/")[2]
            if member.isfile() and base.isdigit():
                content = archive.extractfile(member)
                assert content is not None
                files[int(base)] = content.read()
    return files
