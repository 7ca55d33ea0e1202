"""How much attention a region's tokens get as they age: sums by region and age, of bounded size, without any text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from memdecay_agents.arrays import FloatArray, IndexArray, RegionArray
from memdecay_agents.errors import TraceError
from memdecay_agents.evaluation.recording import AttentionRecording
from memdecay_agents.evaluation.traces import GENERATED_REGIONS, TokenTrace
from memdecay_agents.observations import Observation
from memdecay_agents.regions import ClockUnit
from memdecay_agents.token_state import TokenState

UNITS: tuple[ClockUnit, ...] = ("decode_steps", "tokens", "turns")
SINK_TOKENS = 16
"""First tokens of a trace, left out: what they receive says nothing about what they say."""
SHORTEST_TOKENS = 64
FEWEST_QUERIES = 16
_BINS_PER_DOUBLING = 2
_MOST_BINS = 2 * 20
"""Up to an age of a million ticks."""

Doubles = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class LifetimeCurve:
    """Mean relative attention of one region by age; B ages that were seen."""

    age_ticks: Doubles
    """float64 [B]: mean age in each bin."""
    relative: Doubles
    """float64 [B]: 1 is what each token would get if attention were uniform."""
    weight: Doubles
    """float64 [B]: token-query pairs that it comes from."""


class Lifetimes:
    """Collects attention of generated tokens' queries, by region and age.

    Args:
        region_names: by region index.
        unit: what an age counts.
    """

    def __init__(self, region_names: Sequence[str], unit: ClockUnit) -> None:
        self.region_names = tuple(region_names)
        self.unit = unit
        self.queries = 0
        self.longest_tokens = 0
        shape = (len(self.region_names), _MOST_BINS)
        self._age, self._relative, self._count = np.zeros(shape), np.zeros(shape), np.zeros(shape)

    def add(self, region: RegionArray, age_ticks: IndexArray, relative: FloatArray) -> None:
        """Take in one query.

        Args:
            region: int8 [m]: region index of each token that it may attend to.
            age_ticks: int64 [m], at least 0.
            relative: float32 [m]: mass times the number of tokens.

        Raises:
            TraceError: NaN, infinity or a negative value; nothing was taken in.
        """
        if not np.isfinite(relative).all() or (relative.size and float(relative.min()) < 0.0):
            raise _refused("attention", "it holds NaN, infinity or a negative value")
        bins = np.minimum((np.log2(age_ticks + 1.0) * _BINS_PER_DOUBLING).astype(np.int64), _MOST_BINS - 1)
        slot = region.astype(np.int64) * _MOST_BINS + bins
        size = self._count.size
        for sums, values in ((self._age, age_ticks), (self._relative, relative), (self._count, np.ones(region.shape))):
            sums += np.bincount(slot, weights=values, minlength=size).reshape(sums.shape)
        self.queries += 1
        self.longest_tokens = max(self.longest_tokens, int(region.shape[0]))

    def add_trace(self, trace: TokenTrace, recording: AttentionRecording, *, every: int = 1) -> None:
        """Take in the queries of a trace's generated tokens.

        Args:
            trace: regions and turns.
            recording: of the same tokens.
            every: only every so manieth query.

        Raises:
            TraceError: too short, one region only, nothing generated, or another trace's recording.
        """
        if trace.n_tokens < SHORTEST_TOKENS:
            raise _refused(f"trace {trace.id!r}", f"{trace.n_tokens} tokens are too few, {SHORTEST_TOKENS} are needed")
        if not np.array_equal(recording.token_ids, trace.token_ids):
            raise _refused(f"trace {trace.id!r}", "the recording is of other tokens")
        index = {name: number for number, name in enumerate(self.region_names)}
        region = np.zeros(trace.n_tokens, dtype=np.int8)
        generated = np.zeros(trace.n_tokens, dtype=np.bool_)
        for span in trace.spans:
            region[span.start : span.end] = index[span.region]
            generated[span.start : span.end] = span.region in GENERATED_REGIONS
        if len(set(region.tolist())) < 2:
            raise _refused(f"trace {trace.id!r}", f"all of it is of one region, '{trace.spans[0].region}'")
        queries = np.flatnonzero(generated)
        if queries.size < FEWEST_QUERIES:
            raise _refused(f"trace {trace.id!r}", f"{queries.size} generated tokens, {FEWEST_QUERIES} are needed")
        clock = self._clock(trace, generated)
        for query in queries[::every].tolist():
            if query > SINK_TOKENS:
                relative = recording.row(query) * np.float32(query + 1)
                seen = slice(SINK_TOKENS, query)
                self.add(region[seen], clock[query] - clock[seen], relative[seen])

    def add_observation(self, tokens: TokenState, observation: Observation) -> None:
        """Take in what a running engine measured: one decode step's attention on the retained tokens.

        Measurements of prefilled queries are passed over. Turns are not known token by token.

        Raises:
            TraceError: the unit is turns.
        """
        if self.unit == "turns":
            raise _refused("a live engine", "it does not keep the turn in which each token was written")
        if not observation.decode or observation.token_index.size < SHORTEST_TOKENS:
            return
        index = observation.token_index
        clock = index
        if self.unit == "decode_steps":
            written = [number for number, name in enumerate(self.region_names) if name in GENERATED_REGIONS]
            clock = np.cumsum(np.isin(tokens.region[: int(index[-1]) + 1], written), dtype=np.int64)[index]
        seen = index >= SINK_TOKENS
        seen[-1] = False  # the query itself
        relative = observation.mass * np.float32(index.size)
        self.add(tokens.region[index[seen]], clock[-1] - clock[seen], relative[seen])

    def _clock(self, trace: TokenTrace, generated: npt.NDArray[np.bool_]) -> IndexArray:
        """The clock at each token, int64 [n]."""
        if self.unit == "tokens":
            return np.arange(trace.n_tokens, dtype=np.int64)
        if self.unit == "decode_steps":
            return np.cumsum(generated, dtype=np.int64)
        ends = np.asarray([turn.end for turn in trace.turns()], dtype=np.int64)
        return np.searchsorted(ends, np.arange(trace.n_tokens), side="right").astype(np.int64)

    def curve(self, region: str) -> LifetimeCurve:
        """The curve of a region; no ages where it was never seen."""
        row = self.region_names.index(region)
        seen = self._count[row] > 0
        count = self._count[row][seen]
        return LifetimeCurve(self._age[row][seen] / count, self._relative[row][seen] / count, count)

    @property
    def seen_regions(self) -> tuple[str, ...]:
        """Regions that attention was seen on."""
        return tuple(name for row, name in enumerate(self.region_names) if self._count[row].any())


def _refused(where: str, rule: str) -> TraceError:
    return TraceError(
        where=where, rule=rule, remedy="Leave this trace out, or record a longer one of an agent at work."
    )
