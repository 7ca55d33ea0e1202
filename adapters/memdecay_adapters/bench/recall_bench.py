"""``memdecay bench recall``: what recall adds to a turn of a session that has lost thousands of tokens.

Two engines hold the same long session under the same small budget, one with a host tier that recalls, one without.
Their turns are taken in interleaved pairs, up to the first token; each that counts brought pages back and computed
its last tokens again. What such tokens cost by themselves is measured as a turn of just so many. A third engine repairs
its session after each turn: everything comes back, and what the turn computed is computed again. A fourth asks again
while it writes, so often; its longer answers are paired with the second's.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from memdecay_adapters.bench.engine_under_test import (
    DrivenEngine,
    EngineRecipe,
    EngineUnderTest,
    Turn,
    engines_under_test,
)
from memdecay_adapters.bench.machine import machine, versions
from memdecay_adapters.bench.result import SCHEMA_VERSION, BenchResult
from memdecay_adapters.bench.statistics import paired_ratio
from memdecay_adapters.engine.page_size import choose_page_size
from memdecay_adapters.engine.tier import HostTier, Recall, Repair
from memdecay_adapters.engine.tier.repairs import Repairs
from memdecay_adapters.models import DEFAULT_MODEL_NAME, resolve_model
from memdecay_agents import MemDecayConfig, RequestHints, Span
from memdecay_agents.errors import EngineError

TURN_BOUND = 1.25
WARM_UP = 2
"""Rounds that count nothing."""
QUESTION_TOKENS = 32
"""Before each of the longer answers."""
TIER_BYTES = 2**34


@dataclass(frozen=True)
class RecallBenchOptions:
    """What to measure."""

    model: str | None = None
    dtype: str = "auto"
    pairs: int = 21
    evicted_tokens: int = 8192
    """That the session has lost when its turns begin."""
    budget_tokens: int = 512
    turn_tokens: int = 128
    rerun_tokens: int = 64
    answer_tokens: int = 64
    """Of the turns that compare recall at the prompt's end with recall while the answer is written."""
    every_tokens: int = 16
    """Tokens of such an answer after which it is asked again."""
    seed: int = 0


def run_recall_bench(options: RecallBenchOptions, progress: Callable[[str], None] = lambda line: None) -> BenchResult:
    """Run it.

    Args:
        options: what to measure.
        progress: told what is being done.

    Raises:
        ModelError: the model cannot be found. EngineError: an engine did not start or stopped on a fault, or too few
            turns recalled anything.
    """
    page = choose_page_size(MemDecayConfig(), {"dtype": options.dtype}).page_size_tokens
    assert page is not None
    draw = random.Random(options.seed)
    result = BenchResult()
    result.values.update(
        schema_version=SCHEMA_VERSION,
        model=options.model or DEFAULT_MODEL_NAME,
        dtype=options.dtype,
        page_size_tokens=page,
        evicted_tokens=options.evicted_tokens,
        budget_tokens=options.budget_tokens,
        turn_tokens=options.turn_tokens,
        rerun_tokens=options.rerun_tokens,
        answer_tokens=options.answer_tokens,
        every_tokens=options.every_tokens,
        machine=machine(),
        versions=versions(),
        seed=options.seed,
    )
    with engines_under_test(_recipes(options, resolve_model(options.model), page)) as engines:
        conversations = {name: _Conversation(engine) for name, engine in engines.items()}
        text = _words(draw, options.evicted_tokens + options.budget_tokens)
        for name, conversation in conversations.items():
            progress(f"{len(text)} tokens under a budget of {options.budget_tokens}, {name}")
            conversation.turn(text)
        rounds = []
        for number in range(options.pairs + WARM_UP):
            progress(f"turns, pair {number} of {options.pairs}")
            made = _round(conversations, options, draw, backwards=bool(number % 2))
            if number >= WARM_UP:
                rounds.append(made)
    counted = [one for one in rounds if one.recalled_pages]
    if not counted:
        raise EngineError(
            where="memdecay bench recall", rule="no turn recalled a page", remedy="Raise --evicted-tokens or --pairs."
        )
    _sum_up(result, counted, len(rounds) - len(counted))
    return result


class _Conversation:
    """One session of one engine."""

    def __init__(self, engine: EngineUnderTest) -> None:
        self.engine = engine
        self._ids: list[int] = []

    def turn(self, new: list[int], answer_tokens: int = 1) -> Turn:
        ids = [*self._ids, *new]
        made = self.engine.turn(ids, answer_tokens, _hints(len(ids)), None)
        self._ids = [*ids, *made.token_ids]
        return made


@dataclass(frozen=True)
class _Round:
    """One turn of each engine, and one answer of two of them, in seconds."""

    turn: float
    with_recall: float
    recalled_pages: int
    rerun_alone: float
    repair: float
    repaired_tokens: int
    answer: float
    answer_with_recall: float
    answer_recalled_pages: int


def _recipes(options: RecallBenchOptions, model_path: str, page: int) -> dict[str, EngineRecipe]:
    tokens = options.turn_tokens + options.rerun_tokens + QUESTION_TOKENS + options.answer_tokens + 8
    longest = options.evicted_tokens + options.budget_tokens + tokens * (options.pairs + WARM_UP)
    off = EngineRecipe(
        kind="memdecay",
        model_path=model_path,
        dtype=options.dtype,
        page_size_tokens=page,
        chunk_tokens=512,
        pool_pages=-(-(options.budget_tokens + 1024) // page) + 16,
        max_model_len=longest,
        config={"default_budget_tokens": options.budget_tokens},
        engine_args={"hf_overrides": {"max_position_embeddings": longest}},
    )
    recall = Recall(rerun=options.rerun_tokens)
    often = recall.model_copy(update={"every_tokens": options.every_tokens})
    host, every = (replace(off, host_tier=HostTier(max_bytes=TIER_BYTES, recall=how)) for how in (recall, often))
    return {"off": off, "host": host, "every": every, "repaired": replace(host, pool_pages=-(-longest // page) + 64)}


def _round(
    conversations: Mapping[str, _Conversation], options: RecallBenchOptions, draw: random.Random, *, backwards: bool
) -> _Round:
    def in_turn(names: tuple[str, ...], new: list[int], answer_tokens: int) -> dict[str, Turn]:
        order = reversed(names) if backwards else names
        return {name: conversations[name].turn(new, answer_tokens) for name in order}

    new = _words(draw, options.turn_tokens)
    turns = in_turn(("off", "host", "every", "repaired"), new, 1)
    seconds, tokens = conversations["repaired"].engine.run(repair_session)
    alone = conversations["off"].turn(new[: options.rerun_tokens])
    answers = in_turn(("host", "every"), _words(draw, QUESTION_TOKENS), options.answer_tokens)
    return _Round(
        turn=turns["off"].first_token_seconds,
        with_recall=turns["host"].first_token_seconds,
        recalled_pages=turns["host"].recalled_pages,
        rerun_alone=alone.first_token_seconds,
        repair=seconds,
        repaired_tokens=tokens,
        answer=answers["host"].seconds,
        answer_with_recall=answers["every"].seconds,
        answer_recalled_pages=answers["every"].recalled_pages,
    )


def _sum_up(result: BenchResult, rounds: Sequence[_Round], without_recall: int) -> None:
    def of(name: str) -> list[float]:
        return [getattr(one, name) for one in rounds]

    values = result.values
    values["turns_without_recall"] = without_recall
    values["recalled_pages_per_turn"] = round(statistics.mean(of("recalled_pages")), 2)
    values["repaired_tokens_per_turn"] = round(statistics.mean(of("repaired_tokens")), 2)
    values["recalled_pages_per_answer"] = round(statistics.mean(of("answer_recalled_pages")), 2)
    titles = {
        "turn": "turn",
        "with_recall": "turn_with_recall",
        "rerun_alone": "rerun_alone",
        "repair": "repair",
        "answer": "answer",
        "answer_with_recall": "answer_with_recall_every",
    }
    for name, title in titles.items():
        values[f"{title}_seconds"] = round(statistics.median(of(name)), 5)
    result.set_ratio("turn_with_recall_ratio", paired_ratio(of("with_recall"), of("turn")))
    less = [max(one.with_recall - one.rerun_alone, 1e-9) for one in rounds]
    result.set_ratio("turn_less_rerun_ratio", paired_ratio(less, of("turn")), TURN_BOUND)
    result.set_ratio("repair_ratio", paired_ratio(of("repair"), of("turn")))
    result.set_ratio("answer_with_recall_every_ratio", paired_ratio(of("answer_with_recall"), of("answer")))


def repair_session(engine: DrivenEngine) -> tuple[float, int]:
    """Repair the engine's only session, in its process: seconds, and the tokens that were computed again."""
    internals = engine.internals
    free = internals.scheduler.kv_cache_manager.block_pool.get_num_free_blocks
    [session] = internals.controller.sessions
    repairs = Repairs(internals.controller, free, Repair())
    [request] = repairs.of(session.home.tenant, session.home.thread_id, None, None)
    computed = len(request.token_ids) - session.repair_from(repairs.repair.last_tokens, engine.page_size_tokens())
    before = time.perf_counter()
    engine.turn(request.token_ids, 1, request.hints, None)
    return time.perf_counter() - before, computed


def _words(draw: random.Random, n_tokens: int) -> list[int]:
    return [draw.randrange(100, 20000) for _ in range(n_tokens)]


def _hints(tokens: int) -> RequestHints:
    middle = (48 + tokens) // 2
    spans = (Span(0, 48, "system"), Span(48, middle, "tool_out"), Span(middle, tokens, "user"))
    return RequestHints(session="recall", agent="recall", spans=spans)
