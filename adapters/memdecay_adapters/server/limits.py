"""What one server allows: what its model, its pool and its configuration can serve."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from memdecay_adapters.engine.validation import PoolShape, check_request
from memdecay_adapters.server.tenants import OPEN_TENANT
from memdecay_agents.config import MemDecayConfig
from memdecay_agents.errors import HintsError, PayloadError
from memdecay_agents.hints import EXTRA_ARGS_KEY, RequestHints
from memdecay_agents.spans import Span


@dataclass(frozen=True)
class ServerLimits:
    """The numbers that a request is checked against before vLLM sees it."""

    config: MemDecayConfig
    max_model_len: int
    """Longest sequence in tokens."""
    vocabulary: int
    """Token ids are below this."""
    pool: PoolShape
    max_logprobs: int = 20
    """Alternatives per token, at most."""

    def check_ids(self, token_ids: object, where: str) -> list[int]:
        """Check a prompt given as token ids.

        Raises:
            PayloadError: not a list of ids of this model, empty, or longer than the model takes.
        """
        if not isinstance(token_ids, (list, tuple)) or not token_ids:
            raise _bad_ids(where, "should be a list of token ids, not empty")
        if len(token_ids) >= self.max_model_len:
            raise _bad_ids(where, f"{len(token_ids)} tokens leave no room in the model's {self.max_model_len}")
        for position, token_id in enumerate(token_ids):
            if type(token_id) is not int or not 0 <= token_id < self.vocabulary:
                raise _bad_ids(
                    f"{where}[{position}]",
                    f"should be an integer from 0 to {self.vocabulary - 1} (got {token_id!r:.40})",
                )
        return list(token_ids)

    def check_hints(
        self, message: object, tenant: str, prompt_token_ids: Sequence[int] | None, max_tokens: int | None
    ) -> RequestHints:
        """Read a client's hints as its own tenant's, and check that they can be served.

        Args:
            message: as the client sent it; read strictly.
            tenant: whose the client is. It may name nobody, or itself.
            prompt_token_ids: the prompt; None: the server will render it, and its length is not known yet.
            max_tokens: what may be generated; None: all that the model's length leaves.

        Raises:
            HintsError: malformed, another tenant's, or spans for a prompt that is not known.
            SpanError, RegionError, BudgetError, EngineError: see `check_request`.
        """
        hints = RequestHints.from_extra_args({EXTRA_ARGS_KEY: message})
        assert hints is not None  # the key is there
        if hints.tenant not in (OPEN_TENANT, tenant):
            raise HintsError(
                where="hints.tenant",
                rule=f"{hints.tenant[:80]!r} is not this client's",
                remedy="Leave it out: the tenant follows from the API key.",
            )
        if prompt_token_ids is None and (hints.spans or hints.messages):
            raise HintsError(
                where="hints.spans" if hints.spans else "hints.messages",
                rule="they name token positions of a prompt that the server has yet to render",
                remedy="Send the token ids too (kv_transfer_params.prompt_token_ids, or prompt as ids), or no spans.",
            )
        n_tokens = len(prompt_token_ids) if prompt_token_ids is not None else self._longest(max_tokens)
        spans = hints.spans or (Span(hints.base, n_tokens, "user"),)
        checked = hints.model_copy(update={"tenant": tenant, "spans": spans})
        sampling: Any = SimpleNamespace(max_tokens=max_tokens, n=1, extra_args=None)
        check_request([0] * n_tokens, sampling, checked, self.config, self.max_model_len, self.pool)
        return checked if prompt_token_ids is not None else checked.model_copy(update={"spans": ()})

    def _longest(self, max_tokens: int | None) -> int:
        """The longest prompt that fits beside the answer: what a prompt of unknown length is taken for."""
        return max(1, self.max_model_len - min(max_tokens or 1, self.max_model_len - 1))


def _bad_ids(where: str, rule: str) -> PayloadError:
    return PayloadError(where=where, rule=rule, remedy="Send the ids that the model's own tokenizer gives.")
