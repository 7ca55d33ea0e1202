"""The demo, as a user runs it, and every count of its report against the ledger and vLLM's own block pool."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from memdecay_adapters.demo.run import DemoOptions, run_demo
from memdecay_adapters.demo.scenario import FACTS
from memdecay_agents import MemDecayConfig
from memdecay_agents.ledger import Ledger
from memdecay_agents.pictures import MemoryHistory

pytestmark = [pytest.mark.engine, pytest.mark.slow]

PINNED = {"system", "plan"}
KEYS = {
    "schema_version", "engine_version", "model", "policy", "page_size_tokens", "budget_pages", "chunk_pages",
    "evictions_total", "freed_pinned_pages", "free_blocks_before", "free_blocks_after", "peak_pages_decode",
    "peak_pages_prefill", "peak_rss_bytes", "wall_seconds", "ledger_file", "facts", "turns",
}  # fmt: skip


class PoolWatch:
    """Looks at vLLM's own rows and free list after every engine step, knowing nothing of our bookkeeping."""

    def __init__(self, engine: Any) -> None:
        self.nulls: dict[str, set[int]] = {}
        """Evicted pages of each request's row, as it was last seen."""
        self.inherited: dict[str, set[int]] = {}
        """Those that were gone when its session's turn before ended, and still are when it begins."""
        self._last_of_session: dict[tuple[str, str], str] = {}
        self.phases: dict[str, Counter[str]] = {}
        engine.run_on_engine_thread(self._attach)

    def _attach(self, llm: Any, internals: Any) -> None:
        scheduler = internals.scheduler
        manager = scheduler.kv_cache_manager.coordinator.single_type_managers[0]
        allocate = manager.allocate_new_blocks

        def watched(request_id: str, *args: Any) -> Any:
            new_blocks = allocate(request_id, *args)
            request = scheduler.requests[request_id]
            blocks = manager.req_to_blocks[request_id]
            held = sum(not block.is_null for block in blocks)
            left = request.num_tokens - request.num_computed_tokens
            phase = "decode" if left <= 1 else "prefill"
            phases = self.phases.setdefault(request_id, Counter())
            phases[phase] = max(phases[phase], held)
            nulls = {page for page, block in enumerate(blocks) if block.is_null}
            if request_id not in self.nulls:
                hints = request.sampling_params.extra_args["memdecay"]
                owner = (hints["session"], hints["agent"])
                self.inherited[request_id] = nulls & self.nulls.get(self._last_of_session.get(owner, ""), set())
                self._last_of_session[owner] = request_id
            self.nulls[request_id] = nulls
            return new_blocks

        manager.allocate_new_blocks = watched

    def evicted(self, request_id: str) -> set[int]:
        """Pages that left while the request ran."""
        return self.nulls[request_id] - self.inherited[request_id]


@pytest.fixture
def small_run(tmp_path: Path, engine_house: Any, request: pytest.FixtureRequest) -> Any:
    """Two user turns under a policy, in this process, with vLLM's pool watched."""
    from memdecay_adapters.engine import MemDecayEngine

    policy, budget_tokens = request.param
    engine_house.close()
    config = MemDecayConfig.for_policy(policy, page_size_tokens=16)
    engine_args = {"max_num_batched_tokens": 128, "kv_cache_memory_bytes": 2**28, "dtype": "bfloat16"}
    with MemDecayEngine(config=config, engine_args=engine_args, check_integrity=True) as engine:
        watch = PoolWatch(engine)
        options = DemoOptions(budget_tokens=budget_tokens, policy=policy, user_turns=2, output_folder=tmp_path)
        report = run_demo(options, Console(quiet=True), engine)
        yield report, watch, engine


@pytest.mark.parametrize("small_run", [("memdecay", 560)], indirect=True)
def test_every_count_is_the_ledgers_and_the_pools(small_run):
    report, watch, engine = small_run
    entries = Ledger.from_jsonl(report["ledger_file"])
    assert report["evictions_total"] == len(entries) > 0
    assert report["freed_pinned_pages"] == sum(entry.pinned for entry in entries) == 0
    assert not any(PINNED & set(entry.regions) for entry in entries)

    by_request: dict[str, list[Any]] = {}
    for entry in entries:
        by_request.setdefault(entry.request_id, []).append(entry)
    evicted = {request_id: watch.evicted(request_id) for request_id in watch.nulls}
    booked = {request_id: {e.page for e in by_request.get(request_id, [])} for request_id in watch.nulls}
    assert booked == evicted
    assert any(watch.inherited.values()), "what an earlier turn lost stays lost"

    assert report["free_blocks_before"] == report["free_blocks_after"] == engine.pool_stats().free_pages
    page = report["page_size_tokens"]
    for turn in report["turns"]:
        found = by_request.get(turn["request_id"], [])
        phases = watch.phases[turn["request_id"]]
        assert turn["freed_by_region"] == Counter(entry.region for entry in found)
        assert turn["pages_held"] == turn["pages_total"] - len(watch.nulls[turn["request_id"]])
        assert sum(turn["pages_held_by_region"].values()) == turn["pages_held"]
        # the last sampled token is never computed: its key is not in the cache
        assert turn["pages_total"] == -(-sum(turn["tokens_by_region"].values()) // page)
        assert phases["decode"] <= turn["budget_pages"]
        assert phases["prefill"] <= turn["budget_pages"] + report["chunk_pages"]
    used = [watch.phases[turn["request_id"]] for turn in report["turns"]]
    assert report["peak_pages_decode"] == max(phases["decode"] for phases in used)
    assert report["peak_pages_prefill"] == max(phases["prefill"] for phases in used)
    pinned_facts = [fact for fact in report["facts"] if fact["region"] in PINNED]
    assert len(pinned_facts) == 4
    assert all(fact["pages_kept"] == fact["pages"] > 0 for fact in pinned_facts)
    assert all(turn["tool_calls"] for turn in report["turns"] if turn["agent"] == "worker")


@pytest.mark.parametrize("small_run", [("full", 560)], indirect=True)
def test_the_full_policy_evicts_nothing(small_run):
    report, watch, _ = small_run
    assert report["evictions_total"] == 0
    assert not any(watch.nulls.values())
    assert Ledger.from_jsonl(report["ledger_file"]) == []
    assert all(turn["budget_pages"] is None and turn["freed_by_region"] == {} for turn in report["turns"])
    assert all(fact["pages_kept"] == fact["pages"] for fact in report["facts"])
    assert all(fact["correct"] == fact["correct_full_cache"] for fact in report["facts"])


def test_the_demo_as_a_user_runs_it(tmp_path, no_engine):
    json_file = tmp_path / "demo.json"
    command = [sys.executable, "-m", "memdecay_agents", "demo", "--json", str(json_file), "--out", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    report = json.loads(json_file.read_text())
    assert report.keys() >= KEYS
    assert report["freed_pinned_pages"] == 0
    assert report["free_blocks_after"] == report["free_blocks_before"]
    assert report["peak_pages_decode"] <= report["budget_pages"]
    assert report["peak_pages_prefill"] <= report["budget_pages"] + report["chunk_pages"]
    assert report["peak_rss_bytes"] < 6 * 2**30
    last = report["turns"][-1]
    assert last["pages_total"] >= 2 * last["budget_pages"], "the budget is far below the trace"
    freed = Counter()
    for turn in report["turns"]:
        freed.update(turn["freed_by_region"])
    assert freed
    assert not PINNED & set(freed)
    assert [fact["attribute"] for fact in report["facts"]] == [fact.attribute for fact in FACTS]
    assert sum(fact["correct_full_cache"] for fact in report["facts"]) >= 5, "the model knows what it was told"
    assert (tmp_path / "retention.png").read_bytes().startswith(b"\x89PNG")
    assert Path(report["page_file"]).read_text().startswith("<!doctype html>")
    history = MemoryHistory.load(report["history_file"])
    assert sum(len(session.events) for session in history.sessions) == report["evictions_total"]
    assert {session.agent for session in history.sessions} >= {"planner", "worker", "answer"}
    assert len(Ledger.from_jsonl(report["ledger_file"])) == report["evictions_total"]
    assert "known" in done.stdout
    assert "Traceback" not in done.stderr
