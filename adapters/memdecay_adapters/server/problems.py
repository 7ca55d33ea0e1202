"""Errors as HTTP answers, in the form that OpenAI's clients read, and back into errors on the client's side."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from memdecay_agents.errors import MemDecayError, RemoteError

BAD_REQUEST, FORBIDDEN, TOO_LARGE, FAULT = 400, 403, 413, 500

_TYPES = {BAD_REQUEST: "BadRequestError", FORBIDDEN: "PermissionDeniedError", TOO_LARGE: "RequestTooLargeError"}


def problem_body(error: MemDecayError, status: int = BAD_REQUEST) -> dict[str, Any]:
    """The body that tells a client what is wrong with its request.

    ``error`` is OpenAI's; its ``memdecay`` holds the parts of our own error, from which `error_of` makes it anew.
    """
    return {
        "error": {
            "message": str(error),
            "type": _TYPES.get(status, "InternalServerError"),
            "param": error.where,
            "code": status,
            "memdecay": {"code": error.code, "where": error.where, "rule": error.rule, "remedy": error.remedy},
        }
    }


def error_of(body: object, where: str, status: int | None = None) -> MemDecayError:
    """The error that a server's answer tells of.

    Args:
        body: the parsed answer, whatever it is.
        where: the server and route, for the error.
        status: HTTP status; None: the answer came on a stream.

    Returns:
        The server's own error where it is one of ours, else a `RemoteError`.
    """
    told = body.get("error") if isinstance(body, Mapping) else None
    ours = told.get("memdecay") if isinstance(told, Mapping) else None
    if isinstance(ours, Mapping):
        kinds = {kind.code: kind for kind in _kinds(MemDecayError)}
        kind = kinds.get(str(ours.get("code")), RemoteError)
        return kind(**{part: str(ours.get(part, "")) for part in ("where", "rule", "remedy")})
    message = told.get("message") if isinstance(told, Mapping) else told
    said = f": {message}" if message else ""
    if status in (401, 403):
        return RemoteError(
            where=where, rule=f"it refuses the API key{said}", remedy="Give a key that it knows: api_key=."
        )
    how = f"answered with HTTP {status}" if status is not None else "broke off"
    return RemoteError(where=where, rule=f"it {how}{said}", remedy="Look into the server's log.")


def _kinds(kind: type[MemDecayError]) -> Iterator[type[MemDecayError]]:
    """The error classes of the product itself, not those that other packages derive."""
    yield kind
    for derived in kind.__subclasses__():
        if derived.__module__ == MemDecayError.__module__:
            yield from _kinds(derived)
