"""`memdecay top` and `memdecay picture`, over real HTTP; the server's snapshot route keeps to the key's own tenant."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest

from memdecay_adapters.commands import top as command
from memdecay_adapters.engine.core_methods import SNAPSHOT as CORE_SNAPSHOT
from memdecay_adapters.engine.live_tallies import MAX_TALLIES, WINDOW_SECONDS, LiveTallies
from memdecay_adapters.server import backend as backend_module
from memdecay_adapters.server.tenants import OPEN_TENANT
from memdecay_adapters.server.wire import SNAPSHOT
from memdecay_agents import Ledger
from memdecay_agents.cli.program import Program, main
from memdecay_agents.live import EngineSnapshot, LivePage
from memdecay_agents.pictures import MemoryHistory
from tests.server.fake_server import FakeBackend, fake_app, serving
from tests.server.live import entry_points_beside, environment
from tests.web.made_up import history, snapshot

KEYS = ("key-of-one", "key-of-two")


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    import typer

    from memdecay_adapters.commands.picture import picture

    app = typer.Typer(cls=Program, pretty_exceptions_enable=False)

    @app.callback()
    def options(debug: bool = False) -> None:
        """As the program has them."""

    app.command("top")(command.top)
    app.command("picture")(picture)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("memdecay_agents.cli.program.build_app", lambda: app)
        with pytest.raises(SystemExit) as ended:
            main(list(arguments))
    shown = capsys.readouterr()
    return int(ended.value.code or 0), shown.out, shown.err


# ---- the route


def test_the_route_asks_the_core_for_the_keys_own_tenant_only() -> None:
    backend = FakeBackend()
    with serving(fake_app(backend, KEYS)) as url:
        answers = [
            httpx.get(f"{url}{SNAPSHOT}", headers={"Authorization": f"Bearer {key}"}) for key in (*KEYS, KEYS[0])
        ]
    tenants = [answer.json()["tenant"] for answer in answers]
    assert tenants[0] == tenants[2] != tenants[1]
    assert all(tenant.startswith("key-") for tenant in tenants)
    assert answers[0].headers["cache-control"] == "no-store"


async def test_on_an_open_server_everybody_is_one_tenant_and_sees_all() -> None:
    asked: list[Any] = []

    class Client:
        async def call(self, method: str, tenant: str | None) -> dict[str, Any]:
            asked.append((method, tenant))
            return {"policy": "memdecay", "model": ""}

    fake = Client()
    fake.info = {"model": "m"}  # type: ignore[attr-defined]
    taken = await backend_module.Backend.snapshot(fake, OPEN_TENANT)  # type: ignore[arg-type]
    await backend_module.Backend.snapshot(fake, "key-1")  # type: ignore[arg-type]
    assert asked == [(CORE_SNAPSHOT, None), (CORE_SNAPSHOT, "key-1")]
    assert taken["model"] == "m"


# ---- the tallies behind it


def test_rates_are_of_the_last_seconds_and_totals_of_all() -> None:
    now = [100.0]
    tallies = LiveTallies(lambda: now[0])
    for second in range(30):
        now[0] = 100.0 + second
        tallies.step("t", "a", 20, 2)
    now[0] = 129.5
    flow = tallies.flow(tallies.total_of("t"))
    assert (flow.computed_tokens, flow.generated_tokens) == (600, 60)
    assert flow.computed_tokens_per_second == pytest.approx(WINDOW_SECONDS * 20 / 9.5, abs=1e-3)
    assert tallies.flow(tallies.total) == flow
    now[0] = 150.0
    assert tallies.flow(tallies.total).computed_tokens_per_second == 0.0
    assert tallies.uptime_seconds == 50.0


def test_agents_of_one_name_are_one_for_the_engine_and_apart_by_tenant() -> None:
    tallies = LiveTallies(lambda: 5.0)
    tallies.step("t", "a", 5, 1)
    tallies.step("u", "a", 7, 1)
    tallies.evicted("t", "a", [])
    assert tallies.of_tenant("t")["a"].computed_tokens == 5
    assert tallies.of_tenant(None)["a"].computed_tokens == 12
    assert tallies.total_of("u").computed_tokens == 7
    for number in range(MAX_TALLIES + 5):
        tallies.step("t", f"agent {number}", 1, 0)
    assert len(tallies.of_tenant("t")) + len(tallies.of_tenant("u")) == MAX_TALLIES
    assert tallies.total.computed_tokens == 12 + MAX_TALLIES + 5


# ---- the commands


def test_once_as_table_and_as_json(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    with LivePage(snapshot) as page:
        code, out, _ = run(capsys, "top", "--url", page.url, "--once", "--json", "-")
        assert (code, EngineSnapshot.model_validate_json(out)) == (0, snapshot())
        lines = tmp_path / "lines.json"
        assert run(capsys, "top", "--url", page.url, "--once", "--json", str(lines))[0] == 0
        assert EngineSnapshot.model_validate_json(lines.read_text()) == snapshot()
        assert run(capsys, "top", "--url", page.url, "--once", "--json", str(tmp_path / "no" / "file"))[0] == 2
        code, out, _ = run(capsys, "top", "--url", page.address, "--once")
        assert code == 0
        assert "12 held of 64" in out


def test_a_pages_own_address_a_file_and_the_environment_bring_the_key(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    token = "a-token-of-some-length"
    file = tmp_path / "key"
    file.write_text(f"{token}\n")
    with LivePage(snapshot, token=token) as page:
        asking = ("top", "--once", "--json", "-", "--url")
        assert run(capsys, *asking, page.url)[0] == 0
        code, _, err = run(capsys, *asking, page.address)
        assert code == 5
        assert "refuses the API key" in err
        assert run(capsys, *asking, page.address, "--api-key-file", str(file))[0] == 0
        monkeypatch.setenv(command.KEY_VARIABLE, token)
        assert run(capsys, *asking, page.address)[0] == 0
        assert token not in err


@pytest.mark.parametrize(
    ("arguments", "code", "told"),
    [
        (("--url", "ftp://somewhere"), 2, "no HTTP address"),
        (("--url", "http://127.0.0.1:9/"), 5, "cannot be reached"),
        (("--web", "--once"), 2, "Leave one out"),
        (("--api-key-file", "no-such-file"), 2, "cannot be read"),
    ],
)
def test_mistakes_are_told_in_a_line(
    capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], code: int, told: str
) -> None:
    ended, _, err = run(capsys, "top", *arguments, *(() if "--once" in arguments else ("--once",)))
    assert ended == code
    assert told in err
    assert "Traceback" not in err


def test_the_page_of_another_server_is_served_until_it_is_stopped(tmp_path: Path) -> None:
    arguments = [sys.executable, "-m", "memdecay_agents", "top", "--web", "--json", "-", "--url"]
    path = environment(entry_points_beside(tmp_path / "entry-points"))
    with LivePage(snapshot, token="a-token-of-some-length") as page:
        served = subprocess.Popen(
            [*arguments, page.url], env=path, stdout=subprocess.PIPE, text=True, preexec_fn=heed_interrupts
        )
        try:
            assert served.stdout is not None
            url = json.loads(served.stdout.readline())["url"]
            assert EngineSnapshot.model_validate_json(httpx.get(f"{url}snapshot.json").text) == snapshot()
            assert "a-token-of-some-length" not in url, "the engine's token stays with the server of the page"
            os.kill(served.pid, signal.SIGINT)
            assert served.wait(timeout=60) == 0
        finally:
            served.kill()


def heed_interrupts() -> None:
    """Before a program starts: where a shell runs the tests in the background SIGINT is ignored, which is inherited."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def test_a_picture_of_an_export_and_of_a_ledger(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    export = history().save(tmp_path / "export.json")
    code, out, err = run(capsys, "picture", str(export), "--json", "-", "--agent", "clerk")
    assert code == 0, err
    told = json.loads(out)
    assert Path(told["png_file"]).read_bytes().startswith(b"\x89PNG")
    assert "clerk" in Path(told["html_file"]).read_text()
    (session,) = told["sessions"]
    assert (session["agent"], session["pages"], session["pages_left"]) == ("clerk", 40, 13)
    assert session["budget_tokens"] == 448
    assert session["tokens_held_at_end"] == 28 * 16
    ledger = tmp_path / "ledger.jsonl"
    Ledger().to_jsonl(ledger)
    code, _, err = run(capsys, "picture", str(ledger), "--png", str(tmp_path / "a.png"))
    assert (code, "no session to draw" in err) == (2, True)
    code, _, err = run(capsys, "picture", str(tmp_path / "none.jsonl"))
    assert code == 2
    assert MemoryHistory.load(export) == history()
