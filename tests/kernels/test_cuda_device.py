"""What only a device can show: streams, graphs, no waiting for the host, pinned memory. Not run on a GPU yet.

The results themselves are tested on a device by the tests of the emulated kernels, through their ``launcher``. With
the toolkit at hand, run all of them under ``compute-sanitizer --tool memcheck`` (racecheck, synccheck, initcheck) too.
"""

from __future__ import annotations

import pytest
import torch

from memdecay_kernels import ObserveRule, ScoreTerms, TokenColumns
from memdecay_kernels.cuda import ops, prepare
from memdecay_kernels.cuda.attention_mass import attention_mass
from memdecay_kernels.cuda.cuda_launcher import launcher_for
from memdecay_kernels.reference import pages as pages_reference
from tests.kernels.cuda_cases import SCALE, Step, assert_mass_close
from tests.kernels.test_scores import columns_of

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
DEVICE = torch.device("cuda", 0)


@pytest.fixture(autouse=True)
def prepared():
    prepare(DEVICE)


def qwen_like_step(contexts, window=1, *, layers=2, seed=0) -> Step:
    """16 query heads on 2 key heads of 128, bfloat16, keys beside values as an engine keeps them."""
    make = torch.Generator(DEVICE).manual_seed(seed)
    requests, columns = len(contexts), -(-max(contexts) // 16)

    def normal(*shape):
        return torch.randn(*shape, generator=make, device=DEVICE).bfloat16()

    pool = columns * requests + 1
    table = torch.randperm(pool - 1, generator=make, device=DEVICE)[: columns * requests] + 1
    ends = torch.arange(1, requests + 1, device=DEVICE) * window
    return Step(
        [normal(requests * window, 16, 128) for _ in range(layers)],
        [normal(pool, 16, 2, 256)[..., :128] for _ in range(layers)],
        table.view(requests, columns).int(), torch.tensor(contexts, device=DEVICE).int(), ends.int(),
        torch.full((requests,), window, device=DEVICE).int(), max(contexts), window,
    )  # fmt: skip


@pytest.mark.parametrize("window", [1, 4, 16])
def test_mass_at_real_shapes(window):
    step = qwen_like_step([3000, 517], window)
    assert_mass_close(step.run(launcher_for(DEVICE)), step)


def test_a_request_alone_equals_itself_in_a_batch_bit_for_bit():
    step = qwen_like_step([3000, 517, 40])
    mass = step.run(launcher_for(DEVICE))
    for row in range(3):
        assert torch.equal(step.row(row).run(launcher_for(DEVICE)), mass[row : row + 1])


def test_the_kernels_run_on_the_current_stream_behind_what_it_holds():
    step = qwen_like_step([3000])
    expected = step.run(launcher_for(DEVICE))
    stream = torch.cuda.Stream(DEVICE)
    late = step._replace(queries=[torch.zeros_like(query) for query in step.queries])
    torch.cuda.synchronize(DEVICE)
    with torch.cuda.stream(stream):
        torch.cuda._sleep(50_000_000)
        for query, true_query in zip(late.queries, step.queries, strict=True):
            query.copy_(true_query)
        mass = late.run(launcher_for(DEVICE))
    stream.synchronize()
    assert torch.equal(mass, expected)


def test_a_captured_graph_follows_new_lengths_and_tables():
    step = qwen_like_step([3000, 517])
    out = torch.zeros(2, 3000, device=DEVICE)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step.run(launcher_for(DEVICE), out)
    other = qwen_like_step([2000, 2993], seed=1)  # as many pages of the longest request
    for mine, new in zip(step.tensors(), other.tensors(), strict=True):
        mine.copy_(new)
    graph.replay()
    torch.cuda.synchronize(DEVICE)
    assert_mass_close(out, step)


def test_no_operation_waits_for_the_host():
    step = qwen_like_step([3000])
    scores = torch.rand(500, device=DEVICE)
    evictable, out = torch.ones(500, dtype=torch.bool, device=DEVICE), torch.zeros(9, dtype=torch.int64, device=DEVICE)
    table = torch.zeros_like(step.block_table)
    columns = TokenColumns(*(column.to(DEVICE) for column in columns_of(4, seed=0)))
    index, mass = torch.arange(48, device=DEVICE), torch.rand(48, device=DEVICE)
    rule = ObserveRule(0.1, 8, 1e-3, 16, "relative_mass", 1.5)
    seven = torch.ones(7, device=DEVICE)
    terms = ScoreTerms(seven, seven, seven, attention_form="rank", salience_form="rank")
    parts = torch.zeros(3, 4, device=DEVICE)
    pool, host_pool = torch.rand(5, 64, device=DEVICE), torch.zeros(5, 64, pin_memory=True)
    torch.cuda.synchronize(DEVICE)
    torch.cuda.set_sync_debug_mode("error")
    try:
        step.run(launcher_for(DEVICE))
        ops.select_pages(scores, evictable, out)
        ops.compact_rows_into(step.block_table, step.context_lens, 16, table, torch.zeros_like(step.context_lens))
        ops.observe_tokens(columns, index, mass, None, rule, 4, 7)
        ops.score_pages(columns, index[:4], evictable[:4], terms, 16, 60, 9, parts)
        ops.copy_pages(pool, index[:3], host_pool, index[:3])
    finally:
        torch.cuda.set_sync_debug_mode("default")
    expected = torch.zeros_like(out)
    pages_reference.select_pages(scores, evictable, expected)
    assert torch.equal(out, expected)


def test_pages_travel_to_pinned_memory_and_back():
    pool = torch.randn(30, 16, 2, 64, device=DEVICE).bfloat16()
    host = torch.zeros(10, 16, 2, 64, dtype=torch.bfloat16, pin_memory=True)
    pages, slots = torch.tensor([7, 0, 29], device=DEVICE), torch.tensor([1, 9, 4], device=DEVICE)
    before = pool.clone()
    assert ops.copy_pages(pool, pages, host, slots)
    torch.cuda.synchronize(DEVICE)
    assert torch.equal(host[slots.cpu()].to(DEVICE), before[pages])
    pool.zero_()
    assert ops.copy_pages(host, slots, pool, pages)
    assert torch.equal(pool[pages], before[pages])
    assert not ops.copy_pages(pool, pages, torch.zeros(10, 16, 2, 64).bfloat16(), slots)


def test_the_public_call_takes_keys_in_the_engines_view():
    step = qwen_like_step([300], layers=1)
    out = torch.zeros(1, 300, device=DEVICE)
    keys = step.key_caches[0].transpose(1, 2)
    rows = (step.block_table, step.context_lens, step.query_ends, step.windows)
    assert ops.attention_mass(step.queries[0], keys, None, *rows, SCALE, "mean", out, False)
    direct = torch.zeros_like(out)
    attention_mass(
        step.queries, step.key_caches, *rows, direct, scale=SCALE, max_window=16, launcher=launcher_for(DEVICE)
    )
    assert torch.equal(out, direct)
