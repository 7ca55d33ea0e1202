"""From our configuration and the user's engine arguments to vLLM's."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from memdecay_adapters.engine.complete import CONNECTOR
from memdecay_adapters.engine.platform_parts import usable_parts
from memdecay_adapters.engine.settings import ADDITIONAL_CONFIG_KEY, EngineSettings
from memdecay_adapters.engine.tier.support import SCHEDULER
from memdecay_agents.errors import ConfigError, ModelError

if TYPE_CHECKING:
    from vllm.engine.arg_utils import EngineArgs

CONNECTOR_MODULE = "memdecay_adapters.engine.plugin"

DEFAULTS: Mapping[str, Any] = {
    "enforce_eager": True,  # start in seconds: compiling a small model on a CPU takes a minute
    "max_num_batched_tokens": 512,  # one prefill chunk; a request may exceed its budget by this much
    "max_num_seqs": 16,
    "kv_cache_memory_bytes": 2**30,
    "disable_log_stats": True,
    "use_tqdm_on_load": False,
    "enable_chunked_prefill": True,
}
"""Where neither the user nor the platform says anything. All other vLLM engine arguments keep vLLM's own defaults."""

_OURS = ("worker_cls", "kv_transfer_config", "block_size", "model")


def build_engine_args(model: str, settings: EngineSettings, engine_args: Mapping[str, Any]) -> EngineArgs:
    """vLLM's engine arguments: the user's over our defaults, and the parts that make eviction work.

    Args:
        model: a local folder or a Hugging Face id.
        settings: the plugin's settings; they fix the page size (vLLM's ``block_size``).
        engine_args: any of vLLM's engine arguments, by name.

    Raises:
        ConfigError: an argument that vLLM does not know, or one that this engine sets itself.
        UnsupportedError: a platform that is not served, or CUDA without the user's word.
        ModelError: the model cannot be found or fetched.
    """
    from vllm.config import KVTransferConfig
    from vllm.engine.arg_utils import EngineArgs

    parts = usable_parts(allow_untested_gpu=settings.allow_untested_gpu)
    for name in _OURS:
        if name in engine_args:
            remedy = "Set MemDecayConfig.page_size_tokens instead." if name == "block_size" else "Leave it out."
            raise ConfigError(
                where=f"engine_args[{name!r}]", rule="the embedded engine sets this itself", remedy=remedy
            )
    if engine_args.get("async_scheduling"):
        raise ConfigError(
            where="engine_args['async_scheduling']",
            rule="evictions under asynchronous scheduling are not tested, and vLLM ignores it on a CPU",
            remedy="Leave it out.",
        )
    parts.check(engine_args)
    unknown = sorted(set(engine_args) - set(EngineArgs.__dataclass_fields__))
    if unknown:
        raise ConfigError(
            where=f"engine_args {unknown}",
            rule="vLLM has no such engine arguments",
            remedy="Check the spelling against vLLM's EngineArgs.",
        )
    arguments = {**DEFAULTS, **parts.defaults, **engine_args, **parts.fixed}
    additional = dict(arguments.pop("additional_config", None) or {})
    if ADDITIONAL_CONFIG_KEY in additional:
        raise ConfigError(
            where=f"engine_args['additional_config'][{ADDITIONAL_CONFIG_KEY!r}]",
            rule="the embedded engine writes this key",
            remedy="Pass these settings as MemDecayConfig.",
        )
    ours = our_arguments(settings)
    if "scheduler_cls" in ours and "scheduler_cls" in arguments:
        raise ConfigError(
            where="engine_args['scheduler_cls']",
            rule="recall by evidence needs the scheduler that this engine sets",
            remedy="Leave it out, or set HostTier(recall=None).",
        )
    arguments = {name: value for name, value in arguments.items() if name not in ours}
    ours["additional_config"] = {**additional, **ours["additional_config"]}
    with own_errors(model):
        ours["kv_transfer_config"] = KVTransferConfig(**ours["kv_transfer_config"])
        return EngineArgs(model=model, **ours, **arguments)


def our_arguments(settings: EngineSettings) -> dict[str, Any]:
    """The engine arguments that make eviction work, by vLLM's names and as plain JSON types.

    Raises:
        UnsupportedError: a platform that is not served, or CUDA without the user's word.
    """
    tier = settings.host_tier
    recall = {} if tier is None or tier.recall is None else {"scheduler_cls": SCHEDULER, "async_scheduling": False}
    return {
        **recall,
        "worker_cls": usable_parts(allow_untested_gpu=settings.allow_untested_gpu).worker_cls,
        "kv_transfer_config": {
            "kv_connector": CONNECTOR,
            "kv_connector_module_path": CONNECTOR_MODULE,
            "kv_role": "kv_both",
        },
        "block_size": settings.config.page_size_tokens,
        "additional_config": settings.to_additional_config(),
    }


@contextmanager
def own_errors(model: str) -> Iterator[None]:
    """Turn vLLM's complaints about arguments and models into ours.

    Raises:
        ConfigError: vLLM refuses an argument's value, or the model does not fit the memory.
        ModelError: the model cannot be found or fetched.
    """
    try:
        yield
    except ValidationError as error:
        problem = error.errors()[0]
        raise ConfigError(
            where=f"engine_args for model {model!r}, {'.'.join(map(str, problem['loc'])) or error.title}",
            rule=str(problem["msg"]),
            remedy="Correct the argument; vLLM's EngineArgs lists what it takes.",
        ) from error
    except ValueError as error:
        raise ConfigError(
            where=f"vLLM with model {model!r}",
            rule=str(error).strip().split("\n")[0],
            remedy="Change engine_args: a larger kv_cache_memory_bytes, a smaller max_model_len, or a default budget, "
            "by which a context longer than the pool can be served.",
        ) from error
    except OSError as error:
        raise ModelError(
            where=f"model {model!r}",
            rule=str(error).strip().split("\n")[0],
            remedy="Check the id and the network, or give a local folder, or nothing at all for the default model.",
        ) from error
