"""What must hold of a running engine at every moment, from the tests' own view of it."""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from memdecay_agents import MemDecayConfig, PoolShare
from memdecay_agents.spans import flags_of_tokens, regions_of_tokens
from tests.engine.chaos_engine import (
    BALLAST,
    CHUNK_TOKENS,
    GUARANTEED_PAGES,
    HOST_PAGES,
    PAGE,
    manager_of,
    public_id,
    worker_of,
)  # fmt: skip
from tests.engine.oracle import Oracle
from tests.engine.sight import Sight
from tests.engine.submitted import Life, Submitted

MAX_DISTANCE = 2e-4
"""Between the engine's log-probabilities and the oracle's."""


class Invariants:
    """Blocks, pins, budgets, publishing and tokens of the requests in ``live``.

    Args:
        live: the requests on their way, by the engine's own ids; read, never written.
        oracle: of the engine's model.
    """

    def __init__(self, live: Mapping[str, Submitted], oracle: Oracle) -> None:
        self.live = live
        self.worst_distance = 0.0
        """Largest distance of a log-probability from the oracle's so far."""
        self.begun: Counter[str] = Counter()
        """First steps of a request, by what they began on."""
        self._oracle = oracle
        self._known: weakref.WeakKeyDictionary[Any, tuple[Sight, Submitted]] = weakref.WeakKeyDictionary()
        # by session state: what its row's positions saw, and its last request

    # ---- between two steps

    def check(self, internals: Any) -> None:
        """Assert what holds between any two steps, on the engine thread."""
        manager, scheduler, controller = manager_of(internals.scheduler), internals.scheduler, internals.controller
        rows = {name: list(blocks) for name, blocks in manager.req_to_blocks.items()}
        idle = list(controller.sessions)
        self._check_pool(manager.block_pool, [*rows.values(), *(session.blocks for session in idle)])
        # who waits and who runs
        assert {public_id(name) for name in scheduler.requests} == set(self.live)
        assert set(rows) <= {*scheduler.requests, BALLAST}, "a row outlived its request"
        # the ledger against real rows
        held = {name: [page for page, block in enumerate(row) if not block.is_null] for name, row in rows.items()}
        controller.check_integrity(held)
        totals = controller.ledger.summary()
        assert totals.freed_pinned == 0
        assert set(totals.evicted_by_reason) <= {"over_budget", "superseded", "pool_pressure", "swapped_out"}
        reserved = controller.admission.reservations()
        budgets = [tracked.budget for name, _ in reserved if (tracked := controller._requests.get(name)) is not None]
        if len(reserved) > 1 and any(budget is not None for budget in budgets):
            assert sum(pages for _, pages in reserved) <= GUARANTEED_PAGES, "guarantees that the pool cannot keep"
        for session in idle:
            _, submitted = self._known[session.state]
            # an aborted turn knew all of its prompt, and may have computed less
            budget_pages = submitted.budget_pages(max(len(session.token_ids) + 1, len(submitted.prompt)))
            assert len(session.blocks) == -(-len(session.token_ids) // PAGE)
            assert budget_pages is None or len(session.held_pages) <= budget_pages, "an idle session above its budget"
        if controller.tier is not None:
            self._check_tier(internals)
        self._check_sharing(
            [
                *((self.live[public_id(name)].tenant, row, scheduler.requests[name].all_token_ids)
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

    # ---- in each step

    def scheduled(self, scheduler: Any, output: Any) -> None:
        """Look at each row of a step: what it may hold, must hold, and may have published."""
        manager, controller = manager_of(scheduler), scheduler.connector.controller
        for request_id, tokens in output.num_scheduled_tokens.items():
            request, row = scheduler.requests[request_id], manager.req_to_blocks[request_id]
            submitted = self.live[public_id(request_id)]
            computed_before = request.num_computed_tokens - tokens
            holes = frozenset(page for page, block in enumerate(row) if block.is_null)
            tracked = controller._requests.get(request_id)
            # a turn that is computed again keeps its pages, and may take several steps where others share the chunk
            mends = tracked is not None and tracked.repairs  # it holds everything until it has ended
            assert not mends or submitted.repairs
            again_until = 0 if tracked is None or mends else tracked.recall.rerun_until
            assert len(row) == -(-max(request.num_computed_tokens, again_until) // PAGE)
            assert not holes & submitted.pinned_pages, f"pinned pages {holes & submitted.pinned_pages} are gone"
            budget_pages = submitted.budget_pages(request.num_tokens)
            decoding = request.num_tokens - computed_before <= 1
            if not mends:
                self._check_budget(submitted, len(row) - len(holes), budget_pages, decoding, holes)
            # what every position saw
            life = self._life(submitted, request, computed_before, controller)
            life.sight.extend(tokens, holes)
            if request.num_computed_tokens == request.num_tokens:
                life.sampled.append(request.num_tokens - 1)
            clean = life.sight.clean_tokens
            returned = set()
            if tracked is not None:
                returned = {entry.page for entry in controller.ledger.returns(tracked.state.key)}
            for page, block in enumerate(row):
                end = (page + 1) * PAGE
                if block.block_hash is not None:
                    assert clean is None or end <= clean, f"page {page} is published and saw a context with holes"
                elif not block.is_null:
                    private = end > computed_before or (clean is not None and end > clean)
                    # it came back, or was computed behind one that did: whether all were there again is not looked at
                    private = private or page in life.sight.ever_gone or page in returned
                    private = private or any(came_back < page for came_back in returned)
                    assert private, f"page {page} is complete and was not published"

    @staticmethod
    def _check_budget(
        submitted: Submitted, held_pages: int, budget_pages: int | None, decoding: bool, holes: frozenset[int]
    ) -> None:
        if budget_pages is None:
            assert submitted.conversation.hinted or not holes, "a request without hints lost pages"
        elif decoding:
            over = held_pages - budget_pages
            submitted.most_over_budget_pages = max(submitted.most_over_budget_pages, over)
        else:
            assert held_pages <= budget_pages + CHUNK_TOKENS // PAGE + 1

    def _life(self, submitted: Submitted, request: Any, computed_before: int, controller: Any) -> Life:
        """The life that the request is in, begun at its first step and after each preemption."""
        tracked = controller._requests.get(request.request_id)
        lives = submitted.lives
        if not lives or lives[-1].number != request.num_preemptions:
            sight = Sight.clean(computed_before)  # a cached prefix, which only clean pages make
            if tracked is not None and not lives and not request.num_preemptions and tracked.continued_tokens:
                assert tracked.continued_tokens == computed_before
                sight = self._known[tracked.state][0].truncated(computed_before)
            if lives and lives[-1].sampled[-1:] == [request.num_tokens - 1]:
                lives[-1].sampled.pop()  # preempted before what came back was seen: its token did not count
            lives.append(Life(request.num_preemptions, sight))
            if tracked is not None:
                self._check_labels(submitted, tracked.state.tokens, controller.config)
            self.begun["repairs"] += bool(tracked is not None and tracked.repairs)
            self.begun["continued"] += bool(tracked is not None and tracked.continued_tokens)
            self.begun["prefix_hits"] += bool(computed_before and not (tracked and tracked.continued_tokens))
        life = lives[-1]
        if computed_before < life.sight.end and tracked is not None and life.sampled[-1:] == [request.num_tokens - 1]:
            # the prompt's or the answer's end is computed again with the pages that came back; what was sampled from it
            # does not count
            assert tracked.recall.recalled
            assert computed_before >= tracked.continued_tokens
            life.sight.stretches = life.sight.truncated(computed_before).stretches
            life.sight.ever_gone.add(computed_before // PAGE)  # its clean tokens may be more now; it stays private
            life.sampled.pop()
            assert not life.sampled or life.sampled[-1] < computed_before, "sampled with other pages: not looked at"
            self.begun["reruns"] += 1
        assert life.sight.end == computed_before
        if tracked is not None:
            self._known[tracked.state] = (lives[-1].sight, submitted)
        return lives[-1]

    def _check_tier(self, internals: Any) -> None:
        """The tier is within its bounds, belongs to sessions that there are, and holds what the device holds."""
        controller, scheduler = internals.controller, internals.scheduler
        book = controller.tier
        pages = list(book.catalogue)
        assert len(pages) == len(book.catalogue) <= HOST_PAGES
        assert len({page.slot for page in pages}) == len(pages)
        assert all(count <= HOST_PAGES // 2 for count in book.catalogue.agents().values())
        rows = {session.state.key: (session.home.tenant, session.blocks) for session in controller.sessions}
        for name, tracked, state in controller.running():
            rows[state.key] = tracked.home.tenant, manager_of(scheduler).req_to_blocks.get(name, [])
        pending = bool(book._copies)
        store = worker_of(internals)._tier.store
        caches = worker_of(internals)._tier._layers
        for page in pages:
            assert page.session in rows, "the tier keeps a page of a session that is gone"
            tenant, row = rows[page.session]
            assert page.agent[0] == tenant
            if page.page < len(row):
                assert row[page.page].is_null != page.resident
            else:
                raise AssertionError("the tier keeps a page that the session does not have")
            if page.resident and not pending:
                self.begun["compared_pages"] += 1
                device = torch.stack([cache[row[page.page].block_id] for cache in caches])
                assert torch.equal(store.page(page.slot), device), "a page that came back is not what left"

    @staticmethod
    def _check_labels(submitted: Submitted, tokens: Any, config: MemDecayConfig) -> None:
        """Each token of the prompt is what this turn's hints say it is, whatever an earlier turn said."""
        assert submitted.hints is not None
        spans, length = submitted.hints.spans, len(submitted.prompt)
        assert np.array_equal(tokens.region[:length], regions_of_tokens(spans, 0, length, config))
        assert np.array_equal(tokens.flags[:length], flags_of_tokens(spans))

    # ---- at a request's end

    def ended(self, submitted: Submitted) -> None:
        """Assert that the request was answered, within its budget, with the oracle's numbers."""
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
            if not isinstance(submitted.budget, PoolShare):
                known = len(submitted.prompt) + len(result.token_ids) - 1  # the last one is not computed
                slack = 2 if submitted.aborted else 0  # the token of the step that an abort cut short
                said, most = result.retention.budget_pages, submitted.budget_pages(known + slack)
                # a turn that is cut short while it is computed again has the tokens that were reached by then
                fits = said == most or (submitted.aborted and said is not None and most is not None and said <= most)
                assert fits, (result.finish_reason, known, result.retention)
            assert submitted.most_over_budget_pages <= result.retention.shortfall_pages, "above its budget in decode"
        self._check_tokens(submitted, result)

    def _check_tokens(self, submitted: Submitted, result: Any) -> None:
        """Every token against the oracle, under what its row could see when it was sampled."""
        tokens, checked = [*submitted.prompt, *result.token_ids], 0
        for life in submitted.lives:
            sampled = [at for at in life.sampled if at + 1 < len(tokens)]  # one may have been lost to an abort
            if not sampled:
                continue
            checked += len(sampled)
            rows = self._oracle.logprobs_seeing(tokens[: life.sight.end], life.sight.hidden(PAGE))
            for position in sampled:
                for token_id, entry in result.logprobs[position + 1 - len(submitted.prompt)].items():
                    distance = abs(entry.logprob - rows[position, token_id].item())
                    self.worst_distance = max(self.worst_distance, distance)
                    assert distance <= MAX_DISTANCE, f"position {position} differs from the oracle by {distance:.2g}"
        assert checked == len(result.token_ids), "a token was sampled in no step that was seen"
