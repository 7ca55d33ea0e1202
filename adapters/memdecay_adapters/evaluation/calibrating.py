"""Calibration from traces: record, collect lifetimes by context length, fit."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from memdecay_adapters.evaluation.run import EvaluateOptions, Evaluation, Progress
from memdecay_adapters.models import DEFAULT_MODEL_NAME
from memdecay_agents.calibration.lifetimes import Lifetimes
from memdecay_agents.calibration.profiles import ContextProfile, ProfileFile, calibrate
from memdecay_agents.errors import TraceError
from memdecay_agents.evaluation.traces import TokenTrace
from memdecay_agents.regions import ClockUnit


@dataclass(frozen=True)
class CalibrateOptions:
    """What to calibrate on."""

    model: str | None = None
    trace_files: tuple[Path, ...] = ()
    """Empty: synthetic traces."""
    most_traces: int | None = None
    seeds: tuple[int, ...] = tuple(range(8))
    lengths: tuple[int, ...] = (450, 1700)
    """Of synthetic traces; of files: upper ends of the groups, in tokens."""
    unit: ClockUnit = "tokens"
    cache: Path | None = None


@dataclass(frozen=True)
class CalibrationResult:
    """A profile and what it comes from."""

    profile: ProfileFile
    lifetimes: tuple[Lifetimes, ...]
    """One a context length, as in the profile."""
    refused: tuple[str, ...]
    """Traces that were left out, and why."""


def run_calibration(
    options: CalibrateOptions, progress: Progress = lambda stage, done, total: None
) -> CalibrationResult:
    """Measure and fit.

    Raises:
        TraceError: no trace could be used; the reasons are given.
    """
    evaluation = Evaluation(
        EvaluateOptions(
            model=options.model,
            generators=() if options.trace_files else ("planted",),
            trace_files=options.trace_files,
            most_traces=options.most_traces,
            seeds=options.seeds,
            lengths=options.lengths,
            longest_tokens=max(options.lengths),
            cache=options.cache,
        ),
        progress,
    )
    traces = evaluation.traces(facts_needed=False)
    names = evaluation.config.region_names
    groups: dict[int, list[TokenTrace]] = {}
    for trace in traces:
        groups.setdefault(_group(trace, options), []).append(trace)
    contexts: list[ContextProfile] = []
    kept: list[Lifetimes] = []
    refused = list(evaluation.skipped)
    done = 0
    for _, group in sorted(groups.items()):
        lifetimes, used = Lifetimes(names, options.unit), 0
        for trace in group:
            progress("record", done, len(traces))
            done += 1
            try:
                lifetimes.add_trace(trace, evaluation.recorder.record(trace))
                used += 1
            except TraceError as error:
                refused.append(str(error))
        if used:
            try:
                contexts.append(calibrate(lifetimes, traces=used))
                kept.append(lifetimes)
            except TraceError as error:
                refused.append(str(error))
    progress("record", len(traces), len(traces))
    if not contexts:
        raise TraceError(
            where="calibration",
            rule=f"none of {len(traces)} traces can be used: {'; '.join(refused[:3]) or 'there are none'}",
            remedy="Give traces of an agent at work: at least 64 tokens, two regions, 16 generated tokens.",
        )
    profile = ProfileFile(model=options.model or DEFAULT_MODEL_NAME, clock_unit=options.unit, contexts=tuple(contexts))
    return CalibrationResult(profile, tuple(kept), tuple(refused))


def _group(trace: TokenTrace, options: CalibrateOptions) -> int:
    """The length that the trace is counted under."""
    if not options.trace_files:
        return trace.length
    return next((length for length in sorted(options.lengths) if trace.n_tokens <= length), max(options.lengths))
