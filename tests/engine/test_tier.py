"""The host tier in a real engine: what it changes, and that it changes nothing when it is off."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import pytest
import torch
from vllm import SamplingParams

from memdecay_adapters.engine import HostTier, MemDecayEngine, Recall, vllm_arguments
from memdecay_adapters.engine.events import DROPPED_HOST_PAGES, RECALLS
from memdecay_adapters.engine.settings import EngineSettings
from memdecay_adapters.engine.tier.support import SCHEDULER
from memdecay_agents import MemDecayConfig, RequestHints
from memdecay_agents.errors import EngineError, MemDecayError
from memdecay_agents.ledger import LedgerEntry
from memdecay_agents.recall import RetrievalHead, page_evidence
from memdecay_agents.spans import Span
from tests.engine.chaos_engine import PAGE_BYTES, worker_of
from tests.engine.oracle import logprob_distance

pytestmark = pytest.mark.engine

PAGE, MAX_DISTANCE, BUDGET = 16, 2e-4, 160
CONFIG = MemDecayConfig(page_size_tokens=PAGE, observed_layers="all", measure_every_steps=1)
VLLM = {
    "dtype": "float32", "max_model_len": 1024, "max_num_batched_tokens": 64, "max_num_seqs": 4,
    "kv_cache_memory_bytes": 2**24, "enforce_eager": True, "disable_log_stats": True,
}  # fmt: skip
FIRST_LAYER = (RetrievalHead(0, 0), RetrievalHead(0, 1))
TIER = HostTier(max_bytes=2**26, checksum=True, recall=Recall(max_pages=2, query_tokens=8, rerun=24, heads=FIRST_LAYER))


def ids(tokens: int, seed: int) -> list[int]:
    return [3 + (7 * i * i + 31 * seed * i + seed) % 1000 for i in range(tokens)]


def open_engine(model: str, tier: HostTier | None, **engine_args: object) -> MemDecayEngine:
    return MemDecayEngine(
        model, config=CONFIG, engine_args={**VLLM, **engine_args}, host_tier=tier, check_integrity=True
    )


def hints(tokens: int, thread: str, cut: int, marked: int | None = None, **fields: object) -> RequestHints:
    spans = [Span(0, 16, "system"), Span(16, cut, "tool_out"), Span(cut, tokens, "user")]
    if marked is not None:  # one page of the tool's answer has a region of its own
        start, end = marked * PAGE, min((marked + 1) * PAGE, cut)
        spans[1:2] = [Span(16, start, "tool_out"), Span(start, end, "retrieval"), Span(end, cut, "tool_out")]
        spans = [span for span in spans if span.start < span.end]
    return RequestHints(session=thread, agent="a", budget_tokens=BUDGET, spans=tuple(spans), **fields)


def sampling(new_tokens: int = 4, **fields: object) -> SamplingParams:
    return SamplingParams(**{"temperature": 0, "max_tokens": new_tokens, "ignore_eos": True, "logprobs": 20, **fields})


class Talk:
    """One conversation, and what each of its positions could see."""

    def __init__(self, engine: MemDecayEngine, thread: str, seed: int, first_tokens: int = 300) -> None:
        self.engine, self.thread, self.seed = engine, thread, seed
        self.tokens = ids(first_tokens, seed)
        self.turns = 0

    def turn(self, params: SamplingParams | None = None, question: int = 40, **fields: object):
        if self.turns:
            self.tokens = [*self.tokens, *ids(question, self.seed + 50 + self.turns)]
        self.turns += 1
        self.prompt = list(self.tokens)
        request_hints = hints(len(self.prompt), self.thread, 200, **fields)
        self.result = self.engine.generate(self.prompt, params or sampling(), request_hints)
        self.tokens = [*self.prompt, *self.result.token_ids]
        return self.result

    @property
    def moves(self):
        return self.engine.ledger().moves(self.result.retention.session)

    def hidden(self, moves: Sequence[LedgerEntry] | None = None) -> torch.Tensor:
        """What no query may see: pages that are gone, from the token on that was computed without them."""
        length = len(self.tokens) - 1
        hidden = torch.ones(length, length, dtype=torch.bool).triu(1)
        moves = self.moves if moves is None else moves
        for number, move in enumerate(moves):
            mine = [other for other in moves[number:] if other.request_id == move.request_id]
            after = [other.computed_tokens for other in mine if other.parts.get("evidence")]
            first = min([move.computed_tokens, *after])  # what is computed again sees what left while it was first
            hidden[first:, move.token_start : move.token_end] = move.reason != "swapped_in"
        return hidden | torch.ones(length, length, dtype=torch.bool).triu(1)

    def distance(self, oracle, every_tokens: int | None = None) -> float:
        rows, prompt = oracle.logprobs_seeing(self.tokens[:-1], self.hidden()), len(self.prompt)
        moves, mine = self.moves, self.result.retention.request_id
        swaps = {
            move.computed_tokens: number
            for number, move in reversed(list(enumerate(moves)))
            if move.request_id == mine and move.reason.startswith("swapped") and move.computed_tokens >= prompt
        }
        for first, number in swaps.items():  # what was said before a swap was said without it, all but the last token
            assert every_tokens is not None
            end = prompt + ((first - prompt) // every_tokens + 1) * every_tokens
            before = oracle.logprobs_seeing(self.tokens[:-1], self.hidden(moves[:number]))
            rows[first : end - 1] = before[first : end - 1]
        return logprob_distance(rows, prompt, self.result)


@pytest.fixture(scope="module")
def engine(engine_house, random_llama_path):
    engine_house.close()
    with open_engine(random_llama_path, TIER) as engine:
        yield engine


@pytest.fixture
def talk(engine, request):
    engine.close_sessions()
    return Talk(engine, request.node.name, seed=len(request.node.name))


def recalls(engine) -> dict:
    return engine.run_on_engine_thread(lambda llm, internals: dict(internals.controller.events.of(RECALLS)))


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


def serve(engine: MemDecayEngine):
    """Three turns; tokens and recalled pages of each, and the ledger as text."""
    talk, found = Talk(engine, "t", seed=5), []
    for _ in range(3):
        result = talk.turn()
        found.append((result.token_ids, result.retention.recalled_pages))
    text = [json.dumps({**entry.model_dump(mode="json"), "request_id": ""}) for entry in talk.moves]
    return found, text


def test_two_ranks_swap_the_same_pages(engine, random_llama_path):
    engine.close_sessions()
    one, _ = serve(engine)
    engine.close()  # the last test that uses it
    with open_engine(random_llama_path, TIER, tensor_parallel_size=2) as ranks:
        two, _ = serve(ranks)
    assert one == two
    assert any(recalled for _, recalled in one)


@pytest.fixture
def none_open(no_engine):
    """Neither an engine of the house nor this file's is open."""
    held = MemDecayEngine._open() if MemDecayEngine._open is not None else None
    if held is not None:
        held.close()


def test_off_changes_nothing_and_a_full_tier_neither(none_open, random_llama_path):
    small = HostTier(max_bytes=2**26, max_bytes_per_agent=3 * PAGE_BYTES)
    with open_engine(random_llama_path, small) as engine:
        silent = serve(engine)
        dropped = engine.run_on_engine_thread(lambda llm, i: i.controller.events.total(DROPPED_HOST_PAGES))
        assert dropped > 0
        assert engine.pool_stats().host_pages == 3
    with open_engine(random_llama_path, None) as engine:
        off = serve(engine)
        assert "host" not in engine.metrics_text()
        assert engine.pool_stats().host_bytes is None
        with pytest.raises(EngineError, match="no host tier"):
            engine.recall("t", region="user")
    assert off == silent, "pages that are copied out and never asked for change nothing, byte for byte"
    assert not any(recalled for _, recalled in off[0])


# ---- what is said to vLLM, and what is refused


def test_off_says_nothing_of_it_to_vllm():
    assert "host_tier" not in json.dumps(vllm_arguments(CONFIG))
    assert "scheduler_cls" not in vllm_arguments(CONFIG)
    assert vllm_arguments(CONFIG, host_tier=TIER)["scheduler_cls"] == SCHEDULER
    assert "scheduler_cls" not in vllm_arguments(CONFIG, host_tier=HostTier(max_bytes=1))
    settings = EngineSettings(config=CONFIG, host_tier=TIER)
    sent = json.loads(json.dumps(settings.to_additional_config()))["memdecay"]
    assert EngineSettings.model_validate(sent) == settings


@pytest.mark.parametrize(
    ("tier", "engine_args", "message"),
    [
        (HostTier(max_bytes=1, recall=Recall()), {}, "it knows 1024 tokens"),
        (TIER, {"scheduler_cls": "vllm.v1.core.sched.scheduler.Scheduler"}, "Leave it out"),
        (HostTier(max_bytes=1, recall=Recall(heads=(RetrievalHead(7, 0),))), {}, "not among 2 layers"),
    ],
)
def test_what_does_not_work_is_refused_at_start_up(none_open, random_llama_path, tier, engine_args, message):
    with pytest.raises(MemDecayError, match=message):
        open_engine(random_llama_path, tier, **engine_args)


@pytest.mark.parametrize("fields", [{"max_bytes": 0}, {"max_bytes": 5, "max_bytes_per_agent": 6}, {"max_byte": 1}])
def test_a_tier_that_makes_no_sense_is_refused(fields):
    with pytest.raises(ValueError, match="max_byte"):
        HostTier(**fields)
