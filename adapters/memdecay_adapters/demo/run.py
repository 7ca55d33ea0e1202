"""Run the demo: the agent's turns, then the probes, then the files."""

from __future__ import annotations

import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from langchain_core.messages import BaseMessage, HumanMessage, SystemMessage
from rich.console import Console

from memdecay_adapters.demo.graph import PINS, build_agent
from memdecay_adapters.demo.live import LiveReport
from memdecay_adapters.demo.peak_memory import peak_rss_bytes
from memdecay_adapters.demo.probes import ProbeOutcome, ask_all
from memdecay_adapters.demo.report import SCHEMA_VERSION, DemoReport, fact_reports, turn_report
from memdecay_adapters.demo.scenario import FACTS, SYSTEM_PROMPT, USER_TURNS
from memdecay_adapters.demo.site import build_site, site_tools
from memdecay_adapters.demo.watch import CallWatcher, ModelCall
from memdecay_adapters.langchain.chat_model import ChatMemDecay
from memdecay_agents.config import MemDecayConfig
from memdecay_agents.ledger import Ledger
from memdecay_agents.pictures import RetentionColumn, draw_retention_map, write_memory_page

if TYPE_CHECKING:
    from memdecay_adapters.engine import MemDecayEngine

THREAD = "demo"
DEFAULT_BUDGET_TOKENS = 768
ENGINE_ARGS: dict[str, Any] = {"max_num_batched_tokens": 256, "kv_cache_memory_bytes": 2**30, "max_num_seqs": 8}


@dataclass(frozen=True)
class DemoOptions:
    """What the demo runs with."""

    model: str | None = None
    """Hugging Face id or folder; None: the default small model."""
    budget_tokens: int = DEFAULT_BUDGET_TOKENS
    """Of the worker and of the answering agent; the planner gets three quarters."""
    policy: str = "memdecay"
    profile: Path | None = None
    """A calibrated profile whose half-lives count; None: the default one."""
    user_turns: int = len(USER_TURNS)
    """How many of the scenario's user turns to run."""
    output_folder: Path = Path("memdecay-demo")
    """Where the ledger and the picture go."""
    engine_args: dict[str, Any] = field(default_factory=lambda: dict(ENGINE_ARGS))

    def budgets_tokens(self) -> dict[str, int | None]:
        """Budget of each agent in tokens."""
        return {"planner": self.budget_tokens * 3 // 4, "worker": self.budget_tokens, "answer": self.budget_tokens}


def run_demo(options: DemoOptions, console: Console, engine: MemDecayEngine | None = None) -> DemoReport:
    """Run everything and return the report.

    Args:
        options: model, budget, policy, output folder.
        console: where the live output goes.
        engine: an open engine to use (its own model, policy and page size count); None: one is started and
            closed again.

    Raises:
        MemDecayError: the engine cannot start, or the budget cannot hold what must stay.
    """
    from memdecay_adapters.engine import MemDecayEngine

    started = time.perf_counter()
    options.output_folder.mkdir(parents=True, exist_ok=True)
    own = engine is None
    if engine is None:
        if options.profile is None:
            config = MemDecayConfig.for_policy(options.policy)
        else:
            config = MemDecayConfig.from_profile(options.profile, policy=options.policy)
        with console.status("starting vLLM"):
            engine = MemDecayEngine(options.model, config=config, engine_args=options.engine_args)
    try:
        return _run(options, LiveReport(console), engine, started)
    finally:
        if own:
            engine.close()


def _run(options: DemoOptions, live: LiveReport, engine: MemDecayEngine, started: float) -> DemoReport:
    name = engine.model_name
    live.start(name, engine.config.policy, engine.config.page_size_tokens, engine.dtype)
    before = engine.pool_stats()
    calls, messages = _converse(options, live, engine)
    with live.console.status("asking for the planted facts"):
        kept, full = _probe(options, engine, messages)
    live.facts(kept, full)
    history = engine.history()
    engine.close_sessions(THREAD)
    after = engine.pool_stats()

    ledger = engine.ledger()
    ledger.check_integrity()
    ledger_file = options.output_folder / "ledger.jsonl"
    ledger.to_jsonl(ledger_file)
    picture = draw_retention_map(
        [_column(call) for call in calls],
        options.output_folder / "retention.png",
        title=f"What each call of the model kept: {name}, policy {engine.config.policy}",
    )
    title = f"The demo: {name}, policy {engine.config.policy}"
    page = write_memory_page(history, options.output_folder / "memory.html", title=title)
    export = history.save(options.output_folder / "history.json")
    report = DemoReport(
        schema_version=SCHEMA_VERSION,
        engine_version=engine.vllm_version,
        model=name,
        policy=engine.config.policy,
        dtype=engine.dtype,
        page_size_tokens=engine.config.page_size_tokens,
        budget_pages=calls[-1].retention.budget_pages,
        chunk_pages=-(-engine.chunk_tokens // engine.config.page_size_tokens),
        evictions_total=ledger.summary().evicted,
        freed_pinned_pages=ledger.summary().freed_pinned,
        free_blocks_before=before.free_pages,
        free_blocks_after=after.free_pages,
        peak_pages_decode=max(call.retention.peak_pages_decode for call in calls),
        peak_pages_prefill=max(call.retention.peak_pages_prefill for call in calls),
        peak_rss_bytes=peak_rss_bytes(),
        wall_seconds=round(time.perf_counter() - started, 2),
        ledger_file=str(ledger_file),
        picture_file=str(picture),
        page_file=str(page),
        history_file=str(export),
        facts=fact_reports(kept, full),
        turns=[turn_report(call) for call in calls],
    )
    live.totals(_totals(report, ledger), {"ledger": str(ledger_file), "picture": str(picture), "page": str(page)})
    return report


def _converse(
    options: DemoOptions, live: LiveReport, engine: MemDecayEngine
) -> tuple[list[ModelCall], list[BaseMessage]]:
    """The user's turns, each through the whole graph; the agent's state is carried from turn to turn."""
    watcher = CallWatcher()
    llm = ChatMemDecay(engine=engine, callbacks=[watcher])
    messages: list[BaseMessage] = []
    with tempfile.TemporaryDirectory(prefix="memdecay-site-") as folder:
        build_site(Path(folder))
        agent = build_agent(llm, site_tools(Path(folder)), options.budgets_tokens())
        for number, text in enumerate(USER_TURNS[: options.user_turns], start=1):
            live.user_turn(number, text)
            watcher.user_turn = number
            seen = len(watcher.calls)
            with live.console.status("the agent works"):
                state = agent.invoke(
                    {"messages": [*messages, HumanMessage(text)]}, {"configurable": {"thread_id": THREAD}}
                )
            messages = state["messages"]
            live.calls(watcher.calls[seen:])
            live.answer(messages[-1].text)
    return watcher.calls, messages


def _probe(
    options: DemoOptions, engine: MemDecayEngine, messages: list[BaseMessage]
) -> tuple[list[ProbeOutcome], list[ProbeOutcome]]:
    """Every fact in the answering agent's own session, and with the full cache."""
    whole = [SystemMessage(SYSTEM_PROMPT), *messages]
    kept = ask_all(
        engine, whole, FACTS, agent="answer", thread_id=THREAD, budget_tokens=options.budget_tokens, pins=PINS
    )
    if not engine.run_on_engine_thread(lambda _, internals: internals.controller.policy.evicts):
        return kept, kept
    full = ask_all(engine, whole, FACTS, agent="full-cache", thread_id=THREAD, budget_tokens=None, pins=PINS)
    return kept, full


def _column(call: ModelCall) -> RetentionColumn:
    kept = call.retention
    budget = None if kept.budget_pages is None else kept.budget_pages * kept.page_size_tokens
    return RetentionColumn(f"{call.user_turn} {call.agent}", kept.page_runs, kept.page_size_tokens, budget)


def _totals(report: DemoReport, ledger: Ledger) -> dict[str, object]:
    facts = report["facts"]
    return {
        "pages freed while requests lived": report["evictions_total"],
        "of them pinned": report["freed_pinned_pages"],
        f"of {len(facts)} facts right": sum(fact["correct"] for fact in facts),
        "with the full cache": sum(fact["correct_full_cache"] for fact in facts),
        "MiB peak memory": report["peak_rss_bytes"] // 2**20,
        "seconds": report["wall_seconds"],
    }
