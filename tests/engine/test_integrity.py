"""The invariant checks on plain blocks: each fault that they exist for is caught, and a sound pool passes."""

from __future__ import annotations

import random
from dataclasses import dataclass

import pytest

from memdecay_adapters.engine.integrity import check_rows_against_pool, check_worker_rows
from memdecay_agents.errors import IntegrityError

TOTAL = 12


@dataclass
class FakeBlock:
    block_id: int
    ref_cnt: int = 0
    is_null: bool = False


class Pool:
    """Twelve blocks: 0 is null, `a` owns 1-3 and a hole, `b` owns 3 (shared) and 4, the rest is free."""

    def __init__(self) -> None:
        self.blocks = [FakeBlock(i) for i in range(TOTAL)]
        null = self.blocks[0]
        null.is_null, null.ref_cnt = True, 5
        self.rows = {
            "a": [self.blocks[3], null, self.blocks[1], self.blocks[2]],
            "b": [self.blocks[3], self.blocks[4]],
        }
        for row in self.rows.values():
            for block in row:
                block.ref_cnt += not block.is_null
        self.free = self.blocks[5:]

    def check(self) -> None:
        check_rows_against_pool(self.rows, self.free, TOTAL)


def test_a_sound_pool_passes_in_any_order_of_its_free_list():
    pool = Pool()
    pool.check()
    random.Random(0).shuffle(pool.free)
    pool.check()


def test_a_live_row_that_points_at_a_free_block_is_caught():
    pool = Pool()
    pool.blocks[1].ref_cnt = 0
    pool.free.append(pool.blocks[1])
    with pytest.raises(IntegrityError, match=r"'a'.*points at block 1, which is free"):
        pool.check()


def test_a_block_that_stands_twice_in_the_free_list_is_caught():
    pool = Pool()
    pool.free.append(pool.blocks[7])
    with pytest.raises(IntegrityError, match=r"block 7.*freed twice"):
        pool.check()


def test_a_free_block_that_was_freed_once_too_often_is_caught():
    pool = Pool()
    pool.blocks[7].ref_cnt = -1  # vLLM's pool counts down and says nothing
    with pytest.raises(IntegrityError, match="block 7"):
        pool.check()


@pytest.mark.parametrize("count", [1, 3])
def test_a_shared_block_with_a_wrong_reference_count_is_caught(count):
    pool = Pool()
    pool.blocks[3].ref_cnt = count
    with pytest.raises(IntegrityError, match=r"block 3.*2 live rows"):
        pool.check()


def test_a_lost_block_is_caught():
    pool = Pool()
    pool.free.remove(pool.blocks[9])
    with pytest.raises(IntegrityError, match="6 free"):
        pool.check()


def test_worker_rows_equal_to_the_schedulers_pass_also_when_they_are_shorter():
    check_worker_rows({"a": [4, 0, 6], "b": [2]}, {"a": [4, 0], "b": [2]})


@pytest.mark.parametrize(
    ("actual", "message"),
    [
        ({"a": [4, 5, 6]}, r"'a', page 1.*block 5.*block 0.*stale"),
        ({"a": [4, 0, 7]}, r"'a', page 2.*block 7"),
        ({"a": [4, 0, 6, 9]}, r"'a', page 3.*block 9"),
        ({"c": [1]}, r"'c'.*did not schedule"),
    ],
)
def test_worker_rows_that_differ_are_caught(actual, message):
    with pytest.raises(IntegrityError, match=message):
        check_worker_rows({"a": [4, 0, 6]}, actual)
