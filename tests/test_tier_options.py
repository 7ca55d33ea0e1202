"""The host tier as options of the commands that start a server."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

from typer.testing import CliRunner

from memdecay_adapters.commands.tier_options import read_tier
from memdecay_adapters.engine.settings import ADDITIONAL_CONFIG_KEY, EngineSettings
from memdecay_adapters.engine.tier.settings import HostTier, Recall
from memdecay_adapters.models import resolve_model
from memdecay_agents.calibration.profiles import ProfileFile
from memdecay_agents.cli.program import build_app
from memdecay_agents.recall import RetrievalHead, RetrievalHeads, shipped_heads


def profile_of(tmp_path: Path) -> tuple[Path, tuple[RetrievalHead, ...]]:
    """A profile that holds nothing but another model's heads."""
    heads = RetrievalHeads(
        model="m",
        fingerprint=None,
        heads=(RetrievalHead(layer=3, kv_head=1),),
        recall_at={1: 0.5},
        page_size_tokens=16,
        query_tokens=16,
        questions=9,
    )
    path = tmp_path / "heads.yaml"
    ProfileFile(model="m", clock_unit="tokens", retrieval_heads=heads).save(path)
    return path, heads.heads


def flags(*words: str) -> tuple[HostTier | None, dict[str, Any], str]:
    """What ``memdecay serve-args`` prints: the tier in it, all flags by name, and what it says beside."""
    result = CliRunner().invoke(build_app(), ["serve-args", *words])
    assert result.exit_code == 0, result.output
    printed = shlex.split(result.stdout)
    named = {flag: value for flag, value in zip(printed, [*printed[1:], ""], strict=True) if flag.startswith("--")}
    settings = EngineSettings.model_validate(json.loads(named["--additional-config"])[ADDITIONAL_CONFIG_KEY])
    return settings.host_tier, named, result.stderr


def test_sizes_have_units_and_a_profiles_heads_recall(tmp_path: Path) -> None:
    profile, heads = profile_of(tmp_path)
    tier, named, said = flags("--host-memory", "1.5GiB", "--host-disk", "20GB", "--profile", str(profile))
    assert tier == HostTier(max_bytes=3 * 2**29, disk_bytes=20 * 10**9, recall=Recall(heads=heads))
    assert "--no-async-scheduling" in named
    assert "RecallScheduler" in named["--scheduler-cls"]
    assert said == ""


def test_without_known_heads_pages_come_back_on_request_and_that_is_said() -> None:
    tier, named, said = flags("--host-memory", "1GiB")
    assert tier == HostTier(max_bytes=2**30)
    assert "--scheduler-cls" not in named
    assert "only when a request asks" in " ".join(said.split())


def test_a_server_recalls_by_its_models_heads() -> None:
    assert read_tier(None, None, None, resolve_model(None)) is None
    tier = read_tier("1GiB", None, None, resolve_model(None))
    shipped = shipped_heads(None)
    assert tier is not None
    assert tier.recall is not None
    assert shipped is not None
    assert tier.recall.heads == shipped.heads
