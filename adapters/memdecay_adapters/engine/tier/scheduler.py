"""vLLM's scheduler, which computes a turn again when pages that it asked for have come back.

`scheduler_cls` is vLLM's own setting. The prompt's last step samples a token; before it is taken in, evidence says
whether pages change places. If they do, the token is dropped by the bookkeeping with which vLLM 0.32 drops output of a
preempted request (``num_stale_output_tokens``), and the request goes on from an earlier token with the row that it has.
Nobody outside sees that token. Synchronous scheduling only: no further step of the request is under way then.
"""

from __future__ import annotations

from typing import Any

from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.outputs import ModelRunnerOutput

from memdecay_adapters.engine.connector import MemDecayConnector
from memdecay_adapters.engine.required import require_attributes
from memdecay_adapters.engine.step_messages import AttentionReport, StepDirections

USED = (
    "drop_stale_output",
    "num_stale_output_tokens",
    "num_in_flight_tokens",
    "num_output_placeholders",
    "spec_token_ids",
    "num_computed_tokens",
)
"""What is written or read of a request."""


class RecallScheduler(Scheduler):
    """Swaps pages and winds turns back between a step's result and its taking in."""

    def update_from_output(self, scheduler_output: SchedulerOutput, model_runner_output: ModelRunnerOutput) -> Any:
        """See the base class."""
        directions = scheduler_output.kv_connector_metadata
        if isinstance(directions, StepDirections) and directions.tier is not None and directions.tier.probes:
            self._recall(list(directions.tier.probes), model_runner_output)
        return super().update_from_output(scheduler_output, model_runner_output)

    def _recall(self, probed: list[str], output: ModelRunnerOutput) -> None:
        connector = self.connector
        assert isinstance(connector, MemDecayConnector)
        report = output.kv_connector_output.kv_connector_worker_meta if output.kv_connector_output else None
        evidence = report.tier.evidence if isinstance(report, AttentionReport) else {}
        for request_id in probed:
            request = self.requests.get(request_id)
            if request is None or request.is_finished() or request.num_stale_output_tokens:
                continue
            rewind_to = connector.swaps.decide(request_id, evidence.get(request_id))
            if rewind_to is None:
                continue
            request.drop_stale_output = True
            request.num_stale_output_tokens = request.num_in_flight_tokens
            request.num_output_placeholders, request.spec_token_ids = 0, []
            request.num_computed_tokens = rewind_to

    def add_request(self, request: Any) -> None:
        """See the base class; refuses a vLLM whose requests are kept otherwise."""
        if not self._checked:
            require_attributes(request, "vLLM's request", USED)
            self._checked = True
        super().add_request(request)

    _checked = False
