"""What token ids alone say: counts, surprisal, a page's information, and what the default policy makes of it."""

import contextlib
import math
from collections import Counter
from itertools import chain

import numpy as np
import pytest
from core_helpers import lay, pieces, session, state_of, view_of
from hypothesis import example, given
from hypothesis import strategies as st

from memdecay_agents import MemDecayConfig, RequestHints, Span, build_page_view, get_policy, plan_eviction, surprisal
from memdecay_agents.errors import ObservationError
from memdecay_agents.information import page_information
from memdecay_agents.surprisal import TokenCounts

CONFIG = MemDecayConfig()
PAGE = CONFIG.page_size_tokens
WORDS = st.lists(st.integers(0, 6) | st.integers(0, 60_000), min_size=1, max_size=80)
NAMES = st.sampled_from(
    [[70_001, 70_002], [70_003, 70_004, 70_005], [70_006, 70_002], [70_007, 5], list(range(80_000, 80_006)),
     [3, 90_000, 90_001, 5, 90_002, 90_003, 4]]
)  # fmt: skip
"""Pieces that come again, so that some are named later."""
IDS = st.lists(WORDS.map(lambda ids: ids[:9]) | NAMES, min_size=1, max_size=14).map(lambda some: list(chain(*some)))


def by_hand(ids: list[int], at: int, refers: list[bool]) -> float:
    """The formula, counted anew: all other places of the word, of the pair, and of the word before."""
    later, with_before, _ = named_by_hand(ids, at, refers)
    others = [i for i in range(len(ids)) if i != at]
    words = sum(ids[i] == ids[at] for i in others) - later
    prior = 1 / (7 * (ids[at] + 50))
    alone = (words + 100 * prior) / (len(ids) + 100)
    gain = surprisal.NAMED_LATER_NATS if later else 0.0
    if at == 0:
        return gain - math.log(alone)
    less = later if with_before else 0
    pairs = sum(i > 0 and (ids[i - 1], ids[i]) == (ids[at - 1], ids[at]) for i in others) - less
    before = sum(ids[i] == ids[at - 1] for i in range(len(ids)) if i != at - 1) - less
    return gain - math.log((pairs + alone) / (before + 1))


def named_by_hand(ids: list[int], at: int, refers: list[bool]) -> tuple[int, bool, bool]:
    """How often the name is named later that a token belongs to, whether the word before belongs to it too, and whether
    the name is telling."""

    def places(end: int) -> list[int]:
        return [i for i in range(1, len(ids)) if 0 < end < len(ids) and ids[i - 1 : i + 1] == ids[end - 1 : end + 1]]

    def comes_again(end: int) -> int:
        found = places(end)
        if not 1 < len(found) <= surprisal.MOST_NAMINGS or found[0] != end or not all(refers[i] for i in found[1:]):
            return 0
        return found[1] if found[1] - end >= surprisal.LATER_TOKENS else 0

    end = at if comes_again(at) else at + 1
    if not (again := comes_again(end)):
        return 0, False, False
    first, last, behind = end - 1, end, again - end
    while first > 0 and ids[first - 1] == ids[first - 1 + behind]:
        first -= 1
    while last + 1 + behind < len(ids) and ids[last + 1] == ids[last + 1 + behind]:
        last += 1
    piece, count, here = ids[first : last + 1], len(places(end)), end == at
    n_own = sum(ids.count(word) == count for word in piece)
    short = len(piece) <= surprisal.SHORT_NAME_TOKENS
    is_name = short or (len(piece) <= surprisal.NAME_TOKENS and n_own >= surprisal.OWN_SHARE * len(piece))
    own = ids.count(ids[at]) == count or (here and ids.count(ids[at - 1]) == count)
    if not (own and is_name):
        return 0, here, False
    return count - 1, here, sum(word >= surprisal.RARE_ID for word in piece) >= surprisal.RARE_TOKENS


@contextlib.contextmanager
def constants(**values):
    before = {name: getattr(surprisal, name) for name in values}
    for name, value in values.items():
        setattr(surprisal, name, value)
    try:
        yield
    finally:
        for name, value in before.items():
            setattr(surprisal, name, value)


def told(ids, cuts=(), refers=None) -> TokenCounts:
    counts = TokenCounts()
    for start, end in zip([0, *cuts], [*cuts, len(ids)], strict=True):
        counts.learn(ids[start:end], None if refers is None else np.asarray(refers[start:end], dtype=bool))
    return counts


def some_refer(data, n):
    """Of n tokens, in stretches as regions are, which refer to what stood before."""
    said = data.draw(st.lists(st.tuples(st.integers(1, 30), st.booleans()), max_size=6).map(dict))
    return ([flag for length, flag in said.items() for _ in range(length)] + [True] * n)[:n]


@given(IDS, st.data())
def test_surprisal_is_what_the_formula_says_however_the_ids_arrive(ids, data):
    cuts = sorted(data.draw(st.lists(st.integers(0, len(ids)), max_size=3)))
    refers = some_refer(data, len(ids))
    with constants(LATER_TOKENS=data.draw(st.sampled_from([2, 5, 20]))):
        got, named = told(ids, cuts, refers).statistics(np.arange(len(ids) + 3))
        assert got.dtype == np.float32
        wanted = [by_hand(ids, at, refers) for at in range(len(ids))] + [0.0] * 3
        assert np.allclose(got, wanted, rtol=1e-5, atol=1e-5)
        assert named.tolist() == [named_by_hand(ids, at, refers)[2] for at in range(len(ids))] + [False] * 3


@given(IDS, st.integers(0, 80), IDS, st.sampled_from([0, 4096]), st.data())
@example([3, 4, 70_001, 70_002], 2, [70_001, 70_002, 9, 9, 9, 9, 70_001, 70_002], 4096, None)
def test_dropped_tokens_leave_no_trace(ids, kept, more, slack, data):
    before, after = ([True] * len(ids),) * 2 if data is None else (some_refer(data, len(ids)) for _ in range(2))
    with constants(_SLACK=slack, LATER_TOKENS=4):
        counts, fresh = told(ids, refers=before), told(ids[:kept], refers=after[:kept])
        counts.relabel(np.asarray(after, dtype=bool))
        counts.truncate(kept)
        counts.learn(more)
        fresh.learn(more)
        assert counts.ids.tolist() == fresh.ids.tolist() == ids[:kept] + more
        index = np.arange(counts.n_known)
        assert np.array_equal(counts.statistics(index).surprisal, fresh.statistics(index).surprisal)


def test_what_comes_again_says_less_and_what_stands_once_says_more():
    phrase, name = [11, 12, 13, 14], [40_000, 41_000, 42_000, 43_000]
    once = told(phrase + name).statistics(np.arange(8)).surprisal
    again = told((phrase + name) + phrase * 3).statistics(np.arange(8)).surprisal
    assert (again[1:4] < once[1:4]).all()
    assert again[5:].min() > again[1:4].max()


def test_a_later_mention_says_more_of_a_name_and_one_in_what_is_read_does_not():
    name, fill = [70_001, 70_002], list(range(100, 200))
    once, named = [5, *name, *fill, 6, 7, 8], [5, *name, *fill, 6, *name]
    at = np.arange(1, 3)
    assert (told(named).statistics(at).surprisal > told(once).statistics(at).surprisal + 0.5).all()
    read = told(named, refers=[True] * (len(named) - 2) + [False] * 2)
    assert (read.statistics(at).surprisal[1:] < told(once).statistics(at).surprisal[1:]).all()
    read.relabel(np.ones(len(named), dtype=bool))
    assert np.array_equal(read.statistics(at).surprisal, told(named).statistics(at).surprisal)


def test_a_form_of_speech_that_comes_again_is_no_name():
    form, fill = [70_001, 7, 70_002, 8, 9, 70_003], [7, 8, 9, *range(100, 200)]
    once, again = [5, *form, *fill, 6, 7, 8, 9, 9, 9], [5, *form, *fill, 6, *form]
    at = np.asarray([3, 6])
    assert (told(again).statistics(at).surprisal < told(once).statistics(at).surprisal - 5).all()


def test_a_long_name_is_one_if_most_of_it_stands_nowhere_else():
    name, fill = list(range(70_001, 70_009)), list(range(100, 200))
    once, named = [5, *name, *fill, 6, *range(300, 308)], [5, *name, *fill, 6, *name]
    at = np.arange(1, 9)
    assert (told(named).statistics(at).surprisal > told(once).statistics(at).surprisal + 0.5).all()


def test_what_a_chat_template_writes_between_messages_is_no_name():
    words = iter(range(1000, 2000))

    def message(role):
        return [1, role, 198, *(next(words) for _ in range(80)), 2, 198]

    ids = [*message(60_000), *message(70_001), *message(70_002), *message(70_001), *message(70_002)]
    first_headers = np.asarray([85 + 1, 2 * 85 + 1])
    assert (told(ids).statistics(first_headers).surprisal < 6).all()
    assert (told(ids[: 3 * 85]).statistics(first_headers).surprisal > 6).all(), (
        "a role that stands once is as telling as any word"
    )


def test_an_id_below_zero_is_refused_and_changes_nothing():
    counts = told([5, 6])
    with pytest.raises(ObservationError, match="-2"):
        counts.learn([7, -2])
    assert counts.ids.tolist() == [5, 6]


def known_view(made, seed=0, held=None, vocabulary=40, config=CONFIG):
    state = state_of(lay(made), config)
    ids = np.random.default_rng(seed).integers(0, vocabulary, state.n_tokens)
    state.counts.learn(ids)
    pages = np.arange(-(-state.n_tokens // PAGE)) if held is None else held
    return build_page_view(state, pages, state.n_tokens, config)


@given(pieces(max_length=90), st.integers(0, 99), st.data())
def test_a_pages_information_is_the_best_quarter_on_it_and_close_beside_it(made, seed, data):
    n_pages = -(-sum(length for length, *_ in made) // PAGE)
    held = np.asarray(sorted(data.draw(st.sets(st.integers(0, n_pages - 1), min_size=1))))
    view = known_view(made, seed, held)
    rank = {}
    chosen = view.surprisal[view.evictable].ravel()
    for row in np.flatnonzero(view.evictable):
        for at, value in enumerate(view.surprisal[row]):
            below = (chosen < value).sum() + ((chosen == value).sum() - 1) / 2
            rank[int(view.token_index[row, at])] = below / (chosen.size - 1)
    for row, page in enumerate(held):
        around = [rank.get(token, 0.0) for token in range(page * PAGE - 4, (page + 1) * PAGE + 4)]
        assert page_information(view)[row] == pytest.approx(np.mean(sorted(around)[-4:]), abs=1e-5)


@given(pieces(max_length=90), st.integers(0, 99), st.sampled_from([0.0, 0.3, 1.0]))
def test_the_policy_adds_its_share_of_information_and_takes_it_from_the_ranks(made, seed, share):
    config = MemDecayConfig(information_share=share, alpha=1.5)
    view, plain = known_view(made, seed, config=config), view_of(lay(made), config)
    policy = get_policy("memdecay", config)
    parts, without = policy.score_parts(view), policy.score_parts(plain)
    assert np.allclose(parts["information"], 1.5 * share * page_information(view), atol=1e-6)
    for name in ("key_norm", "salience"):
        assert np.allclose(parts[name], (1 - share) * without[name], atol=1e-5), name
    assert np.allclose(parts["structure"], without["structure"])
    assert not without["information"].any(), "no ids are known"
    assert np.allclose(policy.page_scores(view), sum(parts.values()), rtol=1e-4, atol=1e-4)


def test_the_page_that_says_something_new_outlives_what_was_said_before():
    """Twelve pages of one phrase, one of them with four words of its own; key norms and salience say nothing."""
    config = MemDecayConfig(information_share=0.6)
    state = state_of([Span(0, 12 * PAGE, "user")], config, observations=0)
    ids = [20, 21, 22, 23] * (3 * PAGE)
    ids[5 * PAGE + 6 : 5 * PAGE + 10] = [30_001, 30_002, 30_003, 30_004]
    state.counts.learn(ids)
    view = build_page_view(state, np.arange(12), 12 * PAGE, config)
    policy = get_policy("memdecay", config)
    assert plan_eviction(view, policy, pages_to_free=8).order[-1] == 5


def test_a_session_learns_what_is_computed_once_and_forgets_what_it_rewinds():
    ids = np.random.default_rng(1).integers(0, 50, 400).tolist()
    state = session()
    state.on_computed(200, 0)
    state.learn(ids)
    assert state.tokens.counts.ids.tolist() == ids[:200]
    state.learn([9] * 400)
    assert state.tokens.counts.ids.tolist() == ids[:200], "known ones are not read again"
    state.reset_cache()
    assert state.tokens.counts.n_known == 200, "a preemption takes keys and values, not words"
    state.on_computed(320, 1)
    hints = RequestHints(agent="a", base=64, spans=[Span(64, 128, "user")])
    state.begin_turn(hints, 128)
    assert state.tokens.counts.ids.tolist() == ids[:64]
    state.on_computed(64, 1)
    state.learn(ids[:64] + [7] * 64)
    assert Counter(state.tokens.counts.ids[64:].tolist()) == {7: 64}


def test_a_policy_that_reads_no_ids_has_none_kept():
    state = session(MemDecayConfig(policy="recency"))
    state.on_computed(200, 0)
    state.learn(list(range(400)))
    assert state.tokens.counts.n_known == 0
