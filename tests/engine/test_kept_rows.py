"""Rows that are used again are those that would be made anew: no engine."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from memdecay_adapters.engine.kept_rows import KeptRows
from memdecay_kernels import compact_block_table

PAGE, MAX_PAGES = 16, 12
CHANGES = st.sampled_from(["token", "token", "token", "evict", "leave", "join", "swap", "restore"])


@settings(deadline=None, max_examples=60)
@given(st.lists(st.tuples(CHANGES, st.integers(0, 2**16)), max_size=40))
def test_they_equal_rows_compacted_anew_after_any_change(changes):
    table = torch.zeros(4, MAX_PAGES, dtype=torch.int32)  # a runner's own: written in place from step to step
    lengths = torch.tensor([40, 17], dtype=torch.int32)
    pages = iter(range(1, 10_000))
    for row in range(4):
        table[row] = torch.tensor([next(pages) for _ in range(MAX_PAGES)])
    kept = KeptRows(PAGE)
    for change, number in [("token", 0), *changes]:
        requests = len(lengths)
        row = number % requests
        full = int(lengths[row]) // PAGE
        if change == "token" and int(lengths.max()) < MAX_PAGES * PAGE:
            lengths = lengths + 1
        elif change == "evict" and full:
            table[row, number % full] = 0
        elif change == "restore" and full:
            table[row, number % full] = next(pages)
        elif change == "leave" and requests > 1:
            lengths = lengths[:-1].clone()
        elif change == "join" and requests < 4:
            lengths = torch.cat([lengths, torch.tensor([1 + number % 100], dtype=torch.int32)])
        elif change == "swap":
            table[:requests] = table[:requests].flip(0).clone()
            lengths = lengths.flip(0).clone()
        rows = table[: len(lengths)]
        fresh, ours = compact_block_table(rows, lengths, PAGE), kept.of(rows, lengths)
        for one, other in zip(fresh, ours, strict=True):
            assert torch.equal(one, other)
        assert kept.has_holes == (not torch.equal(fresh.kept_tokens, lengths))
