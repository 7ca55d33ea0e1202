"""``memdecay bench observation``: what is lost by measuring few layers, every few steps, from few queries.

A trace is recorded once with all attention (heads averaged). Its last part stands for decode steps. The product's own
session state takes in what each schedule would have measured, and a policy orders the pages: the default one, and
accumulated attention, which knows nothing but what was measured. That order is compared with the one that all layers
and every query, of prompt and answer, lead to.

    rank correlation   Spearman's, of the page scores
    kept in common     of the pages that half the budget keeps, the share that the other order keeps too
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from transformers import AutoTokenizer

from memdecay_adapters.bench.machine import machine, versions
from memdecay_adapters.evaluation.recorder import AttentionRecorder
from memdecay_adapters.langchain.prompt import build_prompt
from memdecay_adapters.models import DEFAULT_MODEL_NAME, resolve_model
from memdecay_agents import MemDecayConfig
from memdecay_agents.errors import UnsupportedError
from memdecay_agents.evaluation.recording import AttentionRecording
from memdecay_agents.evaluation.traces import TokenTrace
from memdecay_agents.observations import Observation
from memdecay_agents.policies.registry import get_policy
from memdecay_agents.session_state import SessionState
from memdecay_agents.sessions import SessionId
from memdecay_agents.spans import Span

SCHEMA_VERSION = 2
CHUNK_TOKENS = 512
DECODE_SHARE = 0.25
POLICIES = ("memdecay", "accumulated_attention")


@dataclass(frozen=True)
class Schedule:
    """What is measured."""

    layers: str
    """"all", "every third" or "every fourth" (as the configuration's default)."""
    stride: int
    """Decode steps from one measurement to the next."""
    window: int | None
    """Queries of a prefill chunk; None: all."""
    spread: bool = False
    """Whether they are spread evenly over the chunk, its last one among them; else they are its newest."""
    decode_window: int = 1
    """Newest decode queries that one measurement averages; at most the stride."""


EVERYTHING = Schedule("all", 1, None)
DEFAULT = Schedule("every fourth", 16, 16)
SCHEDULES = (
    DEFAULT,
    Schedule("all", 1, 16),
    Schedule("all", 16, 16),
    Schedule("every third", 16, 16),
    Schedule("every fourth", 1, 16),
    Schedule("every fourth", 4, 16),
    Schedule("every fourth", 8, 16),
    Schedule("every fourth", 16, 16, decode_window=16),
    Schedule("every fourth", 16, 64),
    Schedule("every fourth", 16, 64, spread=True),
    Schedule("every fourth", 16, None),
)
_LAYERS: dict[str, Any] = {"all": "all", "every third": 3, "every fourth": 4}


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
    """Longer traces are cut."""


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
    config = MemDecayConfig()
    recorders = {
        name: AttentionRecorder(path, config.model_copy(update={"observed_layers": layers}))
        for name, layers in _LAYERS.items()
    }
    found: dict[tuple[Schedule, str], list[tuple[float, float]]] = {}
    names = []
    for name, ids, spans in _prompts(options, AutoTokenizer.from_pretrained(path), config):
        progress(f"{name}: {len(ids)} tokens")
        trace = TokenTrace(name, "bench", len(ids), np.asarray(ids, dtype=np.int64), tuple(spans))
        recordings = {layers: recorder.record(trace) for layers, recorder in recorders.items()}
        for policy in POLICIES:
            truth = page_order(EVERYTHING, recordings["all"], spans, config, policy)
            for schedule in SCHEDULES:
                order = page_order(schedule, recordings[schedule.layers], spans, config, policy)
                found.setdefault((schedule, policy), []).append(agreement(order, truth))
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
        "schedules": [
            _row(schedule, {policy: found[schedule, policy] for policy in POLICIES}) for schedule in SCHEDULES
        ],
    }


def _row(schedule: Schedule, found: dict[str, list[tuple[float, float]]]) -> dict[str, Any]:
    row: dict[str, Any] = {
        "layers": schedule.layers,
        "decode_stride_steps": schedule.stride,
        "decode_queries": schedule.decode_window,
        "prefill_queries": schedule.window,
        "spread": schedule.spread,
    }
    for policy, pairs in found.items():
        correlations, overlaps = zip(*pairs, strict=True)
        row[f"{policy}_rank_correlation"] = round(statistics.fmean(correlations), 4)
        row[f"{policy}_rank_correlation_worst"] = round(min(correlations), 4)
        row[f"{policy}_kept_in_common"] = round(statistics.fmean(overlaps), 4)
    return row


def page_order(
    schedule: Schedule, recording: AttentionRecording, spans: Sequence[Span], config: MemDecayConfig, policy_name: str
) -> dict[int, float]:
    """Score of each evictable page at the end of a trace that was measured by a schedule."""
    n = recording.n_tokens
    policy = get_policy(policy_name, config)
    session = SessionState(SessionId("bench", "trace", "agent", ""), "agent", config, policy)
    session.tokens.extend(n, spans=spans)
    prompt = n - int(n * DECODE_SHARE)
    for start in range(0, prompt, CHUNK_TOKENS):
        end = min(start + CHUNK_TOKENS, prompt)
        session.on_computed(end - start, 0)
        window = end - start if schedule.window is None else min(schedule.window, end - start)
        step = (end - start) // window if schedule.spread else 1
        session.observe(_observation(recording, range(end - 1 - step * (window - 1), end, step), end - start, start))
    normed = prompt
    for at in range(prompt, n):
        session.on_computed(1, 1)
        if (at - prompt + 1) % schedule.stride == 0:
            queries = range(max(at + 1 - schedule.decode_window, prompt), at + 1)
            session.observe(_observation(recording, queries, schedule.stride, normed))
            normed = at + 1
    view = session.view(n, np.arange(-(-n // config.page_size_tokens)))
    scores = policy.page_scores(view)
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


def _observation(recording: AttentionRecording, queries: range, represented: int, first_normed: int) -> Observation:
    seen = queries[-1] + 1
    mass = np.zeros(seen, dtype=np.float32)
    for query in queries:
        mass[: query + 1] += recording.row(query)
    norms = recording.key_norms[first_normed:seen]
    return Observation(np.arange(seen), mass / mass.sum(), represented, key_norms=norms)


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
