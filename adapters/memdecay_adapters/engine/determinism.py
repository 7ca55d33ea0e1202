"""What ``deterministic=True`` means: a request's tokens and evictions depend on that request alone.

    float32                    bfloat16 moves log-probabilities by a tenth when the batch changes
    one request at a time      even in float32 the last bits of a matrix product depend on how many rows it has, and
                               one bit can turn the order of two pages
    fixed logical boundaries   follows: each chunk is a whole chunk, so that evictions fall on multiples of it and, in
                               decode, on page boundaries
    no prefix-cache reads      tokens that came by a hit have no attention history
    no kept sessions           what a session holds depends on what was asked before
    seeded sampling            vLLM's own generator is shared by all requests

Requests may be submitted together as ever; they are computed one after another.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from memdecay_agents.errors import ConfigError, EngineError

if TYPE_CHECKING:
    from vllm import SamplingParams

_ARGUMENTS: Mapping[str, Any] = {"dtype": "float32", "enable_prefix_caching": False, "max_num_seqs": 1}


def deterministic_arguments(engine_args: Mapping[str, Any]) -> dict[str, Any]:
    """The engine arguments with those that determinism needs.

    Raises:
        ConfigError: one that contradicts it, or several ranks, whose sums have no fixed order.
    """
    for name, needed in _ARGUMENTS.items():
        given = engine_args.get(name, needed)
        if str(given).removeprefix("torch.") != str(needed):
            raise _conflict(f"engine_args[{name!r}]", f"deterministic=True needs {needed!r}, not {given!r}")
    if engine_args.get("tensor_parallel_size", 1) != 1:
        raise _conflict("engine_args['tensor_parallel_size']", "deterministic=True needs a single rank")
    return {**engine_args, **_ARGUMENTS}


def check_deterministic_sampling(sampling: SamplingParams) -> None:
    """Refuse sampling whose outcome depends on other requests.

    Raises:
        EngineError: random sampling without a seed of its own.
    """
    if sampling.temperature > 0 and sampling.seed is None:
        raise EngineError(
            where="sampling",
            rule=f"temperature={sampling.temperature} without a seed draws from a generator that all requests share",
            remedy="Give a seed, or temperature=0: this engine is deterministic.",
        )


def _conflict(where: str, rule: str) -> ConfigError:
    return ConfigError(where=where, rule=rule, remedy="Leave it out, or start the engine with deterministic=False.")
