"""Tuning on a user's traces: the default profile against one calibrated on half of them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from memdecay_adapters.evaluation.run import EvaluateOptions, Evaluation, Progress
from memdecay_agents.calibration.lifetimes import Lifetimes
from memdecay_agents.calibration.profiles import ProfileFile, calibrate
from memdecay_agents.errors import TraceError
from memdecay_agents.evaluation.tuning import Balance, ModelCost, Proposal, halves, propose
from memdecay_agents.evaluation.variants import Variant


@dataclass(frozen=True)
class TuneResult:
    """What is proposed, and what was tried."""

    proposal: Proposal | None
    tried: dict[tuple[str, float], Balance]
    """By profile and budget, on the first half of the traces."""
    profile: ProfileFile | None
    """Calibrated on the first half; None where it could not be."""
    traces: int
    left_out: tuple[str, ...]


def run_tune(
    trace_files: tuple[Path, ...],
    keep: float,
    *,
    model: str | None = None,
    most_traces: int | None = None,
    longest_tokens: int = 4096,
    cache: Path | None = None,
    progress: Progress = lambda stage, done, total: None,
) -> TuneResult:
    """Propose a budget and a profile.

    Raises:
        TraceError: no trace with facts.
    """
    evaluation = Evaluation(
        EvaluateOptions(
            model=model,
            generators=(),
            trace_files=trace_files,
            most_traces=most_traces,
            longest_tokens=longest_tokens,
            verify_part=0.0,
            cache=cache,
        ),
        progress,
    )
    traces = evaluation.traces()
    if not traces:
        raise TraceError(
            where="memdecay tune",
            rule=f"none of the traces can be used: {'; '.join(evaluation.skipped[:3])}",
            remedy="Give traces with probes, or whose tool calls quote earlier tool results.",
        )
    evaluation.record(traces)
    pairs = [(trace, evaluation.recorder.record(trace)) for trace in traces]
    variants = [Variant("memdecay", pinned=True, name="default")]
    left_out = list(evaluation.skipped)
    profile = None
    config = variants[0].config()
    lifetimes, used = Lifetimes(config.region_names, config.clock_unit), 0
    for trace, recording in halves(pairs)[0]:
        try:
            lifetimes.add_trace(trace, recording)
            used += 1
        except TraceError as error:
            left_out.append(f"not calibrated on: {error}")
    if used:
        profile = ProfileFile(
            model=evaluation.options.model or "default",
            clock_unit=config.clock_unit,
            contexts=(calibrate(lifetimes, traces=used),),
        )
        variants.append(Variant("memdecay", pinned=True, settings=profile.settings(), name="calibrated"))
    progress("replay", 0, 1)
    proposal, tried = propose(pairs, variants, keep, model_cost(evaluation.model_path))
    progress("replay", 1, 1)
    return TuneResult(proposal, tried, profile, len(traces), tuple(left_out))


def model_cost(model_path: str) -> ModelCost:
    """Floating-point operations of a decoder-only model, from its configuration: matrices and attention, no more."""
    from transformers import AutoConfig

    config: Any = AutoConfig.from_pretrained(model_path)
    hidden, layers, heads = config.hidden_size, config.num_hidden_layers, config.num_attention_heads
    head_dim = getattr(config, "head_dim", None) or hidden // heads
    kv_heads = getattr(config, "num_key_value_heads", None) or heads
    per_layer = hidden * head_dim * (2 * heads + 2 * kv_heads) + 3 * hidden * config.intermediate_size
    return ModelCost(per_token=2.0 * layers * per_layer, per_pair=4.0 * layers * heads * head_dim)
