"""What scheduler and worker tell each other about the host tier; part of `StepDirections` and `AttentionReport`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, NamedTuple


class PageCopy(NamedTuple):
    """One page between the device's pool and the tier."""

    direction: Literal["out", "in"]
    """"out": from the device to the tier."""
    block: int
    """Page id in the device's pool."""
    slot: int
    """Place in the tier."""


class QueryWindow(NamedTuple):
    """The newest queries of one request's row in a step."""

    first: int
    """Logical index of the first token."""
    tokens: int
    """How many, up to the step's last one."""


class Probe(NamedTuple):
    """The pages that a turn's newest queries are asked about."""

    slots: list[int]
    """Pages in the tier."""
    blocks: list[int]
    """Pages on the device that may make room for them."""


@dataclass
class TierDirections:
    """Scheduler to worker: what to do for the tier in a step."""

    copies: list[PageCopy] = field(default_factory=list)
    """Before the step, in this order: a later one may read what an earlier one wrote."""
    windows: dict[str, QueryWindow] = field(default_factory=dict)
    """Request id to the queries to keep."""
    probes: dict[str, Probe] = field(default_factory=dict)
    """Request id to the pages to weigh after the step's forward pass."""
    rewound: list[str] = field(default_factory=list)
    """Requests whose newest sampled token was discarded."""
