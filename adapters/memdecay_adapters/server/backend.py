"""The running vLLM behind the routes: the only file here that knows its engine client.

vLLM 0.32: ``AsyncLLM.generate`` for requests, ``AsyncLLM.engine_core.call_utility_async`` for `core_methods`.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from memdecay_adapters.engine.core_methods import CLOSE_SESSIONS, DESCRIBE, EXPLAIN, SESSIONS, SNAPSHOT
from memdecay_adapters.engine.required import require_attributes
from memdecay_adapters.engine.validation import PoolShape
from memdecay_adapters.engine.versions import require_supported_vllm
from memdecay_adapters.server.fingerprint import tokenizer_fingerprint
from memdecay_adapters.server.gate import CheckedCall
from memdecay_adapters.server.limits import ServerLimits
from memdecay_adapters.server.tenants import OPEN_TENANT
from memdecay_adapters.server.wire import PROTOCOL, SamplingBody
from memdecay_agents.config import MemDecayConfig
from memdecay_agents.errors import EngineError, PayloadError, UnsupportedError
from memdecay_agents.hints import EXTRA_ARGS_KEY

if TYPE_CHECKING:
    from vllm import SamplingParams


class FinalOutput(NamedTuple):
    """What is known once a request has ended."""

    finish_reason: str
    stop_reason: int | str | None
    prompt_tokens: int
    cached_tokens: int
    retention: Mapping[str, Any] | None
    """None: the core has not said; it ended in the front end, or carried no hints."""


class Output(NamedTuple):
    """What one engine step added to a request."""

    text: str
    token_ids: list[int]
    logprobs: Any
    """One mapping from token id to vLLM's ``Logprob`` for each token, or None."""
    final: FinalOutput | None


class Backend:
    """A vLLM that runs the plugin.

    Args:
        engine_client: vLLM's ``AsyncLLM``.
        described: what `memdecay_describe` answered.
        model_name: what the server calls its model.
    """

    def __init__(self, engine_client: Any, described: Mapping[str, Any], model_name: str) -> None:
        self._client = engine_client
        model = engine_client.model_config
        self.limits = ServerLimits(
            config=MemDecayConfig.model_validate(described["config"]),
            max_model_len=model.max_model_len,
            vocabulary=model.get_vocab_size(),
            pool=PoolShape(described["pool_pages"], described["chunk_pages"]),
            max_logprobs=model.max_logprobs if model.max_logprobs >= 0 else model.get_vocab_size(),
        )
        self.info: dict[str, Any] = {
            "protocol": PROTOCOL,
            "vllm": require_supported_vllm(),
            "model": model_name,
            "max_model_len": model.max_model_len,
            "dtype": str(model.dtype).removeprefix("torch."),
            "config": described["config"],
            "pool_pages": described["pool_pages"],
            "tokenizer": tokenizer_fingerprint(engine_client.get_tokenizer()),
        }

    @classmethod
    async def of(cls, engine_client: Any, model_name: str) -> Backend:
        """Meet the engine.

        Raises:
            UnsupportedError: it is another version, or runs without the plugin.
        """
        require_supported_vllm()
        require_attributes(
            engine_client,
            "vLLM's engine client",
            ("generate", "get_tokenizer", "engine_core.call_utility_async", "model_config.get_vocab_size"),
        )
        try:
            described = await engine_client.engine_core.call_utility_async(DESCRIBE)
        except Exception as error:  # vLLM turns whatever the core raised into one of its own
            raise UnsupportedError(
                where="vLLM's engine core",
                rule=f"it runs without memdecay ({error})",
                remedy="Start the server with `memdecay serve`, or take 'memdecay' out of VLLM_PLUGINS.",
            ) from error
        return cls(engine_client, described, model_name)

    async def generate(self, request_id: str, call: CheckedCall) -> AsyncGenerator[Output, None]:
        """Serve a request; closing the generator aborts it.

        Raises:
            PayloadError: vLLM refuses it.
            EngineError: the engine has ended.
        """
        from vllm.exceptions import VLLMClientError
        from vllm.inputs.engine import tokens_input

        tenant = call.hints.tenant
        prompt = tokens_input(call.prompt_token_ids, cache_salt=None if tenant == OPEN_TENANT else tenant)
        try:
            sampling = sampling_params(call.sampling)
            sampling.extra_args = {EXTRA_ARGS_KEY: call.hints.to_extra_args()[EXTRA_ARGS_KEY]}
            outputs = self._client.generate(prompt, sampling, request_id)
            try:
                async for output in outputs:
                    yield _output(output)
            finally:
                await outputs.aclose()
        except (VLLMClientError, ValueError, TypeError, OverflowError) as error:
            raise PayloadError(
                where="request", rule=str(error).strip().rstrip("."), remedy="Correct what vLLM refuses."
            ) from error
        except Exception as error:  # EngineDeadError, EngineGenerateError: the server's fault, not the client's
            raise EngineError(
                where="engine", rule=f"it failed ({type(error).__name__})", remedy="Look into the server's log."
            ) from error

    async def call(self, method: str, *arguments: Any) -> Any:
        """Call one of `core_methods` in the engine core, between two steps."""
        return await self._client.engine_core.call_utility_async(method, *arguments)

    async def sessions(self, tenant: str) -> Any:
        """A tenant's sessions that hold pages."""
        return await self.call(SESSIONS, tenant)

    async def snapshot(self, tenant: str) -> Any:
        """What a tenant's sessions hold and do now; on a server without keys everybody's, who are one tenant."""
        taken = await self.call(SNAPSHOT, None if tenant == OPEN_TENANT else tenant)
        return {**taken, "model": self.info["model"]}

    async def explain(self, tenant: str, query: Mapping[str, Any]) -> Any:
        """What is held of a tenant's session, and why; see `explain_for_tenant`."""
        return await self.call(EXPLAIN, tenant, dict(query))

    async def close_sessions(self, tenant: str, thread_id: str | None) -> Any:
        """Give up a tenant's idle sessions; returns how many."""
        return await self.call(CLOSE_SESSIONS, tenant, thread_id)


def sampling_params(body: SamplingBody) -> SamplingParams:
    """vLLM's sampling parameters, streaming by deltas.

    Raises:
        ValueError: vLLM refuses a value (also as one of its own error classes).
    """
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind, StructuredOutputsParams

    values = {name: value for name, value in body.model_dump(exclude={"structural_tag"}).items() if value is not None}
    for name in ("stop", "stop_token_ids", "bad_words"):
        if name in values:
            values[name] = list(values[name])
    if body.logit_bias is not None:
        values["logit_bias"] = {int(token_id): bias for token_id, bias in body.logit_bias.items()}
    if body.structural_tag is not None:
        values["structured_outputs"] = StructuredOutputsParams(structural_tag=body.structural_tag)
    return SamplingParams(**values, output_kind=RequestOutputKind.DELTA)


def _output(output: Any) -> Output:
    completion = output.outputs[0]
    final = None
    if output.finished:
        final = FinalOutput(
            finish_reason=completion.finish_reason or "stop",
            stop_reason=completion.stop_reason,
            prompt_tokens=len(output.prompt_token_ids or ()),
            cached_tokens=output.num_cached_tokens or 0,
            retention=(output.kv_transfer_params or {}).get(EXTRA_ARGS_KEY),
        )
    return Output(completion.text, list(completion.token_ids), completion.logprobs, final)
