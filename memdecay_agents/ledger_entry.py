"""One page that went or came back: what it was, when and why. Written as one JSON object a line."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterable
from enum import StrEnum
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from memdecay_agents._validation import first_problem
from memdecay_agents.errors import LedgerFileError


class EvictionReason(StrEnum):
    """Why a page was freed before its session ended of itself."""

    over_budget = "over_budget"
    """The session held more than its budget."""
    pool_pressure = "pool_pressure"
    """The engine's pool ran short, within every session's budget."""
    rewind = "rewind"
    """The session went back to an earlier point; the page's tokens are no longer part of it."""
    superseded = "superseded"
    """Something newer replaced the page's tokens."""
    closed = "closed"
    """The session ended, was aborted, or lost its cache to a preemption."""
    swapped_out = "swapped_out"
    """The page made way for one that came back from host memory."""
    swapped_in = "swapped_in"
    """No eviction: the page came back from host memory."""


class LedgerEntry(BaseModel):
    """One page that was freed, or (``swapped_in``) came back."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    session: str
    """``SessionId.key()``."""
    agent: str
    turn: int
    request_id: str
    page: int = Field(ge=0)
    """Logical page number in the session."""
    token_start: int
    token_end: int
    """The page's tokens: [token_start, token_end), absolute in the session."""
    regions: dict[str, int]
    """Tokens of the page by region."""
    region: str
    """Region of most of them."""
    pinned: bool
    """Whether the page held a pinned token; such a page is never evicted."""
    clock_ticks: int
    """The session's clock, in the configuration's unit."""
    computed_tokens: int
    """Tokens of the session whose KV had been computed."""
    score: float
    """Page score under the policy."""
    parts: dict[str, float]
    """Named parts that add up to the score."""
    order_position: int = Field(ge=0)
    """Place in the plan's order; 0 went first."""
    reason: EvictionReason

    # why it stood there, for explanations; a ledger of an earlier version has none of it
    step: int | None = None
    """Engine steps that had computed tokens of the session, since it began or was preempted."""
    budget_pages: int | None = None
    """The budget in force; None: no limit."""
    keeping_pages: int | None = None
    """The budget under which this plan's order would have kept the page; for pool pressure the guarantee."""
    superseded: bool = False
    """Whether most of its tokens were superseded."""
    inside_quota: bool | None = None
    """Whether it was inside its region's quota; None: the policy knows no quotas."""
    quota: float = 0.0
    """What quotas added to the score; the order goes by the sum."""
    lowest_kept: float | None = None
    """Score and quota of the next page in the order that stayed; None: no such page stayed."""
    evidence: dict[str, float] = Field(default_factory=dict)
    """Means over the page's tokens: ``age_ticks``, ``ewma_mass``, ``salience``, ``key_norm``."""

    @classmethod
    def booked(cls, **fields: Any) -> LedgerEntry:
        """An entry of all fields, each of its declared type: not checked again, and with one set of names for all."""
        return cls.model_construct(_ALL_FIELDS, **fields)


_ALL_FIELDS = set(LedgerEntry.model_fields)
"""Which fields are set, shared by the booked entries: a set of their own would be a third of their size."""


def write_jsonl(entries: Iterable[LedgerEntry], path: str | Path) -> None:
    """Write entries, one JSON object a line; a file that exists is replaced whole or not at all."""
    target = Path(path)
    handle, temporary = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            for entry in entries:
                file.write(json.dumps(entry.model_dump(mode="json"), ensure_ascii=False) + "\n")
        Path(temporary).replace(target)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def read_jsonl(path: str | Path) -> list[LedgerEntry]:
    """Read what ``write_jsonl`` wrote.

    Raises:
        LedgerFileError: a line is no entry; the line number and field are named.
    """
    entries = []
    with Path(path).open(encoding="utf-8") as file:
        for number, line in enumerate(file, start=1):
            if not line.strip():
                continue
            try:
                entries.append(LedgerEntry.model_validate_json(line))
            except ValidationError as error:
                field, problem = first_problem(error)
                raise LedgerFileError(
                    where=f"{path}, line {number}" + (f", field {field}" if field else ""),
                    rule=problem,
                    remedy="Write ledgers with Ledger.to_jsonl.",
                ) from None
    return entries
