"""Sessions played with a real ledger: the truth that histories and their pictures are held against."""

from __future__ import annotations

import random

from memdecay_agents import EvictionReason, Ledger, LedgerEntry
from memdecay_agents.pictures.history import PageRun, Rewind, SessionHistory, events_of

SIZE = 16
REGIONS = ("system", "user", "tool_out", "notes")


def entry(page: int, at: int, *, region: str = "user", turn: int = 1, session: str = "t/th/a/", size: int = SIZE):
    return LedgerEntry(
        session=session, agent="a", turn=turn, request_id="r", page=page, token_start=page * size,
        token_end=(page + 1) * size, regions={region: size}, region=region, pinned=False, clock_ticks=at,
        computed_tokens=at, score=0.25, parts={"structure": 0.25}, order_position=0, reason=EvictionReason.over_budget,
    )  # fmt: skip


class Played:
    """A session played step by step with a real ledger: the truth that pictures are held against."""

    def __init__(self, seed: int, pages: int, budget_pages: int, rewind: bool = False) -> None:
        self.random = random.Random(seed)
        self.ledger = Ledger()
        self.regions = [self.random.choice(REGIONS) for _ in range(pages)]
        self.held_at: list[tuple[int, frozenset[int], int]] = []
        """Time, pages held then, and the page that comes next."""
        self.budget_pages = budget_pages
        self.time = self.tokens = 0
        self.turn = 1
        self.rewinds: tuple[Rewind, ...] = ()
        self._write(pages)
        if rewind:
            back_to = self.random.randrange(max(pages // 2, 1))
            n_events = len(self.ledger.entries())
            self.rewinds = (Rewind(after_events=n_events, from_tokens=self.tokens, to_tokens=back_to * SIZE),)
            self.ledger.rewound("s", back_to)
            self.held_at[-1] = (self.time, self.ledger.held_pages("s"), back_to)
            self.tokens, self.turn = back_to * SIZE, 2
            self._write(pages)

    def _write(self, pages: int) -> None:
        while self.tokens < pages * SIZE:
            self.ledger.allocated("s", [self.tokens // SIZE])
            self.tokens += SIZE
            self.time += SIZE
            surplus = len(self.ledger.held_pages("s")) - self.budget_pages
            candidates = sorted(self.ledger.held_pages("s") - {0, self.tokens // SIZE - 1})
            for page in self.random.sample(candidates, min(max(surplus, 0), len(candidates))):
                self.ledger.evict(entry(page, self.tokens, region=self.regions[page], turn=self.turn, session="s"))
            self.held_at.append((self.time, self.ledger.held_pages("s"), self.tokens // SIZE))

    def history(self, *, knows_rewinds: bool = True) -> SessionHistory:
        held = sorted(self.ledger.held_pages("s"))
        return SessionHistory(
            session="s",
            agent="a",
            page_size_tokens=SIZE,
            computed_tokens=self.tokens,
            budget_tokens=self.budget_pages * SIZE,
            regions=tuple(PageRun(first=page, end=page + 1, region=name) for page, name in enumerate(self.regions)),
            held=tuple((page, page + 1) for page in held),
            events=events_of(self.ledger.entries()),
            rewinds=self.rewinds if knows_rewinds else (),
        )
