"""Pictures of what was kept and why; matplotlib is imported when one is drawn.

A `MemoryHistory` (from ``MemDecayEngine.history()``, or from a ledger file) becomes a PNG (`draw_memory`) or one
interactive HTML file (`write_memory_page`); `draw_retention_map` draws moments that you give it.
"""

from memdecay_agents.pictures.history import MemoryHistory, SessionHistory, history_of_ledger
from memdecay_agents.pictures.memory_page import write_memory_page
from memdecay_agents.pictures.memory_png import draw_memory
from memdecay_agents.pictures.retention_map import RetentionColumn, draw_retention_map

__all__ = [
    "MemoryHistory",
    "RetentionColumn",
    "SessionHistory",
    "draw_memory",
    "draw_retention_map",
    "history_of_ledger",
    "write_memory_page",
]
