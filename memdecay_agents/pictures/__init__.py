"""Pictures of what was kept and why; matplotlib is imported when one is drawn."""

from memdecay_agents.pictures.retention_map import RetentionColumn, draw_retention_map

__all__ = ["RetentionColumn", "draw_retention_map"]
