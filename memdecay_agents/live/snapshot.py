"""What an engine holds and does at one moment, as JSON. Pages unless another unit is named.

A snapshot of one tenant names nothing of another: its sessions, agents, evictions and tokens are the tenant's own, and
of the pool it says only the size.
"""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from memdecay_agents._validation import first_problem
from memdecay_agents.errors import RemoteError


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore", allow_inf_nan=False)  # a newer server may say more


class PoolView(_Frozen):
    """The block pool."""

    total_pages: int
    held_pages: int
    """By the sessions of this snapshot; a page that sessions share counts once for an engine, for a tenant once a
    session."""
    free_pages: int | None = None
    """None: other tenants' use is not shown."""
    guaranteed_pages: int | None = None
    """To running requests; None: as above."""
    waiting_requests: int | None = None
    """For admission; None: as above."""
    host_pages: int | None = None
    """In host memory; None: there is no such tier."""


class Flow(_Frozen):
    """Tokens since start, and lately."""

    computed_tokens: int = 0
    """Positions computed, prompts included."""
    generated_tokens: int = 0
    computed_tokens_per_second: float = 0.0
    """Over the last ten seconds."""
    generated_tokens_per_second: float = 0.0


class Evictions(_Frozen):
    """Pages that left the cache since start."""

    pages: int = 0
    by_region: dict[str, int] = {}
    by_reason: dict[str, int] = {}


class SessionView(_Frozen):
    """One session that holds pages."""

    session: str
    """Thread and branch, as hints write them."""
    agent: str
    state: Literal["running", "idle"]
    idle_seconds: float | None
    turn: int
    tokens: int
    """Computed, evicted ones included."""
    page_size_tokens: int
    pages_held: int
    pages_held_by_region: dict[str, int]
    budget_pages: int | None
    """None: no budget."""
    evicted_pages: int
    host_pages: int | None = None
    """In host memory; None: there is no such tier."""


class AgentView(_Frozen):
    """One agent: its sessions now, and what it did since start."""

    agent: str
    running_sessions: int
    idle_sessions: int
    pages_held: int
    pages_held_by_region: dict[str, int]
    budget_pages: int | None
    """Of its sessions together; None: one has no budget, or there is no session."""
    evictions: Evictions
    flow: Flow

    @property
    def budget_use(self) -> float | None:
        """Held pages as a part of the budget."""
        return self.pages_held / self.budget_pages if self.budget_pages else None


class EngineSnapshot(_Frozen):
    """One engine, or one tenant's part of it."""

    schema_version: Literal[1] = 1
    scope: Literal["engine", "tenant"]
    model: str = ""
    policy: str
    page_size_tokens: int
    taken_unix_seconds: float
    uptime_seconds: float
    pool: PoolView
    flow: Flow
    evictions: Evictions
    agents: tuple[AgentView, ...] = ()
    """Those that hold most first."""
    agents_left_out: int = 0
    sessions: tuple[SessionView, ...] = ()
    """Running ones first, then idle ones, least recently used first."""
    sessions_left_out: int = 0


def read_snapshot(body: object, where: str) -> EngineSnapshot:
    """A snapshot as it came from a server.

    Raises:
        RemoteError: it is none; the field is named.
    """
    try:
        return EngineSnapshot.model_validate(body)
    except ValidationError as error:
        field, problem = first_problem(error)
        raise RemoteError(
            where=f"{where}, field {field}" if field else where,
            rule=problem,
            remedy="Check that the address is one of `memdecay serve` or of a live page, of this version.",
        ) from None
