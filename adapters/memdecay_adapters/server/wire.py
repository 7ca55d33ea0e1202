"""The form of ``POST /v1/memdecay/generate``: ids and hints in, text and ids and a retention summary out.

    -> {"prompt_token_ids": [...], "sampling": {"max_tokens": 64, ...}, "hints": {"session": ..., "spans": ...}}
    <- data: {"text": "...", "token_ids": [...], "logprobs": null}       server-sent events, one for each engine step
    <- data: {"finished": {"finish_reason": "stop", ..., "retention": {...}}}

Imports no vLLM: the client reads and writes this, too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from memdecay_agents._validation import first_problem
from memdecay_agents.errors import PayloadError

PROTOCOL = 2
"""Version of this form; `/v1/memdecay/info` names the server's."""

PREFIX = "/v1/memdecay"
INFO, GENERATE, SESSIONS = f"{PREFIX}/info", f"{PREFIX}/generate", f"{PREFIX}/sessions"
SNAPSHOT = f"{PREFIX}/snapshot"
EXPLAIN = f"{PREFIX}/explain"
"""GET, read only; its query: session, agent, and one of message, page and token, or none of them."""

LEAST_LOGPROB = -9999.0
"""What a log-probability of minus infinity is written as, for JSON has none."""

_MOST = 2**31 - 1
_Count = Annotated[int, Field(ge=0, le=_MOST)]
_Text = Annotated[str, Field(min_length=1, max_length=4096)]
_Texts = Annotated[tuple[_Text, ...], Field(max_length=64)]
_Finite = Annotated[float, Field(allow_inf_nan=False, ge=-1000.0, le=1000.0)]


class SamplingBody(BaseModel):
    """How to sample, by vLLM's names; None: vLLM's default."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    max_tokens: Annotated[int, Field(ge=1, le=_MOST)]
    """Most tokens of the answer."""
    min_tokens: _Count | None = None
    temperature: Annotated[_Finite, Field(ge=0)] | None = None
    top_p: Annotated[_Finite, Field(gt=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=-1, le=_MOST)] | None = None
    min_p: Annotated[_Finite, Field(ge=0, le=1)] | None = None
    seed: Annotated[int, Field(ge=-(2**63), le=2**63 - 1)] | None = None
    stop: _Texts | None = None
    stop_token_ids: Annotated[tuple[_Count, ...], Field(max_length=1024)] | None = None
    bad_words: _Texts | None = None
    presence_penalty: Annotated[_Finite, Field(ge=-2, le=2)] | None = None
    frequency_penalty: Annotated[_Finite, Field(ge=-2, le=2)] | None = None
    repetition_penalty: Annotated[_Finite, Field(gt=0)] | None = None
    logit_bias: Annotated[dict[str, _Finite], Field(max_length=1024)] | None = None
    """Added to a token's logit, by its id in decimal digits."""
    logprobs: _Count | None = None
    """Alternatives per token."""
    ignore_eos: bool | None = None
    skip_special_tokens: bool | None = None
    spaces_between_special_tokens: bool | None = None
    structural_tag: Annotated[str, Field(max_length=2**18)] | None = None
    """Grammar of the answer, an xgrammar structural tag as JSON."""

    @field_validator("stop", "stop_token_ids", "bad_words", mode="before")
    @classmethod
    def _as_tuple(cls, value: Any) -> Any:
        return tuple(value) if isinstance(value, list) else value

    @field_validator("logit_bias")
    @classmethod
    def _token_ids(cls, bias: dict[str, float] | None) -> dict[str, float] | None:
        for key in bias or ():
            if not (key.isascii() and key.isdigit() and len(key) <= 10):
                raise ValueError(f"its keys are token ids in decimal digits, not {key[:20]!r}")
        return bias


class GenerateCall(NamedTuple):
    """A request of this form, its fields not yet checked against a server."""

    prompt_token_ids: object
    sampling: SamplingBody
    hints: object


def read_call(body: Mapping[str, Any]) -> GenerateCall:
    """Read the three fields of a parsed body.

    Raises:
        PayloadError: a missing or unknown field, or sampling that does not hold; the field is named.
    """
    wanted = {"prompt_token_ids", "sampling", "hints"}
    if unknown := sorted(set(body) - wanted):
        raise _error(unknown[0][:80], "unknown key")
    if missing := sorted(wanted - set(body)):
        raise _error(missing[0], "is missing")
    try:
        sampling = SamplingBody.model_validate(body["sampling"])
    except ValidationError as error:
        path, problem = first_problem(error)
        raise _error(f"sampling.{path}" if path else "sampling", problem) from None
    return GenerateCall(body["prompt_token_ids"], sampling, body["hints"])


def chunk_event(text: str, token_ids: Sequence[int], logprobs: Sequence[Mapping[int, Any]] | None) -> dict[str, Any]:
    """What one engine step added. ``logprobs``: of each token a list of [token id, log-probability, rank, text]."""
    rows = None
    if logprobs is not None:
        rows = [
            [[number, max(one.logprob, LEAST_LOGPROB), one.rank, one.decoded_token] for number, one in row.items()]
            for row in logprobs
        ]
    return {"text": text, "token_ids": list(token_ids), "logprobs": rows}


class RemoteLogprob(NamedTuple):
    """A token's log-probability as it came over the wire; vLLM's ``Logprob`` by its attributes."""

    logprob: float
    rank: int | None
    decoded_token: str | None


def read_logprobs(rows: Sequence[Sequence[Sequence[Any]]] | None) -> tuple[dict[int, RemoteLogprob], ...] | None:
    """The ``logprobs`` of a `chunk_event`, by token id."""
    if rows is None:
        return None
    return tuple(
        {int(number): RemoteLogprob(float(value), rank, text) for number, value, rank, text in row} for row in rows
    )


def _error(where: str, rule: str) -> PayloadError:
    return PayloadError(where=where, rule=rule, remedy='Send {"prompt_token_ids", "sampling", "hints"} as documented.')
