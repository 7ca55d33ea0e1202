"""What a listing says of sessions: the tenant's own, with the pages that they hold now."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

from memdecay_adapters.engine.session_listing import list_sessions
from memdecay_agents import Ledger, MemDecayConfig, RequestHints, SessionId, SessionState, Span, get_policy

CONFIG = MemDecayConfig(page_size_tokens=16)
SPANS = (Span(0, 20, "system"), Span(20, 40, "user"))


def state_of(session_id: SessionId, computed_tokens: int, held_pages: tuple[int, ...]) -> SessionState:
    state = SessionState(session_id, session_id.agent_path, CONFIG, get_policy("memdecay", CONFIG), ledger=Ledger())
    state.begin_turn(RequestHints(budget_tokens=64, spans=SPANS), 40)
    if computed_tokens:
        state.on_computed(computed_tokens, 0)
    state.note_held(held_pages)
    return state


class Sessions(list[Any]):
    """Idle sessions that have been idle for 2.5 s."""

    def idle_seconds(self, session: Any) -> float:
        return 2.5


def test_running_and_idle_sessions_of_one_tenant() -> None:
    mine, other = SessionId("me", "t/1", "clerk", "b"), SessionId("other", "t/1", "clerk", "b")
    expired: list[bool] = []
    controller: Any = SimpleNamespace(
        expire=lambda: expired.append(True),
        running=lambda: [
            ("r1", SimpleNamespace(home=mine), state_of(mine, 0, (0, 1))),
            ("r2", SimpleNamespace(home=other), state_of(other, 40, (0,))),
        ],
        sessions=Sessions(
            SimpleNamespace(home=home, state=state_of(home, 40, (0, 2)), held_pages=[0, 2]) for home in (other, mine)
        ),
    )
    running, idle = list_sessions(controller, "me")
    assert expired, "sessions that are due are given up first"
    assert json.loads(json.dumps([running, idle])) == [running, idle]
    assert (running["state"], running["idle_seconds"], running["tokens"], running["pages_held"]) == (
        "running",
        None,
        0,
        2,
    )
    assert (idle["state"], idle["idle_seconds"], idle["tokens"], idle["pages_held"]) == ("idle", 2.5, 40, 2)
    assert idle["pages_held_by_region"] == {"system": 1, "user": 1}
    assert (idle["session"], idle["agent"]) == (mine.hint_session, "clerk")
    assert list_sessions(controller, "nobody") == []
