"""``memdecay serve-args``: the flags that make ``vllm serve`` evict, as one shell-quoted line."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

from memdecay_adapters.commands.completion import complete_policy
from memdecay_adapters.commands.config_options import Profile, read_config
from memdecay_adapters.commands.tier_options import HostDisk, HostMemory, read_tier
from memdecay_agents.cli.output import JsonFile, Output


def serve_args(
    budget: Annotated[int | None, typer.Option(help="Budget of requests that bring none, in tokens.")] = None,
    policy: Annotated[str | None, typer.Option(help="Eviction policy.", autocompletion=complete_policy)] = None,
    config: Annotated[Path | None, typer.Option(help="A MemDecayConfig as JSON; the options go over it.")] = None,
    profile: Profile = None,
    host_memory: HostMemory = None,
    host_disk: HostDisk = None,
    dtype: Annotated[str, typer.Option(help="What the model runs in; the page size depends on it.")] = "auto",
    json_file: JsonFile = None,
) -> None:
    """Print flags for vllm serve: eval "vllm serve MODEL $(memdecay serve-args --budget 4096)"."""
    from memdecay_adapters.engine.plain_vllm import command_line_flags, vllm_arguments

    tier, output = read_tier(host_memory, host_disk, profile, None), Output("serve-args", json_file)
    if tier is not None and tier.recall is None:
        output.notes.print(
            "No retrieval heads: pages come back only when a request asks for them. Give a --profile that "
            "`memdecay calibrate --heads` made, to have them recalled by what is asked."
        )
    arguments = vllm_arguments(read_config(config, budget, policy, profile), dtype=dtype, host_tier=tier)
    flags = command_line_flags(arguments)
    output.save({"flags": flags})
    output.results.out(shlex.join(flags))
