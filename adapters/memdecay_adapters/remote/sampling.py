"""Sampling parameters on their way to a server: vLLM's names and values, without vLLM."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from memdecay_adapters.server.wire import SamplingBody
from memdecay_agents.errors import ConfigError


class RemoteSampling:
    """What vLLM's ``SamplingParams`` will be made of, on the server.

    Args:
        values: by vLLM's names; None counts as not given.

    Raises:
        ConfigError: a name that the server does not take.
    """

    def __init__(self, **values: Any) -> None:
        self.values = {name: value for name, value in values.items() if value is not None}
        for name in self.values:
            if name not in SamplingBody.model_fields:
                raise ConfigError(
                    where=f"sampling keyword {name!r}",
                    rule="a remote server does not take it",
                    remedy=f"It takes {', '.join(sorted(SamplingBody.model_fields))}.",
                )

    @property
    def logprobs(self) -> int | None:
        """Alternatives per token that were asked for."""
        value = self.values.get("logprobs")
        return None if value is None else int(value)

    def to_json(self) -> dict[str, Any]:
        """The ``sampling`` of a request."""
        bias: Mapping[Any, float] | None = self.values.get("logit_bias")
        if bias is None:
            return dict(self.values)
        return {**self.values, "logit_bias": {str(token_id): value for token_id, value in bias.items()}}
