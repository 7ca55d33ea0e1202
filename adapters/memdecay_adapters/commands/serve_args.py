"""``memdecay serve-args``: the flags that make ``vllm serve`` evict, as one shell-quoted line."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Annotated, Any

import typer

from memdecay_adapters.commands.completion import complete_policy
from memdecay_agents.cli.output import JsonFile, Output
from memdecay_agents.config import MemDecayConfig
from memdecay_agents.errors import ConfigError


def serve_args(
    budget: Annotated[int | None, typer.Option(help="Budget of requests that bring none, in tokens.")] = None,
    policy: Annotated[str | None, typer.Option(help="Eviction policy.", autocompletion=complete_policy)] = None,
    config: Annotated[Path | None, typer.Option(help="A MemDecayConfig as JSON; the options go over it.")] = None,
    dtype: Annotated[str, typer.Option(help="What the model runs in; the page size depends on it.")] = "auto",
    json_file: JsonFile = None,
) -> None:
    """Print flags for vllm serve: eval "vllm serve MODEL $(memdecay serve-args --budget 4096)"."""
    from memdecay_adapters.engine.plain_vllm import command_line_flags, vllm_arguments

    arguments = vllm_arguments(read_config(config, budget, policy), dtype=dtype)
    flags, output = command_line_flags(arguments), Output("serve-args", json_file)
    output.save({"flags": flags})
    output.results.out(shlex.join(flags))


def read_config(path: Path | None, budget: int | None, policy: str | None) -> MemDecayConfig:
    """The configuration of a file, with a command's options over it.

    Args:
        path: a file of JSON; None: the defaults.
        budget: default budget in tokens; None: the file's.
        policy: name of a policy; None: the file's.

    Raises:
        ConfigError: no JSON object, or fields that do not hold.
    """
    fields = _read(path) if path is not None else {}
    if budget is not None:
        fields["default_budget_tokens"] = budget
    if policy is not None:
        fields["policy"] = policy
    return MemDecayConfig(**fields)


def _read(path: Path) -> dict[str, Any]:
    try:
        fields = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(
            where=f"--config {path}", rule=f"it cannot be read: {error}", remedy="Give a file of JSON."
        ) from error
    if not isinstance(fields, dict):
        raise ConfigError(where=f"--config {path}", rule="it is no JSON object", remedy='Write {"field": value, ...}.')
    return fields
