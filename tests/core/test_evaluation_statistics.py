"""Intervals, cells, comparisons, reports."""

import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from memdecay_agents.evaluation.cells import agreement, cells_of, compare, full_cache_difference, mentions, places
from memdecay_agents.evaluation.figures import write_figures
from memdecay_agents.evaluation.outcomes import FactOutcome
from memdecay_agents.evaluation.report import (
    EvaluationResult,
    comparison_table,
    markdown,
    mean_ratio,
    published_table,
    survival_table,
)
from memdecay_agents.evaluation.statistics import bootstrap, paired_difference, proportion

CELL_KEYS = {
    "source", "stage", "length", "budget", "policy", "pinned", "region", "facts", "survived", "probes", "correct",
    "degenerate", "tier", "asking", "exact", "survived_interval", "correct_interval", "exact_interval",
}  # fmt: skip


def outcome(policy, survived, *, trace="t", fact="f", region="user", budget=0.5, stage="replay", **more):
    pinned = more.pop("pinned", policy != "full")
    return FactOutcome("planted", stage, 450, budget, policy, pinned, region, trace, fact, survived, **more)


def study(ours, theirs, stage="replay", **more):
    made = []
    for number, (a, b) in enumerate(zip(ours, theirs, strict=True)):
        place = {"trace": f"t{number // 4}", "fact": f"f{number}", "stage": stage, **more}
        made += [outcome("memdecay", a, **place), outcome("recency", b, **place), outcome("random", False, **place)]
    return made


@pytest.mark.parametrize(("k", "n", "low", "high"), [(0, 10, 0.0, 0.2775), (5, 10, 0.2366, 0.7634), (24, 24, 0.862, 1)])
def test_wilsons_interval(k, n, low, high):
    interval = proportion(k, n)
    assert interval.value == k / n
    assert interval.low == pytest.approx(low, abs=1e-3)
    assert interval.high == pytest.approx(high, abs=1e-3)


@given(st.integers(1, 200), st.data())
def test_an_interval_holds_its_value(n, data):
    low, value, high = (lambda i: (i.low, i.value, i.high))(proportion(data.draw(st.integers(0, n)), n))
    assert 0.0 <= low <= value + 1e-12
    assert value - 1e-12 <= high <= 1.0


def test_resampling_knows_the_spread_of_a_mean():
    values = np.random.default_rng(0).normal(3.0, 1.0, 400)
    interval = bootstrap(400, lambda drawn: float(values[drawn].mean()))
    assert interval.value == pytest.approx(values.mean())
    assert interval.high - interval.low == pytest.approx(2 * 1.96 / 20, rel=0.15)


def test_pairs_are_compared_fact_by_fact_and_resampled_by_trace():
    ours = {(f"t{n % 6}", f"f{n}"): True for n in range(24)}
    same = paired_difference(ours, dict(ours))
    assert (same.value, same.low, same.high) == (0.0, 0.0, 0.0)
    theirs = {key: key[0] in ("t0", "t1", "t2") for key in ours}
    interval = paired_difference(ours, theirs)
    assert interval.value == 0.5
    assert 0.0 <= interval.low < 0.5 < interval.high <= 1.0
    assert interval.high - interval.low > 0.5  # six traces, not 24 facts
    assert math.isnan(paired_difference(ours, {}).value)


def test_cells_count_what_survived_and_what_was_right():
    outcomes = [
        outcome("memdecay", True, fact="a", stage="verify", correct=True),
        outcome("memdecay", False, fact="b", stage="verify", correct=False),
        outcome("memdecay", True, fact="c", stage="replay", degenerate=True),
    ]
    replay, verify = (cell.as_json() for cell in cells_of(outcomes))
    assert set(replay) == set(verify) == CELL_KEYS
    assert (replay["facts"], replay["survived"], replay["probes"], replay["degenerate"]) == (1, 1, 0, True)
    assert (verify["facts"], verify["survived"], verify["probes"], verify["correct"]) == (2, 1, 2, 1)
    half = pytest.approx(proportion(1, 2)[1:], abs=1e-4)
    assert (verify["survived_interval"], verify["correct_interval"]) == (half, half)
    assert replay["correct_interval"] is replay["exact_interval"] is None


def test_facts_that_are_mentioned_again_are_counted_beside_the_others():
    outcomes = [
        outcome("memdecay", True, fact="a", mentioned_again=True),
        outcome("memdecay", False, fact="b", mentioned_again=True),
        outcome("memdecay", True, fact="c"),
        outcome("memdecay", True, fact="d", region="system", mentioned_again=True),
        outcome("full", True, fact="a", budget=1.0, mentioned_again=True),
        outcome("recency", True, fact="a"),
    ]
    assert [row.as_json() for row in mentions(outcomes)] == [
        {
            "stage": "replay", "source": "planted", "length": 450, "budget": 0.5, "policy": "memdecay", "pinned": True,
            "mentioned_survived": 1, "mentioned": 2, "others_survived": 1, "others": 1,
        }
    ]  # fmt: skip


def test_the_best_baseline_with_pins_is_the_one_to_beat():
    (comparison,) = compare(study([True] * 8, [True] * 4 + [False] * 4), "replay")
    assert (comparison.best, comparison.ours, comparison.theirs, comparison.ratio) == ("recency", 1.0, 0.5, 2.0)
    assert comparison.difference.value == 0.5
    assert mean_ratio([comparison]).value == 2.0


def test_system_facts_and_unpinned_baselines_are_no_part_of_the_comparison():
    outcomes = study([True] * 4, [False] * 4)
    outcomes += [outcome("recency", True, fact=f"f{n}", trace="t0", pinned=False) for n in range(4)]
    outcomes += [outcome("recency", True, fact=f"s{n}", trace="t0", region="system") for n in range(4)]
    (comparison,) = compare(outcomes, "replay")
    assert comparison.theirs == 0.0
    assert comparison.ratio == math.inf


def test_degenerate_places_are_reported_and_left_out_of_claims():
    outcomes = study([True] * 4, [False] * 4, degenerate=True)
    assert places(outcomes, "replay") == []
    assert len(places(outcomes, "replay", degenerate=True)) == 1
    assert compare(outcomes, "replay") == []
    titles, rows = survival_table(outcomes, "replay")
    assert titles[1].endswith("*")
    assert ["memdecay", "-; 4/4"] in rows


def test_replay_and_verification_agree_on_the_facts_that_both_saw():
    outcomes = study([True, True, False, False], [True] * 4)
    outcomes += study([True, False, False, False], [True] * 4, "verify")
    outcomes.append(outcome("memdecay", True, fact="only here", stage="verify"))
    assert agreement(outcomes) == (11, 12)
    assert EvaluationResult(tuple(outcomes)).replay_agreement == 11 / 12
    assert EvaluationResult(tuple(outcomes[:12])).replay_agreement is None


def test_right_answers_about_the_system_are_compared_with_the_full_cache():
    ask = {"stage": "verify", "region": "system"}
    outcomes = [
        outcome("full", True, fact=f"f{n}", trace=f"t{n}", budget=1.0, correct=n < 3, **ask) for n in range(4)
    ] + [outcome("memdecay", True, fact=f"f{n}", trace=f"t{n}", correct=n < 2, **ask) for n in range(4)]
    (interval,) = full_cache_difference(outcomes).values()
    assert interval.value == -0.25


def test_what_was_published_stands_beside_what_is_right_here():
    ask = {"stage": "verify", "region": "system"}
    outcomes = [outcome("paper", True, fact=f"f{n}", correct=n < 3, **ask) for n in range(4)]
    outcomes += [outcome("recency", False, fact=f"f{n}", pinned=False, correct=False, **ask) for n in range(4)]
    _, rows = published_table(outcomes)
    assert rows == [["system, paper", "21-24 of 24", "3 of 4"], ["system, recency", "0-2 of 24", "0 of 4"]]


def test_the_result_as_json_tables_and_figures(tmp_path):
    outcomes = (*study([True] * 8, [False] * 8), *study([True] * 8, [False] * 8, "verify", correct=True))
    result = EvaluationResult(outcomes, {"model": "m", "factorisation": "16 probes"}, ("one",))
    made = json.loads(json.dumps(result.as_json()))
    assert (made["schema_version"], made["page_size_tokens"], made["replay_agreement"]) == (1, 16, 1.0)
    assert made["comparisons"][0]["ratio"] is None  # infinite is no JSON
    assert len(made["cells"]) == 6
    text = markdown(comparison_table(outcomes, "replay"))
    assert len({line.count("|") for line in text.splitlines()}) == 1
    png, page = write_figures(result, tmp_path)
    assert png.read_bytes().startswith(b"\x89PNG")
    assert "http" not in page.read_text().replace("http://www.w3.org", "")
    empty = EvaluationResult(outcomes[:24]).as_json()
    assert empty["replay_agreement"] is None
    assert empty["replay_agreement_reason"]
