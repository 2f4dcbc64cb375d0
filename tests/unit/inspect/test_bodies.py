"""Packed bodies: frames that the reference zstd 1.5.4 and lz4 1.9.4 made, unpacked by ours."""

import base64
import sys
import zlib

import pytest

from rocketbed.inspect import bodies
from rocketbed.inspect.bodies import MissingCodec, unpack_body

ZLIB, LZ4, ZSTD = (1 | kind << 8 for kind in (3, 1, 2))
LZ4_FRAME = (
    "BCJNGGRAp00BAADwA3sib3JkZXIiOjAsImN1c3RvbQ0A9QgiYzgzIiwiYW1vdW50Ijo2MDYuMjJ9Ci0AGjEtABgz"
    "LQBnNzc1LjM5LQAaMi0AJzk1LQBnOTI0LjI4LQAaMy0AJzE3LQA6NTczhwAbNC0ACIcAOjE3OFoAGzW0AAhaAGc0"
    "NTkuMzQtABo2LQAYMFkAVzkyLjE1LAAfNzoBCFg3OTMuNC0AGjgtACc2OS0AWDMxMC41LQAfOWcBCGgxNjcuNTGU"
    "AR8w4QAIWDI0NC4w4QAcMcMBGTjjAEg3LjQ3LgALxAEnNTYuAFg4Mi41MC0AC8QBKTU4xAE5MS41iQALxQEpNTAf"
    "Ajk4LjTlAAvGARg2TQJYNTg1LjJAARsxxwEYNy4AWTg0Ni4y5QAfN/UBB2g1MjcuMDYtAAzJARgy9gFJODAuNBMB"
    "C8oBGTLlAGA0MS4zOX0AAAAAHJk8TA=="
)


def text(count: int) -> bytes:
    """Lines that repeat in part, as messages do."""
    state, lines = 12345, []
    for number in range(count):
        state = (state * 1103515245 + 12345) & 0x7FFFFFFF
        amount = f"{state % 1000}.{state >> 8 & 63:02d}"
        lines.append(f'{{"order":{number},"customer":"c{state % 97}","amount":{amount}}}')
    return "\n".join(lines).encode()


def skewed(count: int) -> bytes:
    """Bytes of uneven frequency and no repetition."""
    state, values = 99, bytearray()
    for _ in range(count):
        state = (state * 1103515245 + 12345) & 0x7FFFFFFF
        value = state >> 12 & 255
        values.append(value * value * value >> 17)
    return bytes(values)


PLAIN = {
    "text": text(60),
    "text_fast": text(60),
    "skewed": skewed(1500),
    "run": b"r" * 300_000,
    "raw": skewed(40),
    "empty": b"",
    "repeats": text(6) * 500,
}
FRAMES = {
    "text": (
        "KLUv/QRo7Q0AVqRNGZC3UGxLdRdbPL7l/0P0yt4pZZIlxS6mAQFTAEIAQADyoNE55agb64wlbMrMo2ja+0OmR3ZH"
        "r+oTvBFy4+7qjWE1HZPRek2NYd6P13hVOwAOkEFCBYMCgQWEgwADwVAzGA4QFAosGAwEUjAkDBCQgDAYCHHTuGgN"
        "ermIIlFiRqcbMnU2hdGfWUkOS09SJF7DoVCQbiW8xviEN+IQK5INSRQvNcUg24vmjNtPn3EYT+7xY+r2TjJ93QcV"
        "SelxzF80NoN0S0yP49Wv9aCbrPYoGb96DU9v1HmcFeclyR2JWt3bOtwisqXoyzwlhfDSl9XRDL8nozQHyFHv3I2v"
        "nRwlEevFIOMcvYxLkb85WHTj00SR/TRoPF4o6sWZW8LkdPJiz2epzTwel0vBKSEyHTfTWyZYZpvEBYCvqBFgpCLS"
        "+zEGgJe0kMYRIAQjBJxRD/sZr/cZfsXGKvYe7XVz7zBQRBfNGa+ZTPziocJeuL0Ckyw+qj7ZrkNBWxNAuFyKFeDq"
        "yRVazfXKEq3VF3BtVH0q1VyICqq5yFbAYHkt112QCC3CF8mvjLyq8J69eYFJIS+55JQ3FYR2rQDw1Xj9pao="
    ),
    "text_fast": (
        "KLUv/QRIZSEAlDd7Im9yZGVyIjowLCJjdXN0b21lciI6ImM4MyIsImFtb3VudCI6NjA2LjIyfQp7Im9yZGVyIjox"
        "LCJjdXN0b21lciI6ImMzMyIsImFtb3VudCI6Nzc1LjM5fQoyLCJjdTk1IiwiOTI0LjI4MywiY3UxNyIsIjU3My4y"
        "MjQsImN1MTMiLCIxNzguMjUsImN1MzciLCI0NTkuMzQ2LCJjdTAxOTIuMTU3LCJjdTg3OTMuNDU4LCJjdTY5Iiwi"
        "MzEwLjU1OSwiY3UzMTY3LjUxMTM3IiwiMjQ0LjA0MTgiLCJhOTcuNDcyLCJjdTU2IiwiODIuNTA1OCIsIjEuNTR9"
        "MTUwIiwiOTI4LjQxMTY1IiwiNTg1LjI1MTc4NDYuMjc3LCJjdTUyNy4wNjgsImN1MiIsImE3ODAuNDA5LCJjdTIw"
        "IiwiOTQxLjM5MjAsImM3NjIuNjAyMSwiYzIxIiwiNzUuMDIyLCJjMjUiLCIzMDQuNDYyMywiYzg4IiwiNTMuMjAy"
        "NCwiYzQ5IiwiNzEwLjM0MjUsImM2OCIsIjA3LjAwMjYsImM3NDc1Ni4zODI0NjQ1LjMwMjUiLCJhMzU0LjI0Mjks"
        "ImM3OCIsIjc1LjM0MzAsImM1MiIsIjAuNjIxLCJjdTQ4IiwiNzUzLjYzMzIsImMyNiIsIjczNC40MzMzLCJjNTki"
        "LCI4My4wMTQsImN1NjIiLCI1Ni4zMjUsImN1MTIiLCI5LjUxfTYsImN1ODUiLCIzMTQuMzk3LCJjdTU0IiwiMTA3"
        "LjU4OCwiY3U0NTYuNTc5LCJjdTciLCJhOTI5LjU2NDAsImM3MyIsIjQyMi4yNDQxLCJjNjciLCI1NTEuNDQyLCJj"
        "MzAiLCI2NzYuNTM0MywiYzMiLCJhOS4wOH00NCwiYzgyLjEwNDUsImMzMSIsIjE5LjQyNDYsImMwIiwiYTEyLjYz"
        "NDcsImM0MSIsIjQxLjM4LCJjdTQzMC4wODQ5LCJjNDkiLCIzMjcuMjQ1MCwiYzk2IiwiNTA4LjA0NTEsImMxMiIs"
        "IjcuNjB9NTIsImMyODIuMzEzLCJjdTg3IiwiMjI3LjE2NCwiY3U5IiwiYTY3Mi40ODUsImN1MjA1LjIzNiwiY3Uy"
        "ODYuMjc1NywiYzYyMy40NjU4LCJjMzUiLCIyOC40OSwiY3UzNTcuNDZ9gK2oMRgiMGLvfwegM5LmEczAjGXZQu0Z"
        "C+RCPCvfROmRGU+jjtDNRMbGxIBhOIn1GCDjZqEGJ3vuz4UTJP765Gt08mOqqmBIgzJJCxJsIjYNi4d89P9bDNcc"
        "xFeMeQjfCFBn4tCkakFbzeyqotCWs0mrKIrkc51viCqBSDuBMwx/AxxfTPnFi5NbyhI5+9AdE0AoJ4LhJ/Q2FrNL"
        "O8IfWJNEb/yveYDNcJHBgbHWvbYKeP2lqg=="
    ),
    "skewed": (
        "KLUv/QRYTSQAyl0QEilATNtZA4BpbnpvUl+EGQTCOHlG0+PcZ43GFE2o5nYH6gaAbiJCpJRSph0BEAEYATU9dxGI"
        "jkNW4B77M79RrUjzU/1GIh/PhMalXRi9wsDS2nRLQWj48I2Mn62A/v1CsrBfk7zpbZSORwPDB2Li7aEUgYgnRpOT"
        "07ikwcfaYVY3bCS0TYuQlzNaW4mKkEjmTev6ahdUgGbOJ7FsGFrUhQGgkOsJASmPS/wywI0WGRzIYZYgQFohLwtH"
        "Qtto0nMkTmQWD3CjGDLH9QbIEvQzcvBpHM0aZmzJLdEp+34eMegBxKRRzctymUR4wh/Gayav1SOqehiZP/kcmngu"
        "0YNct0vDLI1rxFSOcHmJ2GAD03CSqNgG5oyzHo5BtN1U8C4GRmYK+anGQNtyikWTKAtXk1MIMHfNe8KzEPOgE+gh"
        "P5TZqDx7LJXDTHTYFUlVDoPTXegN3XTAajusaHlmg5VWXe0E+iJ7J2jH8GlV1tf+euPDkFawrympuV05MVG6h2la"
        "YwR+65aiVzWjLuM78+zsZq3pi6ZUi/oABZDYjHirz5zJoFWbAQB1e9S+McajVir+h3D+pL3N26mazG9Un6OlVGCp"
        "JRYGB0LDYOIhOXX6oSBLp4FwmqxFl1a4KAl4SOkR5ieiC+6RoHQljIw6a0CnvzuITohRfHHwp+WbNtY0c3bcoh6A"
        "44htvfVxhiYppQ70RdJCS5waU0CNqpjvfNEwxXRFyhxmT+ixKrjtUw2COxELKRwwuRktknukwTwGg+IrSmwwzJhj"
        "JeEBNFOOWbf7PsETunlNyuc4X9ZkWr+b1x0U1MSk0ZTpyonysQOTT8ksZUD5t7FJ1ALP0SEPQO2vPEmiygCKQSfT"
        "1JPAG3DyzY/6Pfy0OPjvVJJn9qaDI1TgbYr2kX1oxdTCISYNXeHNDhnyBDGZycDsAnWhooTuidQ2E9oq/RdwhiXY"
        "8Iz+NMDgTqh3ZQZATrlGjYNquShcsHWKVD3tvbhdE+MhB23kKNrMQxhrNqazHEPsU3oM5kKlePCglmmcFoE34Jav"
        "M8EMBVqP4gfUMUMNlJGUkY7FKUIq9M0aSJHFroEZDiviDlRDKN+wRla/JoxcHWAd4qX0fmG9ZPXAMhw0UyFefL3D"
        "awgp/rqvW4wqZrRpTju6TG5wclnZd4T2wF78KWjzBCRnAaZqxiozA/aOt9DQPF1X3/EjMksXnD+QrFm6Kfl+pCjN"
        "x2eY6Jx2SUjuy76eVti9gaAZgjiVs55czzu8meUoIdZU7V/E6YjYkrVJHO1lqsDNRXC+ibS4HSIvxKuTY1G5aBJU"
        "KA2mog6iXXkhYc6jYNHOx8H1Vk7jdI08n9J8ndj6GVMr9FV6TIBlZTbdJmJ6SkSc9EO3zXyOOlXiH+DorFBm7vjy"
        "FvU1nGMUqAYoHgjDUsrj5W+PEbq2YFo5HS4EaQBJvhLcLJQh1mp/Kwkj7EIm8CPlhyXwbrWz4+wrCQgi8+jDiSmr"
        "VzQ9TF/je8GKRJMwyumln34u78GbvA03jn6i95slLNJqjHH9q2WCuMJAV7QTrWIA41ak+w=="
    ),
    "run": ("KLUv/QRYVAAAEHJyAQD7/znAAgIAEHIDnwRyTj2t6A=="),
    "raw": ("KLUv/QRIQQEAAFECERoEPCpeAD0SEAAoAFFsJggAABF9PwACPiQZe0oFAR4AATcYWJ0405M="),
    "empty": ("KLUv/SQAAQAAmenYUQ=="),
    "repeats": (
        "KLUv/QRghAMAIkUSGJCnbYtiVpnEh23vLjQtLa3sbgkxOTMDAYem9Wru4TtNXr48aIq9jZ22zHmAA9FMMejFwFBE"
        "4OR50tHXQKiCYKSTgr4GwVIvBBAgkDPbBvD+ELnlbmTWyQ4nJ1+FHGKULMJxk2Jc3K1khRrSA0UAAAgzAQBg9YEQ"
        "TrRfig=="
    ),
}
"""Chosen to hold different kinds of blocks, streams and tables, and several blocks."""


@pytest.mark.parametrize("name", FRAMES)
def test_zstd_frames(name: str) -> None:
    assert unpack_body(base64.b64decode(FRAMES[name]), ZSTD) == PLAIN[name]


def test_every_cut_of_a_zstd_frame_is_refused() -> None:
    frame = base64.b64decode(FRAMES["text"])
    # The last four bytes are a checksum, which is passed over.
    for size in range(len(frame) - 4):
        assert unpack_body(frame[:size], ZSTD) != PLAIN["text"]


def test_a_frame_that_is_too_long_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    frame = base64.b64decode(FRAMES["run"])
    assert unpack_body(frame, ZSTD) == PLAIN["run"]
    monkeypatch.setattr(bodies, "BODY_SIZE_MAX", 1000)
    assert unpack_body(frame, ZSTD) is None


def test_missing_library_error_names_the_package(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "zstandard", None)
    with pytest.raises(MissingCodec, match="pip install zstandard"):
        unpack_body(base64.b64decode(FRAMES["text"]), ZSTD)
    assert unpack_body(base64.b64decode(LZ4_FRAME), LZ4) == text(20)


def test_lz4_frames() -> None:
    assert unpack_body(base64.b64decode(LZ4_FRAME), LZ4) == text(20)


def test_zlib_and_the_old_clients_way() -> None:
    packed = zlib.compress(text(10))
    assert unpack_body(packed, ZLIB) == text(10)
    assert unpack_body(packed, 1) == text(10)
    assert unpack_body(packed, 3 << 8) == packed


def test_truncated_or_oversized_zlib_stream_is_damaged(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = zlib.compress(PLAIN["text"])
    assert unpack_body(whole, ZLIB) == PLAIN["text"]
    assert [unpack_body(whole[:size], ZLIB) for size in range(len(whole))] == [None] * len(whole)
    monkeypatch.setattr(bodies, "BODY_SIZE_MAX", len(PLAIN["text"]))
    assert unpack_body(whole, ZLIB) == PLAIN["text"]
    monkeypatch.setattr(bodies, "BODY_SIZE_MAX", len(PLAIN["text"]) - 1)
    assert unpack_body(whole, ZLIB) is None
