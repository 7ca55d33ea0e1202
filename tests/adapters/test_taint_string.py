"""``TaintedStr`` behaves as ``str`` and never confuses where a character came from."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memdecay_adapters.langchain.regions import Label
from memdecay_adapters.langchain.templates.json_text import tojson
from memdecay_adapters.langchain.templates.origin import Mark, Origin
from memdecay_adapters.langchain.templates.taint import TaintedStr, concat, join, plain, runs_of, tainted

USER = Label("user")
alphabet = st.sampled_from(list("ab \n\t,A%ßΣ{}é\u2028"))
strings = st.text(alphabet, max_size=12)


def numbered(text: str) -> str:
    """A string each of whose characters has its own index as origin."""
    return concat([tainted("", Origin(0, USER)), *(tainted(c, Origin(i, USER)) for i, c in enumerate(text))])


def origins(text: str) -> list[int | None]:
    """Index of each character in the string that it came from; None: from none."""
    entries: list[int | None] = []
    for length, source in runs_of(text):
        entries += [source.entry if isinstance(source, Origin) else None] * length
    return entries


def check(result: Any, expected: Any, source: str) -> None:
    """Equal text, and every character with an origin equals the source's character there."""
    if isinstance(expected, (list, tuple)):
        assert len(result) == len(expected)
        for one, other in zip(result, expected, strict=True):
            check(one, other, source)
        return
    assert plain(result) == expected
    found = origins(result)
    assert len(found) == len(expected)
    known = [i for i in found if i is not None]
    assert known == sorted(known), "order was lost"
    for character, index in zip(expected, found, strict=True):
        assert index is None or source[index] == character


SAME_CHARACTERS = {
    "strip": [(), ("a ",)], "lstrip": [(), ("a ",)], "rstrip": [(), ("a ",)],
    "removeprefix": [("a",), ("ab",)], "removesuffix": [("b",), ("ab",)],
    "split": [(), ("a",), (None, 1), (",", 1), ("ab",)], "rsplit": [(), ("a",), (None, 1), (",", 1)],
    "splitlines": [(), (True,)], "partition": [("a",), ("ab",)], "rpartition": [("a",), (" ",)],
    "replace": [("a", "x"), ("a", ""), ("ab", "yy", 1), ("a", "b", 0)],
    "ljust": [(15,), (15, "*")], "rjust": [(15,), (15, "*")],
}  # fmt: skip


@pytest.mark.parametrize("method", sorted(SAME_CHARACTERS))
@given(text=strings)
def test_methods_keep_text_and_origins(method: str, text: str) -> None:
    for arguments in SAME_CHARACTERS[method]:
        check(getattr(numbered(text), method)(*arguments), getattr(text, method)(*arguments), text)


@pytest.mark.parametrize("method", ["strip", "split", "splitlines", "partition"])
@given(text=strings)
def test_no_character_loses_its_origin_where_all_come_from_the_string(method: str, text: str) -> None:
    arguments = ("a",) if method == "partition" else ()
    result = getattr(numbered(text), method)(*arguments)
    for piece in [result] if isinstance(result, str) else result:
        assert None not in origins(piece)


@given(text=strings, start=st.integers(-14, 14), stop=st.integers(-14, 14), step=st.sampled_from([1, 2]))
def test_slices_and_indices(text: str, start: int, stop: int, step: int) -> None:
    check(numbered(text)[start:stop:step], text[start:stop:step], text)
    assert plain(numbered(text)[::-1]) == text[::-1]
    if -len(text) <= start < len(text):
        check(numbered(text)[start], text[start], text)
    else:
        with pytest.raises(IndexError):
            numbered(text)[start]


def test_a_wrong_index_raises_what_str_raises() -> None:
    with pytest.raises(TypeError):
        tainted("abc", Origin(0, USER))["content"]  # type: ignore[index]


@given(text=strings)
def test_case_keeps_text_and_a_single_origin(text: str) -> None:
    whole = tainted(text, Origin(7, USER))
    for method in ("upper", "lower", "casefold", "swapcase", "capitalize", "title"):
        changed = getattr(whole, method)()
        assert plain(changed) == getattr(text, method)()
        assert set(origins(changed)) <= {7}
        assert plain(getattr(numbered(text), method)()) == getattr(text, method)()
    assert plain(whole.center(15)) == text.center(15)
    assert plain(numbered(text).replace("", "-")) == text.replace("", "-")


@given(parts=st.lists(strings, max_size=4), separator=strings, times=st.integers(0, 3))
def test_joining_keeps_who_wrote_what(parts: list[str], separator: str, times: int) -> None:
    mixed = [tainted(p, Origin(i, USER)) if i % 2 else p for i, p in enumerate(parts)]
    assert plain(join(separator, mixed)) == separator.join(parts)
    assert plain(tainted(separator, Origin(9, USER)).join(mixed)) == separator.join(parts)
    added = concat(mixed)
    assert origins(added) == [i if i % 2 else None for i, p in enumerate(parts) for _ in p]
    assert plain(tainted(separator, Origin(1, USER)) * times) == separator * times
    assert plain("x" + tainted(separator, Origin(1, USER))) == "x" + separator
    assert plain(tainted(separator, Origin(1, USER)) + "x") == separator + "x"


def test_it_is_a_str_for_everyone_else() -> None:
    text = tainted("key", Origin(0, USER))
    assert isinstance(text, str)
    assert str(text) is text
    assert {"key": 1}[text] == 1
    assert text == "key"
    assert "ke" in text
    assert text.startswith("k")
    assert [plain(c) for c in text] == ["k", "e", "y"]
    assert type(plain(text)) is str
    with pytest.raises(TypeError):
        text + 1  # type: ignore[operator]


def test_marks_survive_joining_and_not_cutting() -> None:
    marked = concat(["a", tainted("", Mark("exit", 1)), tainted("b", Origin(0, USER))])
    assert isinstance(marked, TaintedStr)
    assert [source for length, source in runs_of(marked) if not length] == [Mark("exit", 1)]
    assert all(length for length, _ in runs_of(marked.strip("a")))


values = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), strings),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(strings, inner, max_size=3)),
    max_leaves=8,
)


def taint_all(value: Any, number: list[int]) -> Any:
    if isinstance(value, str):
        number[0] += 1
        return tainted(value, Origin(number[0], USER))
    if isinstance(value, dict):
        return {taint_all(k, number): taint_all(v, number) for k, v in value.items()}
    return [taint_all(v, number) for v in value] if isinstance(value, list) else value


@given(
    value=values,
    ascii_only=st.booleans(),
    indent=st.sampled_from([None, 2]),
    sort=st.booleans(),
    separators=st.sampled_from([None, (",", ":")]),
)
def test_tojson_gives_the_text_of_json_dumps(
    value: Any, ascii_only: bool, indent: int | None, sort: bool, separators: Any
) -> None:
    import json

    number = [0]
    text = tojson(taint_all(value, number), ascii_only, indent, separators, sort)
    expected = json.dumps(value, ensure_ascii=ascii_only, indent=indent, separators=separators, sort_keys=sort)
    assert plain(text) == expected
    if number[0]:
        assert {i for i in origins(text) if i is not None} == set(range(1, number[0] + 1))


def test_tojson_keeps_two_origins_of_one_string_apart() -> None:
    text = tojson(concat([tainted('a"', Origin(1, USER)), tainted("\nb", Origin(2, USER))]))
    assert plain(text) == '"a\\"\\nb"'
    assert origins(text) == [1, 1, 1, 1, 2, 2, 2, 2]
