"""Fixtures shared by all tests: the real small model, and real engines, one at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from memdecay_agents import MemDecayConfig

EXACT: dict[str, Any] = {
    "config": {"page_size_tokens": 16, "observed_layers": "all", "measure_every_steps": 1},
    "engine_args": {"dtype": "float32", "max_num_batched_tokens": 256, "kv_cache_memory_bytes": 2**29},
    "keep_sessions": False,
}
SMALL_POOL: dict[str, Any] = {
    "config": {"page_size_tokens": 16, "default_budget_tokens": 320, "agent_budgets": {"unlimited": None}},
    "engine_args": {"dtype": "float32", "max_num_batched_tokens": 128, "num_gpu_blocks_override": 64},
    "keep_sessions": False,
}
ENGINES: dict[str, dict[str, Any]] = {
    # float32 and 16-token pages: the engine that is compared with the oracle, every request on its own
    "exact": EXACT,
    # float32, measured at the default stride, sessions that live on: what a chat model's user gets
    "chat": {
        "config": {"page_size_tokens": 16},
        "engine_args": {"dtype": "float32", "max_num_batched_tokens": 256, "kv_cache_memory_bytes": 2**29},
        "keep_sessions": True,
    },
    # the same as exact, with sessions that live on between turns
    "sessions": {**EXACT, "keep_sessions": True},
    # a pool of 63 usable pages, smaller than the prompts it serves
    "small_pool": SMALL_POOL,
    "small_pool_sessions": {**SMALL_POOL, "keep_sessions": True},
    # a random Llama whose steps take milliseconds, sessions that live on, and a pool of 63 usable pages
    "pressure": {
        "model": "random_llama",
        "config": {
            "page_size_tokens": 16,
            "observed_layers": "all",
            "default_budget_tokens": 320,
            "agent_budgets": {"whole": None},
        },
        "engine_args": {"dtype": "float32", "max_num_batched_tokens": 64, "num_gpu_blocks_override": 64},
        "keep_sessions": True,
    },
    "deterministic": {
        "model": "random_llama",
        "config": {"page_size_tokens": 16},
        "engine_args": {"max_num_batched_tokens": 64, "kv_cache_memory_bytes": 2**26},
        "deterministic": True,
    },
    "page32": {
        "config": {"page_size_tokens": 32},
        "engine_args": {"dtype": "float32", "max_num_batched_tokens": 256, "kv_cache_memory_bytes": 2**29},
        "keep_sessions": False,
    },
    "bfloat16_page16": {
        "config": {"page_size_tokens": 16, "observed_layers": "all"},
        "engine_args": {"dtype": "bfloat16", "max_num_batched_tokens": 256, "kv_cache_memory_bytes": 2**28},
        "keep_sessions": False,
    },
    "bfloat16_auto": {
        "config": {"observed_layers": "all"},
        "engine_args": {"dtype": "bfloat16", "max_num_batched_tokens": 256, "kv_cache_memory_bytes": 2**28},
        "keep_sessions": False,
    },
}


class EngineHouse:
    """Keeps one engine open and changes it when a test asks for another: vLLM allows one a process."""

    def __init__(self, random_llama: Callable[[], str]) -> None:
        self._random_llama = random_llama
        self._name: str | None = None
        self._engine: Any = None

    def get(self, name: str) -> Any:
        from memdecay_adapters.engine import MemDecayEngine

        if self._name != name or self._engine.closed:
            self.close()
            recipe = ENGINES[name]
            self._engine = MemDecayEngine(
                self._random_llama() if "model" in recipe else None,
                config=MemDecayConfig(**recipe["config"]),
                engine_args=recipe["engine_args"],
                keep_sessions=recipe.get("keep_sessions"),
                deterministic=recipe.get("deterministic", False),
                check_integrity=True,
            )
            self._name = name
        return self._engine

    def close(self) -> None:
        if self._engine is not None:
            self._engine.close()
        self._name = self._engine = None


@pytest.fixture(scope="session")
def random_llama_path(tmp_path_factory: pytest.TempPathFactory, model_path: str) -> str:
    """The folder of a seeded small Llama with random weights."""
    from tests.engine.random_llama import random_llama

    return random_llama(tmp_path_factory.mktemp("models") / "random-llama", model_path)


@pytest.fixture(scope="session")
def engine_house(request: pytest.FixtureRequest) -> Iterator[EngineHouse]:
    house = EngineHouse(lambda: request.getfixturevalue("random_llama_path"))
    yield house
    house.close()


@pytest.fixture
def engine_named(engine_house: EngineHouse) -> Callable[[str], Any]:
    """A real engine by the name of its recipe in ``ENGINES``, without kept sessions."""

    def get(name: str) -> Any:
        engine = engine_house.get(name)
        engine.close_sessions()
        return engine

    return get


@pytest.fixture
def engine(engine_house: EngineHouse) -> Any:
    """The float32 engine with 16-token pages; no session is kept when a test begins, no page when it ends."""
    engine = engine_house.get("exact")
    engine.close_sessions()
    yield engine
    if not engine.closed:
        engine.close_sessions()
        stats = engine.pool_stats()
        assert stats.free_pages == stats.total_pages, "the test left pages behind"
        engine.ledger().check_integrity()


@pytest.fixture
def no_engine(engine_house: EngineHouse) -> None:
    """No engine is open: for tests that start one of their own."""
    engine_house.close()


@pytest.fixture(scope="session")
def model_path() -> str:
    """The default model's folder."""
    from memdecay_adapters.models import resolve_model

    return resolve_model(None)


@pytest.fixture(scope="session")
def tokenizer(model_path: str) -> Any:
    """The default model's tokenizer (transformers)."""
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(model_path)


@pytest.fixture(scope="session")
def random_oracle(random_llama_path: str) -> Any:
    """The random Llama in transformers, float32, eager attention."""
    from tests.engine.oracle import Oracle

    return Oracle(random_llama_path)


@pytest.fixture(scope="session")
def oracle(model_path: str) -> Any:
    """The same model in transformers, float32, eager attention."""
    from tests.engine.oracle import Oracle

    return Oracle(model_path)
