"""Gate and routes over HTTP, without a model; and the engine core's methods."""

from __future__ import annotations

import json
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from memdecay_adapters.engine.core_methods import TAKE_SUMMARY, memdecay_take_summary
from memdecay_adapters.server.problems import error_of
from memdecay_adapters.server.strict_json import MAX_BODY_BYTES
from memdecay_adapters.server.tenants import Tenants
from memdecay_adapters.server.wire import GENERATE, SESSIONS
from memdecay_agents.errors import BudgetError, EngineError, MemDecayError, PayloadError, RemoteError
from tests.server.fake_server import FakeBackend, fake_app, serving

KEYS = ("key-of-one", "key-of-two")
CALL = {"prompt_token_ids": [5, 6, 7], "sampling": {"max_tokens": 4}, "hints": {"session": "t"}}


@pytest.fixture(scope="module")
def backend() -> FakeBackend:
    return FakeBackend()


@pytest.fixture(scope="module")
def url(backend: FakeBackend) -> Iterator[str]:
    with serving(fake_app(backend, KEYS)) as address:
        yield address


@pytest.fixture
def client(url: str, backend: FakeBackend) -> Iterator[httpx.Client]:
    backend.fault, backend.fault_late, backend.hang, backend.in_front = None, False, False, False
    backend.aborted.clear()
    with httpx.Client(base_url=url, headers={"Authorization": f"Bearer {KEYS[0]}"}, timeout=20) as client:
        yield client


def events(answer: httpx.Response) -> list[dict[str, Any]]:
    assert answer.headers["content-type"].startswith("text/event-stream")
    return [json.loads(line.removeprefix("data: ")) for line in answer.text.split("\n\n") if line]


# ---- the gate


def test_what_passes_is_written_anew_with_its_length(client: httpx.Client) -> None:
    parts = [b'{"messages": [], "cache_salt": "a", ', b'"cache_salt": "b", "x": "\\u00e9"}']
    got = client.post("/v1/chat/completions", content=iter(parts)).json()
    assert json.loads(got["body"])["x"] == "é"
    assert got["body"].count("cache_salt") == 1, "a repeated key means one thing to everybody"
    assert int(got["length"]) == len(got["body"].encode())
    assert got["tenant"] == Tenants(KEYS, b"secret").of(f"Bearer {KEYS[0]}")


@pytest.mark.parametrize("kind", ["application/json", "text/plain", "multipart/form-data", ""])
@pytest.mark.parametrize("stream", [True, False])
def test_what_is_malformed_is_a_400_with_the_reason(client: httpx.Client, kind: str, stream: bool) -> None:
    body = {"messages": [], "stream": stream, "kv_transfer_params": {"memdecay": {"budget_tokens": -1}}}
    answer = client.post("/v1/chat/completions", content=json.dumps(body), headers={"content-type": kind})
    assert answer.status_code == 400
    told = answer.json()["error"]
    assert (told["type"], told["param"], told["code"]) == ("BadRequestError", "hints.budget_tokens", 400)
    assert "greater than 0" in told["message"]


def test_what_is_too_large_is_a_413_and_is_not_read_to_its_end(client: httpx.Client) -> None:
    answer = client.post("/v1/completions", content=iter([b" " * 2**20] * (MAX_BODY_BYTES // 2**20 + 1)))
    assert answer.status_code == 413


def test_a_closed_route_is_a_403_that_names_open_ones(client: httpx.Client) -> None:
    answer = client.post("/invocations", json={"messages": []})
    assert answer.status_code == 403
    assert "/v1/chat/completions" in answer.json()["error"]["message"]
    assert client.get("/health").status_code == 200


async def test_no_websocket_gets_past_the_keys() -> None:
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> Any:
        return {"type": "websocket.connect"}

    scope = {"type": "websocket", "path": "/v1/realtime", "headers": [], "query_string": b""}
    await fake_app(FakeBackend(), KEYS)(scope, receive, send)
    assert [message["type"] for message in sent] == ["websocket.close"]


# ---- generating


def test_a_turn_is_a_stream_of_events(client: httpx.Client, backend: FakeBackend) -> None:
    first, second, last = events(client.post(GENERATE, json=CALL))
    assert (first, second["text"]) == ({"text": "Hello", "token_ids": [0], "logprobs": None}, " there")
    finished = last["finished"]
    assert (finished["finish_reason"], finished["prompt_tokens"], finished["cached_tokens"]) == ("stop", 3, 16)
    assert finished["retention"]["session"] == "default/t//", "the client's own name for it, without a tenant"
    assert backend.calls[-1].hints.tenant.startswith("key-")


def test_a_turn_that_ended_in_the_front_end_asks_the_core_what_was_kept(
    client: httpx.Client, backend: FakeBackend
) -> None:
    backend.in_front = True
    assert events(client.post(GENERATE, json=CALL))[-1]["finished"]["retention"]["evictions"] == 1
    method, request_id = backend.asked[-1]
    assert method == TAKE_SUMMARY
    assert request_id.startswith("memdecay-")


def test_what_vllm_refuses_is_a_400_and_what_breaks_later_an_event(client: httpx.Client, backend: FakeBackend) -> None:
    backend.fault = PayloadError(where="request", rule="no such grammar", remedy="Correct it.")
    answer = client.post(GENERATE, json=CALL)
    assert answer.status_code == 400
    assert "no such grammar" in answer.json()["error"]["message"]
    backend.fault = EngineError(where="engine", rule="it failed", remedy="Look.")
    assert client.post(GENERATE, json=CALL).status_code == 500, "not the client's fault"
    backend.fault_late = True
    told = events(client.post(GENERATE, json=CALL))
    assert told[0]["text"] == "Hello"
    assert told[-1]["error"]["memdecay"]["code"] == "engine"


@pytest.mark.parametrize("pieces", [("Hello",), ()], ids=["while it streams", "before its first token"])
def test_a_client_that_leaves_aborts_its_turn(client: httpx.Client, backend: FakeBackend, pieces: tuple[str]) -> None:
    backend.hang, usual = True, backend.pieces
    backend.pieces = pieces
    try:
        with pytest.raises(httpx.ReadTimeout), client.stream("POST", GENERATE, json=CALL, timeout=0.5) as answer:
            for _ in answer.iter_raw():
                pass
        assert backend.aborted.wait(20)
    finally:
        backend.pieces = usual


# ---- sessions


def test_sessions_are_the_tenants_own(client: httpx.Client, backend: FakeBackend) -> None:
    tenants = [Tenants(KEYS, b"secret").of(f"Bearer {key}") for key in KEYS]
    assert client.get(SESSIONS).json()["sessions"][0]["agent"] == tenants[0]
    other = {"Authorization": f"Bearer {KEYS[1]}"}
    assert client.delete(SESSIONS, params={"thread_id": "a/b c"}, headers=other).json() == {"closed": 1}
    assert client.delete(SESSIONS, params={"all": "true"}).json() == {"closed": 1}
    assert backend.asked[-2:] == [(tenants[1], "a/b c"), (tenants[0], None)]


@pytest.mark.parametrize("params", [{}, {"all": "yes"}, {"all": "true", "thread_id": "t"}, {"thread_id": "t" * 2000}])
def test_closing_must_say_what(client: httpx.Client, backend: FakeBackend, params: dict[str, str]) -> None:
    asked = list(backend.asked)
    assert client.delete(SESSIONS, params=params).status_code == 400
    assert backend.asked == asked


# ---- errors over HTTP, and the core's methods


def test_our_errors_come_back_as_themselves_and_others_as_what_they_say() -> None:
    from memdecay_adapters.server.problems import problem_body

    sent = BudgetError(where="agent 'a'", rule="too small", remedy="Raise it.")
    back = error_of(json.loads(json.dumps(problem_body(sent))), "server", 400)
    assert type(back) is BudgetError
    assert str(back) == str(sent)
    for body, status, said in [
        ({"error": "Unauthorized"}, 401, "refuses the API key: Unauthorized"),
        ({"error": {"message": "no such model"}}, 404, "HTTP 404: no such model"),
        ({"error": {"memdecay": {"code": "no such code", "where": "w", "rule": "r"}}}, 400, "w: r"),
        ([1], 500, "HTTP 500"),
        (None, None, "broke off"),
    ]:
        told = error_of(body, "server", status)
        assert isinstance(told, RemoteError)
        assert said in str(told)
    assert isinstance(told, MemDecayError)


@pytest.mark.parametrize("is_running", [True, False])
def test_the_core_finds_a_summary_by_the_id_that_the_front_end_knows(is_running: bool) -> None:
    from memdecay_adapters.engine.results import RetentionSummary
    from tests.server.fake_server import summary

    names = ["memdecay-1-0a", "memdecay-12-0b", "memdecay-1"]
    summaries: dict[str, RetentionSummary] = {}
    hints = SimpleNamespace(session_id=SimpleNamespace(key=lambda: "a/b/c/"), agent="c", turn=0)

    class Controller:
        def running(self) -> list[tuple[str, None, None]]:
            return [(name, None, None) for name in names if is_running and name not in summaries]

        def take_summary_of(self, is_meant: Any) -> RetentionSummary | None:
            return next((summaries[name] for name in summaries if is_meant(name)), None)

    def abort(ids: list[str]) -> None:
        for name in ids:
            made = RetentionSummary.from_dict(summary(SimpleNamespace(hints=hints)))  # type: ignore[arg-type]
            summaries[name] = made

    core = SimpleNamespace(
        scheduler=SimpleNamespace(connector=SimpleNamespace(controller=Controller())), abort_requests=abort
    )
    found = memdecay_take_summary(core, "memdecay-12")
    assert (found is not None) == is_running
    assert list(summaries) == (["memdecay-12-0b"] if is_running else []), "and nobody else's request is aborted"
