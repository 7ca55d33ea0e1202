"""The sessions that the embedded engine keeps between turns: given back, recalled, forgotten."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING

from memdecay_adapters.engine.engine_part import EnginePart
from memdecay_adapters.engine.tier.wishing import wish_for
from memdecay_agents.errors import EngineError
from memdecay_agents.recall.wishes import RecallWish

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from memdecay_adapters.engine.tier.settings import HostTier

DEFAULT_TENANT = "default"
"""The tenant of requests that name none."""


class Sessions(EnginePart):
    """What can be done with sessions beside asking in them."""

    host_tier: HostTier | None

    @property
    @abstractmethod
    def tokenizer(self) -> PreTrainedTokenizerBase:
        """The model's own tokenizer (transformers)."""

    def close_sessions(self, thread_id: str | None = None, *, tenant: str | None = None) -> int:
        """Give back the pages of idle sessions, and do not keep those of requests that still run.

        Args:
            thread_id: of this thread; None: of all.
            tenant: of this tenant; None: of all.

        Returns:
            How many idle sessions were given up.
        """
        self._check_usable()
        return self._thread.call(lambda: self._internals.controller.close_sessions(tenant, thread_id))

    def recall(
        self,
        thread_id: str,
        *,
        message: str = "",
        region: str = "",
        tokens: range | None = None,
        agent: str | None = None,
        tenant: str = DEFAULT_TENANT,
    ) -> int:
        """Ask for pages that the next turn of a thread's sessions will need: they come back before it begins.

        As many as the budget lets in. The same can be said in a request's hints: ``recall`` for the turn itself,
        ``needs_next`` for the one after it.

        Args:
            thread_id: whose sessions.
            message: text of a message in their history; the newest place counts.
            region: all tokens of a region.
            tokens: token indices, one after another.
            agent: of this agent's path; None: of all of the thread's.
            tenant: whose thread.

        Returns:
            In how many sessions there is something to bring back or keep.

        Raises:
            EngineError: the engine has no host tier, or nothing was named.
            RegionError: an unknown region.
        """
        self._check_usable()
        if self.host_tier is None or not (message or region or tokens):
            raise EngineError(
                where="recall",
                rule="the engine has no host tier" if self.host_tier is None else "nothing is named to bring back",
                remedy="Start it with MemDecayEngine(host_tier=HostTier(max_bytes=...)), and name a message, a region "
                "or a range of tokens.",
            )
        wish = RecallWish(regions=(region,) if region else (), tokens=((tokens.start, tokens.stop),) if tokens else ())
        if wish:
            wish.check("recall", self.config)
        ids = self.tokenizer.encode(message, add_special_tokens=False) if message else []
        return self._thread.call(lambda: wish_for(self._internals.controller, tenant, thread_id, agent, wish, ids))

    def reset_prefix_cache(self) -> None:
        """Forget all cached prefixes of ended requests, and all idle sessions."""
        self.close_sessions()
        self._thread.call(self._thread.engine.reset_prefix_cache)
