"""The scheduler's side of the host tier over a modelled pool, device and tier memory: no vLLM, microseconds a step.

A page's bytes are modelled by what wrote them: each of its tokens with the number of the step that computed it. The
free list gives back the block that was freed last, so that blocks are reused in the very step that frees them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace

import numpy as np

from memdecay_adapters.engine.block_rows import held_pages
from memdecay_adapters.engine.controller import EvictionController
from memdecay_adapters.engine.settings import EngineSettings
from memdecay_adapters.engine.tier.book import TierBook
from memdecay_adapters.engine.tier.settings import HostTier
from memdecay_adapters.engine.tier.swaps import Swaps
from memdecay_agents import MemDecayConfig, RequestHints

PAGE, CHUNK, PAGE_BYTES = 16, 64, 1


@dataclass(eq=False)
class Block:
    """A page of the pool."""

    block_id: int
    ref_cnt: int = 0

    @property
    def is_null(self) -> bool:
        return self.block_id == 0


@dataclass(eq=False)
class FakeRequest:
    """What the controller reads of vLLM's request."""

    request_id: str
    all_token_ids: list[int]
    num_prompt_tokens: int
    max_tokens: int
    sampling_params: SimpleNamespace
    num_computed_tokens: int = 0
    finished: bool = False
    skip_reading_prefix_cache: bool = False

    @property
    def prompt_token_ids(self) -> list[int]:
        return self.all_token_ids[: self.num_prompt_tokens]

    @property
    def num_tokens(self) -> int:
        return len(self.all_token_ids)

    def is_finished(self) -> bool:
        return self.finished


@dataclass
class TierModel:
    """One pool, some requests in it, and the memory of a device and a tier."""

    pool_pages: int
    tier: HostTier
    step_number: int = 0
    device: dict[int, dict[int, int]] = field(default_factory=dict)
    """Block id to offset in the page to the step that wrote it."""
    slots: dict[int, dict[int, int]] = field(default_factory=dict)
    truth: dict[str, dict[int, dict[int, int]]] = field(default_factory=dict)
    """Session key to page to what its bytes must be."""
    reruns: int = 0
    grown: int = 0
    """Swaps after which a row held more pages."""
    restored: int = 0
    decisions: list[tuple[int, list[float], bool]] = field(default_factory=list)
    """Pages away, the evidence of them and then of those on the device, whether any came back."""
    reused: int = 0
    """Blocks that were copied out of and written, or copied into, before the same step's end."""

    def __post_init__(self) -> None:
        self.null = Block(0)
        self.free = [Block(number) for number in range(1, self.pool_pages + 1)]
        self.rows: dict[str, list[Block]] = {}
        self.requests: dict[str, FakeRequest] = {}
        config = MemDecayConfig(page_size_tokens=PAGE)
        self.controller = EvictionController(
            EngineSettings(config=config, host_tier=self.tier), PAGE, CHUNK, self.pool_pages
        )
        self.book = TierBook(self.tier, PAGE_BYTES, self.controller.events)
        self.controller.tier, self.controller.row_of, self.controller.free_blocks = self.book, self.row, self.give_back
        self.swaps = Swaps(self.controller, self, self.book, CHUNK)

    # ---- the cache manager

    def free_page_count(self) -> int:
        return len(self.free)

    def row(self, request_id: str) -> list[Block]:
        return self.rows.get(request_id, [])

    def published_pages(self, request_id: str) -> int:
        return 0

    def drop_pages(self, row: list[Block], pages) -> None:
        freed = [row[page] for page in pages]
        for page in pages:
            row[page] = self.null
        self.give_back(freed)

    def fill_pages(self, row: list[Block], pages) -> list[Block]:
        blocks = [self.take() for _ in pages]
        for page, block in zip(pages, blocks, strict=True):
            assert row[page].is_null
            row[page] = block
        return blocks

    def take(self) -> Block:
        block = self.free.pop()
        block.ref_cnt = 1
        return block

    def give_back(self, blocks) -> None:
        for block in blocks:
            if not block.is_null:
                assert block.ref_cnt == 1
                block.ref_cnt = 0
                self.free.append(block)

    # ---- requests

    def submit(self, name: str, token_ids: list[int], new_tokens: int, hints: RequestHints) -> FakeRequest:
        request = FakeRequest(
            name, list(token_ids), len(token_ids), new_tokens, SimpleNamespace(extra_args=hints.to_extra_args())
        )
        self.controller.start(request)
        self.requests[name] = request
        return request

    def step(self, name: str, evidence_seed: int, most_tokens: int = CHUNK) -> bool:
        """Compute one chunk or token of a request; False: there is no room for it now."""
        request, controller = self.requests[name], self.controller
        if name not in self.rows:
            matched = controller.matched_tokens(request, 0)
            if matched is None:
                return False
            if len(self.free) < CHUNK // PAGE + 1:
                return False
            self.rows[name] = []
            if matched:
                session = controller.continue_session(name)
                pages = -(-matched // PAGE)
                self.rows[name] = list(session.blocks[:pages])
                self.give_back(reversed(session.blocks[pages:]))
                key = session.state.key
                self.truth[key] = {page: bytes_ for page, bytes_ in self.truth[key].items() if page < pages}
                request.num_computed_tokens = matched
        row, before = self.rows[name], request.num_computed_tokens
        if row:
            held, budget = held_pages(row), self._state(name).budget_pages
            gone = controller.pages_to_evict(name, held, len(row), before)
            if request.num_tokens - before <= 1:
                assert not gone or len(held) + 1 > budget, "a page leaves in decode, and the budget has room"
            self.drop_pages(row, gone)
        tokens = min(request.num_tokens - before, most_tokens)
        needed = -(-(before + tokens) // PAGE) - len(row)
        if needed > len(self.free):
            return False
        row.extend(self.take() for _ in range(needed))
        controller.allocated(name, held_pages(row), len(row))
        self.swaps.begin_turn(name)
        directions = self.swaps.directions({name: tokens})
        controller.step({name: tokens})
        controller.take_restored()
        self._run(name, before, tokens, directions.copies)
        request.num_computed_tokens += tokens
        self._check(name, before, tokens)
        if request.num_computed_tokens == request.num_tokens:
            self._sampled(name, directions.probes.get(name), evidence_seed)
        return True

    def _run(self, name: str, before: int, tokens: int, copies) -> None:
        self.step_number += 1
        left = set()
        for direction, block, slot in copies:
            if direction == "out":
                self.slots[slot] = dict(self.device[block])
                left.add(block)
            else:
                self.device[block] = dict(self.slots[slot])
                self.restored += 1
                self.reused += block in left
        truth = self.truth.setdefault(self._state(name).key, {})
        for position in range(before, before + tokens):
            page, offset = divmod(position, PAGE)
            block = self.rows[name][page]
            assert not block.is_null, "a token is computed into a page that is gone"
            self.reused += block.block_id in left
            self.device.setdefault(block.block_id, {})[offset] = self.step_number
            truth.setdefault(page, {})[offset] = self.step_number

    def _check(self, name: str, before: int, tokens: int) -> None:
        """Every page of the row holds what was written there, and the budget holds."""
        request, state, row = self.requests[name], self._state(name), self.rows[name]
        for page, block in enumerate(row):
            for offset, written in self.truth[state.key][page].items() if not block.is_null else ():
                if page * PAGE + offset < request.num_computed_tokens:
                    assert self.device[block.block_id][offset] == written, f"page {page} holds other bytes"
        tracked = self.controller._requests[name]
        held, budget = len(held_pages(row)), state.budget_pages
        assert budget is not None
        if request.num_tokens - before <= 1:
            assert held <= budget + tracked.shortfall_pages, "above the budget in decode"
        assert held <= budget + tracked.shortfall_pages + CHUNK // PAGE + 1
        self.controller.check_integrity({one: held_pages(blocks) for one, blocks in self.rows.items()})
        assert (
            len(self.free)
            + sum(len(held_pages(blocks)) for blocks in self.rows.values())
            + sum(len(session.held_pages) for session in self.controller.sessions)
            == self.pool_pages
        ), "pages are lost"

    def _sampled(self, name: str, probe, evidence_seed: int) -> None:
        request = self.requests[name]
        if probe is not None:
            evidence = np.random.default_rng(evidence_seed).random(len(probe.slots) + len(probe.blocks))
            before, budget = len(held_pages(self.rows[name])), self._state(name).budget_pages
            rewind_to = self.swaps.decide(name, evidence)
            self.decisions.append((len(probe.slots), evidence.tolist(), rewind_to is not None))
            after = len(held_pages(self.rows[name]))
            assert after <= max(before, budget), "a swap goes beyond the budget"
            self.grown += after > before
            if rewind_to is not None:
                assert rewind_to < request.num_tokens
                request.num_computed_tokens = rewind_to
                self.reruns += 1
                return
        request.all_token_ids.append(3 + evidence_seed % 900)
        if request.num_tokens - request.num_prompt_tokens >= request.max_tokens:
            self.end(name)

    def end(self, name: str) -> None:
        """Finish or abort a request."""
        request = self.requests.pop(name)
        request.finished = True
        row = self.rows.get(name, [])
        if row:
            gone = self.controller.pages_to_evict(name, held_pages(row), len(row), request.num_computed_tokens)
            self.drop_pages(row, gone)
        self.controller.finish(name)
        self.rows.pop(name, None)
        session = self.controller.retire(name)
        if session is not None:
            pages = -(-len(session.token_ids) // PAGE)
            session.blocks, row = row[:pages], row[pages:]
            self.controller.release(self.controller.sessions.put(session))
        self.give_back(reversed(row))

    def preempt(self, name: str) -> None:
        """A request loses its pages and begins anew."""
        row = self.rows.pop(name, None)
        if row is not None:
            self.truth.pop(self._state(name).key, None)
            self.controller.retire(name)
            self.give_back(reversed(row))
            self.requests[name].num_computed_tokens = 0

    def _state(self, name: str):
        found = self.controller.with_state(name)
        assert found is not None
        return found[1]
