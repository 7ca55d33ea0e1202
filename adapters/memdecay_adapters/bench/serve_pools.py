"""Agents on one pool of pages: stock vLLM and this engine, taking turns slice by slice.

search-P-N         stock vLLM with max_num_seqs N on a pool of P percent, with shortened conversations
pool-P             both engines on that pool, under the usual budget
pool-P-budget-B    the same under another budget
...-tokens-L       the same two with conversations of about L tokens, of each turn its first part
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any, Literal

from memdecay_adapters.bench.engine_under_test import EngineRecipe, EngineUnderTest, engines_under_test
from memdecay_adapters.bench.serve_loop import Slice, advance, begin, joined
from memdecay_adapters.bench.serve_options import ServeOptions
from memdecay_adapters.bench.serve_steps import as_dict
from memdecay_adapters.bench.serve_workload import Agent, make_agents
from memdecay_adapters.bench.statistics import paired_ratio


class PoolParts:
    """The parts that serve whole conversations.

    Args:
        options: what to measure.
        model_path: what both engines load.
        page: page size in tokens.
        progress: told what is being done.
    """

    def __init__(self, options: ServeOptions, model_path: str, page: int, progress: Callable[[str], None]) -> None:
        self.options, self.model_path, self.page, self.progress = options, model_path, page, progress

    @cached_property
    def agents(self) -> list[Agent]:
        """The conversations; the same for every part."""
        self.progress("joining traces")
        return make_agents(self.options.workload, self.model_path)

    def of_length(self, tokens: int | None) -> list[Agent]:
        """The conversations cut down to about so many tokens, their tools as slow as ever; None: whole."""
        if tokens is None:
            return self.agents
        part = tokens / self.options.workload.agent_tokens
        return [agent.shortened(part, gaps=False) for agent in self.agents]

    def total_tokens(self, agents: Sequence[Agent]) -> int:
        """Of all conversations at their ends: what the pools are a percentage of."""
        return sum(agent.tokens(self.options.workload.output_tokens) for agent in agents)

    def try_max_num_seqs(self, percent: int, max_num_seqs: int, tokens: int | None = None) -> dict[str, Any]:
        """Stock vLLM alone on a pool, with shortened conversations (those of about ``tokens`` tokens)."""
        agents = [agent.shortened(self.options.search_part) for agent in self.of_length(tokens)]
        what = f"{percent} % pool, max_num_seqs {max_num_seqs}" + ("" if tokens is None else f", {tokens} tokens")
        with EngineUnderTest(self._recipe("stock", agents, percent, max_num_seqs)) as engine:
            engine.run(begin, agents, self.options.workload.output_tokens, None)
            (slices,) = self._slices([engine], agents, what, 4)
        return {**joined(slices), "total_tokens": self.total_tokens(agents)}

    def pool(self, percent: int, budget: int, max_num_seqs: int, tokens: int | None = None) -> dict[str, Any]:
        """Both engines on one pool; ratios over slices and over turns.

        Args:
            percent: the pool, of the tokens of all conversations.
            budget: of each agent, in tokens; of our engine.
            max_num_seqs: of stock vLLM.
            tokens: of each conversation, about; None: whole ones.
        """
        options, agents = self.options, self.of_length(tokens)
        theirs = self._recipe("stock", agents, percent, max_num_seqs)
        mine = self._recipe("memdecay", agents, percent, options.workload.agents)
        what = f"{percent} % pool, budget {budget}" + ("" if tokens is None else f", {tokens} tokens")
        self.progress(f"{what}: starting two engines")
        with engines_under_test({"stock": theirs, "ours": mine}) as engines:
            stock, ours = engines["stock"], engines["ours"]
            stock.run(begin, agents, options.workload.output_tokens, None)
            ours.run(begin, agents, options.workload.output_tokens, budget)
            by_stock, by_ours = self._slices([stock, ours], agents, what, options.slices)
        pairs = [(a, b) for a, b in zip(by_stock, by_ours, strict=True) if a.seconds > 0 and b.seconds > 0]
        throughput = paired_ratio(
            [b.generated_tokens / b.seconds for _, b in pairs], [a.generated_tokens / a.seconds for a, _ in pairs]
        )
        waits = [
            {(turn.agent, turn.turn): turn.first_token_seconds for one in slices for turn in one.turns}
            for slices in (by_stock, by_ours)
        ]
        first_token = paired_ratio(
            [waits[1][turn] for turn in sorted(waits[0])], [waits[0][t] for t in sorted(waits[0])]
        )
        stock_figures, our_figures = joined(by_stock), joined(by_ours)
        return {
            "percent": percent,
            "budget_tokens": budget,
            "agent_tokens": tokens or options.workload.agent_tokens,
            "total_tokens": self.total_tokens(agents),
            "pool_tokens": (mine.pool_pages - 1) * self.page,
            "pool_pages": mine.pool_pages - 1,
            "stock_max_num_seqs": max_num_seqs,
            "throughput": as_dict(throughput),
            "throughput_of_totals": round(our_figures["tokens_per_second"] / stock_figures["tokens_per_second"], 4),
            "first_token": as_dict(first_token),
            "stock": stock_figures,
            "ours": our_figures,
            "slice_seconds": {
                "stock": [round(one.seconds, 3) for one in by_stock],
                "ours": [round(one.seconds, 3) for one in by_ours],
            },
        }

    def _slices(
        self, engines: Sequence[EngineUnderTest], agents: Sequence[Agent], what: str, count: int
    ) -> list[list[Slice]]:
        """Serve all conversations in so many slices of as many generated tokens, the engines taking turns."""
        total = sum(len(agent.turns) for agent in agents) * self.options.workload.output_tokens
        slices: list[list[Slice]] = [[] for _ in engines]
        edges = [round(total * number / count) for number in range(count + 1)]
        for number in range(count):
            self.progress(f"{what}: slice {number + 1} of {count}")
            order = list(range(len(engines)))
            for at in order if number % 2 else order[::-1]:
                slices[at].append(engines[at].run(advance, edges[number + 1] - edges[number]))
        return slices

    def _recipe(
        self, kind: Literal["stock", "memdecay"], agents: Sequence[Agent], percent: int, max_num_seqs: int
    ) -> EngineRecipe:
        options = self.options
        pool = math.ceil(self.total_tokens(agents) * percent / 100 / self.page)
        longest = max(agent.tokens(options.workload.output_tokens) for agent in agents)
        return EngineRecipe(
            kind=kind,
            model_path=self.model_path,
            dtype=options.dtype,
            page_size_tokens=self.page,
            chunk_tokens=options.chunk_tokens,
            pool_pages=pool + 1,
            max_model_len=-(-longest // self.page) * self.page,
            max_num_seqs=max_num_seqs,
        )
