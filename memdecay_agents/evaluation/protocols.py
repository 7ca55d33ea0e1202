"""What evaluation needs from a model and from an engine; the adapters have both."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from memdecay_agents.evaluation.outcomes import FactOutcome
from memdecay_agents.evaluation.recording import AttentionRecording
from memdecay_agents.evaluation.traces import TokenTrace
from memdecay_agents.evaluation.variants import Variant


class Recorder(Protocol):
    """Runs a model over a trace with the full cache."""

    def record(self, trace: TokenTrace) -> AttentionRecording:
        """The attention of every query of the trace."""


class Verifier(Protocol):
    """Streams traces through a real engine under a budget and asks the questions."""

    def verify(
        self,
        trace: TokenTrace,
        variants: Sequence[tuple[Variant, float | None]],
        progress: Callable[[int], None],
    ) -> list[FactOutcome]:
        """Outcomes of all variants and budgets of one trace; what a budget cannot hold is left out."""
