"""How a pydantic complaint becomes one of the product's own errors."""

from __future__ import annotations

from pydantic import ValidationError


def first_problem(error: ValidationError) -> tuple[str, str]:
    """Path of the first field that is wrong ("spans[3][0]", "" for the whole), and what is wrong."""
    problem = error.errors(include_url=False, include_context=False)[0]
    path = ""
    for part in problem["loc"]:
        path += f"[{part}]" if isinstance(part, int) else f".{part}" if path else str(part)
    shown = repr(problem["input"])
    shown = shown if len(shown) <= 80 else shown[:77] + "..."
    message = problem["msg"].removeprefix("Value error, ")
    if problem["type"] == "extra_forbidden":
        return path, "unknown key"
    if problem["type"] == "missing":
        return path, "is missing"
    return path, f"{message[:1].lower()}{message[1:]} (got {shown})"
