"""The demo's result as data, for ``--json`` and for tests."""

from __future__ import annotations

from typing import Any, TypedDict

from memdecay_adapters.demo.probes import ProbeOutcome
from memdecay_adapters.demo.watch import ModelCall

SCHEMA_VERSION = 1


class FactReport(TypedDict):
    """One planted fact."""

    region: str
    attribute: str
    pages: int
    pages_kept: int
    correct: bool
    correct_full_cache: bool


class TurnReport(TypedDict):
    """One call of the model by one agent."""

    agent: str
    user_turn: int
    request_id: str
    budget_pages: int | None
    pages_total: int
    tokens_by_region: dict[str, int]
    pages_held: int
    pages_held_by_region: dict[str, int]
    freed_by_region: dict[str, int]
    tokens_per_second: float
    tool_calls: list[str]


class DemoReport(TypedDict):
    """All of the demo. Pages unless another unit is named; the keys are stable within a schema version."""

    schema_version: int
    engine_version: str
    model: str
    policy: str
    dtype: str
    page_size_tokens: int
    budget_pages: int | None
    chunk_pages: int
    evictions_total: int
    freed_pinned_pages: int
    free_blocks_before: int
    free_blocks_after: int
    peak_pages_decode: int
    peak_pages_prefill: int
    peak_rss_bytes: int
    wall_seconds: float
    ledger_file: str
    picture_file: str
    page_file: str
    history_file: str
    facts: list[FactReport]
    turns: list[TurnReport]


def fact_reports(with_eviction: list[ProbeOutcome], full_cache: list[ProbeOutcome]) -> list[FactReport]:
    """Each fact, asked under the budget and with the full cache."""
    return [
        FactReport(
            region=kept.fact.region,
            attribute=kept.fact.attribute,
            pages=len(kept.pages),
            pages_kept=kept.pages_kept,
            correct=kept.correct,
            correct_full_cache=full.correct,
        )
        for kept, full in zip(with_eviction, full_cache, strict=True)
    ]


def turn_report(call: ModelCall) -> TurnReport:
    """One call of the model."""
    kept = call.retention
    return TurnReport(
        agent=call.agent,
        user_turn=call.user_turn,
        request_id=kept.request_id,
        budget_pages=kept.budget_pages,
        pages_total=kept.pages_total,
        tokens_by_region=kept.tokens_by_region,
        pages_held=kept.pages_held,
        pages_held_by_region=kept.pages_held_by_region,
        freed_by_region=kept.freed_by_region,
        tokens_per_second=round(call.tokens_per_second, 2),
        tool_calls=list(call.tool_calls),
    )


def plain(report: DemoReport) -> dict[str, Any]:
    """The report as a plain dict."""
    return dict(report)
