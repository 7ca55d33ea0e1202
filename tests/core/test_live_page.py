"""The live page's server: read-only, for whoever may look, with nothing from outside; and the table in the terminal."""

from __future__ import annotations

import http.client
import io
import json
import socket
import threading

import pytest
from rich.console import Console

from memdecay_agents.errors import ConfigError, EngineError, RemoteError
from memdecay_agents.live import LivePage, snapshot_table
from memdecay_agents.live import page_server as server_module
from memdecay_agents.live.page_access import PageAccess, is_loopback
from memdecay_agents.live.page_server import FILES, HEADERS, SNAPSHOT_ROUTES
from memdecay_agents.live.snapshot import EngineSnapshot, read_snapshot
from tests.web.made_up import HOSTILE, snapshot

TOKEN = "a-token-of-some-length"


def ask(page: LivePage, path: str = "/", method: str = "GET", **headers: str) -> tuple[http.client.HTTPResponse, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", page.port, timeout=20)
    connection.request(method, path, headers={name.replace("_", "-"): value for name, value in headers.items()})
    answer = connection.getresponse()
    body = answer.read()
    connection.close()
    return answer, body


@pytest.fixture(scope="module")
def page():
    with LivePage(snapshot) as page:
        yield page


@pytest.fixture(scope="module")
def guarded():
    with LivePage(snapshot, token=TOKEN) as page:
        yield page


def test_the_snapshot_is_served_as_it_was_taken(page):
    for route in SNAPSHOT_ROUTES:
        answer, body = ask(page, route)
        assert (answer.status, EngineSnapshot.model_validate_json(body)) == (200, snapshot())


@pytest.mark.parametrize("path", [*FILES, *SNAPSHOT_ROUTES, "/nothing", "/../pyproject.toml", "/web/live.js"])
def test_every_answer_forbids_what_the_page_does_not_need(page, path):
    answer, body = ask(page, path)
    assert answer.status == (200 if path in {*FILES, *SNAPSHOT_ROUTES} else 404)
    for name, value in HEADERS.items():
        assert answer.headers[name] == value
    policy = answer.headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert "http" not in policy
    assert answer.headers["Server"].strip() == "memdecay"
    assert b"https://" not in body.replace(b"http://www.w3.org/2000/svg", b"")


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE"])
def test_it_can_only_be_read(page, method):
    answer, _ = ask(page, "/", method)
    assert (answer.status, answer.headers["Allow"]) == (405, "GET, HEAD")
    head, body = ask(page, "/", "HEAD")
    assert (head.status, body) == (200, b"")
    assert int(head.headers["Content-Length"]) > 500


@pytest.mark.parametrize(
    ("path", "headers", "status"),
    [
        ("/", {}, 401),
        ("/snapshot.json", {}, 401),
        ("/v1/memdecay/snapshot", {}, 401),
        ("/live.js", {}, 401),
        ("/nothing", {}, 401),
        ("/?token=a-token-of-some-lengtH", {}, 401),
        (f"/snapshot.json?token={TOKEN}", {}, 401),  # an address with a token is for people, who come to the page
        ("/snapshot.json", {"Authorization": f"Bearer {TOKEN}"}, 200),
        ("/snapshot.json", {"Authorization": f"Basic {TOKEN}"}, 401),
        ("/snapshot.json", {"Authorization": "Bearer \xff"}, 401),
        ("/snapshot.json", {"Cookie": f"memdecay={TOKEN}"}, 401),
        ("/snapshot.json", {"Cookie": '"; =;;'}, 401),
        (f"/?token={TOKEN}", {}, 303),
    ],
)
def test_where_a_token_is_needed_nothing_is_served_without(guarded, path, headers, status):
    answer, body = ask(guarded, path, **headers)
    assert answer.status == status
    if status == 401:
        assert b"its token" in body
        assert b"clerk" not in body


def test_the_token_becomes_a_cookie_that_scripts_cannot_read(guarded):
    answer, _ = ask(guarded, f"/?token={TOKEN}")
    assert answer.headers["Location"] == "/"
    cookie = answer.headers["Set-Cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite" in cookie
    answer, body = ask(guarded, "/snapshot.json", Cookie="other=1; " + cookie.split(";")[0])
    assert (answer.status, json.loads(body)["model"]) == (200, HOSTILE)
    name = cookie.split("=")[0]
    for forged in (f"{name}=", f"{name}=1", f"{name}={TOKEN}x"):
        assert ask(guarded, "/snapshot.json", Cookie=forged)[0].status == 401


@pytest.mark.parametrize(
    ("host", "known"),
    [("127.0.0.1:1", True), ("LOCALHOST:80", True), ("[::1]:9", True), ("evil.example:80", False), ("", False)],
)
def test_another_sites_name_that_points_here_gets_nothing(page, guarded, host, known):
    assert ask(page, "/snapshot.json", Host=host)[0].status == (200 if known else 403)
    assert ask(guarded, "/snapshot.json", Host=host)[0].status == 401, "with a token the name does not matter"


@pytest.mark.parametrize(
    ("host", "loopback"),
    [
        ("127.0.0.1", True), ("127.8.8.8", True), ("::1", True), ("localhost", True), ("0.0.0.0", False),
        ("::", False), ("", False), ("10.0.0.1", False), ("localhost.evil.example", False),
    ],
)  # fmt: skip
def test_beyond_loopback_a_random_token_is_needed(host, loopback):
    assert is_loopback(host) is loopback
    first, second = PageAccess(host), PageAccess(host)
    assert (first.token is None) is loopback
    assert loopback or (first.token != second.token and len(first.token) >= 32)
    assert PageAccess(host, TOKEN).token == TOKEN


def test_an_address_beyond_loopback_brings_its_token():
    with LivePage(snapshot, host="0.0.0.0") as page:
        assert page.url == f"http://0.0.0.0:{page.port}/?token={page.token}"
        assert ask(page, "/snapshot.json")[0].status == 401
        assert ask(page, "/snapshot.json", Authorization=f"Bearer {page.token}")[0].status == 200


@pytest.mark.parametrize("token", ["", "short", "has spaces in it here", "semicolon;semicolon", "ümlaut-ümlaut-ümlaut"])
def test_tokens_that_can_be_guessed_or_not_sent_are_refused(token):
    with pytest.raises(ConfigError, match="at least 16"):
        PageAccess("127.0.0.1", token)


def test_a_port_that_is_taken_is_an_error_with_a_remedy(page):
    with pytest.raises(ConfigError, match="free port"):
        LivePage(snapshot, port=page.port)
    with pytest.raises(ConfigError, match="cannot listen"):
        LivePage(snapshot, host="no.such.host.invalid")


@pytest.mark.parametrize(
    "sent", [b"\x00\x01\x02\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n", b"GET " + b"a" * 70_000 + b"\r\n\r\n"]
)
def test_what_is_no_request_is_answered_and_the_page_lives_on(page, sent):
    with socket.create_connection(("127.0.0.1", page.port), timeout=20) as connection:
        connection.sendall(sent)
        assert b"no request" in connection.makefile("rb").read()
    assert ask(page)[0].status == 200


def test_more_visitors_than_places_are_turned_away(monkeypatch):
    monkeypatch.setattr(server_module, "MOST_CONNECTIONS", 2)
    with LivePage(snapshot) as page:
        first = [socket.create_connection(("127.0.0.1", page.port), timeout=20) for _ in range(3)]
        assert first[2].recv(1) == b"", "the third is closed at once: the others hold the two places"
        for connection in first:
            connection.close()


def test_many_visitors_ask_the_engine_once_and_its_end_is_told(monkeypatch):
    monkeypatch.setattr(server_module, "CACHE_SECONDS", 3600.0)
    taken: list[int] = []

    def source():
        taken.append(1)
        raise EngineError(where="engine", rule="it is closed", remedy="Start another one.")

    with LivePage(source) as page:
        visitors = [threading.Thread(target=ask, args=(page, "/snapshot.json")) for _ in range(8)]
        for visitor in visitors:
            visitor.start()
        for visitor in visitors:
            visitor.join()
        answer, body = ask(page, "/snapshot.json")
    assert taken == [1]
    assert (answer.status, json.loads(body)["error"]["code"]) == (503, "engine")


def test_the_table_shows_names_as_they_are_and_obeys_none():
    console = Console(file=io.StringIO(), width=200, force_terminal=True, color_system="truecolor")
    console.print(snapshot_table(snapshot()))
    shown = console.file.getvalue()
    assert "\x1b[31m" not in shown, "a name's escape sequence"
    assert "clerk" in shown
    assert "?[31m<img src=x onerror=alert(1)>" in shown
    assert "75%" in shown
    assert "12 held of 64, 43 free" in shown
    assert "1 min" in shown


def test_the_table_says_what_it_leaves_out():
    many = snapshot().model_copy(update={"agents": snapshot().agents * 15, "agents_left_out": 5})
    console = Console(file=io.StringIO(), width=160)
    console.print(snapshot_table(many))
    assert "and 15 more" in console.file.getvalue()


def test_what_is_no_snapshot_is_refused_by_field_and_news_from_newer_servers_are_passed_over():
    body = snapshot().model_dump(mode="json")
    assert read_snapshot({**body, "something_new": 1}, "here") == snapshot()
    with pytest.raises(RemoteError, match="here, field pool: is missing"):
        read_snapshot({key: value for key, value in body.items() if key != "pool"}, "here")
    with pytest.raises(RemoteError):
        read_snapshot([], "here")
