"""Everything that can happen to a running engine, in any order; `Invariants` says what must hold after each of it.

The operations take plain numbers, so that hypothesis can search them and a seeded generator can draw them; their ranges
are in `chaos_ranges`. A number stands for itself, or for one of the things there are (modulo their count).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from vllm import SamplingParams

from memdecay_adapters.engine import MemDecayEngine
from memdecay_adapters.engine.events import DROPPED_HOST_PAGES
from memdecay_adapters.engine.tier import Repair
from memdecay_adapters.engine.tier.repairs import RepairRequest, Repairs
from memdecay_agents import FixedBudget, RequestHints
from memdecay_agents.errors import MemDecayError
from tests.engine.chaos_engine import BALLAST, PAGE, POOL_PAGES, manager_of
from tests.engine.chaos_ranges import BUDGETS
from tests.engine.conversations import REGIONS, Conversation
from tests.engine.invariants import Invariants
from tests.engine.oracle import Oracle
from tests.engine.stepped import SteppedEngine
from tests.engine.submitted import Submitted

LONGEST_PROMPT = 560
MOST_LIVE_REQUESTS = 5
MOST_CONVERSATIONS = 6


class Chaos:
    """Operations on one engine, and the invariants that `check` asserts after each.

    Args:
        engine: from `chaos_engine`, without requests and sessions.
        oracle: of the same model: every token that was generated is checked against it.
    """

    def __init__(self, engine: MemDecayEngine, oracle: Oracle) -> None:
        self.engine = engine
        self.live: dict[str, Submitted] = {}
        self.invariants = Invariants(self.live, oracle)
        self.stepped = SteppedEngine(engine, self.invariants.scheduled)
        self.conversations: list[Conversation] = []
        self.counts: Counter[str] = Counter()
        """Operations done, and what came of them."""
        self.trace: list[str] = []
        """The operations since `reset`, for a failure's report."""
        self.failed = False
        """Whether anything failed: then the engine is of no more use."""
        self._ballast_pages = 0
        self._submitted_at_close = 0

    # ---- what can happen

    def do(self, name: str, *, then_steps: int = 0, **numbers: int) -> None:
        """Do one operation, take in what it brought to an end, and check everything."""
        shown = ", ".join(f"{key}={value}" for key, value in {**numbers, "then_steps": then_steps}.items())
        self.trace.append(f"{name}({shown})")
        self.counts[name] += 1
        with self._failing():
            getattr(self, name)(**numbers)
            self._collect()
            self.check()
            if then_steps:
                self.steps(then_steps)
                self._collect()
                self.check()

    @contextmanager
    def _failing(self) -> Iterator[None]:
        """What fails here leaves an engine that nothing more can be learned from."""
        try:
            yield
        except BaseException:
            self.failed = True
            raise

    def enabled(self, name: str) -> bool:
        """Whether an operation would do anything now."""
        if name in ("append", "rewind", "fork", "share"):
            return bool(self.conversations) and len(self.live) < MOST_LIVE_REQUESTS
        if name == "add":
            return len(self.live) < MOST_LIVE_REQUESTS
        if name in ("recall", "repair"):
            return self.engine.host_tier is not None and bool(self.conversations)
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
        hinted = budget < len(BUDGETS)
        conversation = Conversation.begin(
            text, length, tenant=f"tenant-{tenant}", thread=f"thread-{thread}", agent=f"agent-{agent}",
            budget=BUDGETS[budget] if hinted else None, hinted=hinted,
            pins=("tool_in",) if text % 4 == 0 else (), rewinds="recompute" if text % 5 == 0 else "continue",
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
            manager = manager_of(internals.scheduler)
            taken = manager.block_pool.get_new_blocks(min(pages, manager.block_pool.get_num_free_blocks()))
            manager.req_to_blocks[BALLAST].extend(taken)
            self._ballast_pages += len(taken)

        self.stepped.look(take)

    def grow_pool(self) -> None:
        """Give back what was taken away."""

        def give(llm: Any, internals: Any) -> None:
            manager = manager_of(internals.scheduler)
            manager.block_pool.free_blocks(manager.req_to_blocks.pop(BALLAST, []))
            self._ballast_pages = 0

        self.stepped.look(give)

    def close_sessions(self, thread: int, tenant: int) -> None:
        """Of one thread or all, of one tenant or all."""
        self._submitted_at_close = self.counts["submitted"]
        self.engine.close_sessions(
            f"thread-{thread}" if thread < 3 else None, tenant=f"tenant-{tenant}" if tenant < 2 else None
        )

    def recall(self, which: int, region: int, first_percent: int) -> None:
        """Ask for a region, or from some token on for all, of a conversation's sessions."""
        conversation = self._conversation(which)
        length = len(conversation.tokens)
        by_region = {"region": REGIONS[region]} if first_percent % 2 else {}
        tokens = range(length * first_percent // 100, length)
        self.counts["recalled_sessions"] += self.engine.recall(
            conversation.thread, tenant=conversation.tenant, **(by_region or {"tokens": tokens})
        )

    def repair(self, which: int, last_tokens: int) -> None:
        """Compute the newest tokens of a conversation's idle sessions again, with everything there.

        Where nothing runs, every other time: of the session that an idle engine would choose.
        """
        source, by_itself = self._conversation(which), not self.live and last_tokens % 2 == 1

        def wanted(llm: Any, internals: Any) -> list[RepairRequest]:
            free_pages = internals.scheduler.kv_cache_manager.block_pool.get_num_free_blocks
            repairs = Repairs(internals.controller, free_pages, Repair(last_tokens=last_tokens, idle_seconds=0))
            if by_itself:
                return [request for request in repairs.next_due()[:1] if request is not None]
            return list(repairs.of(source.tenant, source.thread, None, last_tokens))

        for token_ids, hints in self.stepped.look(wanted):
            if by_itself:
                at_home = (hints.tenant, hints.session)
                source = next((one for one in self.conversations if (one.tenant, one.thread) == at_home), source)
                self.counts["repaired_while_idle"] += 1
            told = {"agent": hints.agent, "budget": hints.budget, "pins": hints.pins, "spans": list(hints.spans)}
            history = Conversation(**{**vars(source), **told, "hinted": True, "tokens": token_ids})
            sampling = SamplingParams(temperature=0, max_tokens=1, ignore_eos=True, logprobs=2)
            self._send(history, token_ids, sampling, hints, repairs=True)
            self.counts["repaired_sessions"] += 1

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
        with self._failing():
            self._run_same_twice(text, length, other_length)

    def _run_same_twice(self, text: int, length: int, other_length: int) -> None:
        runs, dropped = [], self._dropped_host_pages()
        for number, thread in ((text, "a"), (text + 1, "b"), (text, "a")):
            conversation = Conversation.begin(
                number, length if thread == "a" else other_length,
                tenant="tenant-0", thread=thread, agent="agent-0", budget=None,
            )  # fmt: skip
            conversation.budget = FixedBudget(tokens=PAGE * (len(conversation.pinned_pages(PAGE)) + 8))
            request = self._submit(conversation, 20, reads_cache=False)
            assert request is not None
            self.finish_all()
            result = request.stream.result(0)
            entries = self.engine.ledger().entries(request_id=result.retention.request_id)
            facts = [(e.page, e.computed_tokens, e.clock_ticks, e.score, e.order_position) for e in entries]
            runs.append((result.token_ids, facts))
            if thread == "a":
                self.engine.close_sessions("a")
        if self._dropped_host_pages() != dropped:
            return  # what a full tier keeps of A depends on B
        assert runs[0] == runs[2], "A differs after B"
        assert runs[0][1], "nothing was evicted"
        self.counts["same_twice"] += 1

    def _dropped_host_pages(self) -> int:
        return self.stepped.look(lambda llm, internals: internals.controller.events.total(DROPPED_HOST_PAGES))

    def reset(self) -> int:
        """End everything and close every session; returns the pages that did not come back."""
        with self._failing():
            self.finish_all()
            self.engine.close_sessions()
            self.check()
            stats = self.engine.pool_stats()
            self.engine.reset_prefix_cache()
            ledger = self.engine.ledger()
            ledger.check_integrity()
            assert ledger.summary().held == 0
        self.conversations, self.trace = [], []
        self._submitted_at_close = self.counts["submitted"]
        return stats.total_pages - stats.free_pages

    def check(self) -> None:
        """Assert the invariants that hold between any two steps."""
        self.stepped.look(lambda llm, internals: self.invariants.check(internals))

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
        return self._send(conversation, list(conversation.tokens), sampling, conversation.hints())

    def _send(
        self,
        conversation: Conversation,
        prompt: list[int],
        sampling: SamplingParams,
        hints: RequestHints | None,
        *,
        repairs: bool = False,
    ) -> Submitted | None:
        try:
            stream = self.engine.submit(prompt, sampling, hints)
        except MemDecayError:
            assert conversation.budget is not None, "only a budget can be too small here"
            assert not repairs, "its session kept to it"
            self.counts["refused"] += 1
            return None
        pinned, new_tokens = conversation.pinned_pages(PAGE), sampling.max_tokens or 1
        submitted = Submitted(stream, conversation, hints, prompt, new_tokens, pinned, repairs=repairs)
        self.live[stream.request_id] = submitted
        self.counts["submitted"] += 1
        return submitted

    def _collect(self) -> None:
        """Take in the requests that have ended."""
        self.stepped.look(lambda llm, internals: None)  # commands sent before, as aborts are, have run
        for request_id in [name for name, submitted in self.live.items() if submitted.stream.done]:
            submitted = self.live.pop(request_id)
            self.invariants.ended(submitted)
            submitted.conversation.answered(submitted.prompt, submitted.stream.result(0).token_ids)
            self.counts["aborted" if submitted.aborted else "finished"] += 1
