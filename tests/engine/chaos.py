"""Everything that can happen to a running engine, in any order, and what must hold after each of it.

The operations take plain numbers, so that hypothesis can search them and a seeded generator can draw them: `RANGES`
names each operation's numbers. A number stands for itself, or for one of the things there are (modulo their count).
"""

from __future__ import annotations

import weakref
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from random import Random
from typing import Any

from vllm import SamplingParams

from memdecay_adapters.engine import MemDecayEngine, RequestStream
from memdecay_adapters.engine.engine import DEFAULT_TENANT
from memdecay_agents import MemDecayConfig, RequestHints
from memdecay_agents.errors import MemDecayError
from memdecay_agents.ledger import Ledger
from tests.engine.conversations import Conversation
from tests.engine.oracle import Oracle
from tests.engine.sight import Sight
from tests.engine.stepped import SteppedEngine

PAGE = 16
POOL_PAGES = 63
CHUNK_TOKENS = 64
MAX_MODEL_LEN = 768
LONGEST_PROMPT = 560
MOST_LIVE_REQUESTS = 5
MOST_CONVERSATIONS = 6
BUDGETS_TOKENS = (None, 128, 144, 192, 288)
"""One more number stands for a request without hints."""
MAX_DISTANCE = 2e-4
"""Between the engine's log-probabilities and the oracle's."""
BALLAST = "ballast"
"""A row that holds blocks and belongs to no request: a smaller pool."""

_PROMPT = {"text": (0, 9999), "new_tokens": (1, 24), "then_steps": (0, 8)}
RANGES: dict[str, dict[str, tuple[int, int]]] = {
    "add": {
        "tenant": (0, 1), "thread": (0, 2), "agent": (0, 1), "budget": (0, len(BUDGETS_TOKENS)),
        "length": (1, 380), **_PROMPT,
    },
    "append": {"which": (0, 99), "length": (1, 160), **_PROMPT},
    "rewind": {"which": (0, 99), "keep_percent": (0, 100), "length": (1, 160), **_PROMPT},
    "fork": {"which": (0, 99), "length": (1, 160), **_PROMPT},
    "share": {
        "which": (0, 99), "keep_percent": (1, 100), "tenant": (0, 1), "thread": (0, 2), "length": (1, 160), **_PROMPT,
    },
    "abort": {"which": (0, 99)},
    "preempt": {},
    "shrink_pool": {"pages": (1, POOL_PAGES)},
    "grow_pool": {},
    "close_sessions": {"thread": (0, 3), "tenant": (0, 2)},
    "steps": {"most": (1, 16)},
    "finish_all": {},
}  # fmt: skip
"""The numbers of each operation, name to (least, most), and how many steps the engine then takes."""
FREQUENCY: dict[str, int] = {"steps": 24, "append": 10, "add": 6, "rewind": 4, "fork": 2, "share": 2, "abort": 2,
                             "preempt": 2, "shrink_pool": 2, "grow_pool": 1, "close_sessions": 1, "finish_all": 1}  # fmt: skip
"""How often a seeded run does each operation, among those that are enabled."""


def chaos_engine(model_folder: str) -> MemDecayEngine:
    """The engine that chaos is made for: 63 pages, chunks of 64 tokens, every integrity check on."""
    return MemDecayEngine(
        model_folder,
        config=MemDecayConfig(page_size_tokens=PAGE, observed_layers="all", measure_every_steps=2),
        engine_args={
            "dtype": "float32",
            "max_num_batched_tokens": CHUNK_TOKENS,
            "max_model_len": MAX_MODEL_LEN,
            "num_gpu_blocks_override": POOL_PAGES + 1,
        },
        check_integrity=True,
    )


@dataclass
class Life:
    """What one request computed between two preemptions."""

    number: int
    """Preemptions before it."""
    sight: Sight
    sampled: list[int] = field(default_factory=list)
    """Positions from which a token was sampled."""


@dataclass
class Submitted:
    """One request on its way."""

    stream: RequestStream
    conversation: Conversation
    hints: RequestHints | None
    prompt: list[int]
    new_tokens: int
    pinned_pages: frozenset[int]
    aborted: bool = False
    lives: list[Life] = field(default_factory=list)
    most_over_budget_pages: int = 0
    """Held above the budget in decode."""

    @property
    def tenant(self) -> str:
        """Whose pages it may share; a request without hints names no tenant."""
        return self.conversation.tenant if self.hints is not None else DEFAULT_TENANT

    @property
    def budget_pages(self) -> int | None:
        """Whole pages of the budget; None: no limit."""
        tokens = self.conversation.budget_tokens if self.conversation.hinted else None
        return None if tokens is None else tokens // PAGE


class Chaos:
    """Operations on one engine, and the invariants that `check` asserts after each.

    Args:
        engine: from `chaos_engine`, without requests and sessions.
        oracle: of the same model: every token that was generated is checked against it.
    """

    def __init__(self, engine: MemDecayEngine, oracle: Oracle) -> None:
        self.engine = engine
        self.oracle = oracle
        self.stepped = SteppedEngine(engine, self._scheduled)
        self.live: dict[str, Submitted] = {}
        self.conversations: list[Conversation] = []
        self.counts: Counter[str] = Counter()
        """Operations done, and what came of them."""
        self.trace: list[str] = []
        """The operations since `reset`, for a failure's report."""
        self.worst_distance = 0.0
        self._ballast_pages = 0
        self._submitted_at_close = 0
        self._known: weakref.WeakKeyDictionary[Any, tuple[Sight, int | None]] = weakref.WeakKeyDictionary()

    # ---- what can happen

    def do(self, name: str, *, then_steps: int = 0, **numbers: int) -> None:
        """Do one operation, take in what it brought to an end, and check everything."""
        shown = ", ".join(f"{key}={value}" for key, value in {**numbers, "then_steps": then_steps}.items())
        self.trace.append(f"{name}({shown})")
        self.counts[name] += 1
        getattr(self, name)(**numbers)
        self._collect()
        self.check()
        if then_steps:
            self.steps(then_steps)
            self._collect()
            self.check()

    def enabled(self, name: str) -> bool:
        """Whether an operation would do anything now."""
        if name in ("append", "rewind", "fork", "share"):
            return bool(self.conversations) and len(self.live) < MOST_LIVE_REQUESTS
        if name == "add":
            return len(self.live) < MOST_LIVE_REQUESTS
        if name == "grow_pool":
            return self._ballast_pages > 0
        if name == "close_sessions":
            return self.counts["submitted"] > self._submitted_at_close + 3
        if name == "shrink_pool":
            return self._ballast_pages < POOL_PAGES // 2
        return bool(self.live) or name not in ("abort", "preempt", "steps", "finish_all")

    def add(
        self, tenant: int, thread: int, agent: int, budget: int, text: int, length: int, new_tokens: int
    ) -> None:  # fmt: skip
        """A new conversation; its session may be another one's too."""
        hinted = budget < len(BUDGETS_TOKENS)
        conversation = Conversation.begin(
            text, length, tenant=f"tenant-{tenant}", thread=f"thread-{thread}", agent=f"agent-{agent}",
            budget_tokens=BUDGETS_TOKENS[budget] if hinted else None, hinted=hinted,
            pins=("tool_in",) if text % 4 == 0 else (),
        )  # fmt: skip
        self.conversations = [*self.conversations[1 - MOST_CONVERSATIONS :], conversation]
        self._submit(conversation, new_tokens)

    def append(self, which: int, text: int, length: int, new_tokens: int) -> None:
        """A conversation's next turn."""
        conversation = self._conversation(which)
        self._make_room(conversation, length)
        conversation.append(text, length)
        self._submit(conversation, new_tokens)

    def rewind(self, which: int, keep_percent: int, text: int, length: int, new_tokens: int) -> None:
        """A conversation whose history was edited."""
        conversation = self._conversation(which)
        conversation.rewind(len(conversation.tokens) * keep_percent // 100)
        self.append(which, text, length, new_tokens)

    def fork(self, which: int, text: int, length: int, new_tokens: int) -> None:
        """Two turns of one session at once; the second one's conversation goes on as a branch."""
        conversation = self._conversation(which)
        self._make_room(conversation, length)
        branch = Conversation(**vars(conversation))
        for one, passage in ((conversation, text), (branch, text + 1)):
            one.append(passage, length)
            self._submit(one, new_tokens)
        self.conversations = [*self.conversations[1 - MOST_CONVERSATIONS :], branch]

    def share(
        self, which: int, keep_percent: int, tenant: int, thread: int, text: int, length: int, new_tokens: int
    ) -> None:  # fmt: skip
        """Another session that begins as a conversation did."""
        source = self._conversation(which)
        other = Conversation(**{**vars(source), "tenant": f"tenant-{tenant}", "thread": f"thread-{thread}"})
        other.rewind(len(other.tokens) * keep_percent // 100)
        self._make_room(other, length)
        other.append(text, length)
        self.conversations = [*self.conversations[1 - MOST_CONVERSATIONS :], other]
        self._submit(other, new_tokens)

    def abort(self, which: int) -> None:
        """End a request, whether it waits, computes its prompt or decodes."""
        submitted = list(self.live.values())[which % len(self.live)]
        submitted.aborted = True
        submitted.stream.abort()

    def preempt(self) -> None:
        """All running requests lose their pages."""

        def reset(llm: Any, internals: Any) -> None:
            # it preempts first; then it says that the cache cannot be reset while idle sessions hold pages
            with suppress(RuntimeError):
                llm.reset_prefix_cache(reset_running_requests=True)

        self.stepped.look(reset)

    def shrink_pool(self, pages: int) -> None:
        """Take free pages away; requests that need them make idle sessions go, or are preempted."""

        def take(llm: Any, internals: Any) -> None:
            manager = _manager(internals.scheduler)
            taken = manager.block_pool.get_new_blocks(min(pages, manager.block_pool.get_num_free_blocks()))
            manager.req_to_blocks[BALLAST].extend(taken)
            self._ballast_pages += len(taken)

        self.stepped.look(take)

    def grow_pool(self) -> None:
        """Give back what was taken away."""

        def give(llm: Any, internals: Any) -> None:
            manager = _manager(internals.scheduler)
            manager.block_pool.free_blocks(manager.req_to_blocks.pop(BALLAST, []))
            self._ballast_pages = 0

        self.stepped.look(give)

    def close_sessions(self, thread: int, tenant: int) -> None:
        """Of one thread or all, of one tenant or all."""
        self._submitted_at_close = self.counts["submitted"]
        self.engine.close_sessions(
            f"thread-{thread}" if thread < 3 else None, tenant=f"tenant-{tenant}" if tenant < 2 else None
        )

    def steps(self, most: int) -> None:
        """Let the engine work."""
        self.stepped.step(most)

    def finish_all(self) -> None:
        """Let everything end; for that the pool must be whole."""
        self.grow_pool()
        while self.live:
            assert self.stepped.step(500), f"{len(self.live)} requests wait and the engine has nothing to do"
            self._collect()

    # ---- once in a while

    def same_twice(self, text: int, length: int, other_length: int) -> None:
        """Run A, B, A on fresh sessions, beside whatever sessions are idle: A's tokens and evictions are the same."""
        self.do("finish_all")
        runs = []
        for number, thread in ((text, "a"), (text + 1, "b"), (text, "a")):
            conversation = Conversation.begin(
                number, length if thread == "a" else other_length,
                tenant="tenant-0", thread=thread, agent="agent-0", budget_tokens=160,
            )  # fmt: skip
            request = self._submit(conversation, 20, reads_cache=False)
            assert request is not None
            self.finish_all()
            result = request.stream.result(0)
            entries = self.engine.ledger().entries(request_id=result.retention.request_id)
            facts = [(e.page, e.computed_tokens, e.clock_ticks, e.score, e.order_position) for e in entries]
            runs.append((result.token_ids, facts))
            if thread == "a":
                self.engine.close_sessions("a")
        assert runs[0] == runs[2], "A differs after B"
        assert runs[0][1], "nothing was evicted"
        self.counts["same_twice"] += 1

    def reset(self) -> int:
        """End everything and close every session; returns the pages that did not come back."""
        self.finish_all()
        self.engine.close_sessions()
        self.check()
        stats = self.engine.pool_stats()
        self.engine.reset_prefix_cache()
        ledger = self.engine.ledger()
        ledger.check_integrity()
        assert ledger.summary().held == 0
        self.conversations, self.trace = [], []
        return stats.total_pages - stats.free_pages

    # ---- what must hold

    def check(self) -> None:
        """Assert the invariants that hold between any two steps."""
        self.stepped.look(lambda llm, internals: self._check(internals))

    def _check(self, internals: Any) -> None:
        manager, scheduler, controller = _manager(internals.scheduler), internals.scheduler, internals.controller
        rows = {name: list(blocks) for name, blocks in manager.req_to_blocks.items()}
        idle = list(controller.sessions)
        self._check_pool(manager.block_pool, [*rows.values(), *(session.blocks for session in idle)])
        # who waits and who runs
        assert {_public_id(name) for name in scheduler.requests} == set(self.live)
        assert set(rows) <= {*scheduler.requests, BALLAST}, "a row outlived its request"
        # the ledger against real rows
        held = {name: [page for page, block in enumerate(row) if not block.is_null] for name, row in rows.items()}
        controller.check_integrity(held)
        totals = controller.ledger.summary()
        assert totals.freed_pinned == 0
        assert set(totals.evicted_by_reason) <= {"over_budget", "pool_pressure"}
        for session in idle:
            _, budget_pages = self._known[session.state]
            assert len(session.blocks) == -(-len(session.token_ids) // PAGE)
            assert budget_pages is None or len(session.held_pages) <= budget_pages, "an idle session above its budget"
        self._check_sharing(
            [
                *((self.live[_public_id(name)].tenant, row, scheduler.requests[name].all_token_ids)
                  for name, row in rows.items() if name != BALLAST),
                *((session.home.tenant, session.blocks, session.token_ids.tolist()) for session in idle),
            ]
        )  # fmt: skip

    @staticmethod
    def _check_pool(pool: Any, rows: list[list[Any]]) -> None:
        holders = Counter(block.block_id for row in rows for block in row if not block.is_null)
        free = [block.block_id for block in pool.free_block_queue.get_all_free_blocks()]
        assert len(free) == len(set(free)) == pool.get_num_free_blocks()
        assert not holders.keys() & set(free), "a live row points at a free block"
        assert len(free) + len(holders) + 1 == pool.num_gpu_blocks, "pages are lost"
        for block in pool.blocks:
            assert block.is_null or block.ref_cnt == holders[block.block_id], f"block {block.block_id} is miscounted"

    @staticmethod
    def _check_sharing(owners: list[tuple[str, list[Any], Any]]) -> None:
        """A block in two rows is the same page of the same text of one tenant."""
        first: dict[int, tuple[str, int, Any]] = {}
        for tenant, row, tokens in owners:
            for page, block in enumerate(row):
                if block.is_null:
                    continue
                other_tenant, other_page, other_tokens = first.setdefault(block.block_id, (tenant, page, tokens))
                if other_tokens is not tokens:
                    assert tenant == other_tenant, "a page is shared by two tenants"
                    end = (page + 1) * PAGE
                    assert page == other_page
                    assert list(tokens[:end]) == list(other_tokens[:end])
                    assert len(tokens) >= end, "a page that is not full is shared"

    def _scheduled(self, scheduler: Any, output: Any) -> None:
        """Look at each row of a step: what it may hold, must hold, and may have published."""
        manager, controller = _manager(scheduler), scheduler.connector.controller
        for request_id, tokens in output.num_scheduled_tokens.items():
            request, row = scheduler.requests[request_id], manager.req_to_blocks[request_id]
            submitted = self.live[_public_id(request_id)]
            computed_before = request.num_computed_tokens - tokens
            holes = frozenset(page for page, block in enumerate(row) if block.is_null)
            assert len(row) == -(-request.num_computed_tokens // PAGE)
            assert not holes & submitted.pinned_pages, f"pinned pages {holes & submitted.pinned_pages} are gone"
            self._check_budget(submitted, len(row) - len(holes), request.num_tokens - computed_before <= 1, holes)
            # what every position saw
            life = self._life(submitted, request, computed_before, controller)
            life.sight.extend(tokens, holes)
            if request.num_computed_tokens == request.num_tokens:
                life.sampled.append(request.num_tokens - 1)
            clean = life.sight.clean_tokens
            for page, block in enumerate(row):
                end = (page + 1) * PAGE
                if block.block_hash is not None:
                    assert clean is None or end <= clean, f"page {page} is published and saw a context with holes"
                elif not block.is_null:
                    private = end > computed_before or (clean is not None and end > clean)
                    assert private, f"page {page} is complete and was not published"

    @staticmethod
    def _check_budget(submitted: Submitted, held_pages: int, decoding: bool, holes: frozenset[int]) -> None:
        if submitted.budget_pages is None:
            assert submitted.conversation.hinted or not holes, "a request without hints lost pages"
        elif decoding:
            over = held_pages - submitted.budget_pages
            submitted.most_over_budget_pages = max(submitted.most_over_budget_pages, over)
        else:
            assert held_pages <= submitted.budget_pages + CHUNK_TOKENS // PAGE + 1

    def _life(self, submitted: Submitted, request: Any, computed_before: int, controller: Any) -> Life:
        """The life that the request is in, begun at its first step and after each preemption."""
        tracked = controller._requests.get(request.request_id)
        lives = submitted.lives
        if not lives or lives[-1].number != request.num_preemptions:
            sight = Sight.clean(computed_before)  # a cached prefix, which only clean pages make
            if tracked is not None and not lives and not request.num_preemptions and tracked.continued_tokens:
                assert tracked.continued_tokens == computed_before
                sight = self._known[tracked.state][0].truncated(computed_before)
            lives.append(Life(request.num_preemptions, sight))
            self.counts["continued"] += bool(tracked is not None and tracked.continued_tokens)
            self.counts["prefix_hits"] += bool(computed_before and not (tracked and tracked.continued_tokens))
        assert lives[-1].sight.end == computed_before
        if tracked is not None:
            self._known[tracked.state] = (lives[-1].sight, submitted.budget_pages)
        return lives[-1]

    # ---- requests

    def _conversation(self, which: int) -> Conversation:
        """Number 0 is the newest one."""
        return self.conversations[-1 - which % len(self.conversations)]

    def _make_room(self, conversation: Conversation, length: int) -> None:
        if len(conversation.tokens) + length > LONGEST_PROMPT:
            conversation.rewind(len(conversation.tokens) // 3)

    def _submit(self, conversation: Conversation, new_tokens: int, *, reads_cache: bool = True) -> Submitted | None:
        sampling = SamplingParams(
            temperature=0, max_tokens=new_tokens, ignore_eos=True, logprobs=2,
            skip_reading_prefix_cache=not reads_cache,
        )  # fmt: skip
        hints, prompt = conversation.hints(), list(conversation.tokens)
        try:
            stream = self.engine.submit(prompt, sampling, hints)
        except MemDecayError:
            assert conversation.budget_tokens is not None, "only a budget can be too small here"
            self.counts["refused"] += 1
            return None
        submitted = Submitted(stream, conversation, hints, prompt, new_tokens, conversation.pinned_pages(PAGE))
        self.live[stream.request_id] = submitted
        self.counts["submitted"] += 1
        return submitted

    def _collect(self) -> None:
        """Take in the requests that have ended."""
        self.stepped.look(lambda llm, internals: None)  # commands sent before, as aborts are, have run
        for request_id in [name for name, submitted in self.live.items() if submitted.stream.done]:
            self._ended(self.live.pop(request_id))

    def _ended(self, submitted: Submitted) -> None:
        result = submitted.stream.result(0)
        streamed = [token for chunk in submitted.stream for token in chunk.token_ids]
        assert streamed == list(result.token_ids)
        if result.finish_reason == "abort":
            assert submitted.aborted
            assert len(result.token_ids) <= submitted.new_tokens
        else:
            assert result.finish_reason == "length"
            assert len(result.token_ids) == submitted.new_tokens
        assert (result.retention is None) == (not submitted.conversation.hinted)
        if result.retention is not None:
            assert result.retention.budget_pages == submitted.budget_pages
            assert submitted.most_over_budget_pages <= result.retention.shortfall_pages, "above its budget in decode"
        self._check_tokens(submitted, result)
        submitted.conversation.answered(submitted.prompt, result.token_ids)
        self.counts["aborted" if submitted.aborted else "finished"] += 1

    def _check_tokens(self, submitted: Submitted, result: Any) -> None:
        """Every token against the oracle, under what its row could see when it was sampled."""
        tokens = [*submitted.prompt, *result.token_ids]
        for life in submitted.lives:
            sampled = [at for at in life.sampled if at + 1 < len(tokens)]  # one may have been lost to an abort
            if not sampled:
                continue
            rows = self.oracle.logprobs_seeing(tokens[: life.sight.end], life.sight.hidden(PAGE))
            for position in sampled:
                for token_id, entry in result.logprobs[position + 1 - len(submitted.prompt)].items():
                    distance = abs(entry.logprob - rows[position, token_id].item())
                    self.worst_distance = max(self.worst_distance, distance)
                    assert distance <= MAX_DISTANCE, f"position {position} differs from the oracle by {distance:.2g}"


def small_ledger(engine: MemDecayEngine, max_entries: int) -> None:
    """Give a fresh engine a ledger that is soon full, so that its filling up is not taken for a leak."""

    def exchange(llm: Any, internals: Any) -> None:
        internals.controller.ledger = Ledger(max_entries=max_entries, max_sessions=100)

    engine.run_on_engine_thread(exchange)


def _manager(scheduler: Any) -> Any:
    return scheduler.kv_cache_manager.coordinator.single_type_managers[0]


def _public_id(request_id: str) -> str:
    """The engine's own id of a request, without vLLM's random ending."""
    return request_id.rsplit("-", 1)[0]


def draw(chaos: Chaos, random: Random) -> tuple[str, dict[str, int]]:
    """The next operation of a seeded run, with its numbers."""
    enabled = [name for name in FREQUENCY if chaos.enabled(name)]
    (name,) = random.choices(enabled, [FREQUENCY[name] for name in enabled])
    return name, {key: random.randint(least, most) for key, (least, most) in RANGES[name].items()}
