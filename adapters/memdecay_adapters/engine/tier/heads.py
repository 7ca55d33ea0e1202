"""Which retrieval heads an engine recalls by."""

from __future__ import annotations

from memdecay_adapters.engine.tier.settings import HostTier
from memdecay_adapters.recall import heads_for


def with_heads(tier: HostTier | None, model_path: str) -> HostTier | None:
    """The tier with the heads in force; a model of which none are known is calibrated now, see ``heads_for``.

    Args:
        tier: the user's; None: there is none.
        model_path: what vLLM loads.

    Raises:
        UnsupportedError: recall by evidence is on, names no heads, and none can be found for the model.
    """
    if tier is None or tier.recall is None or tier.recall.heads is not None:
        return tier
    found = heads_for(model_path).heads
    return tier.model_copy(update={"recall": tier.recall.model_copy(update={"heads": found})})
