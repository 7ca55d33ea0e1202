"""What the user chooses about the host tier. Off by default: then the engine is exactly what it is without it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from memdecay_agents.recall import LEAST_SHARE, NEIGHBOUR_SHARE, RECENT_SHARE, RetrievalHead, RetrievalHeads

Rerun: TypeAlias = Literal["turn"] | Annotated[int, Field(ge=1)]


class Recall(BaseModel):
    """Recall by evidence: after a turn's prompt, pages that its newest queries ask for come back, and it runs again."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    max_pages: int = Field(default=4, ge=1, le=64)
    """Pages that come back at most; as many others leave, less those that a reserve has room for."""
    reserve_pages: int = Field(default=0, ge=0, le=64)
    """Pages of the budget that the policy leaves free for what comes back, so that so many fewer have to leave for it;
    less where pinned and protected pages fill the budget. 0: what comes back takes the place of what leaves."""
    recent_share: float = Field(default=RECENT_SHARE, ge=0.0, le=1.0)
    """Part of the pages that may go and stay that is the newest ones': they leave after all others, since what is older
    comes back when it is asked for, and what is newest is needed unasked. 0: the policy alone decides."""
    recent_may_leave: bool = True
    """Whether recent pages before what is computed again may make room where no other page does; False: never."""
    least_share: float = Field(default=LEAST_SHARE, ge=0.0, le=1.0)
    """What comes back has at least this share of the evidence of the best page, here or away, pinned or not (sink pages
    aside): what a turn hardly asks for only distracts. 0: pinned pages are not asked about."""
    query_tokens: int = Field(default=16, ge=1, le=256)
    """Newest tokens of the turn whose queries count."""
    neighbour_share: float = Field(default=NEIGHBOUR_SHARE, ge=0.0, le=1.0)
    """A page counts at least this share of what the page before or behind it has: facts lie across pages."""
    rerun: Rerun = "turn"
    """What is computed again after a swap: the turn's last n tokens, or "turn": all of it. Never more than one prefill
    chunk, and nothing that another session may share."""
    every_tokens: int | None = Field(default=None, ge=1)
    """Ask again while the agent writes: after each so many generated tokens, the last of which are then computed again
    if pages change places. None: only at the end of a prompt."""
    heads: tuple[RetrievalHead, ...] | None = Field(default=None, min_length=1)
    """The model's retrieval heads, also as `RetrievalHeads`; None: those that are shipped for the model or were found
    before; a model of which none are known is calibrated when the engine starts."""

    @field_validator("heads", mode="before")
    @classmethod
    def _only_the_heads(cls, heads: Any) -> Any:
        return heads.heads if isinstance(heads, RetrievalHeads) else heads


class Repair(BaseModel):
    """Repair between two turns: tokens that were computed while others were evicted are computed again with everything
    there, while the agent waits for a tool. Everything that left comes back for it, beyond the budget, and goes again;
    in a pool without room for that nothing is done."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    last_tokens: int = Field(default=512, ge=1)
    """At most so many of the newest tokens are computed again; never those that a repair before has computed."""
    idle_seconds: float | None = Field(default=0.2, ge=0)
    """A session is repaired when the engine has had nothing to do, and its turn has been over, for so long; a turn that
    comes meanwhile waits until the repair is done. None: only when asked, by `MemDecayEngine.repair`."""


class HostTier(BaseModel):
    """Host memory for evicted pages, and a file behind it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    max_bytes: int = Field(gt=0)
    """Of all pages in host memory, over all ranks. When the tier is full its least valuable page is dropped."""
    disk_bytes: int = Field(default=0, ge=0)
    """Of further pages on disk, over all ranks, taken when the engine starts. A page goes there when there is no place
    in memory, and stays where it is. 0: none."""
    disk_folder: Path | None = None
    """Where those lie, in a file without a name that ends with the engine; None: the folder for temporary files."""
    max_bytes_per_agent: int | None = Field(default=None, gt=0)
    """In memory and on disk, for the pages of one agent of one tenant; None: no such limit."""
    checksum: bool = False
    """Keep a checksum of each page and check it when the page comes back: a page that changed stops the engine."""
    recall: Recall | None = None
    """Recall by evidence; None: pages come back only when they are asked for."""
    repair: Repair | None = None
    """Repair between turns, by an embedded engine; None: what was computed under eviction stays as it is."""

    @model_validator(mode="after")
    def _agents_within_all(self) -> HostTier:
        if self.max_bytes_per_agent is not None and self.max_bytes_per_agent > self.max_bytes + self.disk_bytes:
            raise ValueError("max_bytes_per_agent is more than max_bytes and disk_bytes")
        return self

    def memory_pages(self, page_bytes: int) -> int:
        """Pages in host memory.

        Args:
            page_bytes: of one page, all layers and all ranks.
        """
        return self.max_bytes // page_bytes

    def disk_pages(self, page_bytes: int) -> int:
        """Pages on disk; see `memory_pages`."""
        return self.disk_bytes // page_bytes
