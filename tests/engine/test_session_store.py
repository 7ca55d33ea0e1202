"""Which idle session a prompt continues, how far, and who makes way; pure logic with plain blocks."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from memdecay_adapters.engine.session_store import (
    SLOTS_PER_SESSION,
    RetainedSession,
    SessionStore,
    common_prefix,
)
from memdecay_agents import MemDecayConfig
from memdecay_agents.policies import get_policy
from memdecay_agents.session_state import SessionState
from memdecay_agents.sessions import SessionId

PAGE = 16
HOME = SessionId("tenant", "thread", "agent")


@dataclass
class FakeBlock:
    block_id: int
    ref_cnt: int = 1
    block_hash: object = None

    @property
    def is_null(self) -> bool:
        return self.block_id == 0


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def retained(tokens: list[int], *, evicted=(), shared=(), home=HOME, own=HOME) -> RetainedSession:
    config = MemDecayConfig()
    blocks = [
        FakeBlock(0 if page in evicted else page + 1, ref_cnt=2 if page in shared else 1)
        for page in range(-(-len(tokens) // PAGE))
    ]
    state = SessionState(own, "agent", config, get_policy("memdecay", config))
    return RetainedSession(home, state, np.array(tokens), None, 0, len(tokens), blocks)


def store(**fields) -> SessionStore:
    return SessionStore(PAGE, fields.pop("idle_limit_seconds", None), fields.pop("max_sessions", 100), **fields)


@given(st.lists(st.integers(0, 2), max_size=30), st.lists(st.integers(0, 2), max_size=30))
def test_common_prefix_is_the_longest(a, b):
    length = common_prefix(np.array(a, dtype=np.int64), np.array(b, dtype=np.int64))
    assert a[:length] == b[:length]
    assert length == min(len(a), len(b)) or a[length] != b[length]


def test_an_extension_continues_the_whole_session_in_the_middle_of_a_page():
    sessions = store()
    sessions.put(retained(list(range(40))))
    match = sessions.match(HOME, list(range(60)), 1)
    assert match is not None
    assert match.tokens == 40


def test_the_last_token_of_a_prompt_is_always_computed():
    sessions = store()
    sessions.put(retained(list(range(40))))
    match = sessions.match(HOME, list(range(33)), 1)
    assert match is not None
    assert match.tokens == 32


def test_divergence_inside_a_page_of_ones_own_goes_on_there():
    sessions = store()
    sessions.put(retained(list(range(64))))
    match = sessions.match(HOME, [*range(40), *range(900, 950)], 1)
    assert match is not None
    assert match.tokens == 40


def test_divergence_inside_a_shared_published_or_evicted_page_goes_back_to_its_start():
    prompt = [*range(40), *range(900, 950)]
    for change in ({"shared": {2}}, {"evicted": {2}}):
        sessions = store()
        sessions.put(retained(list(range(64)), **change))
        match = sessions.match(HOME, prompt, 1)
        assert match is not None
        assert match.tokens == 32
    sessions = store()
    published = retained(list(range(64)))
    published.blocks[2].block_hash = "hash"
    sessions.put(published)
    match = sessions.match(HOME, prompt, 1)
    assert match is not None
    assert match.tokens == 32


def test_a_prompt_that_shares_too_little_continues_nothing():
    sessions = store()
    sessions.put(retained(list(range(64))))
    assert sessions.match(HOME, [*range(10), *range(900, 990)], 20) is None
    assert sessions.match(HOME._replace(tenant="other"), list(range(64)), 1) is None


def test_two_kinds_of_prompts_get_a_slot_each_and_a_third_takes_the_older():
    sessions = store()
    first_id, makes_way = sessions.slot_for(HOME)
    assert (first_id, makes_way) == (HOME, None)
    first = retained([1] * 20, own=first_id)
    sessions.put(first)
    second_id, makes_way = sessions.slot_for(HOME)
    assert second_id != first_id
    assert makes_way is None
    sessions.put(retained([2] * 20, own=second_id))
    assert len(sessions.of(HOME)) == SLOTS_PER_SESSION
    third_id, makes_way = sessions.slot_for(HOME)
    assert makes_way is first
    assert third_id == first_id
    assert len(sessions) == 1


def test_the_longest_match_among_the_slots_wins():
    sessions = store()
    sessions.put(retained([*range(20), *range(500, 520)]))
    long = retained(list(range(40)), own=HOME._replace(branch="~2"))
    sessions.put(long)
    match = sessions.match(HOME, list(range(60)), 1)
    assert match is not None
    assert match.session is long


def test_idle_limit_room_and_spared():
    clock = Clock()
    sessions = store(idle_limit_seconds=10.0, max_sessions=2, clock=clock)
    homes = [HOME._replace(thread_id=str(n)) for n in range(3)]
    kept = [retained([n] * 20, home=home, own=home) for n, home in enumerate(homes)]
    assert sessions.put(kept[0]) == []
    clock.now = 5.0
    assert sessions.put(kept[1]) == []
    assert sessions.put(kept[2]) == [kept[0]]
    assert sessions.oldest(spared=kept[1]) is kept[2]
    assert sessions.oldest(spared=kept[1]) is None
    assert sessions.seconds_to_next_expiry() == 10.0
    clock.now = 15.0
    assert sessions.expired() == []
    assert sessions.seconds_to_next_expiry() == 0.0
    clock.now = 15.1
    assert sessions.expired() == [kept[1]]
    assert len(sessions) == 0
    assert sessions.seconds_to_next_expiry() is None


def test_a_rewound_session_is_clean_up_to_the_cut_while_a_hole_remains():
    session = retained(list(range(160)), evicted=(3, 8))
    session.clean_pages = 9
    assert session.clean_pages_at(160, PAGE) == 9
    assert session.clean_pages_at(130, PAGE) == 8
    assert session.clean_pages_at(64, PAGE) == 4
    assert session.clean_pages_at(48, PAGE) is None
    session.clean_pages = None
    assert session.clean_pages_at(130, PAGE) is None


def test_a_match_says_whether_the_prompt_leaves_out_or_edits_what_the_session_was_asked():
    sessions = store()
    home = SessionId("tenant", "thread", "agent")
    kept = retained(list(range(100)), home=home)
    kept.prompt_tokens = 80
    sessions.put(kept)

    def match(prompt):
        found = sessions.match(home, prompt, 1)
        return found.shared, found.diverges, found.edits_prompt

    assert match([*range(100), 500, 501]) == (100, False, False)
    assert match([*range(90), 500, 501]) == (90, True, False)  # another answer than the one that was given
    assert match([*range(80)]) == (80, True, False)  # the same question again
    assert match([*range(40), 500, 501]) == (40, True, True)
    assert match([*range(60)]) == (60, True, True)  # an earlier turn
