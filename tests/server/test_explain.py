"""The read-only route that explains, and the client and command that ask it: over HTTP, without a model."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import httpx
import numpy as np
import pytest

from memdecay_adapters import ChatMemDecay, ChatMemDecayRemote
from memdecay_adapters.commands.explain import explain as command
from memdecay_adapters.remote.explained import read_told
from memdecay_adapters.remote.remote_engine import RemoteEngine
from memdecay_adapters.server.tenants import Tenants
from memdecay_adapters.server.wire import EXPLAIN
from memdecay_agents import (
    Explanation,
    Ledger,
    MemDecayConfig,
    Observation,
    RequestHints,
    SessionExplanation,
    SessionId,
    SessionState,
    Span,
    get_policy,
)
from memdecay_agents.errors import ConfigError, ExplainError, RemoteError
from tests.server.fake_server import FakeBackend, fake_app, serving

KEYS = ("key-of-one", "key-of-two")
TENANTS = [Tenants(KEYS, b"secret").of(f"Bearer {key}") for key in KEYS]
CONFIG = MemDecayConfig(page_size_tokens=16)


def controller() -> Any:
    """One idle session of the first key's: 320 tokens in three messages, of which 12 pages are held."""
    home = SessionId(TENANTS[0], "t/1", "clerk")
    state = SessionState(home, "clerk", CONFIG, get_policy("memdecay", CONFIG), ledger=Ledger())
    spans = (Span(0, 32, "system"), Span(32, 160, "tool_out"), Span(160, 320, "user"))
    hints = RequestHints(budget_tokens=192, spans=spans, messages=((0, 32), (32, 160), (160, 320)))
    state.begin_turn(hints, 320)
    state.on_computed(320, 0)
    state.observe(Observation(np.arange(320), np.full(320, 1 / 320), key_norms=np.linspace(1, 2, 320)))
    plan = state.plan(320, range(20))
    state.apply(plan)
    held = sorted(set(range(20)) - set(plan.pages))
    idle = SimpleNamespace(home=home, state=state, held_pages=held)
    return SimpleNamespace(running=list, sessions=[idle], ledger=state.ledger, tier=None)


@pytest.fixture(scope="module")
def backend() -> FakeBackend:
    backend = FakeBackend()
    backend.controller = controller()
    return backend


@pytest.fixture(scope="module")
def url(backend: FakeBackend) -> Iterator[str]:
    with serving(fake_app(backend, KEYS)) as address:
        yield address


def test_the_owner_gets_an_answer_and_nobody_else(url: str) -> None:
    session = SessionId("x", "t/1", "clerk").hint_session
    with RemoteEngine(url, api_key=KEYS[0]) as mine, RemoteEngine(url, api_key=KEYS[1]) as other:
        told = mine.explain(session, "clerk", message=1)
        assert isinstance(told, Explanation)
        assert told.tokens_held + told.tokens_freed == 128
        assert told.tokens_freed > 0
        assert told.session == "default/t%2F1/clerk/", "the client's own name for it, without a tenant"
        whole = mine.explain(session, "clerk")
        assert isinstance(whole, SessionExplanation)
        assert whole.of(message=1) == told
        for number in ("message", "page", "token"):
            with pytest.raises(ExplainError, match="holds no pages"):
                other.explain(session, "clerk", **{number: 1})
        with pytest.raises(ExplainError, match="holds no pages"):
            mine.explain(session, "planner", message=1)
        with pytest.raises(ExplainError, match="the session has 4"):
            mine.explain(session, "clerk", message=9)


def test_a_remote_chat_model_asks_by_the_name_that_answers_carry(url: str) -> None:
    with RemoteEngine(url, api_key=KEYS[0]) as mine:
        model = ChatMemDecayRemote(base_url=url, api_key=KEYS[0], explain=True)
        told = model._explain_session(mine, "default/t%2F1/clerk/")
        assert told == mine.explain(SessionId("x", "t/1", "clerk").hint_session, "clerk")


def test_an_answer_is_not_lost_when_its_explanation_is(caplog: pytest.LogCaptureFixture) -> None:
    class Gone:
        def explain(self, *named: str) -> None:
            raise RemoteError(where="server", rule="nobody answers", remedy="Start it.")

    request: Any = SimpleNamespace(engine=Gone())
    result: Any = SimpleNamespace(retention=SimpleNamespace(session="default/t/clerk/"))
    for model in (ChatMemDecayRemote(explain=True), ChatMemDecay(explain=True)):
        assert model._explanation(request, result) == {"explanation": None}
    assert caplog.text.count("goes without its explanation") == 2


@pytest.mark.parametrize(
    "query",
    [{}, {"agent": "clerk"}, {"session": "t", "message": "1", "page": "2"}, {"session": "t", "message": "x"},
     {"session": "t", "message": "٣"}, {"session": "t", "page": "1" * 11}, {"session": "t" * 2000},
     {"session": "t", "tenant": TENANTS[1]}],
)  # fmt: skip
def test_a_malformed_question_is_a_400_and_does_not_reach_the_engine(
    url: str, backend: FakeBackend, query: dict[str, str]
) -> None:
    asked = list(backend.asked)
    answer = httpx.get(f"{url}{EXPLAIN}", params=query, headers={"Authorization": f"Bearer {KEYS[0]}"})
    assert answer.status_code == 400
    assert answer.json()["error"]["memdecay"]["code"] == "payload"
    assert backend.asked == asked


def test_it_is_read_only(url: str) -> None:
    for method in ("POST", "DELETE", "PUT"):
        answer = httpx.request(method, f"{url}{EXPLAIN}?session=t", headers={"Authorization": f"Bearer {KEYS[0]}"})
        assert answer.status_code in (404, 405) or "tenant" in answer.json(), "at most the stand-in for vLLM answers"


def test_the_command_asks_a_server(url: str, capsys: Any) -> None:
    command(url, session="t%2F1", agent="clerk", message=1, page=None, token=None, api_key=KEYS[0], json_file=None)
    assert "message 1: " in capsys.readouterr().out
    with pytest.raises(ConfigError, match="--session t --agent"):
        command(url, session=None, agent="", message=1, page=None, token=None, api_key=KEYS[0], json_file=None)


@pytest.mark.parametrize("told", [None, [], {"explanation": {}}, {"session_explanation": {"a": 1}}, {}])
def test_an_answer_of_another_version_is_refused(told: Any) -> None:
    with pytest.raises(RemoteError, match="same version"):
        read_told(told)
