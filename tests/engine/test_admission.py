"""Reservations, and who gives way first: the pure parts."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from memdecay_adapters.engine.admission import Admission
from memdecay_adapters.engine.pressure import furthest_first, lowest_first

steps = st.lists(
    st.one_of(
        st.tuples(st.just("ask"), st.integers(0, 9), st.integers(0, 40), st.booleans()),
        st.tuples(st.just("end"), st.integers(0, 9)),
    ),
    max_size=60,
)


@given(steps)
def test_guarantees_never_exceed_the_limit_and_nobody_overtakes(moves):
    admission = Admission(pool_pages=64, chunk_pages=4)
    running, waiting = {}, []
    numbers, pages = {}, {}
    for count, move in enumerate(moves):
        name = f"r{move[1]}"
        if move[0] == "end":
            admission.release(name)
            running.pop(name, None)
            waiting = [other for other in waiting if other != name]
            continue
        if name not in running and name not in waiting:
            numbers[name], pages[name] = count, (move[2], move[3])
        want, guaranteed = pages[name]
        if admission.admit(name, want, numbers[name], guaranteed=guaranteed):
            if name not in running:
                assert not [other for other in waiting if other != name and numbers[other] < numbers[name]]
            running[name] = (want, guaranteed)
            waiting = [other for other in waiting if other != name]
        elif name not in waiting:
            waiting.append(name)
        assert admission.reserved_pages == sum(want for want, _ in running.values())
        assert admission.waiting_requests == len(waiting)
        others = [want for other, (want, _) in running.items() if other != name]
        if (
            name in running
            and guaranteed
            and others
            and sum(others) <= admission.limit_pages < admission.reserved_pages
        ):
            raise AssertionError("a guarantee was given that does not fit")


def test_a_single_request_is_always_admitted_and_plain_ones_only_wait_for_guarantees():
    admission = Admission(pool_pages=64, chunk_pages=4)
    assert admission.limit_pages == 59
    assert admission.admit("plain", 60, 0, guaranteed=False)
    assert admission.admit("plain too", 60, 1, guaranteed=False)
    assert not admission.admit("guaranteed", 10, 2, guaranteed=True)
    admission.release("plain")
    admission.release("plain too")
    assert admission.admit("guaranteed", 10, 2, guaranteed=True)
    assert not admission.admit("plain", 60, 3, guaranteed=False)


scores = st.lists(st.lists(st.floats(-5, 5), max_size=12), max_size=6)


@given(scores, st.integers(0, 40))
def test_the_lowest_heads_are_taken_first(lists, wanted):
    taken = lowest_first(lists, wanted)
    assert sum(taken) == min(wanted, sum(map(len, lists)))
    for at, count in enumerate(taken):
        assert 0 <= count <= len(lists[at])
    # whoever was passed over has a head at least as high as the last page taken from any other list
    for at, count in enumerate(taken):
        if count:
            for other, theirs in enumerate(taken):
                if other != at and theirs < len(lists[other]) and theirs == 0:
                    assert lists[other][0] >= min(lists[at][:count])


@given(st.dictionaries(st.text(min_size=1, max_size=3), st.integers(-5, 30), max_size=8), st.integers(0, 80))
def test_the_furthest_above_come_down_first_and_no_further_than_their_share(surplus, wanted):
    taken = furthest_first(dict(surplus), wanted)
    above = {name: max(pages, 0) for name, pages in surplus.items()}
    assert taken.total() == min(wanted, sum(above.values()))
    left = {name: pages - taken[name] for name, pages in above.items()}
    assert all(pages >= 0 for pages in left.values())
    level = max(left.values(), default=0)
    for name in taken:
        if taken[name]:
            assert left[name] >= level - 1, "someone else was further above"
