import itertools
import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from memdecay_agents.errors import ConfigError, ObservationError
from memdecay_agents.recall import (
    RetrievalHead,
    RetrievalHeads,
    model_fingerprint,
    page_evidence,
    plan_swap,
    shipped_heads,
)

# --- evidence ---------------------------------------------------------------------------------


@st.composite
def cases(draw, most_pages=6):
    """Queries, keys, valid and a scale; logits from small to far beyond what exp() can hold."""
    window, selected, group, dim = (draw(st.integers(1, most)) for most in (4, 3, 3, 8))
    pages, page = draw(st.integers(1, most_pages)), draw(st.integers(1, 5))
    numbers = np.random.default_rng(draw(st.integers(0, 2**32)))
    spread = draw(st.sampled_from([0.1, 1.0, 10.0, 100.0]))
    queries = (spread * numbers.standard_normal((window, selected, group, dim))).astype(np.float32)
    keys = (spread * numbers.standard_normal((pages, page, selected, dim))).astype(np.float32)
    valid = numbers.random((pages, page)) < draw(st.sampled_from([0.3, 0.9, 1.0]))
    return queries, keys, valid, draw(st.sampled_from([0.125, 1.0]))


def evidence_by_hand(queries, keys, valid, scale):
    """The definition, one query head and token at a time, in double precision."""
    found = np.zeros(len(keys))
    if not valid.any():
        return found
    for head in range(queries.shape[1]):
        for member in range(queries.shape[2]):
            best = np.zeros(len(keys))
            for query in queries[:, head, member].astype(float):
                logits = np.where(valid, keys[:, :, head].astype(float) @ query * scale, -np.inf)
                weights = np.exp(logits - logits.max())
                best = np.maximum(best, (weights / weights.sum()).sum(1))
            found += best
    return found


@given(cases())
def test_evidence_is_the_best_mass_of_each_query_head(case):
    found = page_evidence(*case)
    assert found.dtype == np.float64
    logits = np.abs(case[0]).max() * np.abs(case[1]).max() * case[0].shape[-1] * case[3]
    assert np.allclose(found, evidence_by_hand(*case), rtol=1e-4 + 1e-6 * logits, atol=1e-6 + 1e-7 * logits)
    heads = case[0].shape[1] * case[0].shape[2]
    assert (found >= 0).all()
    assert (found <= heads * (1 + 1e-5)).all()
    assert found.sum() >= heads * (1 - 1e-5) or not case[2].any()


@given(cases(), st.data())
def test_the_order_of_pages_and_tokens_that_do_not_exist_change_nothing(case, data):
    queries, keys, valid, scale = case
    found = page_evidence(*case)
    order = np.array(data.draw(st.permutations(range(len(keys)))))
    assert np.allclose(page_evidence(queries, keys[order], valid[order], scale), found[order], rtol=1e-4, atol=1e-9)
    garbage = data.draw(st.sampled_from([np.nan, np.inf, -np.inf, 3e38]))
    littered = np.where(valid[..., None, None], keys, np.float32(garbage))
    assert np.array_equal(page_evidence(queries, littered, valid, scale), found)
    more = page_evidence(queries, np.append(keys, keys[:1], 0), np.append(valid, np.zeros_like(valid[:1]), 0), scale)
    assert more[-1] == 0.0
    assert np.allclose(more[:-1], found, rtol=1e-5)


@given(cases(), st.integers(1, 4))
def test_more_query_tokens_never_lower_the_evidence(case, first):
    queries, keys, valid, scale = case
    assert (page_evidence(*case) >= page_evidence(queries[-first:], keys, valid, scale) - 1e-6).all()


def test_faint_pages_keep_an_order():
    queries = np.ones((1, 1, 1, 1), dtype=np.float32)
    keys = np.array([0.0, 150.0, 30.0, 300.0], dtype=np.float32).reshape(4, 1, 1, 1)
    found = page_evidence(queries, keys, np.ones((4, 1), dtype=bool), 1.0)
    assert np.argsort(found).tolist() == [0, 2, 1, 3]
    assert len(set(found.tolist())) == 4


def test_what_cannot_be_scored_is_refused():
    queries, keys, valid = np.ones((2, 1, 3, 4), np.float32), np.ones((5, 2, 1, 4), np.float32), np.ones((5, 2), bool)
    assert page_evidence(queries, keys, valid, 1.0).sum() == pytest.approx(3)
    for bad in (
        (queries[0], keys, valid),
        (queries, keys[:4], valid),
        (queries[..., :3], keys, valid),
        (queries, keys.repeat(2, 2), valid),
        (queries.astype(np.float16), keys, valid),
        (queries, keys, valid.astype(int)),
        (queries * np.float32(np.nan), keys, valid),
    ):
        with pytest.raises(ObservationError):
            page_evidence(*bad, 1.0)
    assert page_evidence(queries, keys[:0], valid[:0], 1.0).shape == (0,)


# --- swaps ------------------------------------------------------------------------------------

masses = st.lists(st.sampled_from([0.0, 0.1, 0.2, 0.5, 0.9, 1.3]), max_size=5).map(lambda v: np.array(v, dtype=float))


@given(masses, masses, st.integers(0, 6), st.integers(0, 3))
def test_no_swap_of_so_many_pages_leaves_more_evidence(host, retained, most, free):
    plan = plan_swap(host, retained, most, free_pages=free)
    coming, going = plan.bring_in.tolist(), plan.send_out.tolist()
    assert len(set(coming)) == len(coming) <= most
    assert len(set(going)) == len(going) <= len(coming) <= len(going) + free
    here = retained.sum() - retained[going].sum() + host[coming].sum()
    best = retained.sum()
    for n_in in range(min(most, len(host)) + 1):
        for n_out in range(min(n_in, len(retained)) + 1):
            if n_in - n_out <= free:
                for inn in itertools.combinations(range(len(host)), n_in):
                    for out in itertools.combinations(range(len(retained)), n_out):
                        best = max(best, retained.sum() - retained[list(out)].sum() + host[list(inn)].sum())
    assert here == pytest.approx(best)
    # nothing moves for nothing: each victim gives way to something strictly better, the best against the worst
    swapped = coming[len(coming) - len(going) :]
    assert all(host[i] > retained[j] for i, j in zip(swapped, going, strict=True))
    assert host[coming].tolist() == sorted(host[coming], reverse=True)
    assert retained[going].tolist() == sorted(retained[going])


@given(masses, masses, st.floats(0, 2), st.integers(0, 2))
def test_what_has_too_little_evidence_stays_away_and_nothing_else_changes(host, retained, least, free):
    plan = plan_swap(host, retained, 4, least_evidence=least, free_pages=free)
    free_plan = plan_swap(host, retained, 4, free_pages=free)
    coming = [index for index in free_plan.bring_in.tolist() if host[index] >= least]
    assert plan.bring_in.tolist() == coming
    assert plan.send_out.tolist() == free_plan.send_out.tolist()[: plan.send_out.size]
    assert len(coming) - plan.send_out.size <= free


@given(masses, masses, st.integers(0, 6), st.integers(0, 3), st.integers(0, 31))
def test_pages_that_go_last_make_room_only_where_no_other_does(host, retained, most, free, marks):
    last = np.array([bool(marks >> position & 1) for position in range(retained.size)], dtype=np.bool_)
    plan = plan_swap(host, retained, most, free_pages=free, last=last)
    first = plan_swap(host, retained[~last], most, free_pages=free)
    going, early = plan.send_out.tolist(), first.bring_in.size
    assert plan.bring_in.tolist()[:early] == first.bring_in.tolist()
    assert [index for index in going if not last[index]] == np.flatnonzero(~last)[first.send_out].tolist()
    rest = np.delete(host, first.bring_in)
    more = plan_swap(rest, retained[last], most - early)
    assert plan.bring_in.size == early + more.bring_in.size
    assert [index for index in going if last[index]] == np.flatnonzero(last)[more.send_out].tolist()


def test_equal_pages_stay_where_they_are_and_bad_numbers_are_refused():
    same = np.full(3, 0.5)
    assert plan_swap(same, same, 2).bring_in.size == 0
    plan = plan_swap(np.array([0.6, 0.7, 0.7]), same, 2)
    assert (plan.bring_in.tolist(), plan.send_out.tolist()) == ([1, 2], [0, 1])
    for bad in ({"max_pages": -1}, {"max_pages": 1, "least_evidence": -0.1}, {"max_pages": 1, "free_pages": -1}):
        with pytest.raises(ConfigError, match="negative"):
            plan_swap(same, same, **bad)


# --- heads ------------------------------------------------------------------------------------

FOUND = RetrievalHeads(
    model="m",
    fingerprint="f" * 64,
    heads=(RetrievalHead(15, 2), RetrievalHead(3, 1), RetrievalHead(15, 0)),
    recall_at={4: 0.97, 1: 0.8},
    page_size_tokens=16,
    query_tokens=16,
    questions=100,
)


def test_heads_come_back_from_a_file(tmp_path):
    FOUND.save(tmp_path / "new" / "heads.json")
    assert RetrievalHeads.load(tmp_path / "new" / "heads.json") == FOUND
    assert FOUND.layers == (3, 15)
    assert list(FOUND.recall_at) == [1, 4]


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"version": 2}, "version"),
        ({"heads": []}, "heads"),
        ({"heads": [{"layer": 1, "kv_head": 0}] * 2}, "named twice"),
        ({"heads": [{"layer": -1, "kv_head": 0}]}, "layer"),
        ({"heads": [{"layer": 1, "kv_head": 0, "head": 3}]}, "head"),
        ({"recall_at": {"4": 1.5}}, "share"),
        ({"unknown": 1}, "unknown key"),
    ],
)
def test_files_that_are_none_are_refused_by_field(tmp_path, change, problem):
    path = tmp_path / "heads.json"
    path.write_text(json.dumps({**FOUND.model_dump(mode="json"), **change}))
    with pytest.raises(ConfigError, match=problem):
        RetrievalHeads.load(path)
    path.write_text("{")
    with pytest.raises(ConfigError, match="calibrate --heads"):
        RetrievalHeads.load(path)


def checkpoint(folder, tensors):
    """A safetensors file by hand: header, then the bytes."""
    folder.mkdir(exist_ok=True)
    for name, content in tensors.items():
        header, data, at = {"__metadata__": {"by": name}}, b"", 0
        for tensor, value in content.items():
            raw = np.asarray(value, dtype=np.float32).tobytes()
            header[tensor] = {"dtype": "F32", "shape": [len(value)], "data_offsets": [at, at + len(raw)]}
            data, at = data + raw, at + len(raw)
        text = json.dumps(header).encode()
        (folder / name).write_bytes(len(text).to_bytes(8, "little") + text + data)
    return folder


def test_a_fingerprint_is_of_the_weights_however_they_are_spread(tmp_path):
    one = checkpoint(tmp_path / "one", {"model.safetensors": {"a": [1, 2], "b": [3]}})
    two = checkpoint(tmp_path / "two", {"x.safetensors": {"b": [3]}, "y.safetensors": {"a": [1, 2]}})
    other = checkpoint(tmp_path / "other", {"model.safetensors": {"a": [1, 2], "b": [4]}})
    assert model_fingerprint(one) == model_fingerprint(two) != model_fingerprint(other)
    (other / "model.safetensors").write_bytes(b"short")
    assert model_fingerprint(other) is None
    assert model_fingerprint(tmp_path) is None
    assert shipped_heads(str(one)) is None
    assert shipped_heads("nobody/knows-it") is None
