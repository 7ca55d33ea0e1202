import itertools
import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from memdecay_agents.evaluation.asking import asked_facts, turned
from memdecay_agents.evaluation.cells import agreement
from memdecay_agents.evaluation.outcomes import FactOutcome
from memdecay_agents.evaluation.recall_report import recall_comparisons, recall_table
from memdecay_agents.evaluation.report import EvaluationResult, markdown
from memdecay_agents.evaluation.trace_files import read_traces
from memdecay_agents.evaluation.traces import Question, TokenFact
from memdecay_agents.recall import with_neighbours

# --- neighbours -------------------------------------------------------------------------------


@given(st.dictionaries(st.integers(0, 20), st.floats(0, 9), max_size=12), st.floats(0, 1))
def test_a_page_counts_at_least_a_share_of_its_best_neighbour(by_page, share):
    pages, evidence = np.array(list(by_page), dtype=np.int64), np.array(list(by_page.values()), dtype=np.float64)
    found = with_neighbours(evidence, pages, share)
    for page, value in zip(pages.tolist(), found.tolist(), strict=True):
        assert value == max(by_page[page], *(share * by_page.get(page + step, 0.0) for step in (-1, 1)))
    assert with_neighbours(evidence, pages, 0.0).tolist() == evidence.tolist()


# --- questions --------------------------------------------------------------------------------


def facts(n=7, pinned=2):
    return [
        TokenFact(
            id=f"{'system' if i < pinned else 'user'}/team thing {i}",
            region="system" if i < pinned else "user",
            start=10 * i,
            end=10 * i + 8,
            needed_at=100,
            question=Question(f"\nNote: The team thing {i} is", (f"value{i}", "other"), f"team thing {i}"),
        )
        for i in range(n)
    ]


@pytest.mark.parametrize(
    ("attribute", "expected"),
    [
        ("team mascot", "mascot of the team"),
        ("break room drink", "drink of the break room"),
        ("lender", "lender"),
        ("code name of scene nine", "code name of scene nine"),
        ("hero's drink", "hero's drink"),
    ],
)
def test_attributes_are_turned_where_that_keeps_their_meaning(attribute, expected):
    assert turned(attribute) == expected


def test_each_way_asks_for_every_fact_in_its_own_words():
    verbatim, other = (asked_facts(facts(), way, "seed") for way in ("verbatim", "paraphrased"))
    assert [one.fact for one in verbatim] == [one.fact for one in other] == facts()
    assert [one.question for one in verbatim] == [fact.question for fact in facts()]
    for plain, asked in zip(verbatim, other, strict=True):
        assert asked.question.candidates == plain.question.candidates
        assert plain.question.attribute not in asked.question.stem
        assert turned(plain.question.attribute) in asked.question.stem
    assert other == asked_facts(facts(), "paraphrased", "seed")
    assert asked_facts(facts(), "chat", "seed") == []


def test_several_facts_are_asked_for_in_one_question_and_answered_one_after_another():
    asked = asked_facts(facts(9), "several", "seed")
    assert {one.fact.region for one in asked} == {"user"}
    groups = [list(group) for _, group in itertools.groupby(asked, key=lambda one: one.question.stem)]
    assert [len(group) for group in groups] == [3, 3]  # a fact that is left alone is not asked for
    for group in groups:
        for number, one in enumerate(group):
            assert all(other.question.attribute in one.question.stem for other in group)
            said = [other for other in group if other.question.candidates[0] in one.answered]
            assert said == group[:number]
            assert (one.question.stem + one.answered).endswith(f"{one.question.attribute} is")


def test_questions_of_trace_files_are_kept(tmp_path):
    probe = {"id": "q", "question": "When does it open?", "answers": ["8"], "source": "It opens at 8.", "message": 0}
    row = {"id": "t", "messages": [{"role": "user", "content": "It opens at 8. Fine."}], "probes": [probe]}
    (tmp_path / "own.jsonl").write_text(json.dumps(row))
    (trace,) = read_traces(tmp_path / "own.jsonl")
    assert trace.facts[0].asked_as == "When does it open?"


# --- the report -------------------------------------------------------------------------------


def outcome(policy, tier, right, fact="user/a", budget=0.5, asking="verbatim", trace="t"):
    return FactOutcome(
        "planted", "recall", 450, 1.0 if policy == "full" else budget, policy, policy != "full",
        fact.partition("/")[0], trace, fact, survived=right, correct=right, exact=right, tier=tier, asking=asking,
    )  # fmt: skip


def test_ratios_are_of_the_same_facts_to_the_full_cache():
    made = []
    for number in range(8):
        fact = f"user/{number}"
        made += [
            outcome("full", "off", number < 6, fact),
            outcome("memdecay", "off", number < 2, fact),
            outcome("memdecay", "host", number < 5, fact),
        ]
    made += [outcome("memdecay", tier, True, "user/not asked with the full cache") for tier in ("off", "host")]
    made += [outcome(p, t, True, "system/s", trace=f"t{i}") for p, t in (("full", "off"), ("memdecay", "off")) for i in (0, 1)]  # noqa: E501  # fmt: skip
    made += [outcome("memdecay", "host", i == 0, "system/s", trace=f"t{i}") for i in (0, 1)]
    (found,) = recall_comparisons(made)
    assert (found.full.correct, found.off.correct, found.host.correct, found.host.facts) == (6, 2, 5, 8)
    assert found.correct_ratio == found.exact_ratio == pytest.approx(5 / 6)
    assert found.system_difference.value == -0.5
    table = recall_table(made)
    assert "| planted 450 @ 50% | verbatim | 6/6/6 of 8 | 2/2/2 of 8 | 5/5/5 of 8 | 0.83 | 0.83 |" in markdown(table)
    result = json.loads(json.dumps(EvaluationResult(tuple(made)).as_json()))
    assert result["recall"][0]["host"]["correct"] == 5
    assert {cell["tier"] for cell in result["cells"]} == {"off", "host"}


def test_recall_is_no_part_of_what_other_stages_claim():
    made = [outcome("memdecay", "host", True), outcome("full", "off", True)]
    assert agreement(made) == (0, 0)
    assert EvaluationResult(tuple(made)).as_json()["comparisons"] == []
    assert recall_comparisons(made) == []  # without the same question asked without a tier nothing is compared
    only_survival = [one._replace(correct=None, exact=None) for one in (*made, outcome("memdecay", "off", False))]
    (found,) = recall_comparisons(only_survival)
    assert (found.correct_ratio, found.host.whole, found.off.whole) == (None, 1, 0)
    assert math.isnan(found.system_difference.value)
    assert found.as_json()["system_difference"]["value"] is None
