"""The content of one frame: a request or a response, before encoding or after decoding.

The class is written by hand rather than as a dataclass because a broker creates one for every
message: the ext fields stay as decoded until `fields` is read, and attributes that are rarely
needed are taken from the decoder's result at their first use (`__getattr__`).
"""

from collections.abc import Mapping
from enum import IntEnum
from typing import cast

from rocketbed.wire.codes import RequestCode, ResponseCode

__all__ = ["Command", "Encoding", "RequestCode", "ResponseCode", "answer", "request"]

LANGUAGE = "PYTHON"
VERSION = 479
"""Version that rocketbed reports: 5.3.3 (wire.md 1.6)."""

RESPONSE_BIT = 1
ONEWAY_BIT = 2


class Encoding(IntEnum):
    """Encoding of a frame's header (the serialize type, wire.md 1.1)."""

    JSON = 0
    ROCKETMQ = 1
    MSGPACK = 2


class Command:
    """A request or a response.

    `opaque` matches a response to its request; `flag` has bit 0 for responses and bit 1 for one-way
    requests. `encoding` is that of the received frame, and so that of its answer.
    """

    __slots__ = (
        "_members",
        "answers",
        "body",
        "code",
        "encoding",
        "flag",
        "has_fields",
        "language",
        "names",
        "opaque",
        "raw_fields",
        "remark",
        "row",
        "version",
    )

    _members: dict[str, object]
    code: int
    opaque: int
    """Correlation id, a signed 32-bit number chosen by the requester."""
    flag: int
    version: int
    """The peer's release as an ordinal (wire.md 1.6)."""
    language: str
    remark: str | None
    """Text for people; without meaning when `code` is 0."""
    raw_fields: dict[str, object]
    """Ext fields as decoded; a value may be a JSON number or boolean (`ali-ons` sends them)."""
    has_fields: bool
    """True if an empty `extFields` is written as `{}`, as in the frame that was read."""
    body: bytes
    encoding: Encoding
    answers: int
    """Code of the request that a response belongs to, 0 when unknown; not part of equality."""
    row: list[object] | None
    """Values by position, as in a msgpack header, else None; `names` has their names."""
    names: tuple[str, ...]
    """Names of the values in `row`: a tuple of `encoding.positional`. Set only with `row`."""

    def __init__(
        self,
        code: int,
        opaque: int = 0,
        flag: int = 0,
        version: int = VERSION,
        language: str = LANGUAGE,
        remark: str | None = None,
        raw_fields: dict[str, object] | None = None,
        body: bytes = b"",
        encoding: Encoding = Encoding.JSON,
        has_fields: bool = True,
    ) -> None:
        self.code = code
        self.opaque = opaque
        self.flag = flag
        self.version = version
        self.language = language
        self.remark = remark
        self.raw_fields = {} if raw_fields is None else raw_fields
        self.body = body
        self.encoding = encoding
        self.has_fields = has_fields
        self.answers = 0
        self.row = None

    @classmethod
    def from_members(
        cls,
        code: int,
        opaque: int,
        flag: int,
        members: dict[str, object],
        raw_fields: dict[str, object],
        body: bytes,
        has_fields: bool,
    ) -> "Command":
        """Create a command from a JSON header; version, language and remark stay in `members`."""
        command = cls.__new__(cls)
        command.code = code
        command.opaque = opaque
        command.flag = flag
        command._members = members
        command.raw_fields = raw_fields
        command.body = body
        command.encoding = Encoding.JSON
        command.has_fields = has_fields
        command.answers = 0
        command.row = None
        return command

    @classmethod
    def from_row(
        cls,
        code: int,
        opaque: int,
        flag: int,
        version: int,
        remark: str | None,
        names: tuple[str, ...],
        row: list[object],
        body: bytes,
    ) -> "Command":
        """Create a command from a msgpack header with its fields by position."""
        command = cls.__new__(cls)
        command.code = code
        command.opaque = opaque
        command.flag = flag
        command.version = version
        command.language = LANGUAGE
        command.remark = remark
        command.names = names
        command.row = row
        command.body = body
        command.encoding = Encoding.MSGPACK
        command.has_fields = True
        command.answers = 0
        return command

    def __getattr__(self, name: str) -> object:
        """Take an attribute that is not set from the header; a value of the wrong type counts as
        absent."""
        if name == "raw_fields" and self.row is not None:
            pairs = zip(self.names, self.row, strict=False)
            self.raw_fields = {key: value for key, value in pairs if value is not None}
            return self.raw_fields
        if name not in ("version", "language", "remark"):
            raise AttributeError(name)
        value = self._members.get(name)
        if name == "version":
            value = value if value.__class__ is int else 0
        elif value.__class__ is not str:
            value = "OTHER" if name == "language" else None
        setattr(self, name, value)
        return value

    @property
    def fields(self) -> dict[str, str]:
        """Ext fields, all values as text (numbers decimal, booleans `true` and `false`)."""
        raw = self.raw_fields
        for name, value in raw.items():
            if type(value) is not str:
                raw[name] = field_text(value)
        return cast(dict[str, str], raw)

    @property
    def is_response(self) -> bool:
        """True if this frame is a response."""
        return bool(self.flag & RESPONSE_BIT)

    @property
    def is_oneway(self) -> bool:
        """True if the sender expects no answer; it must not get one, not even of an error."""
        return bool(self.flag & ONEWAY_BIT)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Command):
            return NotImplemented
        return all(
            getattr(self, name) == getattr(other, name)
            for name in self.__slots__
            if name not in ("answers", "row", "_members", "names")
        )

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        kind = "answer" if self.is_response else "oneway" if self.is_oneway else "request"
        return (
            f"<{kind} code={self.code} opaque={self.opaque} {self.encoding.name}"
            f" remark={self.remark!r} fields={self.raw_fields} body={len(self.body)} bytes>"
        )


def request(
    code: int,
    fields: Mapping[str, str] | None = None,
    body: bytes = b"",
    *,
    oneway: bool = False,
    encoding: Encoding = Encoding.JSON,
) -> Command:
    """Return a request; the connection that sends it sets `opaque`."""
    raw: dict[str, object] = dict(fields) if fields else {}
    flag = ONEWAY_BIT if oneway else 0
    return Command(code, 0, flag, VERSION, LANGUAGE, None, raw, body, encoding, fields is not None)


def answer(
    to: Command,
    code: int = ResponseCode.SUCCESS,
    remark: str | None = None,
    fields: Mapping[str, str] | None = None,
    body: bytes = b"",
) -> Command:
    """Return the response to a request, in the request's encoding."""
    raw: dict[str, object] = dict(fields) if fields else {}
    response = Command(
        int(code),
        to.opaque,
        RESPONSE_BIT,
        VERSION,
        LANGUAGE,
        remark,
        raw,
        body,
        to.encoding,
        fields is not None,
    )
    response.answers = to.code
    return response


def field_text(value: object) -> str:
    """Return a JSON value as the text that Java's reader makes of it (wire.md 1.7)."""
    if value is True:
        return "true"
    if value is False:
        return "false"
    return str(value)
