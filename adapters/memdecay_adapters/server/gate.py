"""What a request may ask, decided before vLLM sees it. Pure: no I/O, no vLLM.

    path, body, tenant  ->  the body that is passed on, or an error with its HTTP status

Nothing that could end the engine core gets past: the core never reads what was not checked here.
"""

from __future__ import annotations

from typing import NamedTuple

from memdecay_adapters.server.limits import ServerLimits
from memdecay_adapters.server.stock_bodies import HINT_ROUTES, SALTED_ROUTES, check_stock_body
from memdecay_adapters.server.strict_json import dump_json, parse_object
from memdecay_adapters.server.wire import GENERATE, PREFIX, SamplingBody, read_call
from memdecay_agents.errors import MemDecayError, PayloadError
from memdecay_agents.hints import RequestHints

READING_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
"""Methods that have no body and change nothing."""

STORED_RESPONSES = "/v1/responses/"
"""Prefix of routes that fetch what an earlier request left behind."""


class CheckedCall(NamedTuple):
    """A call of ``/v1/memdecay/generate`` that this server can serve."""

    prompt_token_ids: list[int]
    sampling: SamplingBody
    hints: RequestHints
    """Its tenant is the client's."""


def refuse_route(method: str, path: str, has_keys: bool) -> MemDecayError | None:
    """Why a route is closed to a client; None: it is open.

    vLLM asks for a key under /v1 and a few more prefixes only, and some of its other routes run the model. Where
    there are keys, what has no tenant is closed, except for reading; stored responses have none either.
    """
    if not has_keys:
        return None
    if method in READING_METHODS and not path.startswith(STORED_RESPONSES):
        return None
    if path.startswith(f"{PREFIX}/") or path in SALTED_ROUTES:
        return None
    return PayloadError(
        where=f"{method} {path[:200]}",
        rule="this server has API keys, and here requests cannot be told apart by tenant",
        remedy=f"Use {', '.join(sorted(SALTED_ROUTES))} or {GENERATE}, or start a server without keys for yourself.",
    )


def check_body(path: str, body: bytes, tenant: str, limits: ServerLimits) -> bytes:
    """The body of a request to one of vLLM's own routes as it is passed on.

    Args:
        path: of the route, without the server's root path.
        body: as it came.
        tenant: whose request it is.
        limits: of this server.

    Raises:
        MemDecayError: what is wrong with it; the status is 400.
    """
    if not body and path not in HINT_ROUTES:
        return body
    return dump_json(check_stock_body(path, parse_object(body), tenant, limits))


def check_call(body: bytes, tenant: str, limits: ServerLimits) -> CheckedCall:
    """Read and check the body of ``/v1/memdecay/generate``.

    Raises:
        MemDecayError: what is wrong with it; the status is 400.
    """
    parsed = parse_object(body)
    dump_json(parsed)  # its texts go to a tokenizer and over a socket
    call = read_call(parsed)
    ids = limits.check_ids(call.prompt_token_ids, "prompt_token_ids")
    sampling = call.sampling
    if sampling.logprobs is not None and sampling.logprobs > limits.max_logprobs:
        raise PayloadError(
            where="sampling.logprobs",
            rule=f"{sampling.logprobs} alternatives, at most {limits.max_logprobs}",
            remedy="Ask for fewer, or start the server with a higher --max-logprobs.",
        )
    if (sampling.min_tokens or 0) > sampling.max_tokens:
        raise PayloadError(where="sampling.min_tokens", rule="above max_tokens", remedy="Lower it.")
    named = [int(key) for key in sampling.logit_bias or ()] + list(sampling.stop_token_ids or ())
    if named and max(named) >= limits.vocabulary:
        raise PayloadError(
            where="sampling",
            rule=f"token id {max(named)} in logit_bias or stop_token_ids; the model has {limits.vocabulary}",
            remedy="Name tokens of this model.",
        )
    return CheckedCall(ids, sampling, limits.check_hints(call.hints, tenant, ids, sampling.max_tokens))
