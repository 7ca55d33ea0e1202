"""Sessions: a turn computes only its new tokens, evicted pages stay evicted, and the oracle agrees throughout."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from vllm import SamplingParams

from memdecay_agents import RequestHints
from memdecay_agents.ledger import LedgerEntry
from tests.engine.oracle import logprob_distance
from tests.engine.prompts import prompt_ids

pytestmark = pytest.mark.engine

MAX_DISTANCE = 2e-4
NEW_TOKENS = 16


@pytest.fixture
def session_engine(engine_named):
    engine = engine_named("sessions")
    engine.close_sessions()
    yield engine
    engine.close_sessions()
    stats = engine.pool_stats()
    assert stats.free_pages == stats.total_pages, "the test left pages behind"
    engine.ledger().check_integrity()


def sampling(new_tokens: int = NEW_TOKENS) -> SamplingParams:
    return SamplingParams(
        temperature=0, max_tokens=new_tokens, min_tokens=new_tokens, ignore_eos=True, logprobs=20
    )  # fmt: skip


def turn(engine, ids, budget_tokens=320, *, session="thread", cuts=(48,), new_tokens=NEW_TOKENS):
    """Serve one turn: 48 system tokens, then tool results and a user's word in turns."""
    edges = [0, *cuts, len(ids)]
    regions = ["system", *["tool_out", "user"] * len(edges)]
    spans = [[a, b, region, 0] for a, b, region in zip(edges, edges[1:], regions, strict=False)]
    hints = RequestHints(session=session, agent="agent", budget_tokens=budget_tokens, spans=spans)
    return engine.generate(ids, sampling(new_tokens), hints)


class History:
    """When each page of a session became invisible, over turns and rewinds."""

    def __init__(self) -> None:
        self.entries: list[LedgerEntry] = []
        self._seen = 0

    def update(self, engine, result) -> list[LedgerEntry]:
        found = engine.ledger().entries(result.retention.session, request_id=result.retention.request_id)
        self.entries += found
        return self.entries

    def rewound(self, tokens: int, page: int) -> None:
        """Queries from the cut on see no evicted page; pages at or beyond the cut are computed anew."""
        kept = [entry for entry in self.entries if entry.page < -(-tokens // page)]
        self.entries = [
            entry.model_copy(update={"computed_tokens": min(entry.computed_tokens, tokens)}) for entry in kept
        ]


def check(oracle, engine, history, ids, result):
    evictions = history.update(engine, result)
    rows = oracle.logprobs([*ids, *result.token_ids[:-1]], evictions)
    assert logprob_distance(rows, len(ids), result) <= MAX_DISTANCE


def test_three_turns_compute_only_new_tokens_and_equal_the_oracle(session_engine, oracle, tokenizer):
    history = History()
    text = prompt_ids(tokenizer, 900, seed=40)
    ids, computed = text[:400], 0
    for number in range(3):
        result = turn(session_engine, ids)
        assert result.retention.continued_tokens == computed
        assert result.cached_tokens == computed
        assert result.retention.pages_held <= result.retention.budget_pages
        assert result.retention.peak_pages_decode <= result.retention.budget_pages
        check(oracle, session_engine, history, ids, result)
        computed = len(ids) + NEW_TOKENS - 1
        ids = [*ids, *result.token_ids, *text[400 + 200 * number : 600 + 200 * number]]
    stats = session_engine.pool_stats()
    assert stats.idle_sessions == 1
    assert stats.held_pages == result.retention.pages_held
    assert len(history.entries) > 20


def test_pages_evicted_in_an_earlier_turn_are_never_computed_again(session_engine, tokenizer):
    text = prompt_ids(tokenizer, 700, seed=41)
    first = turn(session_engine, text[:500], budget_tokens=256)
    gone = {p for a, b, _, held in first.retention.page_runs if not held for p in range(a, b)}
    second = turn(session_engine, [*text[:500], *first.token_ids, *text[500:560]], budget_tokens=256)
    assert gone
    assert not any(second.retention.holds_page(page) for page in gone)
    assert second.retention.continued_tokens == 500 + NEW_TOKENS - 1


def test_an_edited_history_rewinds_to_where_it_differs(session_engine, oracle, tokenizer):
    history = History()
    text = prompt_ids(tokenizer, 800, seed=42)
    ids = text[:480]
    result = turn(session_engine, ids)
    check(oracle, session_engine, history, ids, result)
    edited = [*text[:410], *text[500:620]]
    again = turn(session_engine, edited)
    cut = again.retention.continued_tokens
    assert 0 < cut <= 410
    assert cut == 410 or cut % 16 == 0
    history.rewound(cut, 16)
    check(oracle, session_engine, history, edited, again)


def test_an_unrelated_prompt_gets_a_slot_of_its_own_and_the_first_lives_on(session_engine, tokenizer):
    text, other = prompt_ids(tokenizer, 400, seed=43), prompt_ids(tokenizer, 300, seed=44)
    first = turn(session_engine, text)
    second = turn(session_engine, other)
    assert second.retention.continued_tokens == 0
    assert second.retention.session != first.retention.session
    assert session_engine.pool_stats().idle_sessions == 2
    back = turn(session_engine, [*text, *first.token_ids, *other[:40]])
    assert back.retention.continued_tokens == 400 + NEW_TOKENS - 1
    assert back.retention.session == first.retention.session


def test_parallel_turns_of_one_session_do_not_share_its_row(session_engine, oracle, tokenizer):
    text = prompt_ids(tokenizer, 520, seed=45)
    first = turn(session_engine, text[:300], budget_tokens=None)
    base = [*text[:300], *first.token_ids]
    spans = [[0, 48, "system", 0], [48, len(base) + 40, "user", 0]]
    hints = RequestHints(session="thread", agent="agent", spans=spans)
    prompts = [[*base, *text[300:340]], [*base, *text[400:440]]]
    streams = [session_engine.submit(ids, sampling(), hints) for ids in prompts]
    results = [stream.result(timeout_seconds=300) for stream in streams]
    assert sorted(result.retention.continued_tokens > 0 for result in results) == [False, True]
    for ids, result in zip(prompts, results, strict=True):
        rows = oracle.logprobs([*ids, *result.token_ids[:-1]])
        assert logprob_distance(rows, len(ids), result) <= MAX_DISTANCE
    assert session_engine.pool_stats().idle_sessions == 1


def test_a_stop_string_ends_the_turn_and_the_session_goes_on(session_engine, oracle, tokenizer):
    text = prompt_ids(tokenizer, 420, seed=46)
    probe = turn(session_engine, text[:300], session="probe", new_tokens=12)
    words = tokenizer.decode(probe.token_ids[2:4])
    stopping = sampling(40)
    stopping.stop, stopping.min_tokens = [words], 0
    spans = [[0, 48, "system", 0], [48, 300, "user", 0]]
    hints = RequestHints(session="thread", agent="agent", budget_tokens=256, spans=spans)
    first = session_engine.generate(text[:300], stopping, hints)
    assert first.finish_reason == "stop"
    kept = list(first.token_ids[:2])
    ids = [*text[:300], *kept, *text[300:400]]
    history = History()
    history.update(session_engine, first)
    second = turn(session_engine, ids)
    assert second.retention.continued_tokens >= 300
    history.rewound(second.retention.continued_tokens, 16)
    check(oracle, session_engine, history, ids, second)


def test_sessions_can_be_closed_and_tenants_share_nothing(session_engine, tokenizer):
    ids = prompt_ids(tokenizer, 300, seed=47)
    turn(session_engine, ids, session="a")
    turn(session_engine, ids, session="b")
    assert session_engine.close_sessions("a") == 1
    assert session_engine.pool_stats().idle_sessions == 1
    assert turn(session_engine, [*ids, *ids[:40]], session="a").retention.continued_tokens == 0
    spans = [[0, 48, "system", 0], [48, 300, "user", 0]]
    stranger = RequestHints(tenant="other", session="b", agent="agent", spans=spans)
    assert session_engine.generate(ids, sampling(), stranger).retention.continued_tokens == 0
    assert session_engine.close_sessions() == 3


def test_idle_sessions_make_room_for_running_requests(engine_named, tokenizer):
    engine = engine_named("small_pool_sessions")
    engine.close_sessions()
    results = []
    for number in range(5):
        ids = prompt_ids(tokenizer, 330, seed=48 + number)
        results.append(turn(engine, ids, session=f"agent-{number}"))
    stats = engine.pool_stats()
    assert stats.parked_sessions > 0
    assert stats.preemptions == 0
    assert stats.idle_sessions >= 2
    assert all(result.finish_reason == "length" for result in results)
    ids = prompt_ids(tokenizer, 330, seed=48 + 4)
    last = turn(engine, [*ids, *results[-1].token_ids, *ids[:20]], session="agent-4")
    assert last.retention.continued_tokens > 330, "the most recent session is the last to go"
    engine.close_sessions()
    stats = engine.pool_stats()
    assert stats.free_pages == stats.total_pages


def test_pages_computed_after_an_eviction_in_a_session_are_not_published(session_engine, oracle, tokenizer):
    text = prompt_ids(tokenizer, 520, seed=55)
    first = turn(session_engine, text[:400], budget_tokens=256)
    ids = [*text[:400], *first.token_ids, *text[400:500]]
    turn(session_engine, ids, budget_tokens=256)
    plain = session_engine.generate(ids, sampling())
    rows = oracle.logprobs([*ids, *plain.token_ids[:-1]])
    assert logprob_distance(rows, len(ids), plain) <= MAX_DISTANCE


def test_pages_computed_after_a_rewind_to_before_the_first_eviction_are_not_published(
    session_engine, oracle, tokenizer
):
    text, other = prompt_ids(tokenizer, 400, seed=60), prompt_ids(tokenizer, 80, seed=61)
    first = turn(session_engine, text, budget_tokens=256)  # evicts once its 400 tokens are computed
    edited = [*text[:340], *other]
    again = turn(session_engine, edited, budget_tokens=256)
    assert first.retention.evictions > 0
    assert 0 < again.retention.continued_tokens <= 340
    plain = session_engine.generate(edited, sampling())
    rows = oracle.logprobs([*edited, *plain.token_ids[:-1]])
    assert logprob_distance(rows, len(edited), plain) <= MAX_DISTANCE


def test_an_aborted_turn_keeps_what_it_computed(session_engine, oracle, tokenizer):
    text = prompt_ids(tokenizer, 700, seed=56)
    spans = [[0, 48, "system", 0], [48, 500, "user", 0]]
    hints = RequestHints(session="thread", agent="agent", budget_tokens=256, spans=spans)
    stream = session_engine.submit(text[:500], sampling(300), hints)
    for _ in stream:
        stream.abort()
        break
    first = stream.result(timeout_seconds=120)
    assert first.finish_reason == "abort"
    history = History()
    history.update(session_engine, first)
    ids = text[:620]
    second = turn(session_engine, ids, budget_tokens=256)
    assert second.retention.continued_tokens >= 496
    history.rewound(second.retention.continued_tokens, 16)
    check(oracle, session_engine, history, ids, second)


def test_a_tenants_prefix_is_not_found_by_another(session_engine, tokenizer):
    ids = prompt_ids(tokenizer, 300, seed=57)
    spans = [[0, 48, "system", 0], [48, 300, "user", 0]]
    for tenant, cached in [("a", 0), ("b", 0), ("a", 288)]:
        hints = RequestHints(tenant=tenant, agent="agent", spans=spans)
        assert session_engine.generate(ids, sampling(2), hints).cached_tokens == cached


def test_a_tenant_in_extra_args_is_a_tenant_too(session_engine, tokenizer):
    ids = prompt_ids(tokenizer, 300, seed=60)
    spans = [[0, 48, "system", 0], [48, 300, "user", 0]]
    for tenant, cached in [("a", 0), ("b", 0), ("a", 288)]:
        params = sampling(2)
        params.extra_args = RequestHints(tenant=tenant, agent="agent", spans=spans).to_extra_args()
        assert session_engine.generate(ids, params).cached_tokens == cached


def test_an_extension_is_continued_even_if_the_prompt_is_one_span(session_engine, tokenizer):
    ids = prompt_ids(tokenizer, 340, seed=61)
    one = [RequestHints(session="one", agent="agent", spans=[[0, n, "user", 0]]) for n in (300, 340 + NEW_TOKENS)]
    first = session_engine.generate(ids[:300], sampling(), one[0])
    longer = [*ids[:300], *first.token_ids, *ids[300:]]
    second = session_engine.generate(longer, sampling(), one[1])
    assert second.retention.continued_tokens == 300 + NEW_TOKENS - 1
    assert second.retention.rewound_tokens == 0


def test_a_request_that_reads_no_cache_begins_anew_and_reserves_all_its_pages(engine_named, oracle, tokenizer):
    engine = engine_named("small_pool_sessions")
    text = prompt_ids(tokenizer, 500, seed=58)
    first = turn(engine, text[:300])
    ids = [*text[:300], *first.token_ids, *text[300:340]]
    spans = [[0, 48, "system", 0], [48, len(ids), "user", 0]]
    hints = RequestHints(session="thread", agent="agent", spans=spans)
    reserved = []

    def watch(llm, internals):
        manager = internals.scheduler.kv_cache_manager.coordinator.single_type_managers[0]
        ask = manager.get_num_blocks_to_allocate

        def asked(*args, apply_admission_cap=False, **kwargs):
            pages = ask(*args, apply_admission_cap=apply_admission_cap, **kwargs)
            if not apply_admission_cap:
                reserved.append(pages)
            return pages

        manager.get_num_blocks_to_allocate = asked

    engine.run_on_engine_thread(watch)
    reading_nothing = sampling()
    reading_nothing.skip_reading_prefix_cache = True
    again = engine.generate(ids, reading_nothing, hints)
    assert again.retention.continued_tokens == again.cached_tokens == 0
    assert reserved[0] == 128 // 16, "the first chunk's pages are asked for, not taken from the idle session"
    evictions = engine.ledger().entries(request_id=again.retention.request_id)
    rows = oracle.logprobs([*ids, *again.token_ids[:-1]], evictions)
    assert logprob_distance(rows, len(ids), again) <= MAX_DISTANCE
    engine.close_sessions()
    engine.close()


def test_a_match_of_a_session_that_was_closed_meanwhile_does_not_stand(session_engine, tokenizer):
    text = prompt_ids(tokenizer, 300, seed=59)
    first = turn(session_engine, text)
    ids = [*text, *first.token_ids, *text[:40]]
    hints = RequestHints(session="thread", agent="agent", spans=[[0, 48, "system", 0], [48, len(ids), "user", 0]])

    def match_twice(llm, internals):
        controller = internals.controller
        request = SimpleNamespace(
            request_id="waiting", sampling_params=SimpleNamespace(extra_args=hints.to_extra_args()),
            num_prompt_tokens=len(ids), prompt_token_ids=ids, skip_reading_prefix_cache=False,
            num_tokens=len(ids), max_tokens=8,
        )  # fmt: skip
        controller.start(request)
        before = controller.matched_tokens(request, 0), controller.matched_row_pages("waiting")
        controller.close_sessions()
        after = controller.matched_tokens(request, 0), controller.matched_row_pages("waiting")
        controller._requests.pop("waiting")
        controller._holders.clear()
        controller.admission.release("waiting")
        return before, after

    before, after = session_engine.run_on_engine_thread(match_twice)
    assert before == (300 + NEW_TOKENS - 1, -(-(300 + NEW_TOKENS - 1) // 16))
    assert after == (0, 0)
