"""Pages come back from the host tier of a real engine, and every turn equals the oracle's."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest
import torch

from memdecay_adapters.engine import MemDecayEngine
from memdecay_agents import RequestHints
from memdecay_agents.errors import EngineError
from memdecay_agents.recall import page_evidence
from memdecay_agents.spans import Span, SpanFlag
from tests.engine.chaos_engine import worker_of
from tests.engine.oracle import logprob_distance
from tests.engine.prompts import ids
from tests.engine.tier_talks import BUDGET, MAX_DISTANCE, PAGE, TIER, Talk, hints, open_engine, sampling, serve

pytestmark = pytest.mark.engine


@pytest.fixture(scope="module")
def engine(engine_house, random_llama_path):
    engine_house.close()
    with open_engine(random_llama_path, TIER) as engine:
        yield engine


@pytest.fixture
def talk(engine, request):
    engine.close_sessions()
    return Talk(engine, request.node.name, seed=len(request.node.name))


def test_pages_come_back_by_evidence_and_the_turn_equals_the_oracle(talk, random_oracle):
    talk.turn()
    assert talk.distance(random_oracle) <= MAX_DISTANCE
    swapped = 0
    for _ in range(3):
        result = talk.turn()
        swapped += len(result.retention.recalled_pages)
        assert talk.distance(random_oracle) <= MAX_DISTANCE
        assert result.retention.peak_pages_decode <= result.retention.budget_pages
        assert result.generated_tokens == 4
        returns = talk.engine.ledger().returns(request_id=result.retention.request_id)
        assert {entry.page for entry in returns} == set(result.retention.recalled_pages)
        assert len(returns) <= 2
        assert all(entry.computed_tokens >= len(talk.prompt) - 24 for entry in returns)
        assert all(entry.score > 0 and entry.reason == "swapped_in" for entry in returns)
    assert swapped
    talk.engine.ledger().check_integrity()


def test_a_page_that_this_step_computes_for_another_is_copied_once_it_is_there(talk):
    """vLLM publishes pages when they are scheduled: a request may begin on them, and lose them, in the same step."""
    engine, shared = talk.engine, ids(250, 9)
    first_spans = (Span(0, 16, "system"), Span(16, 250, "tool_out"))
    one = RequestHints(session="whole", agent="a", budget_tokens=2000, spans=first_spans)
    prompt, page = (
        [*shared, *ids(40, 10)],
        12,
    )  # 192 to 208: in the fourth chunk of 64, as is the second request's start
    spans = (
        Span(0, 16, "system"), Span(16, 192, "tool_out"), Span(192, 208, "tool_out", SpanFlag.SUPERSEDED),
        Span(208, 290, "user"),
    )  # fmt: skip
    two = RequestHints(session="within", agent="a", budget_tokens=BUDGET, spans=spans)

    def both(_, __):
        return engine.submit(shared, sampling(1), one), engine.submit(prompt, sampling(1), two)

    whole, within = (stream.result() for stream in engine.run_on_engine_thread(both))
    left = [move for move in engine.ledger().moves(within.retention.session) if move.page == page]
    assert whole.cached_tokens == 0
    assert within.cached_tokens == 240
    assert left[0].computed_tokens == 240, "it left in the step in which the other request computed it"

    def bytes_of_both(_, internals):
        rows = {one.state.key: one.blocks for one in internals.controller.sessions}
        tier = worker_of(internals)._tier
        away = internals.controller.tier.catalogue.of(within.retention.session)[page]
        block = rows[whole.retention.session][page].block_id
        assert not away.resident
        assert not away.pending
        return tier.store.page(away.slot).clone(), torch.stack([cache[block] for cache in tier._layers])

    kept, computed = engine.run_on_engine_thread(bytes_of_both)
    assert torch.equal(kept, computed)


def test_a_pinned_page_that_is_not_full_is_not_asked_about(talk):
    """Beyond its tokens it has what stood in its block before, and that would take its share of the evidence."""
    talk.turn()
    asked = []

    def watch(_, internals):
        probing = internals.scheduler.connector.swaps.probing
        given = probing.open

        def opened(request_id, tracked, state):
            made = given(request_id, tracked, state)
            if made is not None:
                asked.append((made.pinned, tracked.request.num_tokens))
            return made

        probing.open = opened
        return probing

    probing = talk.engine.run_on_engine_thread(watch)
    try:
        prompt = [*talk.tokens, *ids(40, 3)]
        end = len(prompt)
        spans = (
            Span(0, 16, "system"), Span(16, 200, "tool_out"), Span(200, end - 24, "user"),
            Span(end - 24, end, "user", SpanFlag.PINNED),
        )  # fmt: skip
        asking = RequestHints(session=talk.thread, agent="a", budget_tokens=BUDGET, spans=spans)
        talk.engine.generate(prompt, sampling(1), asking)
    finally:
        del probing.open
    ((pinned, tokens),) = asked
    assert tokens == end
    assert end % PAGE
    assert end // PAGE - 1 in pinned
    assert end // PAGE not in pinned


def test_without_what_came_back_the_oracle_says_otherwise(talk, random_oracle):
    """The comparison can fail: pages that came back matter."""
    talk.turn()
    talk.turn()
    assert talk.result.retention.recalled_pages
    blind = talk.hidden()
    for move in talk.engine.ledger().returns(request_id=talk.result.retention.request_id):
        blind[move.computed_tokens :, move.token_start : move.token_end] = True
    rows = random_oracle.logprobs_seeing(talk.tokens[:-1], blind)
    assert logprob_distance(rows, len(talk.prompt), talk.result) > 100 * talk.distance(random_oracle)


@contextmanager
def recalling(engine: MemDecayEngine, **settings: object) -> Iterator[None]:
    """The open engine recalls otherwise for a while."""

    def set_it(llm, internals, recall):
        swaps, book = internals.scheduler.connector.swaps, internals.controller.tier
        book.tier = book.tier.model_copy(update={"recall": recall})
        swaps.probing.recall = recall

    changed = TIER.recall.model_copy(update=settings)
    engine.run_on_engine_thread(lambda llm, internals: set_it(llm, internals, changed))
    try:
        yield
    finally:
        engine.run_on_engine_thread(lambda llm, internals: set_it(llm, internals, TIER.recall))


@pytest.mark.parametrize("every_tokens", [1, 5])
def test_pages_come_back_while_the_agent_writes_and_the_answer_equals_the_oracle(talk, random_oracle, every_tokens):
    with recalling(talk.engine, every_tokens=every_tokens):
        brought = 0
        for _ in range(3):
            result = talk.turn(sampling(37))
            assert result.generated_tokens == 37
            assert talk.distance(random_oracle, every_tokens) <= MAX_DISTANCE
            assert result.retention.peak_pages_decode <= result.retention.budget_pages
            returns = talk.engine.ledger().returns(request_id=result.retention.request_id)
            brought += sum(entry.computed_tokens >= len(talk.prompt) for entry in returns)
        assert brought > 4
    talk.engine.ledger().check_integrity()


def test_a_reserve_takes_what_comes_back_and_the_turn_equals_the_oracle(talk, random_oracle):
    with recalling(talk.engine, reserve_pages=4):
        for number in range(4):
            result = talk.turn(question=10)
            assert talk.distance(random_oracle) <= MAX_DISTANCE
            assert result.retention.peak_pages_decode <= result.retention.budget_pages
            assert result.retention.pages_held <= result.retention.budget_pages
            mine = [move.reason for move in talk.moves if move.request_id == result.retention.request_id]
            if number:  # the first prompt is longer than the reserve
                assert mine.count("swapped_in") == 2
                assert "swapped_out" not in mine
    talk.engine.ledger().check_integrity()


def test_pages_asked_for_are_there_when_the_turn_begins(talk, random_oracle):
    first = talk.turn()
    gone = [page for a, b, _, held in first.retention.page_runs if not held for page in range(a, b)]
    assert len(gone) >= 6
    wanted = range(gone[2] * PAGE, (gone[3] + 1) * PAGE)
    assert talk.engine.recall(talk.thread, tokens=wanted, tenant="another") == 0
    assert talk.engine.recall(talk.thread, tokens=wanted) == 1
    result = talk.turn()
    brought = talk.engine.ledger().returns(request_id=result.retention.request_id)
    assert {gone[2], gone[3]} <= {entry.page for entry in brought if entry.score == 0}
    assert all(entry.computed_tokens == result.retention.continued_tokens for entry in brought if entry.score == 0)
    assert all(result.retention.holds_page(page) for page in (gone[2], gone[3])), "they stay for the turn"
    assert talk.distance(random_oracle) <= MAX_DISTANCE


@pytest.mark.parametrize("how", ["recall", "needs_next", "message", "region"])
def test_a_wish_can_be_said_in_hints_by_message_and_by_region(talk, how):
    text = " of the and in to for with that as are is on by be"
    said = talk.engine.tokenizer.encode(text, add_special_tokens=False)
    talk.tokens[66 : 66 + len(said)] = said
    first = talk.turn()
    gone = {page for a, b, _, held in first.retention.page_runs if not held for page in range(a, b)}
    wanted = {max(page for page in gone if page * PAGE < 200)}
    (page,) = wanted
    inside = {"tokens": [[page * PAGE + 3, page * PAGE + 5]]}
    fields: dict[str, object] = {}
    if how == "needs_next":
        talk.turn(needs_next=inside)
    elif how == "message":
        wanted = {66 // PAGE, (65 + len(said)) // PAGE}
        assert talk.engine.recall(talk.thread, message="no such text in it") == 0
        assert talk.engine.recall(talk.thread, message=text) == 1
    elif how == "region":
        assert talk.engine.recall(talk.thread, region="retrieval") == 1
        fields["marked"] = page
    else:
        fields["recall"] = inside
    result = talk.turn(**fields)
    assert all(result.retention.holds_page(page) for page in wanted)
    if how in ("recall", "region"):
        by_wish = [e for e in talk.engine.ledger().returns(request_id=result.retention.request_id) if not e.score]
        assert {entry.page for entry in by_wish} == wanted


def test_the_worker_measures_what_the_definition_says(talk):
    """Layer 0's keys and queries depend on tokens and positions alone: transformers gives them without a mask."""
    from transformers import AutoModelForCausalLM
    from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

    seen = {}

    def watch(llm, internals):
        swaps = internals.scheduler.connector.swaps
        decide = swaps.decide

        def watched(request_id, evidence):
            probe = swaps._open[request_id]
            seen.update(
                pages=[one.page for one in probe.away] + probe.retained + probe.pinned, evidence=np.array(evidence)
            )
            return decide(request_id, evidence)

        swaps.decide = watched
        return lambda: delattr(swaps, "decide")

    talk.turn()
    restore = talk.engine.run_on_engine_thread(watch)
    talk.turn()
    talk.engine.run_on_engine_thread(lambda llm, internals: restore())
    model = AutoModelForCausalLM.from_pretrained(talk.engine.model_path, dtype=torch.float32).eval()
    layer = model.model.layers[0]
    with torch.no_grad():
        tokens = torch.tensor([talk.prompt])
        hidden = layer.input_layernorm(model.model.embed_tokens(tokens))
        cos, sin = model.model.rotary_emb(hidden, torch.arange(tokens.shape[1])[None])
        query = layer.self_attn.q_proj(hidden).view(1, -1, 4, 64).transpose(1, 2)
        key = layer.self_attn.k_proj(hidden).view(1, -1, 2, 64).transpose(1, 2)
        query, key = apply_rotary_pos_emb(query, key, cos, sin)
    queries = query[0, :, -8:].transpose(0, 1).reshape(8, 2, 2, 64).contiguous().numpy()
    keys = torch.stack([key[0, :, page * PAGE : (page + 1) * PAGE].transpose(0, 1) for page in seen["pages"]])
    expected = page_evidence(queries, keys.numpy(), np.ones((len(keys), PAGE), dtype=bool), 64**-0.5)
    assert len(seen["pages"]) > 8
    np.testing.assert_allclose(seen["evidence"], expected, rtol=1e-3, atol=1e-5)


def test_a_seed_draws_the_same_number_for_the_token_that_counts(talk, random_oracle):
    talk.turn()
    seed = 11
    talk.turn(sampling(1, temperature=1.0, seed=seed))
    assert talk.result.retention.recalled_pages, "the turn ran twice"
    row = random_oracle.logprobs_seeing(talk.tokens[:-1], talk.hidden())[len(talk.prompt) - 1]
    drawn = torch.randint(0, 2**31, (1,), generator=torch.Generator().manual_seed(seed), dtype=torch.long)
    expected = torch.ops._C.fused_gumbel_argmax(row[None].contiguous(), drawn)  # as vLLM samples on a CPU
    assert talk.result.token_ids[0] == int(expected[0])


def test_turns_side_by_side_equal_the_oracle(engine, random_oracle):
    engine.close_sessions()
    talks = [Talk(engine, f"side {number}", seed=number, first_tokens=260 + 21 * number) for number in range(3)]
    for talk in talks:
        talk.turn()
    for talk in talks:
        talk.tokens = [*talk.tokens, *ids(33, talk.seed + 90)]
        talk.prompt = list(talk.tokens)
    streams = [engine.submit(t.prompt, sampling(), hints(len(t.prompt), t.thread, 200)) for t in talks]
    for talk, stream in zip(talks, streams, strict=True):
        talk.result = stream.result()
        talk.tokens = [*talk.prompt, *talk.result.token_ids]
        assert talk.distance(random_oracle) <= MAX_DISTANCE
    assert sum(bool(talk.result.retention.recalled_pages) for talk in talks) >= 2


def test_the_tier_is_seen_and_ends_with_its_sessions(engine):
    engine.close_sessions()
    talk = Talk(engine, "seen", seed=3)
    talk.turn()
    stats, text = engine.pool_stats(), engine.metrics_text()
    assert stats.host_bytes == stats.host_pages * engine.run_on_engine_thread(
        lambda llm, internals: worker_of(internals)._tier.store.page_bytes
    )
    assert stats.host_pages >= 6
    assert f"memdecay_host_tier_bytes {float(stats.host_bytes)}" in text
    assert 'memdecay_host_copied_bytes_total{direction="out"}' in text
    assert engine.snapshot().pool.host_pages == stats.host_pages == engine.snapshot().sessions[0].host_pages
    (seen,) = [one for one in engine.history().sessions if one.held]  # of the others all is gone
    assert sum(event.to_host for event in seen.events) >= stats.host_pages
    explained = engine.explain(seen.session)
    assert sum(page.on_host for page in explained.pages) == sum(page.state == "freed" for page in explained.pages) > 0
    engine.close_sessions()
    assert engine.pool_stats().host_pages == 0
    with pytest.raises(EngineError, match="nothing is named"):
        engine.recall("seen")


def test_two_ranks_swap_the_same_pages_and_equal_the_oracle(engine, random_llama_path, random_oracle):
    engine.close_sessions()
    one, _ = serve(engine)
    engine.close()  # the last test that uses it
    with open_engine(random_llama_path, TIER, tensor_parallel_size=2) as ranks:
        two, _ = serve(ranks)
        talk = Talk(ranks, "exact", seed=6)
        for number in range(4):
            talk.turn()
            assert talk.distance(random_oracle) <= MAX_DISTANCE
            if number == 2:
                assert talk.repair(last_tokens=96).repaired_tokens
        assert any(entry.reason == "swapped_in" for entry in talk.moves)
        ranks.ledger().check_integrity()
    assert one == two
    assert any(recalled for _, recalled in one)
