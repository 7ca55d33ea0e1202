"""Our parameters in the bodies of vLLM's own routes: checked, and narrowed to the client's tenant.

A body without them passes as it is, but for a salt that keeps tenants out of each other's cached prefixes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

from memdecay_adapters.server.limits import ServerLimits
from memdecay_adapters.server.tenants import OPEN_TENANT
from memdecay_agents.errors import PayloadError
from memdecay_agents.hints import EXTRA_ARGS_KEY

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
HINT_ROUTES = frozenset({CHAT, COMPLETIONS})
"""vLLM's routes that take our parameters."""

SALTED_ROUTES = HINT_ROUTES | {"/v1/responses", "/v1/messages"}
"""vLLM's routes whose bodies can carry a ``cache_salt``."""

_TRANSFER = "kv_transfer_params"
_CARRIERS = (_TRANSFER, "ec_transfer_params")
_ALONE = ("n", "best_of")
_RENDERS_ANEW = ("echo", "truncate_prompt_tokens", "suffix", "prompt_embeds", "use_beam_search")


def check_stock_body(path: str, body: dict[str, Any], tenant: str, limits: ServerLimits) -> dict[str, Any]:
    """The body that vLLM may see.

    Args:
        path: of the route.
        body: the parsed body.
        tenant: whose request it is.
        limits: of this server.

    Raises:
        PayloadError: parameters of vLLM's that would move KV pages, or ours where they have no meaning.
        MemDecayError: see `ServerLimits.check_hints`.
    """
    checked = dict(body)
    _refuse_side_doors(checked)
    transfer = checked.pop(_TRANSFER, None)
    if transfer is not None:
        if path not in HINT_ROUTES:
            raise _error(_TRANSFER, f"{path} takes no parameters of memdecay", f"Use {CHAT} or {COMPLETIONS}.")
        checked[_TRANSFER] = _check_transfer(path, checked, transfer, tenant, limits)
    if tenant != OPEN_TENANT and checked.get("previous_response_id") is not None:
        raise _error("previous_response_id", "stored responses have no tenant", "Send the conversation itself.")
    if tenant != OPEN_TENANT and path in SALTED_ROUTES:
        checked["cache_salt"] = _salt(tenant, checked.get("cache_salt"))
    return checked


def _check_transfer(
    path: str, body: Mapping[str, Any], transfer: object, tenant: str, limits: ServerLimits
) -> dict[str, Any]:
    if not isinstance(transfer, dict):
        raise _error(_TRANSFER, f"should be an object (got {type(transfer).__name__})", 'Send {"memdecay": {...}}.')
    for key in transfer:
        if key not in (EXTRA_ARGS_KEY, "prompt_token_ids"):
            raise _error(
                f"{_TRANSFER}.{key[:80]}", "unknown key", 'Known are "memdecay" and "prompt_token_ids": no pages move.'
            )
    for name in (*_ALONE, *_RENDERS_ANEW):
        if body.get(name) not in (None, False, 1 if name in _ALONE else None):
            raise _error(name, f"cannot be combined with {_TRANSFER}", "Send a request of its own for it.")
    given = transfer.get("prompt_token_ids")
    if path == COMPLETIONS:
        if given is not None:
            raise _error(
                f"{_TRANSFER}.prompt_token_ids", f"{COMPLETIONS} has a field for it", 'Send the ids as "prompt".'
            )
        token_ids = _completion_ids(body.get("prompt"), limits)
    else:
        where = f"{_TRANSFER}.prompt_token_ids"
        token_ids = None if given is None else limits.check_ids(given, where)
    checked: dict[str, Any] = {} if given is None else {"prompt_token_ids": token_ids}
    if EXTRA_ARGS_KEY in transfer:
        hints = limits.check_hints(transfer[EXTRA_ARGS_KEY], tenant, token_ids, _max_tokens(body))
        checked.update(hints.to_extra_args())
    return checked


def _completion_ids(prompt: object, limits: ServerLimits) -> list[int] | None:
    """The prompt where it is ids, None where it is a text."""
    if isinstance(prompt, str):
        return None
    if isinstance(prompt, list) and prompt and not isinstance(prompt[0], int):
        raise _error("prompt", "several prompts cannot share the parameters of one", "Send a request for each.")
    return limits.check_ids(prompt, "prompt")


def _max_tokens(body: Mapping[str, Any]) -> int | None:
    for name in ("max_completion_tokens", "max_tokens"):
        value = body.get(name)
        if value is not None:
            if type(value) is not int or value < 1:
                raise _error(name, f"should be a whole number above 0 (got {value!r:.40})", "Correct it.")
            return value
    return None


def _refuse_side_doors(body: Mapping[str, Any]) -> None:
    """Hints have one way in; others would lead past the checks, and past the tenant."""
    if body.get("ec_transfer_params") is not None:
        raise _error("ec_transfer_params", "this server moves nothing between engines", "Leave it out.")
    holders = {"vllm_xargs": body.get("vllm_xargs"), "sampling_params": body.get("sampling_params")}
    sampling = holders["sampling_params"]
    if isinstance(sampling, Mapping):
        holders["sampling_params.extra_args"] = sampling.get("extra_args")
    for where, holder in holders.items():
        if isinstance(holder, Mapping):
            for key in (EXTRA_ARGS_KEY, *_CARRIERS):
                if key in holder:
                    remedy = f'Send hints in {_TRANSFER}: {{"memdecay": {{...}}}}.'
                    raise _error(f"{where}.{key}", "hints are not read here", remedy)


def _salt(tenant: str, own: object) -> str:
    """A salt of the tenant's own, in which a salt of the client's still makes a difference."""
    if own is None:
        return tenant
    if not isinstance(own, str) or not 1 <= len(own) <= 128:
        raise _error("cache_salt", f"should be a text of 1 to 128 characters (got {own!r:.40})", "Correct it.")
    return f"{tenant}-{hashlib.sha256(own.encode()).hexdigest()[:32]}"


def _error(where: str, rule: str, remedy: str) -> PayloadError:
    return PayloadError(where=where, rule=rule, remedy=remedy)
