"""What `memdecay doctor` finds, and that it says what to change."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from memdecay_adapters import diagnosis
from memdecay_adapters.diagnosis import Finding, run_checks
from memdecay_adapters.model_check import attention_facts, refusal_of

LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "num_hidden_layers": 4, "num_attention_heads": 8,
    "num_key_value_heads": 2, "hidden_size": 256, "max_position_embeddings": 4096, "torch_dtype": "bfloat16",
}  # fmt: skip


def findings(model: str | None = None) -> dict[str, Finding]:
    return {finding.check: finding for finding in run_checks(model)}


def model_of(tmp_path: Path, **more: Any) -> str:
    (tmp_path / "config.json").write_text(json.dumps({**LLAMA, **more}))
    return str(tmp_path)


def test_everything_that_matters_is_looked_at_and_what_is_not_ok_has_a_remedy(tmp_path: Path) -> None:
    found = findings(model_of(tmp_path))
    assert found.keys() == {
        "python", "vllm", "compiler", "backend", "kernels", "page size", "memory", "threads", "openmp", "model",
        "attention", "kv cache",
    }  # fmt: skip
    assert found["attention"].found == "full attention, 4 layers, 8 query and 2 key heads of 32"
    assert found["kv cache"].found.startswith("bfloat16, 1.0 KiB a token")
    for finding in found.values():
        assert finding.status == "ok" or finding.remedy


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"sliding_window": 1024}, "full attention"),
        ({"sliding_window": 1024, "use_sliding_window": False}, None),
        ({"sliding_window": 1024, "layer_types": ["full_attention"] * 4}, None),
        ({"layer_types": ["full_attention", "sliding_attention"]}, "full attention"),
        ({"layer_types": ["linear_attention"]}, "full attention"),
        ({"kv_lora_rank": 512}, "latent"),
        ({"mamba_d_state": 16}, "state-space"),
        ({"vision_config": {}}, "images"),
        ({"text_config": {**LLAMA, "attn_logit_softcapping": 50.0}}, "soft cap"),
        ({"alibi": True}, "ALiBi"),
        ({}, None),
    ],
)
def test_a_model_that_cannot_be_evicted_from_is_refused_with_what_to_use(
    tmp_path: Path, change: dict[str, Any], said: str | None
) -> None:
    refusal = refusal_of({**LLAMA, **change})
    assert (refusal is None) == (said is None)
    if said is not None and refusal is not None:
        assert said in refusal[0]
        assert refusal[1]
        found = findings(model_of(tmp_path, **change))["attention"]
        assert (found.status, found.found) == ("failed", refusal[0])


@pytest.mark.parametrize(
    ("stored", "served", "bytes_per_token"),
    [("float32", "bfloat16", 1024), ("torch.float16", "float16", 1024), ("bfloat16", "bfloat16", 1024)],
)
def test_a_checkpoint_in_float32_is_served_in_bfloat16(stored: str, served: str, bytes_per_token: int) -> None:
    facts = attention_facts({**LLAMA, "torch_dtype": stored})
    assert facts is not None
    assert (facts.dtype, facts.cache_bytes_per_token) == (served, bytes_per_token)


def test_a_model_that_is_not_here_or_says_nothing_is_a_warning_not_a_guess(tmp_path: Path) -> None:
    elsewhere = findings("nobody/no-such-model")
    assert elsewhere["attention"].status == "warning"
    assert attention_facts({"model_type": "x"}) is None
    (tmp_path / "config.json").write_text('{"model_type": "x"}')
    assert findings(str(tmp_path))["kv cache"].status == "warning"


def test_little_memory_is_told_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(diagnosis, "available_memory_bytes", lambda: 2**20)
    found = findings(model_of(tmp_path))
    assert found["memory"].status == "warning"
    assert "fewer than the model's 4,096" in found["kv cache"].found
    assert "max_model_len" in found["kv cache"].remedy


@pytest.mark.parametrize(
    ("variable", "value", "check", "status"),
    [
        ("OMP_NUM_THREADS", "4096", "threads", "warning"),
        ("VLLM_CPU_OMP_THREADS_BIND", "0-4095", "openmp", "failed"),
        ("VLLM_CPU_OMP_THREADS_BIND", "nobind", "openmp", "ok"),
        ("MEMDECAY_KERNELS", "sse9", "kernels", "failed"),
    ],
)
def test_settings_that_cost_speed_or_fail_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variable: str, value: str, check: str, status: str
) -> None:
    monkeypatch.setenv(variable, value)
    found = findings(model_of(tmp_path))[check]
    assert found.status == status
    assert status == "ok" or found.remedy


def test_an_old_python_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(diagnosis, "MINIMUM_PYTHON", (99, 0))
    assert findings()["python"].status == "failed"
