"""LangGraph: wrap graphs, read a node's settings, know which agent calls, stamp what nodes write."""

from memdecay_adapters.langgraph.identity import CallIdentity, agent_path
from memdecay_adapters.langgraph.metadata import NodeSettings
from memdecay_adapters.langgraph.running import LostMetadataWarning
from memdecay_adapters.langgraph.state_graph import MemDecayStateGraph
from memdecay_adapters.langgraph.wrap import wrap

__all__ = [
    "CallIdentity",
    "LostMetadataWarning",
    "MemDecayStateGraph",
    "NodeSettings",
    "agent_path",
    "wrap",
]
