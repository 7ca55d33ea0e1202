"""Reading what pictures are drawn from: a ledger file or a session export, whichever a file is."""

from __future__ import annotations

import json
from pathlib import Path

from memdecay_agents.config import MemDecayConfig
from memdecay_agents.errors import ConfigError, LedgerFileError
from memdecay_agents.ledger_entry import read_jsonl
from memdecay_agents.pictures.history import MemoryHistory, history_of_ledger


def load_history(
    path: str | Path, config: MemDecayConfig | None = None, *, budget_tokens: int | None = None
) -> MemoryHistory:
    """Read a ledger (``Ledger.to_jsonl``, JSON Lines) or a session export (``MemoryHistory.save``).

    Args:
        path: the file.
        config: for a ledger: what the priorities were.
        budget_tokens: for a ledger: the budget of its sessions.

    Raises:
        LedgerFileError: it is neither; the line or field is named.
        ConfigError: the file cannot be read.
    """
    try:
        with Path(path).open(encoding="utf-8") as file:
            first = next((line for line in file if line.strip()), "")
        if _is_history(first):
            return MemoryHistory.load(path)
        return history_of_ledger(read_jsonl(path), config, budget_tokens=budget_tokens)
    except UnicodeDecodeError:
        raise LedgerFileError(
            where=str(path), rule="it is no text", remedy="Give a ledger (JSON Lines) or a session export (JSON)."
        ) from None
    except OSError as error:
        raise ConfigError(
            where=str(path), rule=f"it cannot be read: {error.strerror}", remedy="Give a file that is there."
        ) from error


def only_agents(history: MemoryHistory, agents: list[str]) -> MemoryHistory:
    """A history of these agents' sessions alone; no agents: all of it.

    Raises:
        ConfigError: an agent that has no session in it.
    """
    known = {session.agent for session in history.sessions}
    if missing := sorted(set(agents) - known):
        raise ConfigError(
            where=f"agent {missing[0]!r}",
            rule="it has no session in this file",
            remedy=f"Name one of {', '.join(sorted(known)[:20]) or '(none)'}.",
        )
    if not agents:
        return history
    return history.model_copy(
        update={"sessions": tuple(session for session in history.sessions if session.agent in agents)}
    )


def _is_history(first_line: str) -> bool:
    if len(first_line) > 1_000_000:
        return True  # a whole export on one line; a ledger's entries are short
    try:
        value = json.loads(first_line)
    except ValueError:
        return first_line.strip() == "{"
    return isinstance(value, dict) and "sessions" in value
