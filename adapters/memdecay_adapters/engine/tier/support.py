"""What the host tier needs of vLLM's configuration; refused at start-up otherwise."""

from __future__ import annotations

from typing import TYPE_CHECKING

from memdecay_adapters.engine.settings import EngineSettings
from memdecay_agents.errors import UnsupportedError

if TYPE_CHECKING:
    from vllm.config import VllmConfig

SCHEDULER = "memdecay_adapters.engine.tier.scheduler.RecallScheduler"
"""The scheduler that recall by evidence needs, by path."""


def check_tier_supported(vllm_config: VllmConfig, settings: EngineSettings) -> None:
    """Check a complete vLLM configuration against what the tier is written for.

    Raises:
        UnsupportedError: names the option, and what to change.
    """
    tier = settings.host_tier
    if tier is None:
        return
    from vllm.platforms import current_platform

    recall = tier.recall
    scheduler = vllm_config.scheduler_config
    layers = vllm_config.model_config.get_total_num_hidden_layers()
    kv_heads = vllm_config.model_config.get_total_num_kv_heads()
    beyond = [] if recall is None else [h for h in recall.heads or () if h.layer >= layers or h.kv_head >= kv_heads]
    refusals = [
        (not (current_platform.is_cpu() or current_platform.is_cuda()),
         f"platform {current_platform.device_name!r} copies no pages",
         "Leave host_tier out, or install the extra 'cpu'."),
        (scheduler.async_scheduling, "asynchronous scheduling is on: a block could be reused before it is copied",
         "Set async_scheduling=False."),
        (recall is not None and scheduler.scheduler_cls != SCHEDULER,
         f"vLLM's scheduler_cls is {scheduler.scheduler_cls!r}, which computes no turn again",
         f"Set scheduler_cls={SCHEDULER!r}, or recall=None."),
        (recall is not None and recall.heads is None, "no retrieval heads are known for recall by evidence",
         "Give Recall(heads=...), found by `memdecay calibrate --heads`."),
        (bool(beyond), f"retrieval heads {beyond} are not among {layers} layers of {kv_heads} key-value heads",
         "Calibrate this model: `memdecay calibrate --heads`."),
    ]  # fmt: skip
    for refused, rule, remedy in refusals:
        if refused:
            raise UnsupportedError(where="host tier", rule=rule, remedy=remedy)
