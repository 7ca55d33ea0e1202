"""The versioned, JSON-safe message from an adapter to the engine: one request's regions, pins and budget.

It travels in ``SamplingParams.extra_args["memdecay"]`` and is read once, strictly, where it arrives.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ModelWrapValidatorHandler, ValidationError, field_validator
from pydantic import model_validator as _model_validator

from memdecay_agents._validation import first_problem
from memdecay_agents.agent_budgets import AgentBudget, FixedBudget
from memdecay_agents.config import MemDecayConfig
from memdecay_agents.errors import BudgetError, HintsError, SpanError
from memdecay_agents.recall.wishes import RecallWish
from memdecay_agents.sessions import SessionId
from memdecay_agents.spans import Span, SpanFlag, check_partition, merge_adjacent

EXTRA_ARGS_KEY = "memdecay"
"""The key of the message in a request's ``extra_args``."""

MAX_HINTS_BYTES = 64 * 1024
"""Size of the message as JSON, at most."""

MAX_SPANS = 4096
"""Spans of one message, at most."""

MAX_MESSAGES = 2048
"""Messages whose tokens are told, at most."""

_MAX_INDEX = 2**31 - 1
_ALL_FLAGS = int(SpanFlag.PINNED | SpanFlag.SUPERSEDED)

_Name = Annotated[str, Field(max_length=1024)]
_Region = Annotated[str, Field(min_length=1, max_length=64)]
_Count = Annotated[int, Field(ge=0, le=_MAX_INDEX)]


class RequestHints(BaseModel):
    """What the engine is told about one request. Every wrong field is a ``HintsError`` with its path."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    v: Annotated[int, Field(ge=1, le=1)] = 1
    """Version of the message."""

    tenant: _Name = "default"
    """Whose data this is; sessions of different tenants share nothing."""

    session: _Name = ""
    """Thread and branch as ``SessionId.hint_session`` writes them; empty: a session of one turn."""

    agent: _Name = ""
    """Path of the agent or node in its graph."""

    turn: _Count | None = None
    """How many turns the session had before this one; None: as many as it took in."""

    base: _Count = 0
    """Index of the first token that is new in this turn; the spans begin here."""

    budget_tokens: Annotated[int, Field(gt=0, le=_MAX_INDEX)] | None = None
    """Tokens that this session may hold; None: see ``budget``, then the configuration's default."""

    budget: AgentBudget | None = None
    """A budget that is no plain number; only where ``budget_tokens`` is None."""

    pins: tuple[_Region, ...] = Field(default=(), max_length=128)
    """Regions that this session pins beside those that the configuration pins."""

    spans: tuple[Span, ...] = Field(default=(), max_length=MAX_SPANS)
    """A partition of the tokens from ``base`` to the end of the prompt."""

    messages: tuple[tuple[_Count, _Count], ...] = Field(default=(), max_length=MAX_MESSAGES)
    """First token and the one past the last of each message of the prompt, for explanations; empty: not told. Messages
    that a template joins share their tokens, one that it leaves out has none."""

    rewind: Literal["continue", "recompute"] = "continue"
    """What to do when the session's history was edited: go on from the divergence point, with the pages that were
    evicted before it still gone, or compute the whole prompt anew."""

    output_region: _Region = "scratchpad"
    """Region of the tokens that this turn generates."""

    recall: RecallWish | None = None
    """What this turn needs of the pages that left the device: they come back from host memory before it begins."""

    needs_next: RecallWish | None = None
    """The same for the session's next turn."""

    repair_tokens: Annotated[int, Field(gt=0, le=_MAX_INDEX)] | None = None
    """Not a turn: the prompt is the session's history, of which at most so many of the newest tokens are computed again
    while everything that left is back from host memory; then the session is brought down to its budget again. Asked for
    one token, which says nothing; a request for more is a turn."""

    @_model_validator(mode="wrap")
    @classmethod
    def _own_errors(cls, data: Any, handler: ModelWrapValidatorHandler[RequestHints]) -> RequestHints:
        try:
            hints = handler(data)
        except ValidationError as error:
            path, problem = first_problem(error)
            raise _error(f"hints.{path}" if path else "hints", problem) from None
        except BudgetError as error:
            raise _error(f"hints.budget ({error.where})", error.rule) from None
        SessionId.from_hints(hints.tenant, hints.session, hints.agent)
        if hints.budget is not None and hints.budget_tokens is not None:
            raise _error("hints.budget", "given beside budget_tokens")
        return hints

    @field_validator("recall", "needs_next", mode="before")
    @classmethod
    def _read_wish(cls, wish: Any) -> Any:
        if wish is None or isinstance(wish, RecallWish):
            return wish
        if not isinstance(wish, Mapping):
            raise ValueError('should be a mapping {"regions": [...], "tokens": [[start, end], ...]}')
        return RecallWish.model_validate(dict(wish), strict=False)

    @field_validator("pins", mode="before")
    @classmethod
    def _pins_as_tuple(cls, pins: Any) -> Any:
        return tuple(pins) if isinstance(pins, list) else pins

    @field_validator("messages", mode="before")
    @classmethod
    def _messages_as_tuples(cls, messages: Any) -> Any:
        if isinstance(messages, list):
            messages = tuple(tuple(one) if isinstance(one, list) else one for one in messages)
        return messages

    @field_validator("messages")
    @classmethod
    def _check_messages(cls, messages: tuple[tuple[int, int], ...]) -> tuple[tuple[int, int], ...]:
        for start, end in messages:
            if start > end:
                raise ValueError(f"message [{start}, {end}) ends before it begins")
        return messages

    @field_validator("spans", mode="before")
    @classmethod
    def _read_spans(cls, spans: Any) -> Any:
        if not isinstance(spans, (list, tuple)):
            raise _error("hints.spans", f"should be a list of [start, end, region, flags] (got {spans!r:.80})")
        if len(spans) > MAX_SPANS:
            raise ValueError(f"{len(spans)} spans, at most {MAX_SPANS}")
        return tuple(_read_span(position, span) for position, span in enumerate(spans))

    def agent_budget(self, config: MemDecayConfig) -> AgentBudget | None:
        """The budget in force: the request's own, else the configuration's for the agent; None: no limit."""
        if self.budget_tokens is not None:
            return FixedBudget(tokens=self.budget_tokens)
        return self.budget if self.budget is not None else config.budget_of(self.agent)

    @property
    def where(self) -> str:
        """Whose request it is, for an error's text."""
        return f"agent '{self.agent}'" + ("" if self.turn is None else f", turn {self.turn}")

    @property
    def session_id(self) -> SessionId:
        """The session that this request belongs to."""
        return SessionId.from_hints(self.tenant, self.session, self.agent)

    def to_extra_args(self) -> dict[str, dict[str, Any]]:
        """``{"memdecay": {...}}`` in plain JSON types, with equal neighbouring spans joined.

        Raises:
            HintsError: the message is larger than ``MAX_HINTS_BYTES``.
        """
        message: dict[str, Any] = {
            name: getattr(self, name) for name in RequestHints.model_fields if name not in ("spans", "pins")
        }
        message["pins"] = list(self.pins)
        if self.budget is not None:
            message["budget"] = self.budget.model_dump(mode="json")
        for name in ("recall", "needs_next"):
            if (wish := getattr(self, name)) is not None:
                message[name] = wish.to_json()
        # younger keys are left out at their defaults, so that a reader that does not know them takes the message
        message["messages"] = [list(one) for one in self.messages]
        if not self.messages:
            del message["messages"]
        for name in ("budget", "rewind", "output_region", "recall", "needs_next", "repair_tokens"):
            if getattr(self, name) == RequestHints.model_fields[name].default:
                del message[name]
        message["spans"] = [[span.start, span.end, span.region, int(span.flags)] for span in merge_adjacent(self.spans)]
        _check_size(message)
        return {EXTRA_ARGS_KEY: message}

    @classmethod
    def from_extra_args(cls, extra_args: Mapping[str, Any] | None) -> RequestHints | None:
        """The message in a request's ``extra_args``; None if there is none.

        Raises:
            HintsError: unknown keys, wrong types, negative numbers, or too large; the field is named.
        """
        if not extra_args or EXTRA_ARGS_KEY not in extra_args:
            return None
        message = extra_args[EXTRA_ARGS_KEY]
        if isinstance(message, cls):
            return message
        if not isinstance(message, Mapping):
            raise _error("hints", f"should be a mapping (got {type(message).__name__})")
        _check_size(message)
        return cls.model_validate(dict(message))

    def check(self, n_prompt_tokens: int, config: MemDecayConfig) -> None:
        """Check the message against the prompt and the configuration that it will be used with.

        Raises:
            SpanError: the spans do not partition [base, n_prompt_tokens), or a message ends beyond.
            RegionError: a pin, the output region or a region to recall is unknown.
            HintsError: a wish for recall that names nothing.
        """
        check_partition(self.spans, self.base, n_prompt_tokens, config.region_names)
        if (end := max((end for _, end in self.messages), default=0)) > n_prompt_tokens:
            raise SpanError(
                where="hints.messages",
                rule=f"a message ends at token {end}, beyond the prompt of {n_prompt_tokens} tokens",
                remedy="Make them from the ids that are sent.",
            )
        for region in (*self.pins, self.output_region):
            config.region_index(region)
        for name in ("recall", "needs_next"):
            if (wish := getattr(self, name)) is not None:
                wish.check(f"hints.{name}", config)


def _error(where: str, rule: str) -> HintsError:
    return HintsError(
        where=where, rule=rule, remedy="Build the message with RequestHints(...).to_extra_args(), version 1."
    )


def _read_span(position: int, given: Any) -> Span:
    where = f"hints.spans[{position}]"
    if not isinstance(given, (list, tuple)) or len(given) not in (3, 4):
        raise _error(where, f"should be [start, end, region, flags] (got {given!r:.80})")
    start, end, region = given[:3]
    flags = given[3] if len(given) == 4 else 0
    bounds = (("start", start, _MAX_INDEX), ("end", end, _MAX_INDEX), ("flags", flags, _ALL_FLAGS))
    for name, value, limit in bounds:
        if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= limit:
            raise _error(where, f"{name} should be an integer from 0 to {limit} (got {value!r:.80})")
    if not isinstance(region, str) or not 1 <= len(region) <= 64:
        raise _error(where, f"region should be a name (got {region!r:.80})")
    return Span(start, end, region, SpanFlag(flags))


def _check_size(message: Mapping[str, Any]) -> None:
    try:
        size = len(json.dumps(dict(message), ensure_ascii=False, separators=(",", ":")).encode())
    except (TypeError, ValueError, RecursionError) as error:
        raise _error("hints", f"not plain JSON: {error}") from None
    if size > MAX_HINTS_BYTES:
        raise _error("hints", f"{size} bytes as JSON, at most {MAX_HINTS_BYTES}")
