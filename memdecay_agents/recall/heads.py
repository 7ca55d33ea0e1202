"""Retrieval heads of a model: the few KV heads whose attention looks facts up. Found by calibration, kept in files."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator
from pydantic.dataclasses import dataclass

from memdecay_agents._validation import first_problem
from memdecay_agents.errors import ConfigError
from memdecay_agents.recall.model_fingerprint import model_fingerprint


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


@dataclass(frozen=True, config=ConfigDict(extra="forbid"))
class RetrievalHead:
    """One KV head of one layer."""

    layer: Annotated[int, Field(ge=0)]
    kv_head: Annotated[int, Field(ge=0)]
    """Counted over the whole layer, not over a tensor-parallel rank's part of it."""


class RetrievalHeads(_Frozen):
    """What a calibration found, and how good it is."""

    version: Literal[1] = 1
    model: str
    """Its name, for readers."""
    fingerprint: str | None
    """Of its weights, see ``model_fingerprint``; None: a checkpoint that has none."""
    heads: tuple[RetrievalHead, ...] = Field(min_length=1)
    """The best first."""
    recall_at: Mapping[int, float]
    """Share of questions whose whole fact lies within the first k pages by evidence, by k; on traces that did not
    choose the heads."""
    page_size_tokens: int = Field(gt=0)
    query_tokens: int = Field(gt=0)
    """W of the estimator."""
    questions: int = Field(gt=0)
    """That ``recall_at`` was measured on."""

    @field_validator("heads")
    @classmethod
    def _distinct(cls, heads: tuple[RetrievalHead, ...]) -> tuple[RetrievalHead, ...]:
        if len(set(heads)) != len(heads):
            raise ValueError("a head is named twice")
        return heads

    @field_validator("recall_at")
    @classmethod
    def _shares(cls, recall_at: Mapping[int, float]) -> Mapping[int, float]:
        if not all(k > 0 and 0.0 <= share <= 1.0 for k, share in recall_at.items()):
            raise ValueError("not a share from 0 to 1 by a positive number of pages")
        return dict(sorted(recall_at.items()))

    @property
    def layers(self) -> tuple[int, ...]:
        """The layers whose queries are needed, ascending."""
        return tuple(sorted({head.layer for head in self.heads}))

    def save(self, path: Path) -> None:
        """Write it as JSON; a reader sees the old file or the new one."""
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f".{path.name}.new")
        temporary.write_text(self.model_dump_json(indent=1) + "\n", encoding="utf-8")
        temporary.replace(path)

    @classmethod
    def load(cls, path: Path) -> RetrievalHeads:
        """Read what ``save`` wrote.

        Raises:
            ConfigError: it cannot be read, is something else, or is of another version; the field is named.
        """
        try:
            return cls.model_validate(json.loads(path.read_text(encoding="utf-8")))
        except ValidationError as error:
            field, problem = first_problem(error)
            raise _bad(path, f"{field}: {problem}") from None
        except (OSError, ValueError) as error:
            raise _bad(path, str(error).split("\n")[0]) from error


def shipped_heads(model: str | None) -> RetrievalHeads | None:
    """Heads that this package brings for a model; None: it brings none, calibrate it.

    Args:
        model: a checkpoint's folder, whose weights decide; a name as in ``RetrievalHeads.model``; None: the default
            model.
    """
    known = _shipped()
    if model is not None and Path(model).is_dir():
        fingerprint = model_fingerprint(Path(model))
        return next((heads for heads in known if fingerprint and heads.fingerprint == fingerprint), None)
    return next((heads for heads in known if model in (None, heads.model)), None)


@cache
def _shipped() -> tuple[RetrievalHeads, ...]:
    """The default model's first."""
    folder = files("memdecay_agents.recall") / "shipped"
    if not folder.is_dir():
        return ()
    texts = sorted((file.name, file.read_text(encoding="utf-8")) for file in folder.iterdir())
    return tuple(RetrievalHeads.model_validate_json(text) for name, text in texts if name.endswith(".json"))


def _bad(path: Path, rule: str) -> ConfigError:
    return ConfigError(
        where=f"retrieval heads {path}", rule=rule, remedy="Make them with `memdecay calibrate --heads`."
    )
