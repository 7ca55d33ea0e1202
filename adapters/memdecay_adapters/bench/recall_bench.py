"""``memdecay bench recall``: what recall adds to a turn of a session that has lost thousands of tokens.

Two engines hold the same long session under the same small budget, one with a host tier that recalls, one without.
Their turns are taken in interleaved pairs, up to the first token; each that counts brought pages back and computed
its last tokens again. What such tokens cost by themselves is measured as a turn of just so many.
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable
from dataclasses import dataclass

from memdecay_adapters.bench.engine_bench import SCHEMA_VERSION, EngineBenchResult
from memdecay_adapters.bench.engine_under_test import EngineRecipe, EngineUnderTest, Turn
from memdecay_adapters.bench.machine import machine, versions
from memdecay_adapters.bench.statistics import paired_ratio
from memdecay_adapters.engine.page_size import choose_page_size
from memdecay_adapters.engine.tier import HostTier, Recall
from memdecay_adapters.models import DEFAULT_MODEL_NAME, resolve_model
from memdecay_agents import MemDecayConfig, RequestHints, Span
from memdecay_agents.errors import EngineError

TURN_BOUND = 1.25
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
    seed: int = 0


def run_recall_bench(
    options: RecallBenchOptions, progress: Callable[[str], None] = lambda line: None
) -> EngineBenchResult:
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
    path = resolve_model(options.model)
    first = options.evicted_tokens + options.budget_tokens
    longest = first + (options.turn_tokens + options.rerun_tokens + 8) * (options.pairs + 2)
    draw = random.Random(options.seed)
    result = EngineBenchResult()
    result.values.update(
        schema_version=SCHEMA_VERSION,
        model=options.model or DEFAULT_MODEL_NAME,
        dtype=options.dtype,
        page_size_tokens=page,
        evicted_tokens=options.evicted_tokens,
        budget_tokens=options.budget_tokens,
        turn_tokens=options.turn_tokens,
        rerun_tokens=options.rerun_tokens,
        machine=machine(),
        versions=versions(),
        seed=options.seed,
    )

    def recipe(tier: HostTier | None) -> EngineRecipe:
        return EngineRecipe(
            kind="memdecay",
            model_path=path,
            dtype=options.dtype,
            page_size_tokens=page,
            chunk_tokens=512,
            pool_pages=-(-(options.budget_tokens + 1024) // page) + 16,
            max_model_len=longest,
            config={"default_budget_tokens": options.budget_tokens},
            engine_args={"hf_overrides": {"max_position_embeddings": longest}},
            host_tier=tier,
        )

    recall = Recall(rerun=options.rerun_tokens)
    with (
        EngineUnderTest(recipe(None)) as plain,
        EngineUnderTest(recipe(HostTier(max_bytes=TIER_BYTES, recall=recall))) as tiered,
    ):
        engines = {"off": plain, "host": tiered}
        histories: dict[str, list[int]] = {}
        text = [draw.randrange(100, 20000) for _ in range(first)]
        for name, engine in engines.items():
            progress(f"{first} tokens under a budget of {options.budget_tokens}, tier {name}")
            histories[name] = [*text, *engine.turn(text, 1, _hints(first), None).token_ids]
        seconds: dict[str, list[float]] = {"off": [], "host": [], "rerun": []}

        def turn(name: str, new: list[int]) -> Turn:
            ids = [*histories[name], *new]
            made = engines[name].turn(ids, 1, _hints(len(ids)), None)
            histories[name] = [*ids, *made.token_ids]
            return made

        recalled = unchanged = 0
        for number in range(options.pairs + 2):
            progress(f"turns, pair {number} of {options.pairs}")
            new = [draw.randrange(100, 20000) for _ in range(options.turn_tokens)]
            order = ("off", "host") if number % 2 else ("host", "off")
            pair = {name: turn(name, new) for name in order}
            alone = turn("off", new[: options.rerun_tokens])
            if number < 2:  # warms up
                continue
            if not pair["host"].recalled_pages:
                unchanged += 1
                continue
            recalled += pair["host"].recalled_pages
            seconds["off"].append(pair["off"].first_token_seconds)
            seconds["host"].append(pair["host"].first_token_seconds)
            seconds["rerun"].append(alone.first_token_seconds)
    if not seconds["host"]:
        raise EngineError(
            where="memdecay bench recall", rule="no turn recalled a page", remedy="Raise --evicted-tokens or --pairs."
        )
    values = result.values
    values["turns_without_recall"] = unchanged
    values["recalled_pages_per_turn"] = round(recalled / len(seconds["host"]), 2)
    for name, title in (("off", "turn"), ("host", "turn_with_recall"), ("rerun", "rerun_alone")):
        values[f"{title}_seconds"] = round(statistics.median(seconds[name]), 5)
    result.set_ratio("turn_with_recall_ratio", paired_ratio(seconds["host"], seconds["off"]))
    less = [max(host - rerun, 1e-9) for host, rerun in zip(seconds["host"], seconds["rerun"], strict=True)]
    result.set_ratio("turn_less_rerun_ratio", paired_ratio(less, seconds["off"]), TURN_BOUND)
    return result


def _hints(tokens: int) -> RequestHints:
    middle = (48 + tokens) // 2
    spans = (Span(0, 48, "system"), Span(48, middle, "tool_out"), Span(middle, tokens, "user"))
    return RequestHints(session="recall", agent="recall", spans=spans)
