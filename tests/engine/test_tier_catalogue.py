"""The host tier's book-keeping: slots, budgets, who goes first; and the copies, against a plain model of memory."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from memdecay_adapters.engine.tier.catalogue import HostCatalogue
from memdecay_adapters.engine.tier.host_store import SEGMENT_SLOTS, HostStore
from memdecay_adapters.engine.tier.messages import PageCopy, QueryWindow
from memdecay_adapters.engine.tier.queries import QueryTails
from memdecay_adapters.engine.tier.report import TierReport
from memdecay_adapters.engine.tier.settings import HostTier
from memdecay_adapters.engine.tier.wishing import find_text
from memdecay_adapters.engine.tier.worker_tier import LocalHead, Shard
from memdecay_agents.errors import ConfigError, IntegrityError, UnsupportedError
from memdecay_agents.ledger import EvictionReason, LedgerEntry
from memdecay_agents.recall import RetrievalHead

AGENTS = {"s0": ("one", "a"), "s1": ("one", "b"), "s2": ("two", "a")}


def entry(session: str, page: int, score: float) -> LedgerEntry:
    return LedgerEntry(
        session=session, agent="a", turn=0, request_id="r", page=page, token_start=16 * page, token_end=16 * page + 16,
        regions={"user": 16}, region="user", pinned=False, clock_ticks=0, computed_tokens=0, score=score, parts={},
        order_position=0, reason=EvictionReason.over_budget,
    )  # fmt: skip


OPERATIONS = st.lists(
    st.one_of(
        st.tuples(st.just("put"), st.sampled_from(sorted(AGENTS)), st.integers(0, 7), st.integers(0, 3)),
        st.tuples(st.just("restore"), st.sampled_from(sorted(AGENTS)), st.integers(0, 7), st.just(0)),
        st.tuples(st.just("drop"), st.sampled_from(sorted(AGENTS)), st.integers(0, 7), st.just(0)),
    ),
    max_size=60,
)


@given(operations=OPERATIONS, most=st.integers(0, 6), per_agent=st.none() | st.integers(0, 4))
@settings(max_examples=300, deadline=None)
def test_the_least_valuable_page_goes_first_and_no_budget_is_exceeded(operations, most, per_agent):
    catalogue = HostCatalogue(most, per_agent)
    model: dict[tuple[str, int], tuple[bool, float, int]] = {}
    for number, (what, session, page, score) in enumerate(operations):
        known = catalogue.of(session).get(page)
        if what == "put":
            before = {(one.session, one.page): one.slot for one in catalogue}
            placed = catalogue.put(session, AGENTS[session], entry(session, page, float(score)))
            lost = before.keys() - {(one.session, one.page) for one in catalogue}
            came = (session, page)
            if came in model:
                assert placed.slot is None
                assert not lost
                model[came] = (True, float(score), model[came][2])
            else:
                rank = (True, float(score), number)
                scopes = [
                    {key for key in model if AGENTS[key[0]] == AGENTS[session]}, set(model)
                ]  # fmt: skip
                for key in lost:
                    assert model[key] < rank, "a more valuable page made room for a less valuable one"
                    assert any(all(model[key] <= model[o] for o in scope - lost) for scope in scopes if key in scope)
                    del model[key]
                if placed.slot is not None:
                    model[came] = rank
                else:
                    assert placed.dropped >= 1
        elif what == "restore" and known is not None:
            catalogue.restored(known)
            model[session, page] = (False, *model[session, page][1:])
        elif what == "drop":
            gone = {key for key in model if key[0] == session and key[1] >= page}
            assert catalogue.drop(session, page) == len(gone)
            model = {key: rank for key, rank in model.items() if key not in gone}
        pages = list(catalogue)
        assert {(one.session, one.page) for one in pages} == model.keys()
        assert len(pages) == len(catalogue) <= most
        assert len({one.slot for one in pages}) == len(pages)
        assert all(0 <= one.slot < most for one in pages)
        assert all(count <= (most if per_agent is None else per_agent) for count in catalogue.agents().values())


def test_a_page_that_is_about_to_come_back_is_not_dropped_for_one_that_leaves():
    catalogue = HostCatalogue(1)
    catalogue.put("s0", AGENTS["s0"], entry("s0", 0, 0.0))
    coming = catalogue.of("s0")[0]
    catalogue.hold([coming])
    assert catalogue.put("s0", AGENTS["s0"], entry("s0", 1, 9.0)) == (None, 1)
    catalogue.restored(coming)
    assert catalogue.put("s0", AGENTS["s0"], entry("s0", 2, 9.0)) == (coming.slot, 0), "its copy is worth nothing now"


@given(
    st.lists(st.tuples(st.sampled_from(["out", "in"]), st.integers(0, 4), st.integers(0, 2 * SEGMENT_SLOTS)),
             min_size=1, max_size=40),
    st.sampled_from([torch.float32, torch.bfloat16]),
    st.data(),
)  # fmt: skip
@settings(max_examples=100, deadline=None)
def test_copies_are_done_as_if_one_after_another(moves, dtype, data):
    layers = [torch.randn(5, 2, 16, 8).to(dtype) for _ in range(3)]
    device = {block: torch.stack([layer[block] for layer in layers]) for block in range(5)}
    host: dict[int, torch.Tensor] = {}
    copies = []
    for direction, block, slot in moves:
        if direction == "out":
            host[slot] = device[block]
        elif slot in host:
            device[block] = host[slot]
        else:
            continue
        copies.append(PageCopy(direction, block, slot))
    page_bytes = 3 * layers[0][0].numel() * layers[0].element_size()
    memory_pages = data.draw(st.sampled_from([0, 1, 3, SEGMENT_SLOTS, 1000]))
    tier = HostTier(max_bytes=memory_pages * page_bytes + 1, disk_bytes=1000 * page_bytes, checksum=True)
    store = HostStore(layers, tier)
    store.copy(copies)
    for slot, page in host.items():
        assert torch.equal(store.page(slot), page)
        assert torch.equal(store.cells([slot], 2, 1)[0], page[2, 1])
    for block, page in device.items():
        assert torch.equal(torch.stack([layer[block] for layer in layers]), page)
    assert store.page_bytes == page_bytes


def test_a_page_that_changed_in_host_memory_stops_the_engine():
    store = HostStore([torch.randn(3, 1, 16, 4)], HostTier(max_bytes=2**20, checksum=True))
    store.copy([PageCopy("out", 1, 5)])
    store.page(5)[0, 0, 3, 2] += 1
    with pytest.raises(IntegrityError, match="slot 5"):
        store.copy([PageCopy("in", 2, 5)])


def test_layers_that_differ_are_refused():
    with pytest.raises(UnsupportedError, match="differ"):
        HostStore([torch.zeros(2, 1, 16, 4), torch.zeros(2, 1, 16, 8)], HostTier(max_bytes=2**20))


def test_a_disk_without_place_is_refused_when_the_engine_starts(tmp_path):
    layers = [torch.zeros(2, 1, 16, 4)]
    for tier in (
        HostTier(max_bytes=1, disk_bytes=2**60),
        HostTier(max_bytes=1, disk_bytes=2**20, disk_folder=tmp_path / "no"),
    ):
        with pytest.raises(ConfigError, match="disk_folder"):
            HostStore(layers, tier)


def test_the_file_on_disk_has_no_name(tmp_path):
    store = HostStore([torch.randn(3, 1, 16, 4)], HostTier(max_bytes=1, disk_bytes=2**20, disk_folder=tmp_path))
    store.copy([PageCopy("out", 1, 0)])
    assert list(tmp_path.iterdir()) == []


@given(st.lists(st.integers(1, 9), min_size=1, max_size=8), st.integers(1, 12))
def test_the_newest_queries_are_kept_over_chunks_and_begin_anew_after_a_gap(chunks, most):
    tails, sent, start = QueryTails({"l": 0}, most), torch.zeros(0, 1, 1), 0
    for length in chunks:
        query = torch.arange(start, start + length).float().view(-1, 1, 1)
        sent = torch.cat([sent, query])
        step = torch.cat([torch.full((2, 1, 1), -1.0), query, torch.full((3, 1, 1), -1.0)])  # other rows beside it
        tails.begin({"r": QueryWindow(start, length)}, ["x", "r", "y"], [0, 2, 2 + length, 5 + length])
        tails.take("l", step)
        tails.take("other layer", step)
        start += length
    assert torch.equal(tails.of("r")[0], sent[-most:])
    tails.begin({"r": QueryWindow(start + 1, 1)}, ["r"], [0, 1])
    tails.take("l", torch.zeros(1, 1, 1))
    assert tails.of("r")[0].shape[0] == 1
    tails.forget("r")
    assert tails.of("r") == {}


@pytest.mark.parametrize(("ranks", "kv_heads"), [(1, 4), (2, 4), (4, 4), (8, 4), (8, 2)])
def test_every_retrieval_head_is_on_the_ranks_that_have_its_query_heads(ranks, kv_heads):
    heads = [RetrievalHead(layer, head) for layer in (0, 3) for head in range(kv_heads)]
    found = [Shard(rank, ranks, kv_heads).local(heads) for rank in range(ranks)]
    assert sum(map(len, found)) == len(heads) * max(ranks // kv_heads, 1)
    if ranks <= kv_heads:
        each = kv_heads // ranks
        assert [[LocalHead(h.layer, h.kv_head % each) for h in heads if h.kv_head // each == rank]
                for rank in range(ranks)] == found  # fmt: skip
    else:
        assert all({head.kv_head for head in local} == {0} for local in found)


def test_ranks_add_their_evidence_and_the_slowest_counts():
    one = TierReport({"r": torch.ones(2).double().numpy()}, 0.5, 0.1)
    two = TierReport({"r": torch.ones(2).double().numpy()}, 0.2, 0.3)
    both = one.added(two)
    assert both.evidence["r"].tolist() == [2.0, 2.0]
    assert (both.copy_seconds, both.evidence_seconds) == (0.5, 0.3)
    assert one.added(TierReport()).evidence == {}, "a rank that measured nothing leaves no evidence"


def test_a_text_is_found_where_it_was_said_last_whatever_its_edges_became():
    history = torch.tensor([9, 1, 2, 3, 4, 5, 9, 8, 1, 2, 3, 4, 5, 7]).numpy()
    assert find_text(history, [1, 2, 3]) == (8, 11)
    assert find_text(history, [77, 1, 2, 3, 4, 78]) == (7, 13)
    assert find_text(history, [3, 3]) is None
    assert find_text(history, list(range(40))) is None
