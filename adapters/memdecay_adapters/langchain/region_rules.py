"""What region inference may be told: regions of tools, rules for parts of texts, and what a newer message replaces."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from langchain_core.messages import BaseMessage

from memdecay_agents.errors import ConfigError, RegionError


@dataclass(frozen=True, slots=True)
class Between:
    """Rule for part of a text: what lies between two markers, markers included, is of a region."""

    opening: str
    closing: str
    region: str
    types: Collection[str] | None = None
    """Types of messages that it reads ("human", "ai", "system", "tool"); None: all. A marker that a tool or a user
    writes counts too: name the types before you give what lies between to a pinned region."""

    def reads(self, message: BaseMessage) -> bool:
        """Whether the rule applies to a message of this type."""
        return self.types is None or message.type.removesuffix("MessageChunk").lower() in self.types

    def found_in(self, text: str) -> list[tuple[int, int]]:
        """Characters [start, end) of each stretch, in order; an opening without its closing is none."""
        found, position = [], 0
        while self.opening and self.closing and (start := text.find(self.opening, position)) >= 0:
            close = text.find(self.closing, start + len(self.opening))
            if close < 0:
                break
            position = close + len(self.closing)
            found.append((start, position))
        return found


@dataclass(frozen=True, slots=True)
class RegionRules:
    """What inference may be told; the defaults are the table in `memdecay_adapters.langchain.regions`."""

    summarization_region: str = "scratchpad"
    """Region of messages that a summarization middleware wrote."""
    plan_tools: Collection[str] = ("write_todos",)
    """Tools whose results are the plan."""
    tool_regions: Mapping[str, str] = field(default_factory=dict)
    """Region of the results of a tool, by its name; beats the inference from artifacts."""
    between: Sequence[Between] = ()
    """Rules for parts of texts; they apply where no tag says otherwise."""
    newest_of_regions: Collection[str] = ("plan",)
    """Regions in which what an author writes supersedes what the same author wrote there before; the author is the
    message's type and name, that is, the tool or the agent. Empty: only tags supersede."""
    newest_of_tools: Collection[str] = ()
    """Tools, by name or glob, whose newest result supersedes their earlier ones."""
    newest_of_calls: Collection[str] = ()
    """Tools, by name or glob, whose newest result supersedes earlier ones of calls with the same arguments
    (``("read_*",)``: a file that was read again)."""

    def __post_init__(self) -> None:
        for rule in self.between:
            if not isinstance(rule, Between):
                raise ConfigError(
                    where="RegionRules(between=...)",
                    rule=f"{rule!r} is no Between",
                    remedy='Write each rule as Between("<opening>", "<closing>", "<region>").',
                )

    def check(self, known: Collection[str]) -> None:
        """Check that every region named here is known.

        Raises:
            RegionError: it is not.
        """
        between = (rule.region for rule in self.between)
        for region in (self.summarization_region, *self.tool_regions.values(), *between, *self.newest_of_regions):
            if region not in known:
                raise RegionError(
                    where="RegionRules",
                    rule=f"unknown region {region!r}; known are {', '.join(known)}",
                    remedy="Use a known region, or add it in MemDecayConfig(regions=...).",
                )


DEFAULT_RULES = RegionRules()
