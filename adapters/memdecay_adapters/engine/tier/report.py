"""What a worker says about the host tier after a step."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt


@dataclass
class TierReport:
    """Evidence of a step's probes, and what the tier's work took."""

    evidence: dict[str, npt.NDArray[np.float64]] = field(default_factory=dict)
    """Request id to float64 ``[slots + blocks]`` of its probe, summed over ranks."""
    copy_seconds: float = 0.0
    """Of the slowest rank."""
    evidence_seconds: float = 0.0
    """Of the slowest rank."""

    def __bool__(self) -> bool:
        """Whether it says anything."""
        return bool(self.evidence or self.copy_seconds)

    def added(self, other: TierReport) -> TierReport:
        """Both ranks' reports in one; a request that only one of them measured gets no evidence."""
        common = self.evidence.keys() & other.evidence.keys()
        return TierReport(
            {request_id: self.evidence[request_id] + other.evidence[request_id] for request_id in common},
            max(self.copy_seconds, other.copy_seconds),
            max(self.evidence_seconds, other.evidence_seconds),
        )
