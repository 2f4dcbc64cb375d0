"""Headers of sends, cut and joined; answers by template (wire.md 4.3)."""

import pytest

from rocketbed.wire.codes import RequestCode
from rocketbed.wire.command import Command, Encoding, answer, request
from rocketbed.wire.frame import encode
from rocketbed.wire.send_headers import BEGINNINGS, FORMS, Form
from rocketbed.wire.sends import SendAnswers, with_outcome
from tests.support.broker import send_fields

KEY = "7F000001000A18B4AAC2000000000003"
STRING = f"KEYS\x01k1 k2\x02UNIQ_KEY\x01{KEY}\x02WAIT\x01true\x02own\x01标签"
HOST = bytes((10, 0, 0, 1, 0, 0, 0x2A, 0x9F))


def header_of(encoding: Encoding, opaque: int = 77, **changes: str) -> bytes:
    fields = {**send_fields(queue_id=3), "i": STRING, **changes}
    command = request(RequestCode.SEND_MESSAGE_V2, fields, encoding=encoding)
    command.opaque = opaque
    frame = encode(command)
    return frame[8:]


@pytest.mark.parametrize("encoding", list(Encoding))
def test_split_parts_join_to_the_same_header(encoding: Encoding) -> None:
    form = FORMS[encoding]
    header = header_of(encoding)
    assert header.startswith(BEGINNINGS)
    key, born_ms, string, opaque = form.cut(header)
    assert (born_ms, string, int(opaque)) == (1_700_000_000_000, STRING, 77)
    if encoding is not Encoding.JSON:  # whose escapes are resolved
        assert form.join(key, str(born_ms), string, 77) == header
    decoded = form.decode(form.join(key, "1700000000001", "a", 78), b"")
    assert (decoded.opaque, decoded.fields["g"], decoded.fields["i"]) == (78, "1700000000001", "a")
    assert form.cut(header_of(encoding, 1234, g="1700000000777"))[0] == key
    assert form.cut(header_of(encoding, e="2"))[0] != key


@pytest.mark.parametrize("encoding", list(Encoding))
@pytest.mark.parametrize(
    "changes", [{"g": "-1"}, {"g": ""}, {"g": "1e3"}, {"g": "9" * 19}, {"g": None}, {"i": None}]
)
def test_unsplittable_header_is_left(encoding: Encoding, changes: dict[str, str | None]) -> None:
    fields = {name: value for name, value in {**send_fields(), **changes}.items() if value}
    command = request(RequestCode.SEND_MESSAGE_V2, fields, encoding=encoding)
    form = FORMS[encoding]
    with pytest.raises((ValueError, TypeError, LookupError)):
        refuse(form, encode(command)[8:])


def refuse(form: Form, header: bytes) -> None:
    """Cut a header; `LookupError` if what it is cut into is no header of its own."""
    key, born_ms, string, _ = form.cut(header)
    if form.decode(form.join(key, str(born_ms), string, 77), b"").fields.get("i") != string:
        raise LookupError


def test_a_second_opaque_is_not_passed_over() -> None:
    """Whatever stands behind a header that is known has to be part of its key."""
    good = header_of(Encoding.JSON).replace(b'"opaque":77,', b"").replace(b"{", b'{"opaque":77,', 1)
    cut = FORMS[Encoding.JSON].cut
    assert int(cut(good)[3]) == 77
    with pytest.raises(ValueError, match="not digits"):
        cut(good + b'"opaque":,')
    assert cut(good + b'"opaque":5,')[0] != cut(good)[0]


def general(to: Command, offset: int, answers: SendAnswers) -> bytes:
    fields = answers.fields([offset], 3, 555, KEY, None)
    return encode(answer(to, 0, None, fields))


@pytest.mark.parametrize("encoding", list(Encoding))
@pytest.mark.parametrize("opaque", [0, 77, 2**31 - 1, -5])
def test_template_answer_equals_the_general_coding(encoding: Encoding, opaque: int) -> None:
    to = request(RequestCode.SEND_MESSAGE_V2, encoding=encoding)
    to.opaque = opaque
    answers = SendAnswers(HOST)
    parts: list[bytes] = []
    for offset in (0, 123_456_789_012):
        assert answers.add(parts, to, offset=offset, queue_id=3, queue_offset=555, key=KEY)
        assert b"".join(parts[-2:]) == general(to, offset, answers)
    assert not answers.add(parts, to, offset=0, queue_id=3, queue_offset=555, key="a-b")
    assert len(parts) == 4


@pytest.mark.parametrize("encoding", list(Encoding))
def test_answers_with_another_outcome(encoding: Encoding) -> None:
    commands = [request(RequestCode.SEND_MESSAGE_V2, encoding=encoding) for _ in range(3)]
    answers = SendAnswers(HOST)
    good, late, lost = [], [], []
    for number, to in enumerate(commands):
        to.opaque = number
        good.append(general(to, number, answers))
        late.append(encode(answer(to, 10, None, answers.fields([number], 3, 555, KEY, None))))
        lost.append(encode(answer(to, 14, "no room", {"rbNotStored": "1"})))
    assert with_outcome(b"".join(good), 10) == b"".join(late)
    fields = {"rbNotStored": "1"}
    assert with_outcome(b"".join(good), 14, "no room", fields) == b"".join(lost)
    assert with_outcome(b"", 10) == b""
