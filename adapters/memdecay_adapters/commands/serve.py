"""``memdecay serve``: vLLM's OpenAI-compatible server, with eviction, sessions and tenants."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from memdecay_adapters.commands.completion import complete_policy
from memdecay_adapters.commands.config_options import Profile, read_config
from memdecay_adapters.commands.tier_options import HostDisk, HostMemory, read_tier
from memdecay_agents.cli.output import JsonFile, Output
from memdecay_agents.errors import ConfigError


def serve(
    model: Annotated[
        str | None, typer.Argument(help="Hugging Face id or folder; none: the small default model.")
    ] = None,
    flags: Annotated[list[str] | None, typer.Argument(help="After --: further flags of vllm serve.")] = None,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=1, max=65535, help="Port to listen on.")] = 8000,
    budget: Annotated[int | None, typer.Option(help="Budget of requests that bring none, in tokens.")] = None,
    policy: Annotated[str | None, typer.Option(help="Eviction policy.", autocompletion=complete_policy)] = None,
    config: Annotated[Path | None, typer.Option(help="A MemDecayConfig as JSON; the options go over it.")] = None,
    profile: Profile = None,
    host_memory: HostMemory = None,
    host_disk: HostDisk = None,
    dtype: Annotated[str, typer.Option(help="What the model runs in; the page size depends on it.")] = "auto",
    api_keys: Annotated[
        Path | None, typer.Option(help="A file with API keys, one a line; each is a tenant of its own.")
    ] = None,
    session_idle_seconds: Annotated[float, typer.Option(help="Give up a session that is idle for longer.")] = 900.0,
    check_integrity: Annotated[bool, typer.Option(help="Check the pool and every row at each step.")] = False,
    json_file: JsonFile = None,
) -> None:
    """Serve a model over HTTP, with sessions: memdecay serve MODEL --budget 4096 -- --max-model-len 8192."""
    from memdecay_adapters.models import DEFAULT_MODEL_NAME, resolve_model
    from memdecay_adapters.server.launch import serve as run
    from memdecay_adapters.server.launch import server_arguments

    given = list(flags or ())
    if model is not None and model.startswith("-"):  # `memdecay serve -- --flag`: no model was named
        given, model = [model, *given], None
    if not any(flag.split("=")[0].replace("_", "-") == "--served-model-name" for flag in given):
        given += ["--served-model-name", model or DEFAULT_MODEL_NAME]
    path = resolve_model(model)
    command = server_arguments(
        path,
        read_config(config, budget, policy, profile),
        given,
        dtype=dtype,
        session_idle_seconds=session_idle_seconds,
        check_integrity=check_integrity,
        host_tier=read_tier(host_memory, host_disk, profile, path),
    )
    keys = _keys(api_keys)
    url = f"http://{host}:{port}"
    Output("serve", json_file).save({"url": url, "arguments": command, "tenants": len(keys) or None})
    run(command, host=host, port=port, api_keys=keys)


def _keys(path: Path | None) -> list[str]:
    """The API keys: the file's, else what VLLM_API_KEY holds; none: an open server."""
    if path is None:
        return [key for key in [os.environ.get("VLLM_API_KEY", "")] if key]
    try:
        keys = [line.strip() for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    except (OSError, ValueError) as error:
        raise ConfigError(
            where=f"--api-keys {path}", rule=f"it cannot be read: {error}", remedy="Give a file with one key a line."
        ) from error
    if not keys or any(len(key) < 8 for key in keys):
        raise ConfigError(
            where=f"--api-keys {path}",
            rule="it holds no key" if not keys else "a key has fewer than 8 characters",
            remedy="Write one long random key a line.",
        )
    return keys
