import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from memdecay_agents.calibration import ProfileFile
from memdecay_agents.config import MemDecayConfig
from memdecay_agents.errors import ConfigError, TraceError
from memdecay_agents.recall import RetrievalHead, RetrievalHeads
from memdecay_agents.recall.choosing import AskedPages, choose_heads, rank_of, recall_at

FOUND = RetrievalHeads(
    model="m", fingerprint=None, heads=(RetrievalHead(5, 1),), recall_at={4: 0.9},
    page_size_tokens=16, query_tokens=16, questions=9,
)  # fmt: skip


def questions(knows, n=40, heads=10, pages=30, seed=0):
    """Noise in which head ``h`` looks at the right page of question ``q`` where ``knows(h, q)``."""
    numbers = np.random.default_rng(seed)
    made = []
    for number in range(n):
        evidence, gold = 0.1 * numbers.random((heads, pages)), int(numbers.integers(pages - 1))
        for head in range(heads):
            evidence[head, gold] += knows(head, number)
        made.append(AskedPages(evidence, gold, (gold, gold + 1)))
    return made


@given(st.permutations(range(10)), st.integers(0, 99))
def test_heads_that_know_are_found_wherever_they_are(order, seed):
    asked = questions(lambda head, _: order[head] < 2, seed=seed)
    assert {order[head] for head in choose_heads(asked)} >= {0, 1}


def test_heads_that_complete_each_other_are_preferred_to_the_best_alone():
    # 0 and 1 know the same two thirds, 2 the last third
    asked = questions(lambda head, number: {0: number % 3 < 2, 1: number % 3 < 2, 2: number % 3 == 2}.get(head, 0))
    assert 2 in choose_heads(asked)
    assert recall_at(asked, choose_heads(asked), (1, 2)) != recall_at(asked, (0, 1), (1, 2))
    alone = [AskedPages(one.evidence, one.value_page, (one.value_page,)) for one in asked]
    assert recall_at(alone, choose_heads(asked), (1,)) == {1: 1.0}
    assert recall_at(asked, choose_heads(asked), (1,)) == {1: 0.0}  # the fact's second page is never the first


def test_pages_that_cannot_be_told_apart_are_no_find():
    assert rank_of(np.array([0.5, 0.5, 0.1]), 0) == 2
    assert rank_of(np.zeros(7), 3) == 7
    with pytest.raises(TraceError, match="no questions"):
        choose_heads([])


def test_a_profile_holds_heads_beside_half_lives_or_alone(tmp_path):
    path = tmp_path / "profile.yaml"
    ProfileFile(model="m", clock_unit="tokens", retrieval_heads=FOUND).save(path)
    assert ProfileFile.load(path).retrieval_heads == FOUND
    assert MemDecayConfig.from_profile(path, default_budget_tokens=512) == MemDecayConfig(default_budget_tokens=512)
    with pytest.raises(ConfigError, match="no half-lives"):
        ProfileFile.load(path).nearest(512)
    path.write_text("schema: memdecay-profile\nversion: 1\nmodel: m\nclock_unit: tokens\n")
    with pytest.raises(ConfigError, match="neither"):
        ProfileFile.load(path)
