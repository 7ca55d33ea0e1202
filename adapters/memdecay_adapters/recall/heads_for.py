"""Retrieval heads for whatever model is served: shipped, else from the user's cache, else calibrated now and kept."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from pathlib import Path

from filelock import FileLock

from memdecay_adapters.models import resolve_model
from memdecay_adapters.models.default_model import cache_folder
from memdecay_adapters.recall.fingerprint import fingerprint_of
from memdecay_agents.errors import ConfigError
from memdecay_agents.recall import RetrievalHeads, shipped_heads

Progress = Callable[[str, int, int], None]
"""Told the stage, the pieces done and all pieces."""
_log = logging.getLogger(__name__)


def heads_for(
    model: str | None, cache: Path | None = None, progress: Progress = lambda stage, done, total: None
) -> RetrievalHeads:
    """Retrieval heads of a model; the first use of a model that is not known calibrates it, and says so.

    Several processes that ask at once calibrate once.

    Args:
        model: a folder, a Hugging Face id, or None for the default model.
        cache: folder of found heads; by default in the user's cache.
        progress: told what is done while calibrating.

    Raises:
        UnsupportedError: the model has no heads that can be found, see ``calibrate_heads``.
        ModelError: no such model, or one without weights.
    """
    path = resolve_model(model)
    if (shipped := shipped_heads(None if model is None else path)) is not None:
        return shipped
    kept = kept_path(path, cache)
    if kept is None:
        return _calibrated(model, progress)
    kept.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{kept}.lock"):
        try:
            return RetrievalHeads.load(kept)
        except ConfigError as error:
            if kept.exists():
                _log.warning("calibrating anew: %s", error)
        heads = _calibrated(model, progress)
        heads.save(kept)
        return heads


def kept_path(model: str, cache: Path | None = None) -> Path | None:
    """Where a model's heads lie once they were found; None: its weights cannot be told apart.

    Args:
        model: as ``resolve_model`` gives it.
        cache: the folder; by default in the user's cache.
    """
    fingerprint = fingerprint_of(model)
    return None if fingerprint is None else (cache or cache_folder() / "heads") / f"{fingerprint[:24]}.json"


def _calibrated(model: str | None, progress: Progress) -> RetrievalHeads:
    from memdecay_adapters.recall.calibrating import HeadCalibration, calibrate_heads

    options = HeadCalibration()
    _log.warning("looking for the retrieval heads of %s once: %s", model or "the default model", options.cost())
    began = time.monotonic()
    heads = calibrate_heads(model, options, progress)
    named = ", ".join(f"{head.layer}.{head.kv_head}" for head in heads.heads)
    _log.warning("found %s (layer.kv_head) in %.0f seconds", named, time.monotonic() - began)
    return heads
