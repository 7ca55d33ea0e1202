"""What the ranks of a tensor-parallel engine must agree on, and where their threads run."""

from __future__ import annotations

import copy
import os

import pytest
import torch

from memdecay_adapters.engine.step_messages import AttentionReport, MassReport
from memdecay_adapters.engine.worker_processes import environment_of_workers
from memdecay_agents.errors import IntegrityError
from memdecay_agents.ledger import EvictionReason, LedgerEntry
from tests.engine.plans import plan_difference

pytestmark = pytest.mark.engine


def entry(page, computed_tokens, score):
    return LedgerEntry(
        session="s", agent="a", turn=0, request_id="r", page=page, token_start=16 * page, token_end=16 * page + 16,
        regions={"user": 16}, region="user", pinned=False, clock_ticks=0, computed_tokens=computed_tokens,
        score=score, parts={}, order_position=0, reason=EvictionReason.over_budget,
    )  # fmt: skip


def test_plans_may_differ_between_pages_of_equal_score_and_nowhere_else():
    plan = [entry(3, 128, 0.5), entry(4, 128, 0.500004), entry(7, 256, 0.9)]
    assert plan_difference(plan, copy.deepcopy(plan)) is None
    assert plan_difference(plan, [entry(4, 128, 0.500004), entry(3, 128, 0.5), plan[2]]) is None
    assert plan_difference(plan, [*plan[:2], entry(7, 256, 0.8)]) is None, "the page counts, not its score"
    for planted, difference in [
        ([*plan[:2], entry(8, 256, 0.90002)], "page 7 of score 0.9 and page 8"),
        ([*plan[:2], entry(8, 256, 0.2)], "page 7 of score 0.9 and page 8"),
        ([*plan[:2], entry(8, 256, float("nan"))], "page 7 of score 0.9 and page 8"),
        ([*plan[:2], entry(7, 272, 0.9)], "after 256 tokens and after 272"),
        (plan[:2], "3 evictions and 2"),
    ]:
        assert difference in plan_difference(plan, planted)
        assert plan_difference(planted, plan) is not None


def report(**by_request):
    return AttentionReport(
        {name: MassReport(torch.tensor(index), torch.tensor(mass)) for name, (index, mass) in by_request.items()}
    )


def test_ranks_that_measure_different_things_stop_the_engine():
    whole = report(a=([0, 1], [0.25, 0.75])).aggregate(report(a=([0, 1], [0.5, 0.5])))
    assert whole.by_request["a"].mass.tolist() == [0.75, 1.25]
    whole.check_ranks(2)
    with pytest.raises(IntegrityError, match="2 of 3 measured"):
        whole.check_ranks(3)
    with pytest.raises(IntegrityError, match="different tokens of request 'a'"):
        report(a=([0, 1], [0.5, 0.5])).aggregate(report(a=([0, 2], [0.5, 0.5])))
    with pytest.raises(IntegrityError, match="another"):
        report(a=([0], [1.0])).aggregate(report(b=([0], [1.0])))


def test_workers_start_with_threads_unbound_unless_the_user_says_otherwise(monkeypatch):
    monkeypatch.setenv("VLLM_CPU_OMP_THREADS_BIND", "0|1")
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    with environment_of_workers(2):
        assert os.environ["VLLM_CPU_OMP_THREADS_BIND"] == "0|1"
        assert int(os.environ["OMP_NUM_THREADS"]) == max(len(os.sched_getaffinity(0)) // 2, 1)
    assert "OMP_NUM_THREADS" not in os.environ
    monkeypatch.delenv("VLLM_CPU_OMP_THREADS_BIND")
    with environment_of_workers(1):
        assert "VLLM_CPU_OMP_THREADS_BIND" not in os.environ
    with environment_of_workers(2):
        assert os.environ["VLLM_CPU_OMP_THREADS_BIND"] == "nobind"
    assert "VLLM_CPU_OMP_THREADS_BIND" not in os.environ
