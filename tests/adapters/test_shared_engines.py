"""Chat models with budgets of their own share one engine; its config may carry another model's default budget."""

from __future__ import annotations

from typing import Any

import pytest

import memdecay_adapters.engine.shared as shared
import memdecay_adapters.langchain.chat_fields as chat_fields
from memdecay_adapters.engine.tier import HostTier
from memdecay_adapters.langchain.chat_model import ChatMemDecay
from memdecay_agents.config import MemDecayConfig
from memdecay_agents.errors import ConfigError
from tests.adapters.fake_engine import FakeEngine


class OnlyOne(FakeEngine):
    """As the real one: a second engine in the process is refused."""

    started: int
    tokenizer_given: Any
    max_model_len = 4096
    closed = False

    def __init__(self, model: str | None, *, config: MemDecayConfig, engine_args: Any, host_tier: Any) -> None:
        assert not type(self).started, "another engine is open in this process"
        type(self).started += 1
        super().__init__(type(self).tokenizer_given, config=config)
        self.host_tier = host_tier


@pytest.fixture(autouse=True)
def _only_one(monkeypatch: pytest.MonkeyPatch, tokenizer: Any) -> None:
    OnlyOne.started, OnlyOne.tokenizer_given = 0, tokenizer
    monkeypatch.setattr(shared, "MemDecayEngine", OnlyOne)
    monkeypatch.setattr(shared, "_engines", {})


def test_budgets_do_not_ask_for_engines_of_their_own() -> None:
    first = ChatMemDecay()
    engine = first.get_engine()
    for model in (
        ChatMemDecay(default_budget=256),
        ChatMemDecay(budgets={"planner": 512}),
        first.model_copy(update={"default_budget": 128}),
    ):
        assert model.get_engine() is engine
        assert model.release_thread.__self__._running_engine() is engine  # type: ignore[attr-defined]


def test_the_first_budget_sizes_the_pool_and_binds_nobody_else() -> None:
    bounded, free = ChatMemDecay(default_budget=256), ChatMemDecay()
    engine: Any = bounded.get_engine()
    assert engine.config.budget_of("").tokens == 256
    bounded.invoke("hi")
    assert engine.hints.budget_tokens == 256
    free.invoke("hi")
    assert engine.hints.budget_tokens >= engine.max_model_len


def test_a_host_tier_belongs_to_the_engine_that_is_started() -> None:
    model = ChatMemDecay(host_tier={"max_bytes": 2**30})
    engine: Any = model.get_engine()
    assert engine.host_tier == HostTier(max_bytes=2**30)
    assert ChatMemDecay(host_tier=HostTier(max_bytes=2**30)).get_engine() is engine
    assert model._identifying_params["host_tier"] == ChatMemDecay(engine=engine)._identifying_params["host_tier"]
    with pytest.raises(AssertionError, match="another engine"):
        ChatMemDecay(host_tier=HostTier(max_bytes=2**29)).get_engine()
    with pytest.raises(ConfigError, match="host_tier"):
        ChatMemDecay(engine=engine, host_tier=HostTier(max_bytes=2**30))


def test_a_budget_of_the_users_configuration_stays_the_default() -> None:
    model = ChatMemDecay(config=MemDecayConfig(default_budget_tokens=320))
    model.invoke("hi")
    engine: Any = model.get_engine()
    assert engine.hints.budget_tokens is None
    assert engine.config.budget_of("default").tokens == 320


def test_an_embedded_engine_begins_to_import_the_parsers_when_it_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    prepared = []
    monkeypatch.setattr("memdecay_adapters.engine.engine.MemDecayEngine", OnlyOne)
    monkeypatch.setattr(chat_fields, "prepare_parsers", lambda *given: prepared.append(given[1:]))
    model = ChatMemDecay(tool_parser="llama3_json")
    assert prepared == []
    engine = model.get_engine()
    assert prepared == [(None, "llama3_json", "auto")]
    ChatMemDecay(engine=engine)
    assert prepared[1:] == [(None, "auto", "auto")]


@pytest.mark.parametrize(
    ("given", "meant"), [("budget", "default_budget"), ("pins", "pin"), ("output_region", "default_output_region")]
)
def test_a_keyword_of_calls_is_told_its_name_here(given: str, meant: str) -> None:
    with pytest.raises(ConfigError, match=f"Use {meant}="):
        ChatMemDecay(**{given: 5})
