"""Access rights to the live page: viewing and pressing buttons."""

import pytest

from rocketbed.chaos.live.access import TOKEN_HEADER, Access

PORT = 8123
TOKEN = "s3cret-of-the-test"
HOST = f"127.0.0.1:{PORT}"


@pytest.fixture
def access() -> Access:
    return Access(PORT, TOKEN)


def test_the_printed_address_opens_the_page(access: Access) -> None:
    assert access.address == f"http://{HOST}/?token={TOKEN}"
    assert access.refusal("GET", {"host": HOST}, {"token": TOKEN}) is None


@pytest.mark.parametrize("host", [HOST, f"localhost:{PORT}", f"LOCALHOST:{PORT}"])
def test_the_cookie_does_afterwards(access: Access, host: str) -> None:
    cookie = access.cookie.partition(";")[0]
    headers = {"host": host, "cookie": f"other=1; {cookie}"}
    assert access.refusal("GET", headers, {}) is None


def test_cookie_is_hidden_from_scripts_and_other_sites(access: Access) -> None:
    assert "HttpOnly" in access.cookie
    assert "SameSite=Strict" in access.cookie
    assert access.cookie.startswith(f"rocketbed-{PORT}=")


@pytest.mark.parametrize(
    "host", ["", "127.0.0.1", "evil.example", f"evil.example:{PORT}", "127.0.0.1:80"]
)
def test_another_name_for_this_host_is_refused(access: Access, host: str) -> None:
    reason = access.refusal("GET", {"host": host}, {"token": TOKEN})
    assert reason is not None
    assert "address" in reason


@pytest.mark.parametrize("token", ["", "wrong", TOKEN[:-1], TOKEN + "x", "tökén"])
def test_a_wrong_token_is_refused(access: Access, token: str) -> None:
    cookie = f"rocketbed-{PORT}={token}"
    for headers, query in (
        ({"host": HOST}, {"token": token}),
        ({"host": HOST, "cookie": cookie}, {}),
        ({"host": HOST, "cookie": f"rocketbed-{PORT + 1}={TOKEN}"}, {}),
    ):
        assert "token" in str(access.refusal("GET", headers, query))


@pytest.mark.parametrize("origin", ["http://evil.example", "null", f"https://{HOST}"])
def test_page_of_another_site_is_refused_even_with_the_token(access: Access, origin: str) -> None:
    headers = {"host": HOST, TOKEN_HEADER: TOKEN, "origin": origin}
    assert "other sites" in str(access.refusal("POST", headers, {}))


def test_a_button_needs_the_token_in_a_header(access: Access) -> None:
    cookie = access.cookie.partition(";")[0]
    with_cookie = {"host": HOST, "cookie": cookie, "origin": f"http://{HOST}"}
    assert TOKEN_HEADER in str(access.refusal("POST", with_cookie, {"token": TOKEN}))
    assert access.refusal("POST", {**with_cookie, TOKEN_HEADER: TOKEN}, {}) is None


def test_tokens_are_drawn() -> None:
    first, second = Access(PORT), Access(PORT)
    assert first.token != second.token
    assert len(first.token) >= 32
