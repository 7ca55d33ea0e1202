"""``memdecay bench kernels``: its keys, also where there is no native library."""

from __future__ import annotations

import json

import pytest

from memdecay_adapters.bench.kernel_bench import KernelBenchOptions, run_kernel_bench

pytest.importorskip("vllm._custom_ops")


def not_json(constant: str) -> None:
    raise AssertionError(f"{constant} is no JSON")


@pytest.mark.parametrize("choice", ["auto", "reference"])
def test_keys_and_errors(monkeypatch, choice):
    monkeypatch.setenv("MEMDECAY_KERNELS", choice)
    options = KernelBenchOptions(pairs=1, contexts=(64, 128), parts=("mass", "scores", "errors"))
    values = json.loads(json.dumps(run_kernel_bench(options).values), parse_constant=not_json)
    assert values["max_relative_error"] < 1e-4
    assert set(values["mass_over_attention"]) == {"amx", "vec"}
    assert set(values["mass_over_attention"]["vec"]) == {"64", "128"}
    assert "hot_mass_over_attention_64" in values
    scores = [values["score_select_us_8192"], values["score_select_ranks_us_8192"]]
    if choice == "reference":
        assert scores == [None, None]
        assert "native library" in values["score_select_us_8192_reason"]
    else:
        assert min(scores) > 0
        assert values["bandwidth_fraction"].keys() == {"128"}
