"""What ``memdecay bench serve`` measures, and how much of it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Self

from memdecay_adapters.bench.serve_workload import WorkloadOptions


@dataclass(frozen=True)
class ServeOptions:
    """The defaults are the published measurement."""

    model: str | None = None
    """Hugging Face id or folder; None: the default small model."""
    dtype: str = "auto"
    budget_tokens: int = 1024
    """Budget of an agent where a part names no other."""
    other_budgets: tuple[int, ...] = (512, 2048)
    pools: tuple[int, ...] = (15, 25, 50, 100)
    """Percent of the tokens of all conversations."""
    other_budget_pool: int = 25
    """The pool on which the other budgets and the shorter conversations are tried."""
    other_lengths: tuple[int, ...] = (1000, 2000, 4000)
    """Tokens of the shorter conversations, about: of each turn of the others its first part."""
    length_budgets: tuple[int, ...] = (512, 1024)
    """Budgets under which those are served."""
    workload: WorkloadOptions = field(default_factory=WorkloadOptions)
    slices: int = 16
    """Interleaved slices of a pool's conversations: the pairs of its throughput ratio."""
    max_num_seqs: tuple[int, ...] = (2, 4, 8)
    """Tried for stock vLLM on each pool."""
    search_part: float = 0.25
    """Part of each turn's tokens in that search; the pools keep their percentage."""
    batch: int = 8
    """Requests of a decode step."""
    short_tokens: int = 1024
    """Context of stock vLLM that all steps are compared with."""
    middle_tokens: int = 2048
    long_tokens: int = 7500
    lengths: tuple[int, ...] = (1024, 2048, 4096, 7500)
    """Trace lengths of the growth curve."""
    pairs: int = 21
    """Interleaved pairs of the decode steps."""
    length_pairs: int = 15
    """The same for each point of the growth curve."""
    steps_per_sample: int = 16
    """Decode steps whose mean is one side of a pair; a multiple of the stride of measuring."""
    chunk_tokens: int = 512
    """Most tokens of one engine step, of both engines."""
    page_size_tokens: int | None = None
    """None: what our engine chooses here; stock vLLM is given the same."""

    @classmethod
    def quick(cls, model: str | None = None, seed: int = 0) -> Self:
        """All parts in a few minutes, to see that they run: its figures say nothing."""
        return cls(
            model=model,
            budget_tokens=256,
            other_budgets=(),
            other_lengths=(600,),
            length_budgets=(256,),
            pools=(25, 100),
            workload=WorkloadOptions(agents=6, agent_tokens=1200, turns=3, output_tokens=8, gap_seconds=0.1, seed=seed),
            slices=4,
            max_num_seqs=(3, 6),
            search_part=1.0,
            batch=2,
            short_tokens=256,
            middle_tokens=384,
            long_tokens=640,
            lengths=(256, 640),
            pairs=2,
            length_pairs=2,
            steps_per_sample=4,
            chunk_tokens=128,
        )

    def part_names(self) -> tuple[str, ...]:
        """All parts, in the order in which they are measured."""
        lengths = [f"lengths-{budget}" for budget in (self.budget_tokens, *self.other_budgets)]
        search = [f"search-{pool}-{most}" for pool in self.pools for most in self.max_num_seqs]
        pools = [f"pool-{pool}" for pool in self.pools]
        others = [f"pool-{self.other_budget_pool}-budget-{budget}" for budget in self.other_budgets]
        return ("steps", "steps-stock", *lengths, *search, *pools, *others, *self.shorter_parts())

    def shorter_parts(self) -> tuple[str, ...]:
        """The parts with shorter conversations: of each length the search, then each budget."""
        pool = self.other_budget_pool
        names: list[str] = []
        for tokens in self.other_lengths:
            names += [f"search-{pool}-{most}-tokens-{tokens}" for most in self.max_num_seqs]
            names += [f"pool-{pool}-budget-{budget}-tokens-{tokens}" for budget in self.length_budgets]
        return tuple(names)

    def with_seed(self, seed: int) -> Self:
        """The same with another seed."""
        return replace(self, workload=replace(self.workload, seed=seed))
