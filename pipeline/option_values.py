"""Readers of option values: each raises `ValueError` with the expected form."""

import base64
import json
import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Final

from rocketbed.pipeline.schema import CORRUPT, VIEWS

NUMBER_MAX: Final = 1 << 60
ANONYMOUS: Final = "AnonymousAWSCredentialsProvider"
TEMPORARY: Final = "TemporaryAWSCredentialsProvider"
WITH_KEYS: Final = ("SimpleAWSCredentialsProvider", TEMPORARY)
OF_VARIABLES: Final = "EnvironmentVariableCredentialsProvider"
OF_AWS: Final = (
    OF_VARIABLES,
    "IAMInstanceCredentialsProvider",
    "WebIdentityTokenCredentialsProvider",
    "EC2ContainerCredentialsProviderWrapper",
    "AwsCredentialsProviderChain",
    "InstanceProfileCredentialsProvider",
    "ContainerCredentialsProvider",
    "ProfileCredentialsProvider",
    "WebIdentityTokenFileCredentialsProvider",
    "DefaultCredentialsProvider",
    "DefaultAWSCredentialsProviderChain",
)
"""Providers of S3A, and of AWS, that look where AWS's own library in pyarrow does."""
OF_APPLICATION: Final = "ClientCredsTokenProvider"
OF_AZURE: Final = ("MsiTokenProvider", "WorkloadIdentityTokenProvider")
"""Token providers of ABFS that look where Azure's own library in pyarrow does."""
_SIZE: Final = re.compile(r"([0-9]{1,18})\s*([kmgt]?)i?b?", re.IGNORECASE)
SECONDS: Final = range(10**9, 10**11)
"""Numbers that are times of this century in seconds, and in milliseconds before 1974."""
FINER: Final = {"micro": 10**3, "nano": 10**6}
"""Units, and how many of each are a millisecond."""
LIKELY_MS: Final = range(10**12, 4 * 10**12)
"""Times from 2001 to 2096: a number that is one of them in a finer unit is taken to be that."""
_DURATIONS: Final = {
    "ms": 1, "s": 1000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000,
}  # fmt: skip
_UNITS: Final = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}


def size_in_bytes(text: str) -> int:
    """Bytes of `4096`, `64k`, `128m`, `1g` (powers of 1024). Raises `ValueError`."""
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise ValueError("a number of bytes such as 1048576, 64k, 128m or 1g")
    return int(match[1]) * _UNITS[match[2].lower()]


def time_in_ms(text: str) -> int:
    """Milliseconds since 1970 of a number of them, or of an ISO-8601 time (UTC if it names no
    zone). A part of one counts as a whole: what was stored before such a time still was.

    Raises `ValueError`, also for a number of seconds, micro- or nanoseconds.
    """
    text = text.strip()
    if re.fullmatch(r"-?[0-9]+", text):
        if int(text) in SECONDS:
            raise ValueError(f"milliseconds since 1970 ({text}000, if these are seconds)")
        for name, factor in FINER.items():
            if (ms := int(text) // factor) in LIKELY_MS:
                raise ValueError(f"milliseconds since 1970 ({ms}, if these are {name}seconds)")
        return int(text)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError("milliseconds since 1970 or a time such as 2026-11-20T12:00:00Z") from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return -((datetime(1970, 1, 1, tzinfo=UTC) - moment) // timedelta(milliseconds=1))


def read_flag(text: str) -> bool:
    """True for the text `true`. Raises `ValueError` with what it takes."""
    if text.strip().lower() not in ("true", "false"):
        raise ValueError("true or false")
    return text.strip().lower() == "true"


def read_number(least: int, most: int = NUMBER_MAX) -> Callable[[str], int]:
    """A reader of numbers, also with a unit. It raises `ValueError` with what it takes."""
    up_to = "" if most == NUMBER_MAX else f" to {most}"

    def read(text: str) -> int:
        try:
            value = size_in_bytes(text)
        except ValueError:
            value = -1
        if not least <= value <= most:
            raise ValueError(f"a number from {least}{up_to}, also written as 64k or 128m")
        return value

    return read


def read_duration(text: str) -> int:
    """Milliseconds of a number of them, or of `90s`, `15m`, `1h`. Raises `ValueError` with what it
    takes."""
    match = re.fullmatch(r"([0-9]{1,12})\s*(ms|s|m|min|h|d)?", text.strip().lower())
    if match is None or not int(match[1]):
        raise ValueError("a duration such as 500ms, 90s, 15m or 1h")
    return int(match[1]) * _DURATIONS[match[2] or "ms"]


def read_offset(text: str) -> int:
    """A physical offset. Raises `ValueError` with what it takes."""
    if not re.fullmatch(r"\s*[0-9]{1,18}\s*", text):
        raise ValueError("a physical offset in bytes, 0 or more")
    return int(text)


def read_names(text: str) -> frozenset[str]:
    """Names of a list. Raises `ValueError` with what it takes."""
    names = frozenset(name.strip() for name in text.split(",") if name.strip())
    if not names:
        raise ValueError("names, separated by commas")
    return names


def read_pattern(text: str) -> re.Pattern[str]:
    """A regular expression for topics. Raises `ValueError` with what it takes."""
    if not text.strip():
        raise ValueError("a regular expression")
    try:
        return re.compile(text.strip())
    except (re.error, RecursionError) as exc:
        raise ValueError(f"a regular expression ({exc})") from None


def read_one_of(*choices: str) -> Callable[[str], str]:
    """A reader of one of some words. It raises `ValueError` with what it takes."""
    by_name = {choice.lower(): choice for choice in choices}

    def choose(text: str) -> str:
        if text.strip().lower() not in by_name:
            raise ValueError("one of " + ", ".join(choices))
        return by_name[text.strip().lower()]

    return choose


def read_nameservers(text: str) -> str:
    """Addresses of name servers, unchanged; may be empty. Raises `ValueError` with what it
    takes."""
    from rocketbed.client.errors import BadMessage
    from rocketbed.client.nameservers import parse_nameservers

    try:
        if text.strip():
            parse_nameservers(text)
    except BadMessage as exc:
        raise ValueError(f"host:port;host:port ({exc})") from None
    return text.strip()


def read_group(text: str) -> str:
    """A producer group's name. Raises `ValueError` with what it takes."""
    from rocketbed.client.errors import BadMessage
    from rocketbed.client.messages import check_group

    try:
        check_group(text.strip())
    except BadMessage as exc:
        raise ValueError(f"a group ({exc})") from None
    return text.strip()


def read_text(text: str) -> str:
    """Any text. Raises `ValueError` with what it takes."""
    return text.strip()


def read_place(text: str) -> str:
    """A path, whose name may end in a space. Raises `ValueError` with what it takes."""
    return text if text.strip() else ""


def read_column(text: str) -> str:
    """The name of the corrupt column. Raises `ValueError` with what it takes."""
    name = text.strip()
    if not name or name.lower() in VIEWS["records"].keys() - {CORRUPT}:
        raise ValueError("a name that no other column has")
    return name


def read_starting(text: str) -> str:
    """Check the option `startingOffsets`; returns the text. Raises `ValueError` with what it
    takes."""
    return _read_offsets(text, "earliest", "latest")


def read_ending(text: str) -> str:
    """Check the option `endingOffsets`; returns the text. Raises `ValueError` with what it
    takes."""
    return _read_offsets(text, "latest")


def _read_offsets(text: str, *words: str) -> str:
    if text.strip().lower() not in words:
        try:
            is_object = isinstance(json.loads(text), dict)
        except (ValueError, RecursionError):
            is_object = False
        if not is_object:
            raise ValueError(
                f"{', '.join(words)}, or JSON: an offset of a checkpoint,"
                ' {"broker": 4096} (over path) or {"broker|topic|3": 17} (over endpoints)'
            )
    return text


def read_job(text: str) -> str:
    """The id of a job. Raises `ValueError` with what it takes."""
    if not re.fullmatch(r"[a-zA-Z0-9_-]{1,64}", text.strip()):
        raise ValueError("up to 64 letters, digits, _ and -")
    return text.strip()


def read_provider(text: str) -> str:
    """Credentials providers of S3A, without their packages. Raises `ValueError` with what it
    takes."""
    names = [one.strip().rpartition(".")[2] for one in text.split(",") if one.strip()]
    if not names or set(names) - {ANONYMOUS, *WITH_KEYS, *OF_AWS}:
        raise ValueError(f"some of {', '.join((ANONYMOUS, *WITH_KEYS, *OF_AWS))}")
    return ",".join(names)


def read_azure_provider(text: str) -> str:
    """A token provider of ABFS, without its package. Raises `ValueError` with what it takes."""
    return read_one_of(OF_APPLICATION, *OF_AZURE)(text.rpartition(".")[2])


def read_key(text: str) -> str:
    """The key of an account. Raises `ValueError` with what it takes."""
    try:
        if base64.b64decode(text.strip(), validate=True):
            return text.strip()
    except ValueError:
        pass
    raise ValueError("a key in base64")


def read_signature(text: str) -> str:
    """A shared access signature, behind `?`. Raises `ValueError` with what it takes."""
    signature = text.strip().removeprefix("?")
    if not re.fullmatch(r"([^\s=&?]+=[^\s&?]*)(&[^\s=&?]+=[^\s&?]*)*", signature):
        raise ValueError("a signature such as sv=...&sig=...")
    return f"?{signature}"


def read_login(text: str) -> str:
    """Token address of an application, up to its tenant. Raises `ValueError` with what it
    takes."""
    match = re.fullmatch(r"(https://[^/\s]+/[^/\s]+)(/oauth2/\S*)?/?", text.strip())
    if match is None:
        raise ValueError("https://login.microsoftonline.com/TENANT/oauth2/token")
    return match[1]


def read_endpoint(text: str) -> str:
    """Address of a server. Raises `ValueError` with what it takes."""
    if not re.fullmatch(r"(https?://)?[A-Za-z0-9._\[\]:-]+/?", text.strip()):
        raise ValueError("host, host:port, or either behind http:// or https://")
    return text.strip().rstrip("/")


def read_word(text: str) -> str:
    """A key or a name. Raises `ValueError` with what it takes."""
    if not text.strip() or len(text.split()) > 1:
        raise ValueError("one word")
    return text.strip()
