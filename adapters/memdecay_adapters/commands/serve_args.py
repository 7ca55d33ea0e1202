"""``memdecay serve-args``: the flags that make ``vllm serve`` evict, as one shell-quoted line."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

from memdecay_adapters.commands.completion import complete_policy
from memdecay_adapters.commands.config_options import Profile, read_config
from memdecay_agents.cli.output import JsonFile, Output


def serve_args(
    budget: Annotated[int | None, typer.Option(help="Budget of requests that bring none, in tokens.")] = None,
    policy: Annotated[str | None, typer.Option(help="Eviction policy.", autocompletion=complete_policy)] = None,
    config: Annotated[Path | None, typer.Option(help="A MemDecayConfig as JSON; the options go over it.")] = None,
    profile: Profile = None,
    dtype: Annotated[str, typer.Option(help="What the model runs in; the page size depends on it.")] = "auto",
    json_file: JsonFile = None,
) -> None:
    """Print flags for vllm serve: eval "vllm serve MODEL $(memdecay serve-args --budget 4096)"."""
    from memdecay_adapters.engine.plain_vllm import command_line_flags, vllm_arguments

    arguments = vllm_arguments(read_config(config, budget, policy, profile), dtype=dtype)
    flags, output = command_line_flags(arguments), Output("serve-args", json_file)
    output.save({"flags": flags})
    output.results.out(shlex.join(flags))
