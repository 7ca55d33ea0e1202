"""A small server's limits, and a tenant."""

from __future__ import annotations

from memdecay_adapters.engine.validation import PoolShape
from memdecay_adapters.server.limits import ServerLimits
from memdecay_agents import MemDecayConfig
from tests.server.hostile import VOCABULARY

MINE = "key-" + "0" * 32
LIMITS = ServerLimits(
    config=MemDecayConfig(page_size_tokens=16, default_budget_tokens=320),
    max_model_len=512,
    vocabulary=VOCABULARY,
    pool=PoolShape(total_pages=40, chunk_pages=8),
)
