"""What a plain ``vllm.LLM`` or ``vllm serve`` is given so that it evicts as `MemDecayEngine` does."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from memdecay_adapters.engine.arguments import our_arguments
from memdecay_adapters.engine.page_size import choose_page_size
from memdecay_adapters.engine.platform_parts import usable_parts
from memdecay_adapters.engine.settings import EngineSettings
from memdecay_adapters.engine.tier.settings import HostTier
from memdecay_agents.config import MemDecayConfig
from memdecay_agents.errors import UnsupportedError


def vllm_arguments(
    config: MemDecayConfig | None = None,
    *,
    dtype: str = "auto",
    keep_sessions: bool = True,
    session_idle_seconds: float | None = 900.0,
    check_integrity: bool = False,
    allow_untested_gpu: bool = False,
    host_tier: HostTier | None = None,
) -> dict[str, Any]:
    """Keyword arguments for ``vllm.LLM(model, **vllm_arguments(config))``.

    All of them belong together; vLLM refuses to start with only some of the first three. The core of such a vLLM
    is a process of its own: there is no ledger to look into, and what was kept of a request stands in its output,
    ``RequestOutput.kv_transfer_params["memdecay"]``.

    Args:
        config: regions, policy, budgets, page size.
        dtype: what the model runs in; the automatic page size depends on it. Give vLLM the same.
        keep_sessions: keep a session's pages between its turns.
        session_idle_seconds: give up a session that is idle for longer; None: never for that reason.
        check_integrity: check the pool and every block-table row at each step.
        allow_untested_gpu: run on CUDA, which nobody has done.
        host_tier: keep evicted pages in host memory and bring them back; with recall by evidence its heads are named.

    Returns:
        ``worker_cls``, ``kv_transfer_config``, ``block_size`` (tokens) and ``additional_config``, as JSON types, and
        what the platform asks for beside them.

    Raises:
        UnsupportedError: a platform that is not served, CUDA without ``allow_untested_gpu``, or a tier with repair, for
            which the engine has to be embedded.
    """
    if host_tier is not None and host_tier.repair is not None:
        raise UnsupportedError(
            where="host_tier.repair",
            rule="sessions are repaired by the embedded engine, which sees when nothing runs; a plain vLLM never would",
            remedy="Leave repair out, or serve with MemDecayEngine.",
        )
    settings = EngineSettings(
        config=choose_page_size(config or MemDecayConfig(), {"dtype": dtype}),
        keep_sessions=keep_sessions,
        session_idle_seconds=session_idle_seconds,
        check_integrity=check_integrity,
        allow_untested_gpu=allow_untested_gpu,
        host_tier=host_tier,
    )
    return {**our_arguments(settings), **usable_parts(allow_untested_gpu=allow_untested_gpu).fixed}


def command_line_flags(arguments: Mapping[str, Any]) -> list[str]:
    """The same arguments as flags of ``vllm serve``: mappings as JSON, truth values as ``--name`` or ``--no-name``."""
    flags = []
    for name, value in arguments.items():
        flag = name.replace("_", "-")
        if isinstance(value, bool):
            flags.append(f"--{flag}" if value else f"--no-{flag}")
        else:
            text = json.dumps(value, separators=(",", ":")) if isinstance(value, Mapping) else str(value)
            flags += [f"--{flag}", text]
    return flags
