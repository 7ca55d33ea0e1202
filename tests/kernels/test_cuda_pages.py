"""Evidence, scores, selection, compaction and copies of the CUDA sources, emulated, against the torch references."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from memdecay_kernels import compact_rows_into
from memdecay_kernels.cuda.errors import CudaArgumentError
from memdecay_kernels.cuda.page_scores import observe_tokens, score_pages, select_pages
from memdecay_kernels.cuda.page_tables import compact_table, copy_pages
from memdecay_kernels.reference import pages as pages_reference
from memdecay_kernels.reference import scores as scores_reference
from memdecay_kernels.reference import tables as tables_reference
from memdecay_kernels.terms import ObserveRule, ScoreTerms, TokenColumns
from tests.kernels.cuda_emulator.emulated import EmulatedFault

some = settings(deadline=None, max_examples=25, suppress_health_check=list(HealthCheck))
REGIONS = 4


def columns_of(tokens: int, seed: int, *, coarse: bool = False) -> TokenColumns[torch.Tensor]:
    """Columns in the middle of a session; coarse values repeat, so that ranks have ties."""
    make = torch.Generator().manual_seed(seed)

    def positive():
        values = torch.rand(tokens, generator=make)
        return (values * 4).floor() if coarse else values

    return TokenColumns(
        torch.randint(0, REGIONS, (tokens,), generator=make).to(torch.int8),
        torch.randint(0, 4, (tokens,), generator=make).to(torch.int8),
        torch.randint(0, 60, (tokens,), generator=make),
        positive(), positive(), positive(), torch.randint(0, 3, (tokens,), generator=make).float(), positive(),
        positive(),
    )  # fmt: skip


def copied(columns: TokenColumns[torch.Tensor]) -> TokenColumns[torch.Tensor]:
    return TokenColumns(*(column.clone() for column in columns))


@some
@given(
    pages=st.integers(1, 12),
    kept=st.floats(0.1, 1.0),
    refresh=st.sampled_from(["raw_mass", "relative_mass", "never"]),
    neighbours=st.sampled_from([1, 3, 16, 200]),
    queries=st.integers(1, 300),
    newest=st.booleans(),
    seed=st.integers(0, 999),
)
def test_evidence_enters_the_columns_as_defined(launcher, pages, kept, refresh, neighbours, queries, newest, seed):
    make = torch.Generator().manual_seed(seed)
    tokens = pages * 16
    index = torch.nonzero(torch.rand(tokens, generator=make) <= kept).flatten()
    if not index.numel():
        index = torch.tensor([tokens - 1])
    mass = torch.rand(index.numel(), generator=make).pow(8).add(1e-9)
    mass /= mass.sum()
    newest_mass = mass.flip(0) if newest else None
    threshold = float(mass.median()) * (1 if refresh == "raw_mass" else index.numel())
    rule = ObserveRule(0.3, neighbours, 1e-3, 16, refresh, threshold)
    before = columns_of(tokens, seed)
    expected, columns = copied(before), copied(before)
    scores_reference.observe_tokens(expected, index, mass, newest_mass, rule, queries, 77)
    observe_tokens(columns, index, mass, newest_mass, rule, queries, 77, launcher=launcher)
    for name, found, wanted in zip(columns._fields, columns, expected, strict=True):
        torch.testing.assert_close(found, wanted, rtol=2e-6, atol=3e-6 * queries if "sum" in name else 1e-7, msg=name)
    untouched = torch.ones(tokens, dtype=torch.bool).index_fill(0, index, False)
    assert all(torch.equal(now[untouched], old[untouched]) for now, old in zip(columns, before, strict=True))


def terms_of(**changes) -> ScoreTerms[torch.Tensor]:
    return ScoreTerms(
        torch.tensor([1.0, 0.5, 0.25, 2.0]), torch.tensor([0.0, 0.01, 0.3, 0.05]),
        torch.tensor([float("inf"), 70.0, 2.0, 14.0]), superseded_factor=0.25, attention_weight=1.5,
        salience_weight=0.7, **changes,
    )  # fmt: skip


@some
@given(
    page=st.sampled_from([8, 16, 48]),
    pages=st.integers(1, 12),
    forms=st.tuples(st.sampled_from(["magnitude", "rank"]), st.sampled_from(["magnitude", "rank"])),
    decay_form=st.sampled_from(["exponential", "power_law"]),
    column=st.sampled_from(["ewma_mass", "accumulated_relative", "last_query_mass"]),
    coarse=st.booleans(),
    missing=st.integers(0, 60),
    seed=st.integers(0, 999),
)
def test_page_scores_are_as_defined(launcher, page, pages, forms, decay_form, column, coarse, missing, seed):
    make = torch.Generator().manual_seed(seed)
    capacity = (pages + 2) * page
    columns = columns_of(capacity, seed, coarse=coarse)
    held = torch.randperm(pages + 2, generator=make)[:pages].sort().values
    processed = max(0, capacity - missing)
    evictable = (torch.rand(pages, generator=make) < 0.7) & ((held + 1) * page <= processed)
    terms = terms_of(
        decay_form=decay_form, attention_column=column, attention_form=forms[0], salience_form=forms[1]
    )  # fmt: skip
    arguments = (columns, held, evictable, terms, page, processed, 50)
    expected, found = torch.zeros(3, pages), torch.full((3, pages), 9.0)
    scores_reference.score_pages(*arguments, expected)
    score_pages(*arguments, found, launcher=launcher)
    torch.testing.assert_close(found, expected, rtol=3e-6, atol=1e-7)


def test_ranks_over_many_blocks_of_threads(launcher):
    """More tokens than one tile of the ranking, with one value shared by hundreds."""
    columns = columns_of(40 * 16, 5, coarse=True)
    pages, evictable = torch.arange(40), torch.arange(40) % 5 != 0
    terms = terms_of(attention_form="rank", salience_form="rank")
    expected, found = torch.zeros(3, 40), torch.zeros(3, 40)
    scores_reference.score_pages(columns, pages, evictable, terms, 16, 640, 50, expected)
    score_pages(columns, pages, evictable, terms, 16, 640, 50, found, launcher=launcher)
    torch.testing.assert_close(found, expected, rtol=3e-6, atol=1e-7)


@some
@given(
    pages=st.lists(st.tuples(st.integers(-3, 3), st.booleans()), max_size=300),
    count=st.integers(0, 320),
    special=st.booleans(),
)
def test_selection_is_the_references(launcher, pages, count, special):
    scores = torch.tensor([float(score) for score, _ in pages])
    if special and len(pages) > 2:
        scores[0], scores[1], scores[2] = float("inf"), -float("inf"), -0.0
    evictable = torch.tensor([flag for _, flag in pages], dtype=torch.bool)
    expected, found = (torch.full((count,), 99, dtype=torch.int64) for _ in range(2))
    pages_reference.select_pages(scores, evictable, expected)
    select_pages(scores, evictable, found, launcher=launcher)
    assert torch.equal(found, expected)


@some
@given(
    rows=st.integers(1, 4),
    columns=st.integers(1, 600),
    page=st.sampled_from([16, 32]),
    holes=st.floats(0, 1),
    spare=st.integers(0, 20),
    seed=st.integers(0, 999),
)
def test_compaction_is_the_references(launcher, rows, columns, page, holes, spare, seed):
    make = torch.Generator().manual_seed(seed)
    table = torch.randint(1, 99, (rows, columns), generator=make).int()
    table[torch.rand(rows, columns, generator=make) < holes] = 0
    lengths = torch.randint(0, columns * page + 1, (rows,), generator=make).int()
    expected_table, expected_tokens, expected_pages = tables_reference.compact_block_table(table, lengths, page, 0)
    out, tokens = torch.full((rows, columns + spare), 7).int(), torch.full((rows,), 7).int()
    kept = torch.zeros(rows, columns, dtype=torch.bool)
    compact_table(table, lengths, page, 0, out, tokens, kept, empty_rows_keep_length=False, launcher=launcher)
    assert torch.equal(out[:, :columns], expected_table)
    assert not out[:, columns:].any()
    assert torch.equal(tokens, expected_tokens)
    assert torch.equal(kept, expected_pages)

    into, into_lengths = torch.full((rows, columns + spare), 7).int(), torch.full((rows,), 7).int()
    compact_rows_into(table, lengths, page, into, into_lengths)
    compact_table(table, lengths, page, 0, out, tokens, None, empty_rows_keep_length=True, launcher=launcher)
    assert torch.equal(out, into)
    assert torch.equal(tokens, into_lengths)


@some
@given(
    shape=st.sampled_from([(3, 2), (2, 16, 8), (5, 4096), (1, 17)]),
    dtype=st.sampled_from([torch.bfloat16, torch.float32, torch.uint8]),
    count=st.integers(0, 5),
    offset=st.integers(0, 3),
    seed=st.integers(0, 99),
)
def test_copied_pages_are_equal_bit_for_bit_and_others_untouched(launcher, shape, dtype, count, offset, seed):
    make = torch.Generator().manual_seed(seed)
    page_bytes = torch.Size(shape).numel() * dtype.itemsize

    def cache(pages):
        raw = torch.randint(0, 256, (pages * page_bytes + offset * dtype.itemsize,), generator=make).to(torch.uint8)
        return raw[offset * dtype.itemsize :].view(dtype).view(pages, *shape)

    source, target = cache(6), cache(7)
    before = target.clone()
    from_pages, to_pages = torch.randint(0, 6, (count,), generator=make), torch.randperm(7, generator=make)[:count]
    launcher.launched.clear()
    copy_pages(source, from_pages, target, to_pages, launcher=launcher)
    assert torch.equal(target[to_pages].view(torch.uint8), source[from_pages].view(torch.uint8))
    others = [page for page in range(7) if page not in to_pages.tolist()]
    assert torch.equal(target[others].view(torch.uint8), before[others].view(torch.uint8))
    wide = (offset * dtype.itemsize) % 16 == 0 and page_bytes % 16 == 0
    assert set(launcher.launched) <= {"copy_pages_wide" if wide else "copy_pages_bytes"}


@pytest.mark.parametrize(("source_page", "target_page"), [(6, 0), (-1, 0), (0, 7)])
def test_a_page_that_does_not_exist_stops_the_copy(emulator, source_page, target_page):
    with pytest.raises(EmulatedFault, match="an index that leads out of its array"):
        copy_pages(
            torch.zeros(6, 8), torch.tensor([source_page]), torch.zeros(7, 8), torch.tensor([target_page]),
            launcher=emulator,
        )  # fmt: skip


def test_tokens_and_pages_beyond_the_columns_stop_the_kernel(emulator):
    rule = ObserveRule(0.3, 1, 1e-3, 0, "never")
    with pytest.raises(EmulatedFault, match="an index that leads"):
        observe_tokens(columns_of(16, 0), torch.tensor([16]), torch.ones(1), None, rule, 1, 0, launcher=emulator)
    with pytest.raises(EmulatedFault, match="an index that leads"):
        score_pages(
            columns_of(16, 0), torch.tensor([1]), torch.tensor([True]), terms_of(), 16, 32, 0, torch.zeros(3, 1),
            launcher=emulator,
        )  # fmt: skip


def test_tensors_that_do_not_fit_are_refused_before_any_launch():
    columns = columns_of(16, 0)
    rule = ObserveRule(0.3, 1, 1e-3, 0, "never")
    index, mass = torch.arange(4), torch.ones(4)
    with pytest.raises(CudaArgumentError, match=r"column 'flags': it is torch.int32 and has to be int8"):
        observe_tokens(columns._replace(flags=columns.flags.int()), index, mass, None, rule, 1, 0, launcher=None)
    with pytest.raises(CudaArgumentError, match=r"mass: its shape is \[3\] and has to be \[4\]"):
        observe_tokens(columns, index, mass[:3], None, rule, 1, 0, launcher=None)
    short = replace(terms_of(), decay_rate_per_tick=torch.ones(3))
    with pytest.raises(CudaArgumentError, match=r"decay: its shape is \[3\] and has to be \[4\]"):
        score_pages(columns, index[:1], mass[:1] > 0, short, 16, 16, 0, torch.zeros(3, 1), launcher=None)
    with pytest.raises(CudaArgumentError, match="contiguous"):
        score_pages(columns, index[:1], mass[:1] > 0, terms_of(), 16, 16, 0, torch.zeros(3, 2)[:, :1], launcher=None)
    with pytest.raises(CudaArgumentError, match=r"evictable: it is torch.float32 and has to be bool"):
        select_pages(mass, mass, index, launcher=None)
    table, lengths = torch.ones(2, 3).int(), torch.ones(2).int()
    with pytest.raises(CudaArgumentError, match=r"2 rows of 3 pages do not fit buffers of \(2, 2\)"):
        compact_table(table, lengths, 16, 0, table[:, :2], lengths, None, empty_rows_keep_length=False, launcher=None)
    with pytest.raises(CudaArgumentError, match="do not fit"):
        copy_pages(torch.zeros(2, 3), index[:1], torch.zeros(2, 4), index[:1], launcher=None)
    with pytest.raises(CudaArgumentError, match="have to be contiguous"):
        copy_pages(torch.zeros(2, 3, 4).mT, index[:1], torch.zeros(2, 4, 3), index[:1], launcher=None)
