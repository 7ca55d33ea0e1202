"""The host tier: evicted pages lie in host memory, and come back when a turn asks for them.

settings, heads       what the user chooses: bytes, recall by evidence; its heads are checked against the model
catalogue, book       scheduler side: which page lies in which slot of the tier, and the copies that make it so
swaps, turn, wishing  scheduler side: what changes places, by wish or by evidence; scheduler rewinds the turn
messages              what scheduler and worker say about it
host_store            worker side: the slots, and copies in order (disk_pages: those on disk); queries keeps the newest ones
                      of a turn
worker_tier           worker side: does the copies before a step, and measures evidence after it; runner_tier finds what it
                      needs in vLLM's runner, cpu_tier and gpu_tier (not run on a GPU) say where keys lie in a page
"""

from memdecay_adapters.engine.tier.settings import HostTier, Recall

__all__ = ["HostTier", "Recall"]
