"""What the engine's parts in all processes need to know, carried in vLLM's ``additional_config``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from memdecay_adapters.engine.tier.settings import HostTier
from memdecay_agents.config import MemDecayConfig
from memdecay_agents.errors import ConfigError

if TYPE_CHECKING:
    from vllm.config import VllmConfig

ADDITIONAL_CONFIG_KEY = "memdecay"


class EngineSettings(BaseModel):
    """The plugin's own settings beside vLLM's."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    config: MemDecayConfig
    """Regions, policy, budgets and measurement."""

    keep_sessions: bool = True
    """Keep a session's pages between its turns; False: every request begins anew."""

    session_idle_seconds: float | None = Field(default=900.0, gt=0)
    """A session that is idle for longer is given up; None: never for that reason."""

    max_idle_sessions: int = Field(default=256, ge=1)
    """Idle sessions kept at most; the least recently used goes first."""

    check_integrity: bool = False
    """Check the block pool and every block-table row at each step (tests, debugging): a live row that
    points at a freed page, a double free or a stale row stops the engine with an IntegrityError."""

    allow_untested_gpu: bool = False
    """The user's word that the CUDA worker may run, which nobody has run; without it CUDA is refused."""

    host_tier: HostTier | None = None
    """Host memory for evicted pages; None: they are gone."""

    def to_additional_config(self) -> dict[str, Any]:
        """The value for vLLM's ``additional_config``; JSON-safe."""
        without = {"host_tier"} if self.host_tier is None else None
        return {ADDITIONAL_CONFIG_KEY: self.model_dump(mode="json", exclude=without)}

    @classmethod
    def from_vllm_config(cls, vllm_config: VllmConfig) -> EngineSettings:
        """Read the settings back in any of vLLM's processes.

        Raises:
            ConfigError: ``additional_config["memdecay"]`` is missing or malformed.
        """
        raw = (vllm_config.additional_config or {}).get(ADDITIONAL_CONFIG_KEY)
        if raw is None:
            raise ConfigError(
                where="vLLM additional_config",
                rule=f"the key {ADDITIONAL_CONFIG_KEY!r} is missing",
                remedy="Start the engine with MemDecayEngine, which fills it in, or give a plain vLLM all of "
                "memdecay_adapters.engine.vllm_arguments(config) (what `memdecay serve-args` prints).",
            )
        try:
            return cls.model_validate(raw)
        except ValidationError as error:
            first = error.errors()[0]
            raise ConfigError(
                where=f"additional_config[{ADDITIONAL_CONFIG_KEY!r}].{'.'.join(map(str, first['loc']))}",
                rule=str(first["msg"]),
                remedy="Correct or remove this setting.",
            ) from error
