"""What `memdecay serve` makes of its options, before any vLLM starts."""

from __future__ import annotations

import tomllib
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from memdecay_adapters.commands.serve import serve as serve_command
from memdecay_adapters.engine.plain_vllm import command_line_flags
from memdecay_adapters.server import launch
from memdecay_adapters.server.launch import ENDPOINT_GROUP, serve_environment, server_arguments
from memdecay_agents import MemDecayConfig
from memdecay_agents.errors import ConfigError, MemDecayError, UnsupportedError

CONFIG = MemDecayConfig(page_size_tokens=16)
ROOT = Path(__file__).parents[2]


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[str]]:
    """Installed plugins by group, in place of this machine's."""
    groups = {ENDPOINT_GROUP: ["memdecay", "another"], "vllm.general_plugins": ["memdecay", "lora"]}

    def entry_points(*, group: str) -> list[Any]:
        return [SimpleNamespace(name=name) for name in groups.get(group, [])]

    monkeypatch.setattr(launch.metadata, "entry_points", entry_points)
    return groups


def test_the_plugin_is_named_and_all_others_stay_as_they_were(installed: dict[str, list[str]]) -> None:
    assert serve_environment({})["VLLM_PLUGINS"] == "memdecay,lora"
    assert serve_environment({"VLLM_PLUGINS": "other"})["VLLM_PLUGINS"] == "other,memdecay"
    assert serve_environment({"VLLM_PLUGINS": ""})["VLLM_PLUGINS"] == "memdecay"
    assert "VLLM_NO_USAGE_STATS" not in serve_environment({"VLLM_NO_USAGE_STATS": "0"})
    installed[ENDPOINT_GROUP].remove("memdecay")
    with pytest.raises(UnsupportedError, match="Install the package again"):
        serve_environment({})


def test_the_entry_point_leads_to_vllms_plugin() -> None:
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"][ENDPOINT_GROUP]
    plugin = metadata.EntryPoint("memdecay", declared["memdecay"], ENDPOINT_GROUP).load()()
    assert (plugin.name, plugin.required_tasks) == ("memdecay", ("generate",))
    assert callable(plugin.attach_router)
    assert callable(plugin.init_state)


def test_the_users_flags_go_over_our_defaults_and_under_our_parts() -> None:
    command = server_arguments("m", CONFIG, ["--max-num-seqs", "4", "--no-enforce-eager", "--max_model_len=99"])
    assert command[0] == "m"
    assert command.count("--max-num-seqs") == 1
    assert command[command.index("--max-num-seqs") + 1] == "4"
    assert "--enforce-eager" not in command
    assert command[command.index("--block-size") + 1] == "16"
    assert "memdecay_adapters.engine.worker.MemDecayCPUWorker" in command
    plain = server_arguments("m", CONFIG, [])
    assert "--enforce-eager" in plain
    assert "--disable-log-stats" not in plain
    assert "True" not in plain
    assert command_line_flags({"a_b": True, "c_d": False, "e": {"f": 1}}) == ["--a-b", "--no-c-d", "--e", '{"f":1}']


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--block-size", "32"], "block-size.*sets it itself"),
        (["--worker_cls=x"], "worker-cls"),
        (["--api-key", "k"], "api-key"),
        (["--port=1"], "port"),
        (["--api-server-count", "2"], "one server process"),
        (["--data-parallel-size=2"], "one server process"),
        (["--dtype", "bfloat16"], "page size depends on it"),
    ],
)
def test_flags_that_would_pull_parts_apart_are_refused(flags: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        server_arguments("m", CONFIG, flags)


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch, model_path: str) -> dict[str, Any]:
    """What the command would have run."""
    seen: dict[str, Any] = {}
    monkeypatch.setattr(launch, "serve", lambda command, **options: seen.update(command=command, **options))
    return seen


def run(*arguments: str) -> Any:
    app = typer.Typer()
    app.command()(serve_command)
    return CliRunner().invoke(app, list(arguments))


@pytest.mark.parametrize("named", [[], ["SmolLM2-135M-Instruct"]])
def test_the_command_without_a_model_serves_the_default_one(
    started: dict[str, Any], named: list[str], model_path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("VLLM_API_KEY", raising=False)
    result = run("--budget", "512", "--port", "8123", *named, "--", "--max-model-len", "2048")
    assert result.exit_code == 0, result.output
    command = started["command"]
    assert command[0] == model_path
    assert command[-4:] == ["--max-model-len", "2048", "--served-model-name", "SmolLM2-135M-Instruct"]
    assert '"default_budget_tokens":512' in " ".join(command) or '"tokens":512' in " ".join(command)
    assert (started["host"], started["port"], started["api_keys"]) == ("127.0.0.1", 8123, [])


def test_keys_come_from_a_file_or_the_environment(
    started: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "keys").write_text("first-key-1\n\n  second-key-2  \n")
    assert run("--api-keys", str(tmp_path / "keys")).exit_code == 0
    assert started["api_keys"] == ["first-key-1", "second-key-2"]
    monkeypatch.setenv("VLLM_API_KEY", "from-environment")
    assert run().exit_code == 0
    assert started["api_keys"] == ["from-environment"]
    for text, message in [("", "no key"), ("short\n", "fewer than 8"), (None, "cannot be read")]:
        path = tmp_path / "other"
        path.unlink(missing_ok=True)
        if text is not None:
            path.write_text(text)
        result = run("--api-keys", str(path))
        assert isinstance(result.exception, MemDecayError)
        assert message in str(result.exception)
        assert "short" not in str(result.exception).replace("shorter", "")
