"""A ``StateGraph`` whose ``add_node`` takes the settings directly: a thin layer over node metadata."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from langgraph.graph import StateGraph

from memdecay_adapters.langgraph.metadata import METADATA_KEY, check_regions, merge_settings, parse_settings
from memdecay_adapters.langgraph.wrap import apply_to_spec
from memdecay_agents.agent_budgets import AgentBudget
from memdecay_agents.config import MemDecayConfig


class Unset:
    """Tells ``budget=None`` (no budget) from no word about a budget."""

    def __repr__(self) -> str:
        return "unset"


UNSET: Final = Unset()


class MemDecayStateGraph(StateGraph[Any, Any, Any, Any]):
    """`StateGraph` with ``pin=``, ``budget=``, ``agent=`` and ``output_region=`` on `add_node`.

    Everything else is langgraph's. Custom regions: give the configuration that has them as
    ``memdecay_config=``.
    """

    def __init__(
        self, state_schema: Any, *args: Any, memdecay_config: MemDecayConfig | None = None, **kwargs: Any
    ) -> None:
        """Make a builder; arguments are `StateGraph`'s, and ``memdecay_config`` for custom regions."""
        super().__init__(state_schema, *args, **kwargs)
        self._known_regions = (memdecay_config or MemDecayConfig()).region_names

    def add_node(
        self,
        node: Any,
        action: Any = None,
        *,
        pin: Sequence[str] | str | Unset = UNSET,
        budget: int | AgentBudget | Unset | None = UNSET,
        agent: str | Unset = UNSET,
        output_region: str | Unset = UNSET,
        metadata: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> MemDecayStateGraph:
        """Add a node as `StateGraph.add_node` does, with its settings.

        Args:
            node: the node's name, or its function or runnable.
            action: its function or runnable, where ``node`` is a name.
            pin: regions whose pages are never evicted in this agent's sessions.
            budget: KV-cache budget of the agent's session: a number of tokens, `FixedBudget`, `ContextFraction` or
                `PoolShare`; None: no budget.
            agent: agent that the node's calls belong to.
            output_region: region of what the node writes.
            metadata: the node's metadata; settings under ``"memdecay"`` in it are merged, keywords win.
            **kwargs: langgraph's own (``destinations``, ``retry_policy``, ``defer``, ...).

        Raises:
            ConfigError: a setting that does not hold. RegionError: an unknown region. The node is not added.
        """
        given = {"pin": pin, "budget": budget, "agent": agent, "output_region": output_region}
        name = node if isinstance(node, str) else getattr(node, "__name__", type(node).__name__)
        where = f"node {name!r}"
        settings = merge_settings(
            parse_settings((metadata or {}).get(METADATA_KEY, {}), where),
            parse_settings({k: v for k, v in given.items() if not isinstance(v, Unset)}, where),
        )
        check_regions(settings, self._known_regions, where)
        before = set(self.nodes)
        super().add_node(node, action, metadata=metadata, **kwargs)
        if settings.model_fields_set:
            for added in self.nodes.keys() - before:
                if not self.nodes[added].is_error_handler:
                    apply_to_spec(self, added, settings)
        return self
