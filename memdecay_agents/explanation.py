"""Why a page is held or was freed, and what would have kept it: plain data, for Python, JSON and the command line.

A `SessionExplanation` says it of the pages of a session; ``of(message=12)`` picks what belongs to one message, page or
token. One is made from a live session (`explaining`) or from the entries of a ledger alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from memdecay_agents.errors import ExplainError
from memdecay_agents.ledger_entry import EvictionReason

PageState = Literal["held", "freed", "lost", "unknown"]
"""held; freed by a plan; lost: not held, and its record has left the ledger; unknown: this ledger frees it nowhere."""


class _Plain(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Freed(_Plain):
    """When and why a page went."""

    reason: EvictionReason
    turn: int
    step: int | None
    """Engine steps that had computed tokens of the session; None: not recorded."""
    clock_ticks: int
    """The session's clock, in the configuration's unit."""
    computed_tokens: int
    """Tokens of the session that had been computed."""
    request_id: str
    order_position: int
    """Pages of the same plan that went before it."""


class CameBack(_Plain):
    """When and why a page that had gone came back from host memory."""

    turn: int
    clock_ticks: int
    """The session's clock, in the configuration's unit."""
    computed_tokens: int
    """The first token that saw it again."""
    evidence: float | None
    """Share of the retrieval heads' attention that the turn's newest queries gave it, summed over heads; None: it was
    wished for by name, or came for a repair."""
    for_repair: bool = False
    """Whether it came for a repair: everything does then."""


class KeptBy(_Plain):
    """One thing that would have kept a page in the plan that freed it, everything else as it was."""

    kind: Literal["budget", "guarantee", "pin", "score", "not_superseded"]
    amount: float | None = None
    """Tokens of a budget or guarantee, or what the score falls short by; None where there is no amount."""
    text: str


class PageExplanation(_Plain):
    """One page."""

    page: int
    token_start: int
    token_end: int
    """Its tokens: [token_start, token_end), absolute in the session."""
    state: PageState
    region: str
    """Of most of its tokens; empty where nothing is known of it."""
    regions: dict[str, int] = Field(default_factory=dict)
    """Tokens by region."""
    pinned: bool = False
    protected: bool = False
    """A sink, recent, or not full: no policy is asked about it."""
    superseded: bool = False
    score: float | None = None
    """The sum of its parts; None: not scored."""
    parts: dict[str, float] = Field(default_factory=dict)
    """Named parts of the score: region priority under its clock (structure), attention or key norm, salience."""
    quota: float = 0.0
    """What quotas add to the score; the order goes by the sum."""
    inside_quota: bool | None = None
    evidence: dict[str, float] = Field(default_factory=dict)
    """Means over its tokens: ``age_ticks``, ``ewma_mass``, ``salience``, ``key_norm``."""
    goes_after: int | None = None
    """Held pages that would go before it; None: it is not held, or may not go."""
    freed: Freed | None = None
    came_back: CameBack | None = None
    """Of a held page that had gone in between."""
    on_host: bool = False
    """Whether a copy of a freed page is in host memory, from where it may come back."""
    kept_by: tuple[KeptBy, ...] = ()


class Explanation(_Plain):
    """What a session holds of one message, page or token, and why."""

    subject: str
    """"message 12", "page 3", "token 70"."""
    session: str
    """``SessionId.key()``."""
    agent: str
    turn: int
    token_start: int
    token_end: int
    """What was asked about: [token_start, token_end)."""
    state: Literal["held", "partly held", "freed", "not computed", "unknown"]
    tokens_held: int
    tokens_freed: int
    pages: tuple[PageExplanation, ...]
    """All pages with a token of it, ascending; they may hold tokens of others too."""
    text: str
    """The same in a sentence."""


class SessionExplanation(_Plain):
    """Pages of one session at one moment."""

    schema_version: Literal[1] = 1
    kind: Literal["memdecay-explanation"] = "memdecay-explanation"
    session: str
    agent: str
    turn: int
    policy: str
    """Empty: not known."""
    page_size_tokens: int
    clock_unit: str
    """Unit of ticks; empty: not known."""
    clock_ticks: int
    computed_tokens: int
    budget_tokens: int | None
    """Whole pages of the budget now, in tokens; None: no budget, or not known."""
    complete: bool
    """False: made from a ledger, which knows the freed pages only."""
    messages: tuple[tuple[int, int], ...] = ()
    """Tokens [first, past the last) of each message of the newest prompt and, last, of its answer; empty: not told."""
    pages: tuple[PageExplanation, ...]
    """Ascending; a session's that is asked about one thing holds only the pages of that."""

    def of(self, *, message: int | None = None, page: int | None = None, token: int | None = None) -> Explanation:
        """What is known of one message (by its place in the prompt, the answer last), page or token.

        Raises:
            ExplainError: not exactly one of them, or one that the session does not have.
        """
        subject, start, end = self.range_of(message=message, page=page, token=token)
        pages = tuple(one for one in self.pages if one.token_start < end and start < one.token_end)
        known = min(end, self.computed_tokens)
        held = sum(_overlap(one, start, known) for one in pages if one.state == "held")
        freed = sum(_overlap(one, start, known) for one in pages if one.state in ("freed", "lost"))
        state = _state(held, freed, known - start, end - start)
        return Explanation(
            subject=subject, session=self.session, agent=self.agent, turn=self.turn, token_start=start,
            token_end=end, state=state, tokens_held=held, tokens_freed=freed, pages=pages,
            text=_sentence(subject, state, held, freed, pages, self.page_size_tokens),
        )  # fmt: skip

    def range_of(self, *, message: int | None, page: int | None, token: int | None) -> tuple[str, int, int]:
        """Name and tokens of what is asked about: (name, first token, one past the last).

        Raises:
            ExplainError: see `of`.
        """
        asked = [(kind, number) for kind, number in
                 (("message", message), ("page", page), ("token", token)) if number is not None]  # fmt: skip
        if len(asked) != 1:
            raise _error("a question", f"{len(asked)} things are asked about", "Name a message, a page or a token.")
        (kind, number), size = asked[0], self.page_size_tokens
        subject = f"{kind} {number}"
        if kind == "message":
            if not self.messages:
                raise _error(
                    subject,
                    "the request did not tell where its messages are"
                    if self.complete
                    else "a ledger knows no messages",
                    "Ask about a page or a token, or send the request with ChatMemDecay.",
                )
            if not -len(self.messages) <= number < len(self.messages):
                raise _error(subject, f"the session has {len(self.messages)}", "The first is 0, the answer is -1.")
            return (subject, *self.messages[number])
        start, end = (number * size, (number + 1) * size) if kind == "page" else (number, number + 1)
        if number < 0 or (self.complete and start >= self.computed_tokens):
            rule = f"the session has {self.computed_tokens} tokens, pages of {size}"
            raise _error(subject, rule, "The first is 0.")
        return subject, start, end


def _overlap(page: PageExplanation, start: int, end: int) -> int:
    return max(0, min(page.token_end, end) - max(page.token_start, start))


def _state(
    held: int, freed: int, computed: int, asked: int
) -> Literal["held", "partly held", "freed", "not computed", "unknown"]:
    if held and freed:
        return "partly held"
    if held or freed:
        return "held" if held else "freed"
    return "not computed" if asked and computed <= 0 else "unknown"


def _sentence(
    subject: str, state: str, held: int, freed: int, pages: Sequence[PageExplanation], page_size_tokens: int
) -> str:
    if state == "not computed":
        return f"{subject}: none of its tokens was computed yet."
    if state == "unknown":
        return f"{subject}: nothing is known of it." if pages else f"{subject}: this record frees none of its pages."
    text = f"{subject}: {held} of {held + freed} tokens are held"
    gone = [page.freed for page in pages if page.freed is not None and page.state == "freed"]
    returned = [page.came_back for page in pages if page.came_back is not None]
    if returned:
        why = "for a repair" if returned[-1].for_repair else "as it was asked for"
        why = "by evidence" if any(one.evidence is not None for one in returned) else why
        text += (
            f"; {len(returned)} of its {len(pages)} pages had gone and came back in turn {returned[-1].turn} ({why})"
        )
    if gone:
        reasons = ", ".join(dict.fromkeys(one.reason.value for one in gone))
        turns = sorted({one.turn for one in gone})
        when = f"turn {turns[0]}" if len(turns) == 1 else f"turns {turns[0]} to {turns[-1]}"
        text += f"; {len(gone)} of its {len(pages)} pages were freed in {when} ({reasons})"
        if copies := sum(page.on_host for page in pages):
            text += f", {copies} of them with a copy in host memory"
    return text + "."


def _error(where: str, rule: str, remedy: str) -> ExplainError:
    return ExplainError(where=where, rule=rule, remedy=remedy)
