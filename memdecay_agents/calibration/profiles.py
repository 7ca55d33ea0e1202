"""Profile files: calibrated half-lives by context length, with the quality of their fits. YAML, versioned.

With ``memdecay calibrate --heads`` a profile also holds, or only holds, the model's retrieval heads.

schema: memdecay-profile
version: 1
model: SmolLM2-135M-Instruct
clock_unit: tokens
contexts:
- context_tokens: 450
  decay_form: power_law
  traces: 8
  queries: 1100
  regions:
    user: {half_life_ticks: 310.0, exponential: {...}, power_law: {...}}
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from memdecay_agents._validation import first_problem
from memdecay_agents.calibration.fits import FORMS, DecayForm, Fit, fit_decay
from memdecay_agents.calibration.lifetimes import Lifetimes
from memdecay_agents.config import MemDecayConfig
from memdecay_agents.errors import ConfigError, TraceError
from memdecay_agents.recall.heads import RetrievalHeads
from memdecay_agents.regions import ClockUnit


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class FitQuality(_Frozen):
    """One form's fit."""

    half_life_ticks: float | None = Field(gt=0)
    """None: no decay within the ages that were seen."""
    r_squared: float
    """In the logarithm."""


class RegionCalibration(_Frozen):
    """One region."""

    half_life_ticks: float | None = Field(gt=0)
    """With the context's decay form; None: it does not decay."""
    exponential: FitQuality | None = None
    power_law: FitQuality | None = None


class ContextProfile(_Frozen):
    """What was measured on traces of about one length."""

    context_tokens: int = Field(gt=0)
    """The longest of them."""
    decay_form: DecayForm
    """The form that fits better, mean over regions."""
    traces: int = Field(ge=0)
    """0: a live engine's requests."""
    queries: int = Field(gt=0)
    regions: dict[str, RegionCalibration]


class ProfileFile(_Frozen):
    """A whole file."""

    schema_name: Literal["memdecay-profile"] = Field(default="memdecay-profile", alias="schema")
    version: Literal[1] = 1
    model: str
    clock_unit: ClockUnit
    contexts: tuple[ContextProfile, ...] = ()
    """Empty: only the heads were looked for."""
    retrieval_heads: RetrievalHeads | None = None

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, populate_by_name=True)

    @model_validator(mode="after")
    def _holds_something(self) -> ProfileFile:
        if not self.contexts and self.retrieval_heads is None:
            raise ValueError("it holds neither contexts nor retrieval heads")
        return self

    def save(self, path: Path) -> None:
        """Write it as YAML."""
        import yaml

        left_out = {"retrieval_heads"} if self.retrieval_heads is None else None
        made = self.model_dump(mode="json", by_alias=True, exclude=left_out)
        text = yaml.safe_dump(made, sort_keys=False, width=120)
        path.write_text(text, encoding="utf-8")

    @classmethod
    def load(cls, path: Path) -> ProfileFile:
        """Read one.

        Raises:
            ConfigError: it cannot be read, is no profile, or is of another version; the field is named.
        """
        import yaml

        try:
            raw = yaml.safe_load(path.read_text(encoding="utf-8"))
            if not isinstance(raw, dict):
                raise ValueError("it is no mapping")
            return cls.model_validate(raw)
        except ValidationError as error:
            field, problem = first_problem(error)
            raise _bad(path, f"{field}: {problem}") from None
        except (OSError, ValueError, yaml.YAMLError) as error:
            raise _bad(path, str(error).split("\n")[0]) from error

    def nearest(self, context_tokens: int | None) -> ContextProfile:
        """The context whose length is nearest by ratio; None: the longest.

        Raises:
            ConfigError: the profile holds no half-lives.
        """
        if not self.contexts:
            raise ConfigError(
                where=f"profile of {self.model}",
                rule="it holds retrieval heads and no half-lives",
                remedy="Run `memdecay calibrate` without --heads to the same file.",
            )
        if context_tokens is None:
            return max(self.contexts, key=lambda context: context.context_tokens)
        return min(self.contexts, key=lambda c: abs(math.log(c.context_tokens / context_tokens)))

    def settings(self, context_tokens: int | None = None) -> dict[str, Any]:
        """Fields of a ``MemDecayConfig``: clock, decay form, and half-lives of the regions that were seen.

        A region that does not decay within the ages that were seen gets no half-life. A profile of nothing but
        retrieval heads gives no fields.
        """
        if not self.contexts:
            return {}
        context = self.nearest(context_tokens)
        regions = {
            name: {"half_life_ticks": found.half_life_ticks, "half_life_unit": self.clock_unit}
            for name, found in context.regions.items()
        }
        return {"clock_unit": self.clock_unit, "decay_form": context.decay_form, "regions": regions}

    def config(self, context_tokens: int | None = None, **overrides: Any) -> MemDecayConfig:
        """A configuration with these half-lives; what is given besides is laid over it, region by region."""
        settings = self.settings(context_tokens)
        regions = settings.setdefault("regions", {})
        for name, given in overrides.pop("regions", {}).items():
            fields = given if isinstance(given, dict) else given.model_dump(exclude_unset=True)
            regions[name] = {**regions.get(name, {}), **fields}
        return MemDecayConfig(**{**settings, **overrides})


def calibrate(lifetimes: Lifetimes, *, traces: int) -> ContextProfile:
    """Fit all regions of one context length.

    Raises:
        TraceError: no region has enough ages.
    """
    fits: dict[str, dict[DecayForm, Fit]] = {}
    for region in lifetimes.seen_regions:
        curve = lifetimes.curve(region)
        found = {form: fit for form in FORMS if (fit := fit_decay(curve, form)) is not None}
        if found:
            fits[region] = found
    if not fits:
        raise TraceError(
            where="calibration",
            rule=f"no region was seen at enough ages ({lifetimes.queries} queries)",
            remedy="Give longer traces, or more of them, or another clock unit.",
        )
    form = max(FORMS, key=lambda name: _mean([found[name].r_squared for found in fits.values()]))
    return ContextProfile(
        context_tokens=lifetimes.longest_tokens,
        decay_form=form,
        traces=traces,
        queries=lifetimes.queries,
        regions={
            region: RegionCalibration(
                half_life_ticks=_rounded(found[form].half_life_ticks),
                exponential=_quality(found["exponential"]),
                power_law=_quality(found["power_law"]),
            )
            for region, found in fits.items()
        },
    )


def _quality(fit: Fit) -> FitQuality:
    return FitQuality(half_life_ticks=_rounded(fit.half_life_ticks), r_squared=round(fit.r_squared, 4))


def _rounded(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.4g}")


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _bad(path: Path, rule: str) -> ConfigError:
    return ConfigError(where=f"profile {path}", rule=rule, remedy="Make one with `memdecay calibrate`.")
