"""``memdecay explain``: what an agent still holds of a message, page or token, and why."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from memdecay_agents.cli.output import JsonFile, Output
from memdecay_agents.errors import ConfigError

if TYPE_CHECKING:
    from rich.console import Console

    from memdecay_agents.explanation import Explanation, PageExplanation, SessionExplanation


def explain(
    source: Annotated[
        str, typer.Argument(help="A saved explanation, a ledger (JSON Lines), or the address of a server.")
    ],
    session: Annotated[
        str | None, typer.Option(help="A file's: the session's key. A server's: thread, and branch after a '/'.")
    ] = None,
    agent: Annotated[str, typer.Option(help="The agent's path, for a server.")] = "",
    message: Annotated[int | None, typer.Option(help="Place of a message in the prompt; -1: the answer.")] = None,
    page: Annotated[int | None, typer.Option(help="A logical page.")] = None,
    token: Annotated[int | None, typer.Option(help="A token of the session.")] = None,
    api_key: Annotated[
        str | None, typer.Option(envvar="MEMDECAY_API_KEY", help="For a server; also VLLM_API_KEY.", show_envvar=True)
    ] = None,
    json_file: JsonFile = None,
) -> None:
    """Say what is held of a message, page or token, what was freed, when and why, and what would have kept it.

    With none of the three: the whole session. Write files with save_explanation(engine.explain(session), FILE) or
    engine.ledger().to_jsonl(FILE).
    """
    output = Output("explain", json_file)
    asked = {
        name: number for name, number in (("message", message), ("page", page), ("token", token)) if number is not None
    }
    if len(asked) > 1:
        raise ConfigError(
            where=" ".join(f"--{name}" for name in asked), rule="these are several questions", remedy="Ask one."
        )
    found: Explanation | SessionExplanation
    if source.startswith(("http://", "https://")):
        found = _from_server(source, api_key, session, agent, asked)
    else:
        found = _from_file(Path(source), session, asked)
    output.save({"explanation" if asked else "session_explanation": found.model_dump(mode="json")})
    _print(found, output.results)


def _from_file(path: Path, session: str | None, asked: dict[str, int]) -> Explanation | SessionExplanation:
    from memdecay_agents.explanation_file import load_explanation

    whole = load_explanation(path, session)
    return whole.of(**asked) if asked else whole


def _from_server(
    url: str, api_key: str | None, session: str | None, agent: str, asked: dict[str, int]
) -> Explanation | SessionExplanation:
    from memdecay_adapters.remote.remote_engine import RemoteEngine

    with RemoteEngine(url, api_key=api_key or os.environ.get("VLLM_API_KEY") or None) as server:
        if session is None:
            known = ", ".join(f"--session {one.session} --agent {one.agent}" for one in server.sessions()[:5])
            raise ConfigError(
                where="--session",
                rule="a server's sessions are named",
                remedy=f"It has {known}." if known else "It holds no session of this key.",
            )
        return server.explain(session, agent, **asked)


def _print(found: Explanation | SessionExplanation, console: Console) -> None:
    from rich.table import Table
    from rich.text import Text

    from memdecay_agents.explanation import Explanation

    if isinstance(found, Explanation):
        console.print(Text(found.text), soft_wrap=True)
    else:
        held = sum(page.state == "held" for page in found.pages)
        agent = f"agent '{found.agent}', turn {found.turn}"
        console.print(Text(f"{agent}: {held} of {len(found.pages)} pages are held."), soft_wrap=True)
    table = Table(box=None, pad_edge=False)
    for title in ("page", "tokens", "region", "", "score", "made of", "what would have kept it"):
        table.add_column(title, overflow="fold")
    for page in found.pages:
        table.add_row(
            str(page.page),
            f"{page.token_start}-{page.token_end - 1}",
            Text(page.region),
            Text(_state(page)),
            "" if page.score is None else f"{page.score:.3f}",
            Text(_parts(page)),
            Text("; ".join(way.text for way in page.kept_by)),
        )
    console.print(table)


def _state(page: PageExplanation) -> str:
    if page.came_back is not None:
        why = "for a repair" if page.came_back.for_repair else "asked for"
        why = why if page.came_back.evidence is None else f"evidence {page.came_back.evidence:.3g}"
        return f"{page.state}: back from host memory, turn {page.came_back.turn}, {why}"
    if page.freed is not None:
        step = "" if page.freed.step is None else f", step {page.freed.step}"
        clock = f"clock {page.freed.clock_ticks}"
        return f"freed: {page.freed.reason.value}; turn {page.freed.turn}{step}, {clock}"
    if page.state == "held" and page.goes_after is not None:
        return f"held; {page.goes_after} pages would go before it"
    why = "pinned" if page.pinned else "protected" if page.protected else ""
    return f"{page.state}; {why}" if why else page.state


def _parts(page: PageExplanation) -> str:
    named = [f"{name} {value:+.3f}" for name, value in page.parts.items()]
    if page.inside_quota is not None:
        named.append(f"{'inside' if page.inside_quota else 'outside'} its quota {page.quota:+.3f}")
    return ", ".join(named)
