"""attention_mass of the CUDA sources, emulated, against a direct softmax in float64."""

from __future__ import annotations

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from memdecay_kernels import KeyLayout
from memdecay_kernels.cuda.errors import CudaArgumentError
from memdecay_kernels.cuda.mass_call import DeviceMassCall
from memdecay_kernels.native.mass_call import MassRows
from memdecay_kernels.reference import mass as reference
from tests.kernels.cuda_cases import DTYPES, SCALE, Step, assert_mass_close, keys_in_strides, steps

few = settings(deadline=None, max_examples=12, suppress_health_check=list(HealthCheck))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("head_reduce", ["mean", "max"])
@few
@given(data=st.data())
def test_equals_a_direct_softmax(launcher, dtype, head_reduce, data):
    step = data.draw(steps(DTYPES[dtype], max_layers=1 if dtype == "fp32" else 3))
    launcher.seed = data.draw(st.integers(0, 9))
    mass = step.run(launcher, head_reduce=head_reduce)
    assert_mass_close(mass, step, head_reduce)


@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
@settings(few, max_examples=6)
@given(data=st.data())
def test_strides_without_wide_loads_take_the_other_kernel(launcher, dtype, data):
    step = data.draw(steps(DTYPES[dtype], form="odd", max_layers=1))
    launcher.launched.clear()
    assert_mass_close(step.run(launcher), step)
    assert launcher.launched == [
        f"mass_statistics_{dtype}_strided", "mass_totals_of_rows", f"mass_of_tokens_{dtype}_strided"
    ]  # fmt: skip


def long_step(contexts, windows, *, layers=1, dtype=torch.bfloat16, magnitude=1.0, dim=32):
    make = torch.Generator().manual_seed(3)
    page, columns = 16, -(-max(contexts) // 16)
    requests = len(contexts)
    query_ends = torch.tensor(windows).cumsum(0)
    return Step(
        [(torch.randn(int(query_ends[-1]), 4, dim, generator=make) * magnitude).to(dtype) for _ in range(layers)],
        [torch.randn(columns + 1, page, 2, dim, generator=make).to(dtype) for _ in range(layers)],
        torch.stack([torch.randperm(columns + 1, generator=make)[:columns] for _ in range(requests)]).int(),
        torch.tensor(contexts).int(), query_ends.int(), torch.tensor(windows).int(), max(contexts), max(windows),
    )  # fmt: skip


@pytest.mark.parametrize("context", [255, 256, 257, 600])
def test_splits_of_a_long_context_are_joined(launcher, context):
    step = long_step([context], [2])
    mass = step.run(launcher)
    assert_mass_close(mass, step)
    assert mass.sum().item() == pytest.approx(1.0, abs=1e-5)


def test_logits_far_beyond_the_exponentials_range_stay_finite(launcher):
    for magnitude in (3e2, 3e4):
        step = long_step([300], [1], dtype=torch.float32, magnitude=magnitude, dim=4)
        mass = step.run(launcher)
        assert torch.isfinite(mass).all()
        assert mass.sum().item() == pytest.approx(1.0, abs=1e-5)
        assert torch.equal(mass[0].argmax(), step.expected()[0].argmax())


@settings(few, max_examples=8)
@given(data=st.data())
def test_a_request_alone_equals_the_same_request_in_a_batch_bit_for_bit(launcher, data):
    step = data.draw(steps(torch.bfloat16))
    mass = step.run(launcher)
    for row in range(len(step.context_lens)):
        launcher.seed += 1  # nor does the order of blocks and threads matter
        assert torch.equal(step.row(row).run(launcher), mass[row : row + 1])


@settings(few, max_examples=8)
@given(data=st.data())
def test_layers_and_accumulation_are_weighted_sums(launcher, data):
    step = data.draw(steps(torch.bfloat16, max_layers=6))
    layers = len(step.queries)
    together = step.run(launcher, layer_weight=1 / layers)
    one_by_one = torch.zeros_like(together)
    for layer in range(layers):
        alone = step._replace(queries=[step.queries[layer]], key_caches=[step.key_caches[layer]])
        alone.run(launcher, one_by_one, layer_weight=1 / layers, accumulate=True)
    torch.testing.assert_close(together, one_by_one, rtol=1e-5, atol=1e-8)


@few
@given(data=st.data())
def test_a_call_for_an_engines_layers_gives_what_the_reference_gives(launcher, data):
    """Keys in the public order ``[pages, heads, page, dim]``, rows on the host, windows larger than a tile."""
    step = data.draw(steps(torch.bfloat16, windows=[1, 3, 40]))
    keys = [cache.transpose(1, 2) for cache in step.key_caches]
    head_reduce = data.draw(st.sampled_from(["mean", "max"]))
    rows = MassRows(step.block_table, step.context_lens, step.query_ends, step.windows)
    expected, found = (torch.full((len(step.windows), step.max_context), 0.5) for _ in range(2))
    for query, cache in zip(step.queries, keys, strict=True):
        reference.attention_mass(query, cache, None, *rows, SCALE, head_reduce, expected, True)
    call = DeviceMassCall(rows, step.queries[0], keys[0], None, SCALE, head_reduce, found, True, launcher)
    assert call.possible == (head_reduce == "mean" or int(step.windows.max()) <= 16)
    if call.possible:
        assert all(call.fits(query, cache, None, SCALE) for query, cache in zip(step.queries, keys, strict=True))
        call.run(step.queries[0], keys[0])
        if len(keys) > 1:
            call.run_layers(step.queries[1:], keys[1:])
        torch.testing.assert_close(found, expected, rtol=step.tolerance() + 1e-6, atol=1e-6)


def test_what_the_kernels_cannot_serve_is_left_to_the_reference():
    step = long_step([40], [1])
    query, keys, out = step.queries[0], step.key_caches[0].transpose(1, 2), torch.zeros(1, 40)
    rows = MassRows(step.block_table, step.context_lens, step.query_ends, step.windows)

    def possible(query=query, keys=keys, layout=None, head_reduce="mean"):
        return DeviceMassCall(rows, query, keys, layout, SCALE, head_reduce, out, False, launcher=object()).possible

    assert possible()
    assert not possible(keys=keys.float())
    assert not possible(keys=keys.transpose(2, 3).contiguous().transpose(2, 3))
    assert not possible(layout=KeyLayout.row_major(16, 32))


def test_a_layer_of_another_shape_needs_another_call():
    step = long_step([40], [1])
    query, keys = step.queries[0], step.key_caches[0].transpose(1, 2)
    rows = MassRows(step.block_table, step.context_lens, step.query_ends, step.windows)
    call = DeviceMassCall(rows, query, keys, None, SCALE, "mean", torch.zeros(1, 40), False, launcher=object())
    assert call.fits(query.clone(), keys.clone(), None, SCALE)
    assert not call.fits(query, keys.contiguous(), None, SCALE)
    assert not call.fits(query, keys, None, 2 * SCALE)


def test_columns_behind_a_context_become_zero_or_stay(launcher):
    step = long_step([40, 0, 7], [1, 1, 1])._replace(max_context=90)
    written = step.run(launcher)
    added = step.run(launcher, torch.full((3, 90), 2.0), accumulate=True)
    for row, context in enumerate([40, 0, 7]):
        assert not written[row, context:].any()
        assert added[row, context:].eq(2.0).all()
    torch.testing.assert_close(added - 2.0, written, rtol=0, atol=1e-6)


def test_out_may_be_part_of_a_larger_tensor(launcher):
    step = long_step([40, 20], [1, 2])
    whole = torch.full((2, 60), 9.0)
    step.run(launcher, whole[:, 10:50])
    assert torch.equal(whole[:, 10:50], step.run(launcher))
    assert whole[:, :10].eq(9.0).all()
    assert whole[:, 50:].eq(9.0).all()


@pytest.mark.parametrize(
    ("context", "window"), [(10_000, 1), (40, 99), (3, 9), (-5, 1), (40, 0)]
)  # fmt: skip
def test_lengths_that_cannot_be_read_no_foreign_memory(emulator, context, window):
    """Lengths are on the device, where nobody can check them in time; the sanitizer watches."""
    step = long_step([40], [16])
    wrong = step._replace(context_lens=torch.tensor([context]).int(), windows=torch.tensor([window]).int())
    mass = wrong.run(emulator)
    assert torch.isfinite(mass).all()
    assert bool(mass.any()) == (context > 0 and window > 0)


def test_a_key_that_is_not_a_number_behind_the_context_is_not_seen(launcher):
    step = long_step([20], [1])
    page = int(step.block_table[0, 1])
    expected = step.run(launcher)
    step.key_caches[0][page, 4:] = float("nan")
    assert torch.equal(step.run(launcher), expected)


class RecordLaunches:
    def __init__(self):
        self.seen = []

    def launch(self, kernel, grid, *_):
        self.seen.append((kernel, grid))


def test_all_three_kernels_have_one_shape_of_launch_whatever_the_lengths(launcher):
    """A CUDA graph repeats the launches that it saw: they may follow from shapes only."""
    shapes = []
    for contexts in ([40, 33], [0, 5]):
        step = long_step([40, 40], [1, 1])._replace(context_lens=torch.tensor(contexts).int())
        recorder = RecordLaunches()
        step.run(recorder)
        shapes.append(recorder.seen)
    assert shapes[0] == shapes[1]
    assert len(shapes[0]) == 3


def refused(match, **changes):
    step = long_step([40], [1])._replace(**changes)
    with pytest.raises(CudaArgumentError, match=match):
        step.run(None)


def test_tensors_that_do_not_fit_are_refused_before_any_launch():
    queries, keys = long_step([40], [1])[:2]
    refused("1 queries for 2 key caches", key_caches=keys * 2)
    other_strides = keys_in_strides(tuple(keys[0].shape), "heads_first", torch.randn).bfloat16()
    refused("Group layers by strides", queries=queries * 2, key_caches=[keys[0], other_strides])
    refused(r"it is torch.float64 and has to be bfloat16 or float16", queries=[queries[0].double()])
    refused("it is torch.float16 and has to be bfloat16", key_caches=[keys[0].half()])
    refused("3 heads do not fit 2 key heads", queries=[queries[0][:, :3]])
    refused("last axis has stride", key_caches=[keys[0].transpose(1, 3).contiguous().transpose(1, 3)])
    refused("has to be int32", windows=torch.tensor([1]))
    refused(r"its shape is \[2\] and has to be \[1\]", windows=torch.tensor([1, 1]).int())
    refused(r"max_window with 'mean': 513 is outside 1..512", max_window=513)
    step = long_step([40], [1])
    with pytest.raises(CudaArgumentError, match="neither 'mean' nor 'max'"):
        step.run(None, head_reduce="median")
    with pytest.raises(CudaArgumentError, match=r"17 is outside 1\.\.16"):
        step._replace(max_window=17).run(None, head_reduce="max")
