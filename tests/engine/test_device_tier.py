"""The CUDA worker's part of the host tier, on CPU tensors in FlashAttention's cache layouts.

Nothing here runs on a GPU.
"""

from __future__ import annotations

import copy
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from vllm.v1.attention.backends.flash_attn import FlashAttentionImpl
from vllm.v1.kv_cache_layout import KVCacheLayout

from memdecay_adapters.engine.flash_backend import MemDecayFlashImpl, MemDecayFlashMetadata
from memdecay_adapters.engine.step_messages import StepDirections
from memdecay_adapters.engine.tier.gpu_tier import DeviceTier, gpu_worker_tier, token_keys
from memdecay_adapters.engine.tier.host_store import HostStore
from memdecay_adapters.engine.tier.messages import PageCopy, Probe, QueryWindow, TierDirections
from memdecay_adapters.engine.tier.queries import QueryTails
from memdecay_adapters.engine.tier.settings import HostTier, Recall
from memdecay_adapters.engine.tier.worker_tier import Shard
from memdecay_agents.errors import UnsupportedError
from memdecay_agents.recall import RetrievalHead
from tests.engine.test_flash_backend import PAGE, builder, observing, step

HEADS, DIM, LAYERS = 2, 8, 3
LAYOUTS = [layout for layout in KVCacheLayout if layout.is_block_compact]


def caches(layout: KVCacheLayout, pages: int = 6) -> list[torch.Tensor]:
    """Each layer's view of a cache as vLLM lays it out, ``[pages, HEADS, PAGE, 2 * DIM]``."""
    shape = (LAYERS, pages, HEADS, PAGE, 2 * DIM)
    memory = torch.randn([shape[axis] for axis in layout.stride_order])
    whole = memory.permute([layout.stride_order.index(axis) for axis in range(5)])
    return [whole[layer] for layer in range(LAYERS)]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_pages_come_back_as_they_left_in_every_layout_that_keeps_a_page_together(layout):
    layers = caches(layout)
    before = copy.deepcopy(layers)
    store = HostStore(layers, HostTier(max_bytes=2**30, checksum=True))
    store.copy([PageCopy("out", 1, 70), PageCopy("out", 4, 3)])
    for slot, block in ((70, 1), (3, 4)):
        assert torch.equal(store.page(slot), torch.stack([layer[block] for layer in before]))
    assert torch.equal(store.cells([3, 70], 2, 1), torch.stack([before[2][4, 1], before[2][1, 1]]))
    for layer in layers:
        layer.zero_()
    store.copy([PageCopy("in", 5, 70)])
    for layer, was in zip(layers, before, strict=True):
        assert torch.equal(layer[5], was[1])
        assert not layer[:5].any()


@pytest.mark.parametrize("layout", [layout for layout in KVCacheLayout if not layout.is_block_compact])
def test_a_cache_that_tears_pages_apart_is_refused(layout):
    with pytest.raises(UnsupportedError, match="not one run of memory"):
        HostStore(caches(layout), HostTier(max_bytes=2**30))


def direct_evidence(queries: torch.Tensor, keys: torch.Tensor, scale: float) -> np.ndarray:
    """Of one head: the pages' shares of the attention to all their keys, the largest of any query, added over heads."""
    logits = torch.einsum("qgd,ptd->gqpt", queries.double(), keys.double()) * scale
    shares = logits.flatten(2).softmax(-1).view(logits.shape).sum(-1)
    return shares.amax(dim=1).sum(0).numpy()


@pytest.mark.parametrize("layout", LAYOUTS)
def test_evidence_is_exact_attention_over_the_tiers_pages_and_the_devices(layout):
    layers, head = caches(layout), RetrievalHead(2, 1)
    tier = HostTier(max_bytes=2**20, recall=Recall(heads=(head,), neighbour_share=0.0))
    worker = DeviceTier(tier, layers, ["l0", "l1", "l2"], token_keys, 0.3, Shard(0, 1, HEADS))
    away = [layers[2][block, 1, :, :DIM].clone() for block in (1, 4)]
    directions = TierDirections(copies=[PageCopy("out", 1, 0), PageCopy("out", 4, 9)], probes={"r": Probe([0, 9], [2])})
    worker.before_step(directions, [])
    for layer in layers:
        layer[[1, 4]] = 7.0  # others have these blocks now
    query = torch.randn(3, 2 * HEADS, DIM)
    assert worker.queries is not None
    worker.queries.begin({"r": QueryWindow(40, 3)}, ["r"], [0, 3])
    worker.queries.take("l2", query)
    report = worker.report()
    assert report is not None
    keys = torch.stack([*away, layers[2][2, 1, :, :DIM]])
    np.testing.assert_allclose(report.evidence["r"], direct_evidence(query[:, 2:4], keys, 0.3), rtol=1e-5)


# ---- queries in FlashAttention's steps


def watching(**windows: QueryWindow):
    """An observer that keeps queries of layer ``l2``, in a step of the requests a and b."""
    observer = observing()
    observer.queries = QueryTails({"l2": 2}, 4)
    observer.start_step(StepDirections(tier=TierDirections(windows=windows)), lambda: ["a", "b"])
    return observer


@given(window=st.integers(1, 2))
@settings(deadline=None, max_examples=4)
def test_chosen_layers_leave_their_newest_queries(window):
    observer = watching(a=QueryWindow(70 - window, window))
    metadata = builder(observer=observer).build(0, step())
    assert isinstance(metadata, MemDecayFlashMetadata)
    impl, query, seen = object.__new__(MemDecayFlashImpl), torch.randn(3, 4, DIM), torch.randn(10, 2, PAGE, 2 * DIM)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(FlashAttentionImpl, "forward", lambda *args, **kwargs: "stock")
        for name in ("l1", "l2"):
            layer = SimpleNamespace(layer_name=name)
            assert impl.forward(layer, query, query, query, seen, metadata, query) == "stock"
    assert list(observer.queries.of("a")) == [2]
    assert torch.equal(observer.queries.of("a")[2], query[2 - window : 2])
    assert observer.queries.of("b") == {}


def test_a_step_that_may_be_a_replayed_graph_leaves_no_older_queries_behind():
    observer = watching(a=QueryWindow(66, 4))
    observer.queries.begin({"a": QueryWindow(62, 4)}, ["a"], [0, 4])
    observer.queries.take("l2", torch.randn(4, 4, DIM))
    metadata = builder(observer=observer, full_graphs=True).build(0, step())
    assert not isinstance(metadata, MemDecayFlashMetadata)
    assert observer.queries.of("a") == {}, "the turn's newest queries are not known, and older ones are not theirs"


def test_a_runner_that_keeps_its_tokens_on_the_device_is_refused():
    with pytest.raises(UnsupportedError, match="VLLM_USE_V2_MODEL_RUNNER=0"):
        gpu_worker_tier(object(), HostTier(max_bytes=1), SimpleNamespace())
