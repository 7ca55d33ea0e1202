"""The host tier: evicted pages lie in host memory, and come back when a turn asks for them.

settings, heads       what the user chooses: bytes, recall by evidence; its heads are checked against the model
catalogue, book       scheduler side: which page lies in which slot of the tier, and the copies that make it so
swaps, turn, wishing  scheduler side: what changes places, by wish or by evidence; scheduler rewinds the turn
repairs               scheduler side: which session is repaired between its turns, and the request that does it
messages              what scheduler and worker say about it
host_store            worker side: the slots, and copies in order; disk_pages are the slots on disk
queries               worker side: keeps the newest queries of a turn
worker_tier           worker side: does the copies before a step, and measures evidence after it
cpu_tier, gpu_tier    where keys lie in a page (gpu_tier is not run on a GPU); runner_tier: what both need of vLLM
"""

from memdecay_adapters.engine.tier.settings import HostTier, Recall, Repair

__all__ = ["HostTier", "Recall", "Repair"]
