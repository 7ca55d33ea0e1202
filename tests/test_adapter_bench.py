"""``memdecay bench adapters`` compares two sides that make the same token ids."""

from __future__ import annotations

import pytest

from memdecay_adapters.bench import adapter_bench
from memdecay_agents.errors import IntegrityError


def test_a_pair_of_each_conversation_is_measured(model_path):
    values = adapter_bench.run_adapter_bench(pairs=1).values
    assert 900 < values["short_prompt_tokens"] < values["long_prompt_tokens"]
    assert values["long_cost_ratio_pairs"] == 1
    assert values["short_plain_ms"] > 0


def test_sides_that_differ_are_not_compared(model_path, monkeypatch):
    from memdecay_adapters.langchain import prompt

    real = prompt.build_prompt
    monkeypatch.setattr(prompt, "build_prompt", lambda messages, *args, **options: real(messages[1:], *args, **options))
    with pytest.raises(IntegrityError, match="differ"):
        adapter_bench.run_adapter_bench(pairs=1)
