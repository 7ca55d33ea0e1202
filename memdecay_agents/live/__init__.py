"""A running engine, looked at: the snapshot that it gives, a table in the terminal, and a page in the browser."""

from memdecay_agents.live.page_server import LivePage
from memdecay_agents.live.snapshot import AgentView, EngineSnapshot, Evictions, Flow, PoolView, SessionView
from memdecay_agents.live.table import snapshot_table

__all__ = [
    "AgentView",
    "EngineSnapshot",
    "Evictions",
    "Flow",
    "LivePage",
    "PoolView",
    "SessionView",
    "snapshot_table",
]
