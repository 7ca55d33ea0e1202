"""Options that several commands have for the configuration, and the configuration that they make."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from memdecay_agents.config import MemDecayConfig
from memdecay_agents.errors import ConfigError

Profile = Annotated[
    Path | None,
    typer.Option("--profile", help="Half-lives of a calibrated profile (memdecay calibrate, memdecay tune --profile)."),
]
"""Which of a profile's contexts counts: the longest."""


def read_config(
    path: Path | None, budget: int | None, policy: str | None, profile: Path | None = None
) -> MemDecayConfig:
    """The configuration of the files, with a command's options over it.

    Args:
        path: a file of JSON; None: the defaults.
        budget: default budget in tokens; None: the file's.
        policy: name of a policy; None: the file's.
        profile: a calibrated profile, over which the others go; None: the default profile.

    Raises:
        ConfigError: no JSON object, no profile, or fields that do not hold.
    """
    fields = _read(path) if path is not None else {}
    if budget is not None:
        fields["default_budget_tokens"] = budget
    if policy is not None:
        fields["policy"] = policy
    return MemDecayConfig(**fields) if profile is None else MemDecayConfig.from_profile(profile, **fields)


def _read(path: Path) -> dict[str, Any]:
    try:
        fields = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(
            where=f"--config {path}", rule=f"it cannot be read: {error}", remedy="Give a file of JSON."
        ) from error
    if not isinstance(fields, dict):
        raise ConfigError(where=f"--config {path}", rule="it is no JSON object", remedy='Write {"field": value, ...}.')
    return fields
