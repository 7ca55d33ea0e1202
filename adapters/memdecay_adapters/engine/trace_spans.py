"""A span for each ended request beside vLLM's own, with what was held and freed.

vLLM 0.32 emits ``llm_request`` where it was given ``otlp_traces_endpoint``; its attributes are fixed. Its public
``vllm.tracing.instrument_manual`` takes further spans with the same exporter, and ``extract_trace_context`` the
caller's trace, in which both stand side by side.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vllm.config import VllmConfig

NAME = "memdecay.retention"


def traces_requests(vllm_config: VllmConfig) -> bool:
    """Whether vLLM emits spans."""
    return vllm_config.observability_config.otlp_traces_endpoint is not None


def span_of(request: Any, summary: dict[str, Any]) -> None:
    """Emit the span of an ended request.

    Args:
        request: vLLM's; knows when it arrived (seconds since the epoch) and its caller's trace headers.
        summary: its retention summary as plain data.
    """
    from vllm.tracing import extract_trace_context, instrument_manual

    instrument_manual(
        NAME,
        start_time=int(request.arrival_time * 1e9),
        end_time=time.time_ns(),
        attributes=attributes_of(summary),
        context=extract_trace_context(request.trace_headers),
    )


def attributes_of(summary: dict[str, Any]) -> dict[str, str | int | bool]:
    """Attributes of the span: numbers and names, no text; pages unless another unit is named."""
    plain = ("request_id", "agent", "turn", "policy", "pages_held", "pages_total", "evictions", "continued_tokens",
             "rewound_tokens", "shortfall_pages", "peak_pages_decode", "budget_bound", "budget_pages")  # fmt: skip
    found = {f"memdecay.{name}": summary[name] for name in plain if summary[name] is not None}
    for region, pages in summary["freed_by_region"].items():
        found[f"memdecay.freed_pages.{region}"] = pages
    return found
