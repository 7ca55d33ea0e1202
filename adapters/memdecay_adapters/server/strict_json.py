"""JSON that nothing downstream can stumble over.

Python's parser takes NaN, numbers without end and lone surrogates, which break samplers, message packing and
tokenizers further down. Here they are refused, and what is passed on is written anew from what was read: a reader
with other ideas about repeated keys sees the same values.
"""

from __future__ import annotations

import json
import math
from typing import Any, NoReturn

from memdecay_agents.errors import PayloadError

MAX_BODY_BYTES = 16 * 2**20
"""Size of one request, at most."""

MAX_DEPTH = 64
"""Lists and objects inside each other, at most; schemas of tools stay far below it."""

_LEAST_INTEGER, _MOST_INTEGER = -(2**63), 2**64 - 1


def parse_json(body: bytes) -> Any:
    """Read a body.

    Raises:
        PayloadError: no JSON, NaN or an infinity, an integer beyond 64 bits, a text that is no Unicode, or nested
            deeper than ``MAX_DEPTH``.
    """
    try:
        parsed = json.loads(body, parse_int=_integer, parse_float=_finite, parse_constant=_no_constant)
    except RecursionError:
        raise _error(f"it is nested deeper than {MAX_DEPTH} levels") from None
    except ValueError as error:  # also a JSONDecodeError and a UnicodeDecodeError
        raise _error(f"it is no JSON: {error}") from None
    if _is_deeper(parsed, MAX_DEPTH):
        raise _error(f"it is nested deeper than {MAX_DEPTH} levels")
    return parsed


def dump_json(value: Any) -> bytes:
    """Write plain data as a body.

    Raises:
        PayloadError: a text with a lone surrogate.
    """
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()
    except UnicodeEncodeError as error:
        raise _error(f"a text holds half of a surrogate pair ({error.reason})") from None


def parse_object(body: bytes) -> dict[str, Any]:
    """Read a body that must be an object, and check its texts.

    Raises:
        PayloadError: see `parse_json` and `dump_json`; or no object.
    """
    parsed = parse_json(body)
    if not isinstance(parsed, dict):
        raise _error(f"it is a {type(parsed).__name__}, no object")
    if b"\\u" in body or b"\\U" in body:
        dump_json(parsed)
    return parsed


def _integer(digits: str) -> int:
    if len(digits) > 20 or not _LEAST_INTEGER <= (value := int(digits)) <= _MOST_INTEGER:
        raise ValueError(f"an integer of {len(digits)} digits is beyond 64 bits")
    return value


def _finite(digits: str) -> float:
    value = float(digits)
    if not math.isfinite(value):
        raise ValueError(f"a number of {len(digits)} digits is beyond double precision")
    return value


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON")


def _is_deeper(value: Any, levels: int) -> bool:
    layer = [value] if isinstance(value, (dict, list)) else []
    for _ in range(levels):
        if not layer:
            return False
        below = (item.values() if isinstance(item, dict) else item for item in layer)
        layer = [child for children in below for child in children if isinstance(child, (dict, list))]
    return bool(layer)


def _error(rule: str) -> PayloadError:
    return PayloadError(where="request body", rule=rule, remedy="Send UTF-8 JSON, an object, as the route expects.")
