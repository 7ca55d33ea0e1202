"""What the agent is told, and the facts planted in it: two in each of four regions."""

from __future__ import annotations

from dataclasses import dataclass

CHOICES = 8


@dataclass(frozen=True)
class Fact:
    """One planted sentence and what a reader could mistake its value for."""

    region: str
    attribute: str
    candidates: tuple[str, ...]
    """Possible values of the same kind, none of which occurs elsewhere; the first is the planted one."""

    @property
    def value(self) -> str:
        """The planted value."""
        return self.candidates[0]

    @property
    def sentence(self) -> str:
        """The sentence as it is planted."""
        return f"The {self.attribute} is {self.value}."

    @property
    def probe(self) -> str:
        """The text whose next word is the value, all but its last word."""
        return f"\nNote: The {self.attribute}"


def _fact(region: str, attribute: str, candidates: str) -> Fact:
    return Fact(region, attribute, tuple(candidates.split()))


FACTS = (
    _fact("system", "vault code word", "amber silver purple orange green yellow black white blue red"),
    _fact("system", "shift supervisor", "Martin Peter David Thomas Robert James John Paul Mark George"),
    _fact("user", "meeting city", "Berlin Paris London Rome Madrid Vienna Boston Chicago Tokyo Dublin"),
    _fact("user", "spare animal tag", "horse tiger lion wolf bear eagle snake rabbit whale dog"),
    _fact("plan", "backup month", "March June July August October December January April May November"),
    _fact("plan", "fallback instrument", "piano guitar violin drum trumpet flute bass organ harp bell"),
    _fact("tool_out", "gate fruit", "apple orange banana lemon grape cherry peach pear berry melon"),
    _fact("tool_out", "sensor planet", "Mars Venus Saturn Jupiter Mercury Earth Neptune Pluto Sun Moon"),
)


def facts_of(region: str) -> tuple[Fact, ...]:
    """The facts planted in a region."""
    return tuple(fact for fact in FACTS if fact.region == region)


def sentences(region: str) -> str:
    """All planted sentences of a region, one text."""
    return " ".join(fact.sentence for fact in facts_of(region))


SYSTEM_PROMPT = (
    "You are the operations assistant of a warehouse. Work from the plan and from tool results only, name the "
    f"hall or log you used, and keep answers to one sentence. {sentences('system')}"
)

USER_TURNS = (
    f"Good morning. {sentences('user')} First check whether the pumps ran through the night.",
    "Now see which hall is short of stock before the first lorry comes.",
    "The crane driver reported noise. Look at what was logged.",
    "Last thing: is there enough in the east hall for tomorrow?",
)

PLAN_NOTE = sentences("plan")
"""What the planner node adds to the model's first plan."""

NOTICES = tuple(fact.sentence for fact in facts_of("tool_out"))
"""Unread notices in the site's database: the first tool that runs delivers them."""
