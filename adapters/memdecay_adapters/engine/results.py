"""What a request gives back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

FinishReason = str
"""vLLM's finish reasons: "stop", "length", "abort", ..."""


@dataclass(frozen=True)
class RetentionSummary:
    """What the cache held of one request and what left it. Pages unless another unit is named."""

    session: str
    """The session's key."""
    request_id: str
    """The engine's id of the request: ledger entries name it."""
    agent: str
    turn: int
    policy: str
    page_size_tokens: int
    budget_pages: int | None
    """None: no budget, nothing is evicted. A share of the pool: what it was when the request ended."""
    guaranteed_pages: int | None
    """Pages that pool pressure never takes; None: no budget."""
    budget_bound: bool
    """Whether the budget ever asked for an eviction in this session."""
    continued_tokens: int
    """Leading tokens that were in the session's cache and were not computed again."""
    rewound_tokens: int
    """Tokens of the session's history that this prompt does not repeat; 0: it extends the history."""
    divergent_region: str | None
    """Region of the first of them; None: there are none."""
    pages_held: int
    """When the request ended."""
    pages_total: int
    """Pages that the request's tokens take without eviction."""
    peak_pages_prefill: int
    peak_pages_decode: int
    evictions: int
    shortfall_pages: int
    """The most pages by which the budget could not be met (pinned and protected pages); 0 if it always was."""
    tokens_by_region: dict[str, int] = field(default_factory=dict)
    """All tokens of the request."""
    pages_by_region: dict[str, int] = field(default_factory=dict)
    """All pages of the request, each counted for its majority region."""
    pages_held_by_region: dict[str, int] = field(default_factory=dict)
    freed_by_region: dict[str, int] = field(default_factory=dict)
    page_runs: tuple[tuple[int, int, str, bool], ...] = ()
    """Runs of pages: first page, one past the last, majority region, whether they were held at the end."""
    messages: tuple[tuple[int, int], ...] = ()
    """Tokens (held, freed) of each message of the prompt and, last, of the answer; empty: the hints named none."""
    repaired_tokens: int = 0
    """Tokens that a repair has computed again with everything there; 0: this was a turn, or found no room."""
    recalled_pages: tuple[int, ...] = ()
    """Logical pages that came back from host memory in this turn."""

    def holds_page(self, page: int) -> bool:
        """Whether a logical page was held when the request ended."""
        return any(first <= page < end and held for first, end, _, held in self.page_runs)

    @classmethod
    def from_dict(cls, raw: Mapping[str, Any]) -> RetentionSummary:
        """Rebuild a summary from the plain dict that the scheduler attached to the request's output."""
        runs = tuple((int(a), int(b), str(region), bool(held)) for a, b, region, held in raw["page_runs"])
        messages = tuple((int(held), int(freed)) for held, freed in raw.get("messages", ()))
        recalled = tuple(int(page) for page in raw.get("recalled_pages", ()))
        return cls(**{**raw, "page_runs": runs, "messages": messages, "recalled_pages": recalled})

    def to_dict(self) -> dict[str, Any]:
        """Plain data for the request's output; a key that says nothing is left out where it is younger."""
        raw = asdict(self)
        for name in ("recalled_pages", "repaired_tokens"):
            if not raw[name]:
                del raw[name]
        return raw


@dataclass(frozen=True)
class GenerationChunk:
    """What one engine step added to a request."""

    text: str
    token_ids: tuple[int, ...]
    logprobs: tuple[Mapping[int, Any], ...] | None = None
    """vLLM ``Logprob`` by token id, one mapping a generated token."""


@dataclass(frozen=True)
class GenerationResult:
    """A finished request."""

    request_id: str
    text: str
    token_ids: tuple[int, ...]
    finish_reason: FinishReason
    stop_reason: int | str | None
    prompt_tokens: int
    cached_tokens: int
    """Prompt tokens found in the prefix cache."""
    wall_seconds: float
    time_to_first_token_seconds: float
    logprobs: tuple[Mapping[int, Any], ...] | None = None
    retention: RetentionSummary | None = None
    """None: the request carried no hints and the engine has no default budget."""

    @property
    def generated_tokens(self) -> int:
        """Tokens that were generated."""
        return len(self.token_ids)

    @property
    def decode_tokens_per_second(self) -> float:
        """Generated tokens after the first, per second after the first; 0.0 for a single token."""
        seconds = self.wall_seconds - self.time_to_first_token_seconds
        return (len(self.token_ids) - 1) / seconds if len(self.token_ids) > 1 and seconds > 0 else 0.0
