"""Errors of the product: each says where it happened, which rule was broken and what to do next.

The ``code`` of a class is stable: scripts and dashboards may match on it.
"""

from __future__ import annotations

from typing import ClassVar


class MemDecayError(Exception):
    """Base of every error that this product raises on purpose.

    Args:
        where: the thing that was looked at ("agent 'researcher'", "span [10, 20) 'plan'").
        rule: the rule it breaks, with the numbers that break it.
        remedy: what the reader can do next.
    """

    code: ClassVar[str] = "memdecay"

    def __init__(self, *, where: str, rule: str, remedy: str) -> None:
        self.where = where
        self.rule = rule
        self.remedy = remedy
        super().__init__(f"{where}: {rule}. {remedy} [{self.code}]")

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle by keyword, so that errors cross process boundaries whole."""
        return (_rebuild, (type(self), self.where, self.rule, self.remedy))


def _rebuild(kind: type[MemDecayError], where: str, rule: str, remedy: str) -> MemDecayError:
    return kind(where=where, rule=rule, remedy=remedy)


class ConfigError(MemDecayError):
    """A configuration value is out of range, unknown or contradicts another."""

    code = "config"


class RegionError(MemDecayError):
    """A region name that the configuration does not know."""

    code = "unknown_region"


class SpanError(MemDecayError):
    """Spans that do not partition the prompt: gap, overlap, empty, or beyond its end."""

    code = "spans"


class TagError(MemDecayError):
    """A tag on a message that cannot be read or does not match the text it describes."""

    code = "tags"


class HintsError(MemDecayError):
    """A request's ``extra_args["memdecay"]`` is malformed."""

    code = "hints"


class BudgetError(MemDecayError):
    """A budget that cannot hold what must stay: pinned pages, sinks, the recent window."""

    code = "budget"


class ObservationError(MemDecayError):
    """An attention observation that cannot be right: NaN, negative, or for tokens that do not exist."""

    code = "observation"


class PolicyError(MemDecayError):
    """An unknown policy, or one that broke its contract."""

    code = "policy"


class LedgerError(MemDecayError):
    """The ledger does not balance: a double free, a freed pinned page, a page from nowhere."""

    code = "ledger"


class LedgerFileError(LedgerError):
    """A file of a ledger or a history cannot be read."""

    code = "ledger_file"


class ExplainError(MemDecayError):
    """A session, message, page or token that nothing is known of."""

    code = "explain"


class IntegrityError(MemDecayError):
    """The engine's invariants do not hold: a live row points at a freed block, counts differ."""

    code = "integrity"


class UnsupportedError(MemDecayError):
    """A vLLM version, backend, model or option that this product does not support (yet)."""

    code = "unsupported"


class ModelError(MemDecayError):
    """A model that is missing, incomplete or corrupt."""

    code = "model"


class TraceError(MemDecayError):
    """A trace, a recording or a set of traces that evaluation or calibration cannot use."""

    code = "trace"


class EngineError(MemDecayError):
    """The embedded engine is closed, was forked, or stopped on a fault."""

    code = "engine"


class TimeLimitError(MemDecayError, TimeoutError):
    """A request that has not ended within the time it was given."""

    code = "time_limit"


class PayloadError(MemDecayError):
    """A request to the server is malformed, too large, or asks for what this client may not have."""

    code = "payload"


class RemoteError(MemDecayError):
    """A server that cannot be reached, refuses the API key, or answers what cannot be understood."""

    code = "remote"
