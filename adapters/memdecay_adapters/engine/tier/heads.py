"""Which retrieval heads an engine recalls by."""

from __future__ import annotations

from memdecay_adapters.engine.tier.settings import HostTier
from memdecay_agents.errors import ConfigError
from memdecay_agents.recall import shipped_heads


def with_heads(tier: HostTier | None, model_path: str) -> HostTier | None:
    """The tier with the heads in force.

    Args:
        tier: the user's; None: there is none.
        model_path: what vLLM loads.

    Raises:
        ConfigError: recall by evidence is on, names no heads, and none are shipped for the model.
    """
    if tier is None or tier.recall is None or tier.recall.heads is not None:
        return tier
    shipped = shipped_heads(model_path)
    if shipped is None:
        raise ConfigError(
            where=f"HostTier(recall=Recall(heads=None)) for model {model_path!r}",
            rule="no retrieval heads are shipped for this model",
            remedy="Find them with `memdecay calibrate --heads` and pass Recall(heads=...), or set recall=None: pages "
            "then come back when they are asked for.",
        )
    return tier.model_copy(update={"recall": tier.recall.model_copy(update={"heads": shipped.heads})})
