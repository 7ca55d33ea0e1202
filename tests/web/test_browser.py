"""The pages in a real browser: they draw the data, nothing runs that names bring, nothing comes from outside."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from memdecay_agents.errors import EngineError
from memdecay_agents.live import EngineSnapshot, LivePage
from memdecay_agents.pictures import write_memory_page
from memdecay_agents.pictures.charts import session_chart
from tests.web.browser import Page, browser
from tests.web.made_up import HOSTILE, history, snapshot

DRAWN = "document.querySelectorAll('svg.chart rect[data-counts]').length > 0"
BOXES = "[...document.querySelectorAll('svg.chart rect[data-counts]')].map((box) => box.dataset.counts)"
MAP = "document.querySelector('svg.chart[aria-label^=Retention]')"
LIVE = "document.querySelectorAll('#agents tbody tr').length === 2"


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    with browser(tmp_path_factory.mktemp("browser")) as tab:
        yield tab


@pytest.fixture(scope="module")
def picture(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_memory_page(history(), tmp_path_factory.mktemp("page") / "page.html", title=HOSTILE).as_uri()


@pytest.fixture(autouse=True)
def nothing_runs_and_nothing_comes_from_outside(page: Page) -> Iterator[None]:
    page.problems.clear()
    page.dialogs.clear()
    page.requests.clear()
    page.look()
    yield
    page.settle()
    assert (page.problems, page.dialogs) == ([], [])
    outside = [url for url in page.requests if not url.startswith(("file:///", "http://127.0.0.1:", "data:"))]
    assert outside == []


@contextmanager
def live_page(page: Page, source: Callable[[], EngineSnapshot], **options: Any) -> Iterator[LivePage]:
    """A live page's server; the tab leaves it first, or it would ask a server that is gone."""
    with LivePage(source, **options) as live:
        yield live
        page.open("about:blank")


def boxes(page: Page) -> list[tuple[int, ...]]:
    page.settle()
    return sorted(tuple(int(part) for part in box.split()) for box in page.run(BOXES))


def test_every_page_is_drawn_as_the_chart_says(page: Page, picture: str) -> None:
    page.open(picture, DRAWN)
    chart = session_chart(history().sessions[0])
    wanted = [(row.first_page, *step) for row in chart.rows for step in row.steps]
    assert boxes(page) == sorted(wanted)
    assert len(wanted) == 40 + 12 + 2, "forty pages, twelve of which left, one to the host and back"
    marks = page.run(f"{MAP}.querySelector('path.marks').getAttribute('d')")
    assert marks.count("l5 5") == 13
    assert marks.count("v6") == 1
    assert page.run("document.querySelector('h1').textContent") == HOSTILE


def test_a_region_can_be_switched_off_and_on(page: Page, picture: str) -> None:
    page.open(picture, DRAWN)
    every = boxes(page)
    button = "[...document.querySelectorAll('button')].find((one) => one.textContent === 'user')"
    page.run(f"{button}.click()")
    assert {box[0] for box in boxes(page)} == {0, 1, *range(20, 40)}
    assert page.run(f"{button}.getAttribute('aria-pressed')") == "false"
    areas = page.run("[...document.querySelectorAll('path[data-region]')].map((area) => area.dataset.region)")
    assert areas == ["system", "tool_out"]
    page.run(f"{button}.click()")
    assert boxes(page) == every


def test_hovering_tells_state_and_score(page: Page, picture: str) -> None:
    page.open(picture, DRAWN)
    place = "((box) => [box.x + 58, box.y + 8, box.width - 68, box.height - 48])"
    x, y, width, height = page.run(f"{place}({MAP}.getBoundingClientRect())")

    def hover(at: float, token: float) -> str:
        page.mouse("mouseMoved", x + width * at / 640, y + height * token / 640)
        page.until("!document.getElementById('tip').hidden")
        return str(page.run("document.getElementById('tip').textContent"))

    assert hover(600, 5 * 16 + 8).splitlines()[:2] == ["user, page 5, tokens 80 to 95", "at 600: evicted"]
    assert "left at 400, turn 1: over_budget, score 0.5000" in hover(400, 5 * 16 + 8)
    assert hover(610, 17 * 16 + 8).splitlines()[1] == "at 610: on the host"
    assert "came back at 624" in hover(624, 17 * 16 + 8)
    assert hover(100, 38 * 16 + 8).splitlines()[1] == "not computed yet"


def test_zoom_by_button_key_and_wheel_and_back(page: Page, picture: str) -> None:
    page.open(picture, DRAWN)
    whole = boxes(page)
    x, y = page.run(f"((box) => [box.x + 300, box.y + 100])({MAP}.getBoundingClientRect())")
    page.run("document.querySelector('button[aria-label=\"zoom in\"]').click()")
    once = boxes(page)
    page.run(f"{MAP}.dispatchEvent(new KeyboardEvent('keydown', {{key: '+', bubbles: true}}))")
    twice = boxes(page)
    page.mouse("mouseWheel", x, y, deltaX=0, deltaY=-120, modifiers=2)
    thrice = boxes(page)
    assert len(whole) > len(once) > len(twice) > len(thrice) > 0
    page.run("document.querySelector('button[aria-label=\"reset the zoom\"]').click()")
    assert boxes(page) == whole


def test_another_session_can_be_chosen(page: Page, picture: str) -> None:
    page.open(picture, DRAWN)
    page.run(
        "((list) => { list.value = '1'; list.dispatchEvent(new Event('change')); })(document.querySelector('select'))"
    )
    assert boxes(page) == [(0, 0, 16, 1, 0, 0)]
    assert HOSTILE in page.run("document.querySelector('h2').textContent")


@pytest.mark.parametrize("width", [1200, 380])
@pytest.mark.parametrize("dark", [False, True])
def test_both_pages_fit_and_follow_the_readers_scheme(page: Page, picture: str, width: int, dark: bool) -> None:
    page.look(width=width, dark=dark)
    with live_page(page, snapshot) as live:
        for url, ready in ((picture, DRAWN), (live.url, LIVE)):
            page.open(url, ready)
            page.settle()
            assert page.run("document.documentElement.scrollWidth <= innerWidth"), "the page itself does not scroll"
            ground = page.run("getComputedStyle(document.body).backgroundColor")
            assert ground == ("rgb(22, 24, 28)" if dark else "rgb(255, 255, 255)")


def test_the_live_page_shows_the_snapshot_and_says_when_there_is_no_news(page: Page) -> None:
    gone = False

    def source():
        if gone:
            raise EngineError(where="engine", rule="it is closed", remedy="Start it.")
        return snapshot()

    with live_page(page, source) as live:
        page.open(live.url, LIVE)
        rows = page.run(
            "[...document.querySelectorAll('#agents tbody tr')].map((row) => [...row.cells].map((c) => c.innerText))"
        )
        assert rows[0][:3] + rows[0][4:] == ["clerk", "1", "0", "9", "12", "75 %", "4", "2.5"]
        assert [rows[1][0], rows[1][5]] == [HOSTILE, "none"]
        widths = page.run(
            "[...document.querySelector('#agents svg.regions').querySelectorAll('rect')]"
            ".map((box) => [box.dataset.region, Number(box.getAttribute('width'))])"
        )
        assert widths == [["system", 2 / 12 * 240], ["user", 7 / 12 * 240]]
        assert page.run("document.title") == "memdecay: live"
        gone = True
        page.until("!document.getElementById('problem').hidden")
        assert "engine: it is closed" in page.run("document.getElementById('problem').textContent")
        gone = False
        page.until("document.getElementById('problem').hidden")
    page.problems.clear()  # the browser itself notes the answers with status 503


def test_a_token_lets_the_browser_in_and_leaves_the_address(page: Page) -> None:
    with live_page(page, snapshot, token="a-token-of-some-length") as live:
        page.open(live.address)
        assert "needs its token" in page.run("document.body.innerText")
        page.problems.clear()  # the browser notes the 401
        page.open(live.url, LIVE)
        assert page.run("location.href") == live.address
        assert page.run("document.cookie") == "", "no script can read it"


def test_pictures_for_people_to_look_at(page: Page, picture: str, tmp_path: Path) -> None:
    sizes = set()
    page.open(picture, DRAWN)
    for vision in ("none", "deuteranopia", "achromatopsia"):
        page.look(vision=vision)
        sizes.add(page.picture(tmp_path / f"{vision}.png").read_bytes())
    assert len(sizes) == 3
