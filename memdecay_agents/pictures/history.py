"""What a picture is drawn from: each session's tokens by region and what happened to its pages. One JSON file.

Made by ``MemDecayEngine.history()`` (a session export), or from a ledger file alone, which knows only the pages that
left (`history_of_ledger`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from memdecay_agents._validation import first_problem
from memdecay_agents.config import MemDecayConfig
from memdecay_agents.errors import ConfigError, LedgerFileError
from memdecay_agents.ledger_entry import EvictionReason, LedgerEntry
from memdecay_agents.pictures.files import write_whole
from memdecay_agents.regions import ClockUnit

MOST_TOKENS = 2**40
MOST_PAGES = 2**18
"""Of one session: four million tokens in pages of 16."""
_Count = Annotated[int, Field(ge=0, le=MOST_TOKENS)]
_Name = Annotated[str, Field(max_length=4096)]


class PageState(StrEnum):
    """Where a page's keys and values are."""

    held = "held"
    """In the engine's cache."""
    evicted = "evicted"
    """Nowhere."""
    host = "host"
    """In host memory, where a tier keeps evicted pages; it may come back."""


_STATE_AFTER = {"swapped_out": PageState.host, "swapped_in": PageState.held}


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class PageEvent(_Frozen):
    """One page that left the cache, or came back to it."""

    page: _Count
    """Logical page number."""
    region: _Name
    """Region of most of its tokens."""
    regions: dict[_Name, _Count]
    """Tokens of the page by region."""
    at_tokens: _Count
    """Tokens of the session whose KV had been computed."""
    turn: int
    reason: _Name
    """``EvictionReason``, or the tier's "swapped_out" and "swapped_in"."""
    score: float | None = None
    """Page score under the policy; of a page that came back the evidence for it."""
    to_host: bool = False
    """Whether it went to host memory, and was there when it came back or when the history was taken."""

    @property
    def state(self) -> PageState:
        """Where the page is from then on."""
        return PageState.host if self.to_host else _STATE_AFTER.get(self.reason, PageState.evicted)


class PageRun(_Frozen):
    """Pages [first, end), most of whose tokens are of one region."""

    first: _Count
    end: _Count
    region: _Name


class Rewind(_Frozen):
    """The session went back: what it had computed beyond a point was dropped."""

    after_events: _Count
    """How many of the events happened before."""
    from_tokens: _Count
    """Tokens that were computed."""
    to_tokens: _Count
    """Tokens that remained."""


class SessionHistory(_Frozen):
    """One session's memory, from its beginning."""

    session: _Name
    """``SessionId.key()``."""
    agent: _Name
    page_size_tokens: Annotated[int, Field(ge=1, le=65536)]
    computed_tokens: _Count
    """Tokens of the session whose KV was computed when the history was taken."""
    budget_tokens: _Count | None = None
    """Of the newest turn; None: none, or unknown."""
    regions: tuple[PageRun, ...] = ()
    """Ascending; of what lies between them the region is unknown."""
    held: tuple[tuple[_Count, _Count], ...] | None = None
    """Runs of pages [first, end) held when the history was taken; None: unknown."""
    events: tuple[PageEvent, ...] = ()
    """In the order in which they happened."""
    rewinds: tuple[Rewind, ...] = ()
    """In the order in which they happened; a ledger alone does not know them."""

    @model_validator(mode="after")
    def _holds_together(self) -> SessionHistory:
        for what, runs in (("regions", [(run.first, run.end) for run in self.regions]), ("held", self.held or ())):
            at = 0
            for first, end in runs:
                if not at <= first < end:
                    raise ValueError(f"{what}: runs must not be empty and must ascend")
                at = end
        after = [rewind.after_events for rewind in self.rewinds]
        if after != sorted(after) or any(rewind.to_tokens >= rewind.from_tokens for rewind in self.rewinds):
            raise ValueError("rewinds must go back, and be in order")
        if self.total_pages > MOST_PAGES:
            raise ValueError(f"{self.total_pages} pages, at most {MOST_PAGES} can be drawn")
        return self

    @property
    def total_pages(self) -> int:
        """Pages of the whole trace, as far as anything is known of them."""
        tokens = max([self.computed_tokens, *(event.at_tokens for event in self.events)])
        tokens = max([tokens, *(rewind.from_tokens for rewind in self.rewinds)])
        last = [run.end for run in self.regions[-1:]] + [end for _, end in (self.held or ())[-1:]]
        last += [event.page + 1 for event in self.events]
        return max([-(-tokens // self.page_size_tokens), *last])


class RegionPriority(_Frozen):
    """What a region's tokens are worth over time, under the configuration in force."""

    region: _Name
    base_priority: Annotated[float, Field(ge=0)]
    half_life_ticks: Annotated[float, Field(gt=0)] | None
    """None: it does not decay."""
    pinned: bool


class MemoryHistory(_Frozen):
    """All sessions of an engine, or of a ledger file."""

    schema_version: Literal[1] = 1
    model: _Name = ""
    policy: _Name = ""
    clock_unit: ClockUnit = "decode_steps"
    decay_form: Literal["exponential", "power_law"] = "exponential"
    priorities: tuple[RegionPriority, ...] = ()
    sessions: tuple[SessionHistory, ...] = ()

    def save(self, path: str | Path) -> Path:
        """Write it as JSON; a file that exists is replaced whole or not at all."""
        return write_whole(path, self.model_dump_json() + "\n")

    @classmethod
    def load(cls, path: str | Path) -> MemoryHistory:
        """Read what ``save`` wrote.

        Raises:
            LedgerFileError: it cannot be read or is no history; the field is named.
        """
        try:
            return cls.model_validate_json(Path(path).read_bytes())
        except ValidationError as error:
            field, problem = first_problem(error)
            where = f"{path}, field {field}" if field else str(path)
            raise LedgerFileError(
                where=where, rule=problem, remedy="Write histories with MemDecayEngine.history().save(path)."
            ) from None
        except OSError as error:
            raise LedgerFileError(
                where=str(path), rule=f"it cannot be read: {error.strerror}", remedy="Give a file that is there."
            ) from error


def priorities_of(config: MemDecayConfig) -> tuple[RegionPriority, ...]:
    """A configuration's regions as a history holds them."""
    return tuple(
        RegionPriority(
            region=name,
            base_priority=profile.base_priority,
            half_life_ticks=profile.half_life_ticks,
            pinned=profile.pinned,
        )
        for name, profile in config.regions.items()
    )


def events_of(entries: Sequence[LedgerEntry], away: Collection[int] = ()) -> tuple[PageEvent, ...]:
    """Ledger entries of one session as events.

    Args:
        entries: evictions and returns, oldest first.
        away: pages that are in host memory now.
    """
    next_is_a_return: dict[int, bool] = dict.fromkeys(away, True)
    on_host = []
    for entry in reversed(entries):
        returns = entry.reason is EvictionReason.swapped_in
        on_host.append(not returns and next_is_a_return.get(entry.page, False))
        next_is_a_return[entry.page] = returns
    return tuple(
        PageEvent(
            page=entry.page,
            region=entry.region,
            regions=entry.regions,
            at_tokens=entry.computed_tokens,
            turn=entry.turn,
            reason=entry.reason.value,
            score=entry.score,
            to_host=to_host,
        )
        for entry, to_host in zip(entries, reversed(on_host), strict=True)
    )


def history_of_ledger(
    entries: Iterable[LedgerEntry], config: MemDecayConfig | None = None, *, budget_tokens: int | None = None
) -> MemoryHistory:
    """A history from a ledger alone: pages that never left are held, in a region that is not known.

    Args:
        entries: of any number of sessions, oldest first.
        config: what the priorities were; None: none are drawn.
        budget_tokens: of all sessions; a ledger does not name it.

    Raises:
        ConfigError: pages of different sizes in one session.
    """
    by_session: dict[str, list[LedgerEntry]] = {}
    for entry in entries:
        by_session.setdefault(entry.session, []).append(entry)
    sessions = []
    for key, mine in by_session.items():
        sizes = {entry.token_end - entry.token_start for entry in mine}
        if len(sizes) > 1 or min(sizes) < 1:
            raise ConfigError(
                where=f"ledger, session '{key}'",
                rule=f"its pages have {sorted(sizes)} tokens",
                remedy="Give the ledger of one engine, whose pages all have one size.",
            )
        sessions.append(
            SessionHistory(
                session=key,
                agent=mine[-1].agent,
                page_size_tokens=sizes.pop(),
                computed_tokens=mine[-1].computed_tokens,
                budget_tokens=budget_tokens,
                events=events_of(mine),
            )
        )
    if config is None:
        return MemoryHistory(sessions=tuple(sessions))
    return MemoryHistory(
        policy=config.policy,
        clock_unit=config.clock_unit,
        decay_form=config.decay_form,
        priorities=priorities_of(config),
        sessions=tuple(sessions),
    )
