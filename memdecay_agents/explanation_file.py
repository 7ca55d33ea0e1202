"""Explanations in files: one that was saved whole (JSON), or the entries of a ledger (JSON Lines)."""

from __future__ import annotations

import json
from pathlib import Path

from pydantic import ValidationError

from memdecay_agents._validation import first_problem
from memdecay_agents.errors import ExplainError
from memdecay_agents.explaining import explain_entries
from memdecay_agents.explanation import SessionExplanation
from memdecay_agents.ledger_entry import read_jsonl


def save_explanation(explanation: SessionExplanation, path: str | Path) -> None:
    """Write it as JSON."""
    Path(path).write_text(explanation.model_dump_json(indent=1) + "\n", encoding="utf-8")


def load_explanation(path: str | Path, session: str | None = None) -> SessionExplanation:
    """Read what `save_explanation` or `Ledger.to_jsonl` wrote.

    Args:
        path: the file.
        session: key of the session; None: the only one.

    Raises:
        ExplainError: it cannot be read, or knows no such session.
        LedgerFileError: a line of a ledger is no entry.
    """
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise _error(path, f"it cannot be read: {error}") from error
    if not _is_explanation(text):
        return explain_entries(read_jsonl(path), session)
    try:
        found = SessionExplanation.model_validate_json(text)
    except ValidationError as error:
        field, problem = first_problem(error)
        raise _error(f"{path}, field {field}" if field else path, problem) from None
    if session not in (None, found.session):
        raise _error(path, f"it is about session {found.session!r}, not {session!r}")
    return found


def _is_explanation(text: str) -> bool:
    try:
        whole = json.loads(text)
    except ValueError:
        return False
    return isinstance(whole, dict) and "session" in whole and "order_position" not in whole


def _error(where: object, rule: str) -> ExplainError:
    return ExplainError(
        where=str(where),
        rule=rule,
        remedy="Give a file of save_explanation(engine.explain(...), FILE) or engine.ledger().to_jsonl(FILE).",
    )
