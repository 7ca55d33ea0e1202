"""``memdecay bench observation``: what is lost by measuring few layers, every few steps, from few queries.

A trace is run once through transformers with all attention kept (heads averaged). Its last part stands for decode
steps. The product's own session state takes in what each schedule would have measured, and its default policy orders
the pages. That order is compared with two others: the one that all layers and every decode step lead to, with the same
queries of the prompt; and the one of all layers and every query, the prompt's included.

    rank correlation   Spearman's, of the page scores
    kept in common     of the pages that half the budget keeps, the share that the other order keeps too
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from memdecay_adapters.bench.machine import machine, versions
from memdecay_adapters.engine.observer import observed_layer_names
from memdecay_adapters.langchain.prompt import build_prompt
from memdecay_adapters.models import DEFAULT_MODEL_NAME, resolve_model
from memdecay_agents import MemDecayConfig
from memdecay_agents.errors import UnsupportedError
from memdecay_agents.observations import Observation
from memdecay_agents.policies.registry import get_policy
from memdecay_agents.session_state import SessionState
from memdecay_agents.sessions import SessionId
from memdecay_agents.spans import Span

SCHEMA_VERSION = 1
CHUNK_TOKENS = 512
DECODE_SHARE = 0.25


@dataclass(frozen=True)
class Schedule:
    """What is measured."""

    layers: str
    """"all", "every third" (as the configuration's default) or "quarter"."""
    stride: int
    """Decode steps from one measurement to the next."""
    window: int | None
    """Queries of a prefill chunk; None: all."""
    spread: bool = False
    """Whether they are spread evenly over the chunk, its last one among them; else they are its newest."""


EVERYTHING = Schedule("all", 1, None)
DEFAULT = Schedule("every third", 4, 16)
SCHEDULES = (
    DEFAULT,
    Schedule("every third", 1, 16),
    Schedule("every third", 8, 16),
    Schedule("every third", 16, 16),
    Schedule("all", 4, 16),
    Schedule("quarter", 4, 16),
    Schedule("quarter", 8, 16),
    Schedule("every third", 4, 64),
    Schedule("every third", 4, 64, spread=True),
    Schedule("every third", 4, None),
)


@dataclass(frozen=True)
class ObservationOptions:
    """What to run."""

    traces: Path
    """A trace file, JSON Lines: ``{"id", "messages": [{"role", "content", "tool_calls"?, "tool_call_id"?}]}``."""
    model: str | None = None
    """Hugging Face id or folder; None: the default small model."""
    limit: int = 12
    """Traces, the first that are long enough."""
    min_tokens: int = 700
    max_tokens: int = 1700
    """Longer traces are cut: all attention of one is kept in memory, layers x tokens^2 numbers."""


def run_observation_bench(
    options: ObservationOptions, progress: Callable[[str], None] = lambda line: None
) -> dict[str, Any]:
    """Measure the loss of every schedule.

    Args:
        options: what to run.
        progress: told what is being done.

    Raises:
        UnsupportedError: no trace of the file is long enough.
    """
    path = resolve_model(options.model)
    tokenizer = AutoTokenizer.from_pretrained(path)
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32, attn_implementation="eager").eval()
    config = MemDecayConfig()
    rows: dict[Schedule, list[tuple[float, float, float, float]]] = {schedule: [] for schedule in SCHEDULES}
    names = []
    for name, ids, spans in _prompts(options, tokenizer, config):
        progress(f"{name}: {len(ids)} tokens")
        attention = all_attention(model, ids)
        everything = page_order(EVERYTHING, attention, spans, config)
        for schedule in SCHEDULES:
            every_step = replace(schedule, layers="all", stride=1)
            order = page_order(schedule, attention, spans, config)
            rows[schedule].append(
                (
                    *agreement(order, page_order(every_step, attention, spans, config)),
                    *agreement(order, everything),
                )
            )
        names.append(name)
        if len(names) >= options.limit:
            break
    if not names:
        raise UnsupportedError(
            where=str(options.traces),
            rule=f"no trace has {options.min_tokens} tokens",
            remedy="Give longer traces, or lower --min-tokens.",
        )
    return {
        "schema_version": SCHEMA_VERSION,
        "model": options.model or DEFAULT_MODEL_NAME,
        "page_size_tokens": config.page_size_tokens,
        "machine": machine(),
        "versions": versions(),
        "traces": names,
        "schedules": [_row(schedule, rows[schedule]) for schedule in SCHEDULES],
    }


def _row(schedule: Schedule, found: list[tuple[float, float, float, float]]) -> dict[str, Any]:
    correlations, overlaps, correlations_all, overlaps_all = zip(*found, strict=True)
    return {
        "layers": schedule.layers,
        "decode_stride_steps": schedule.stride,
        "prefill_queries": schedule.window,
        "spread": schedule.spread,
        "rank_correlation_every_step": round(statistics.fmean(correlations), 4),
        "rank_correlation_every_step_worst": round(min(correlations), 4),
        "kept_in_common_every_step": round(statistics.fmean(overlaps), 4),
        "rank_correlation_every_query": round(statistics.fmean(correlations_all), 4),
        "kept_in_common_every_query": round(statistics.fmean(overlaps_all), 4),
    }


def all_attention(model: Any, ids: Sequence[int]) -> torch.Tensor:
    """Attention of every query in every layer, heads averaged, float16 ``[layers, n, n]``."""
    kept: list[torch.Tensor] = []

    def keep(module: Any, inputs: Any, outputs: Any) -> None:
        kept.append(outputs[1][0].mean(0).half())

    hooks = [layer.self_attn.register_forward_hook(keep) for layer in model.model.layers]
    try:
        with torch.no_grad():
            model.model(torch.tensor([list(ids)]), use_cache=False)
    finally:
        for hook in hooks:
            hook.remove()
    return torch.stack(kept)


def page_order(
    schedule: Schedule, attention: torch.Tensor, spans: Sequence[Span], config: MemDecayConfig
) -> dict[int, float]:
    """Score of each evictable page at the end of a trace that was measured by a schedule."""
    layers, n, _ = attention.shape
    policy = get_policy(config.policy, config)
    session = SessionState(SessionId("bench", "trace", "agent", ""), "agent", config, policy)
    session.tokens.extend(n, spans=spans)
    mass = attention[_layer_indices(schedule.layers, layers, config)].float().mean(0).numpy()
    prompt = n - int(n * DECODE_SHARE)
    for start in range(0, prompt, CHUNK_TOKENS):
        end = min(start + CHUNK_TOKENS, prompt)
        session.on_computed(end - start, 0)
        window = end - start if schedule.window is None else min(schedule.window, end - start)
        step = (end - start) // window if schedule.spread else 1
        queries = mass[end - 1 - step * (window - 1) : end : step]
        session.observe(_observation(queries, end, end - start))
    for at in range(prompt, n):
        session.on_computed(1, 1)
        if (at - prompt + 1) % schedule.stride == 0:
            session.observe(_observation(mass[at : at + 1], at + 1, schedule.stride))
    view = session.view(n, np.arange(-(-n // config.page_size_tokens)))
    scores = np.sum(list(policy.score_parts(view).values()), axis=0)
    evictable = view.page_index[view.evictable].tolist()
    return dict(zip(evictable, scores[view.evictable].tolist(), strict=True))


def agreement(one: dict[int, float], other: dict[int, float]) -> tuple[float, float]:
    """Spearman's correlation of two scorings of the same pages, and the share of the better half in common."""
    pages = sorted(one)
    a, b = (np.array([scores[page] for page in pages]) for scores in (one, other))
    correlation = float(np.corrcoef(np.argsort(np.argsort(a)), np.argsort(np.argsort(b)))[0, 1])
    half = len(pages) // 2
    kept_a, kept_b = set(np.argsort(-a)[:half].tolist()), set(np.argsort(-b)[:half].tolist())
    return correlation, len(kept_a & kept_b) / half


def _layer_indices(which: str, layers: int, config: MemDecayConfig) -> list[int]:
    names = [str(index) for index in range(layers)]
    chosen = {"all": "all", "every third": config.observed_layers, "quarter": 4}[which]
    return sorted(int(name) for name in observed_layer_names(names, chosen))


def _observation(rows: np.ndarray, seen: int, represented: int) -> Observation:
    mass = rows[:, :seen].mean(0).astype(np.float32)
    return Observation(np.arange(seen), mass / mass.sum(), represented)


def _prompts(
    options: ObservationOptions, tokenizer: Any, config: MemDecayConfig
) -> Iterator[tuple[str, list[int], list[Span]]]:
    from langchain_core.messages import convert_to_messages

    for line in options.traces.read_text(encoding="utf-8").splitlines():
        trace = json.loads(line)
        prompt = build_prompt(
            convert_to_messages(trace["messages"]), tokenizer, config=config, add_generation_prompt=False
        )
        n = min(len(prompt.token_ids), options.max_tokens)
        if n >= options.min_tokens:
            spans = [Span(s.start, min(s.end, n), s.region, s.flags) for s in prompt.spans if s.start < n]
            yield trace["id"], prompt.token_ids[:n], spans
