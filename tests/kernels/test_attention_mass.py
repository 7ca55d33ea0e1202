"""attention_mass: the definition against a direct softmax, and every implementation against the definition."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from memdecay_kernels import KeyLayout, MassPlan, attention_mass, recover_key_layout
from memdecay_kernels.reference import mass as reference


def shuffled_layout(page: int, head_dim: int, seed: int) -> KeyLayout:
    offsets = torch.randperm(page * head_dim, generator=torch.Generator().manual_seed(seed))
    return KeyLayout(offsets.view(page, head_dim), "shuffled")


def column_layout(page: int, head_dim: int) -> KeyLayout:
    """For each dimension the page's tokens in a row."""
    return KeyLayout(torch.arange(page * head_dim).view(head_dim, page).t().contiguous(), "columns")


def pair_layout(page: int, head_dim: int) -> KeyLayout:
    """16 tokens at a time, pairs of dimensions together."""
    token, dim = torch.arange(page)[:, None], torch.arange(head_dim)[None, :]
    place = (token // 16) * 16 * head_dim + (dim // 2) * 32 + (token % 16) * 2 + dim % 2
    return KeyLayout(place, "pairs")


LAYOUTS = {
    "row_major": KeyLayout.row_major,
    "columns": column_layout,
    "pairs": pair_layout,
    "shuffled": lambda page, head_dim: shuffled_layout(page, head_dim, page + head_dim),
}


def direct_mass(query: torch.Tensor, keys: torch.Tensor, scale: float) -> torch.Tensor:
    """Per query head and query, one softmax at a time; keys ``[L, Hkv, D]``."""
    window, heads, _ = query.shape
    length, kv_heads, _ = keys.shape
    total = torch.zeros(length)
    for w in range(window):
        seen = length - (window - 1 - w)
        for head in range(heads):
            kv_head = head // (heads // kv_heads)
            logits = keys[:seen, kv_head].double() @ query[w, head].double() * scale
            total[:seen] += logits.softmax(0).float()
    return total / (window * heads)


def int32(*numbers: int) -> torch.Tensor:
    return torch.tensor(numbers, dtype=torch.int32)


@settings(deadline=None, max_examples=40)
@given(
    page=st.sampled_from([16, 32]),
    kv_heads=st.integers(1, 3),
    group=st.integers(1, 4),
    window=st.integers(1, 16),
    pages=st.integers(1, 6),
    missing=st.integers(0, 15),
    dtype=st.sampled_from([torch.float32, torch.bfloat16, torch.float16]),
    magnitude=st.sampled_from([0.1, 1.0, 30.0]),
    seed=st.integers(0, 10_000),
)
def test_the_definition_is_a_direct_softmax(page, kv_heads, group, window, pages, missing, dtype, magnitude, seed):
    generator = torch.Generator().manual_seed(seed)
    head_dim, pool_pages = 8, 9
    layout = shuffled_layout(page, head_dim, seed)
    page_ids = torch.randperm(pool_pages, generator=generator)[:pages]
    length = max(pages * page - missing, window)
    if length > pages * page:
        length = window = pages * page
    keys = (torch.randn(pool_pages, kv_heads, page, head_dim, generator=generator) * magnitude).to(dtype)
    query = torch.randn(window, kv_heads * group, head_dim, generator=generator).to(dtype)
    mass = torch.empty(1, length)
    reference.attention_mass(
        query, layout.pack(keys), layout, page_ids.int()[None], int32(length), int32(window), int32(window), 0.3,
        "mean", mass, False,
    )  # fmt: skip
    flat = keys[page_ids].permute(0, 2, 1, 3).reshape(-1, kv_heads, head_dim)[:length]
    expected = direct_mass(query.float(), flat.float(), 0.3)
    torch.testing.assert_close(mass[0], expected, rtol=2e-4, atol=2e-6)
    assert mass.sum().item() == pytest.approx(1.0, abs=1e-4)


@st.composite
def batches(draw, kinds=(*LAYOUTS, "plain"), matrices=False):
    """Ragged requests over one pool: queries, packed keys, layout, rows and options.

    ``matrices``: only shapes for which processors multiply bfloat16 matrices.
    """
    kind = draw(st.sampled_from(kinds))
    page = draw(st.sampled_from([16, 32] if kind == "pairs" else [8, 16, 24, 32]))
    head_dim = draw(
        st.sampled_from([2, 8, 32, 64, 96, 128, 160]) if kind == "pairs" else st.sampled_from([3, 8, 20, 64])
    )
    kv_heads, group = draw(st.integers(1, 3)), draw(st.integers(1, 5))
    dtype = draw(st.sampled_from([torch.float32, torch.bfloat16, torch.float16]))
    if matrices:
        page, dtype = draw(st.sampled_from([32, 48, 64])), torch.bfloat16
        head_dim = draw(st.sampled_from([32, 64, 96, 128] if kind == "pairs" else [2, 6, 20, 64, 128]))
    requests = draw(st.integers(1, 4))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 10_000)))
    magnitude = draw(st.sampled_from([0.05, 1.0, 40.0]))
    lengths, windows = [], []
    for _ in range(requests):
        lengths.append(draw(st.one_of(st.just(0), st.integers(1, 5 * page), st.just(300))))
        windows.append(min(draw(st.integers(0, 20)), lengths[-1]))
    widest = max(1, *(-(-length // page) for length in lengths))
    pool = 2 + widest * requests
    table = (torch.randperm(pool, generator=generator)[: widest * requests]).view(requests, widest).int()
    ends = torch.tensor(windows).cumsum(0) + draw(st.integers(0, 2))  # the batch may begin with others' queries
    # queries and keys are slices of larger tensors, as an engine passes them; what is not theirs is NaN
    fused = torch.full((int(ends[-1]) + 1, 2, kv_heads * group, head_dim), float("nan"))
    fused[:, 0] = torch.randn(fused[:, 0].shape, generator=generator)
    query = fused.to(dtype if matrices else draw(st.sampled_from([dtype, torch.float32])))[:, 0]
    keys = (torch.randn(pool, kv_heads, page, head_dim, generator=generator) * magnitude).to(dtype)
    for row, length in enumerate(lengths):  # behind a context the memory is anything
        if length % page:
            keys[table[row, length // page].long(), :, length % page :] = float("nan")
    if kind == "plain":
        beside = torch.full_like(keys, float("nan"))
        cache = torch.cat([keys, beside], dim=-1).transpose(1, 2).contiguous().transpose(1, 2)[..., :head_dim]
        layout = None
    else:
        layout = LAYOUTS[kind](page, head_dim)
        packed = layout.pack(keys)
        cache = torch.cat([packed, torch.full_like(packed, float("nan"))], dim=-1)[..., : packed.shape[-1]]
    rows = (table, torch.tensor(lengths).int(), ends.int(), torch.tensor(windows).int())
    scale = draw(st.sampled_from([0.125, 1.0, -0.5, 0.0]))
    return query, cache, layout, rows, (draw(st.sampled_from(["mean", "max"])), draw(st.booleans()), scale)


@settings(deadline=None, max_examples=120, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.one_of(batches(), batches(kinds=("pairs", "columns"), matrices=True)))
def test_every_implementation_agrees_with_the_definition(implementation, batch):
    query, cache, layout, rows, (reduce, accumulate, scale) = batch
    table, lengths, ends, windows = rows
    before = torch.rand(len(lengths), max(int(lengths.max()), 1) + 3)
    expected, mass = before.clone(), before.clone()
    reference.attention_mass(query, cache, layout, table, lengths, ends, windows, scale, reduce, expected, accumulate)
    given_back = attention_mass(
        query, cache, layout, table, lengths, scale, query_ends=ends, windows=windows, head_reduce=reduce, out=mass,
        accumulate=accumulate,
    )  # fmt: skip
    assert given_back is mass
    assert not mass.isnan().any()
    # the logits of large keys differ in their last bits, by up to their size times the format's precision
    torch.testing.assert_close(mass, expected, rtol=2e-4, atol=1e-6)


@settings(deadline=None, max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(batches(), st.integers(1, 3))
def test_a_plan_sums_layers(implementation, batch, layers):
    query, cache, layout, (table, lengths, ends, windows), (reduce, _, scale) = batch
    page = layout.page_size_tokens if layout is not None else cache.shape[2]
    plan = MassPlan(table, lengths, ends, windows, page_size_tokens=page, query_tokens=len(query), head_reduce=reduce)
    expected = torch.zeros_like(plan.mass)
    for layer in range(layers):
        scaled = query * (layer + 1)
        plan.add_layer(scaled, cache, layout, scale)
        reference.attention_mass(scaled, cache, layout, table, lengths, ends, windows, scale, reduce, expected, True)
    plan.finish()
    assert plan.layers == layers
    # as above; the queries of the third layer are three times as long
    torch.testing.assert_close(plan.mass, expected, rtol=1e-3, atol=1e-5)


def test_layers_of_a_device_wait_for_one_launch(monkeypatch):
    """On a device the layers are measured together, from queries whose memory the next layer may have taken."""
    launches = []

    class Call:
        batches_layers = True

        def fits(self, query, key_cache, layout, scale):
            return scale == 1.0

        def run_layers(self, queries, key_caches):
            launches.append(([float(query.sum()) for query in queries], len(key_caches)))

    module = SimpleNamespace(mass_call=lambda *arguments: Call())
    monkeypatch.setattr("memdecay_kernels.mass_plan.native_for", lambda operation, device: module)
    one = int32(1)
    plan = MassPlan(int32(0)[None], one, one, one, page_size_tokens=16, query_tokens=1)
    query, cache = torch.zeros(1, 2, 4), torch.zeros(1, 2, 16, 4)
    for layer in range(70):
        query.fill_(layer)
        plan.add_layer(query, cache, None, 1.0)
    assert launches == []
    plan.finish()
    plan.finish()
    assert [count for _, count in launches] == [64, 6]
    assert launches[0][0][:3] == [0.0, 8.0, 16.0]


@pytest.mark.parametrize("head_dim", [32, 64, 96, 128])
@pytest.mark.parametrize(("group", "window"), [(1, 1), (3, 1), (3, 16), (5, 7)])
def test_pairs_of_bfloat16_of_every_width_that_a_matrix_unit_takes(implementation, head_dim, group, window):
    generator = torch.Generator().manual_seed(head_dim)
    layout, length = pair_layout(32, head_dim), 150
    keys = torch.randn(6, 2, 32, head_dim, generator=generator).bfloat16()
    query = torch.randn(window, 2 * group, head_dim, generator=generator).bfloat16()
    table = torch.randperm(6, generator=generator)[:5]
    mass = attention_mass(query, layout.pack(keys), layout, table.int()[None], int32(length), head_dim**-0.5)
    flat = keys[table].permute(0, 2, 1, 3).reshape(-1, 2, head_dim)[:length]
    torch.testing.assert_close(mass[0], direct_mass(query.float(), flat.float(), head_dim**-0.5), rtol=1e-4, atol=1e-7)


def test_logits_beyond_any_exponent_still_give_a_distribution(implementation):
    layout = pair_layout(16, 32)
    keys = torch.zeros(2, 1, 16, 32)
    keys[0, 0, 3], keys[1, 0, 5] = 1e4, 1e4
    query = torch.full((1, 2, 32), 1e4).bfloat16()
    mass = attention_mass(query, layout.pack(keys.bfloat16()), layout, int32(0, 1)[None], int32(32), 1.0)
    assert mass[0, 3].item() == mass[0, 21].item() == 0.5
    assert mass.sum().item() == 1.0


def test_results_do_not_depend_on_threads_or_on_the_batch(implementation):
    layout = column_layout(16, 8)
    generator = torch.Generator().manual_seed(3)
    cache = layout.pack(torch.randn(20, 2, 16, 8, generator=generator))
    query = torch.randn(3, 6, 8, generator=generator)
    table = torch.randperm(20, generator=generator)[:18].view(3, 6).int()
    lengths = int32(90, 17, 64)
    together = attention_mass(query, cache, layout, table, lengths, 0.3)
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        assert torch.equal(attention_mass(query, cache, layout, table, lengths, 0.3), together)
    finally:
        torch.set_num_threads(threads)
    for row in range(3):
        alone = attention_mass(query[row : row + 1], cache, layout, table[row : row + 1], lengths[row : row + 1], 0.3)
        assert torch.equal(alone[0], together[row, : lengths[row]])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"heads": 3}, "do not fit"),
        ({"context": 17}, "does not fit"),
        ({"reduce": "median"}, "neither"),
        ({"dtype": torch.float64}, "query is float64"),
        ({"ends": 2}, "do not fit 1 queries"),
        ({"cells": 63}, "do not fit layout"),
    ],
)
def test_refuses_what_does_not_fit(change, message):
    case = {"heads": 4, "context": 16, "reduce": "mean", "dtype": torch.float32, "ends": 1, "cells": 64, **change}
    layout = KeyLayout.row_major(16, 4)
    with pytest.raises(ValueError, match=message):
        attention_mass(
            torch.randn(1, case["heads"], 4).to(case["dtype"]), torch.randn(2, 2, case["cells"]), layout,
            int32(0)[None], int32(case["context"]), 1.0, query_ends=int32(case["ends"]), windows=int32(1),
            head_reduce=case["reduce"],
        )  # fmt: skip


def test_queries_of_an_unclear_owner_are_refused():
    layout = KeyLayout.row_major(16, 4)
    with pytest.raises(ValueError, match="whose they are"):
        attention_mass(torch.randn(3, 2, 4), torch.randn(2, 2, 64), layout, int32(0, 1)[:, None], int32(4, 4), 1.0)


@settings(deadline=None, max_examples=20)
@given(page=st.sampled_from([16, 32, 128]), head_dim=st.sampled_from([8, 64, 256]), seed=st.integers(0, 99))
def test_a_layout_is_recovered_through_the_writer_in_bfloat16(page, head_dim, seed):
    truth = shuffled_layout(page, head_dim, seed)
    found = recover_key_layout(lambda keys: truth.pack(keys.bfloat16()), page, head_dim, "secret")
    assert torch.equal(found.offsets, truth.offsets)


def test_a_writer_that_loses_keys_is_refused():
    with pytest.raises(ValueError, match="no permutation"):
        recover_key_layout(lambda keys: torch.ones(keys.numel()), 16, 8, "lossy")
