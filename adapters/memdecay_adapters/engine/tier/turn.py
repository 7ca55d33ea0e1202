"""What happens to one turn's pages by recall."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class TurnRecall:
    """One request's recall, kept beside it by the controller."""

    begun: bool = False
    """Whether its wishes were looked at."""
    decided: bool = False
    """Whether evidence was weighed, or cannot be."""
    question_pages: frozenset[int] = frozenset()
    """Pages that may be computed again; they stay until that is decided."""
    next_due: int = 0
    """Tokens at which the answer's newest queries are weighed next; 0: they are not."""
    rerun_until: int = 0
    """Tokens up to which the turn is being computed again; 0: it is not."""
    mends: bool = False
    """Whether it repairs its session, and everything that the tier has came back for that."""
    whole: bool = False
    """Whether, of a repair, no page is missing then, and none was taken since: what it computes is sound."""
    skips: bool = False
    """Whether a cached prefix spares a repair tokens that it was to compute."""
    recalled: set[int] = field(default_factory=set)
    """Pages that came back in this turn."""
