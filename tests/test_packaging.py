"""What is built and what imports what."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


@pytest.mark.slow
def test_a_wheel_holds_the_three_packages_and_the_commands(tmp_path):
    uv = Path(sys.executable).with_name("uv")
    command = [str(uv), "build", "--wheel", "--quiet", "--out-dir", str(tmp_path), str(ROOT)]
    subprocess.run(command, check=True, capture_output=True, timeout=300)
    names = zipfile.ZipFile(next(tmp_path.glob("*.whl"))).namelist()
    packages = {name.split("/")[0] for name in names if not name.split("/")[0].endswith(".dist-info")}
    assert packages == {"memdecay_agents", "memdecay_adapters", "memdecay_kernels"}
    assert "memdecay_adapters/engine/manager.py" in names
    assert {"memdecay_agents/pictures/web/page.js", "memdecay_agents/live/web/live.html"} <= set(names)
    kernels = {name.removeprefix("memdecay_kernels/") for name in names if name.startswith("memdecay_kernels/")}
    assert kernels >= {"cuda/kernels.tar.xz", "cuda/src/kernels.cu", "cuda/src/device.cuh", "native/element_math.h"}
    assert any(name.endswith("licenses/LICENSE") for name in names)


def test_the_container_folders_are_no_packages():
    assert not (ROOT / "adapters" / "__init__.py").exists()
    assert not (ROOT / "kernels" / "__init__.py").exists()


def test_extras_that_cannot_live_together_are_declared():
    pyproject = tomllib.loads((ROOT / "pyproject.toml").read_text())
    extras = pyproject["project"]["optional-dependencies"]
    assert {"cpu", "gpu", "dev"} <= extras.keys()
    assert [{"extra": "cpu"}, {"extra": "gpu"}] in pyproject["tool"]["uv"]["conflicts"]


@pytest.mark.parametrize(
    ("module", "heavy"),
    [
        ("memdecay_agents", ["torch", "vllm", "langgraph", "langchain_core", "transformers", "matplotlib"]),
        ("memdecay_kernels", ["torch", "vllm"]),
        ("memdecay_adapters", ["torch", "vllm", "langgraph"]),
        ("memdecay_adapters.langchain.chat_model", ["torch", "vllm"]),
        ("memdecay_adapters.langgraph.wrap", ["torch", "vllm"]),
        ("memdecay_agents.cli.program", ["torch", "vllm", "langgraph"]),
    ],
)
def test_importing_stays_light(module, heavy):
    code = f"import {module}, sys; print([m for m in {heavy} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("banned", ["vllm", "langgraph", "langchain_core", "memdecay_adapters"])
@pytest.mark.parametrize("package", ["memdecay_agents", "kernels/memdecay_kernels"])
def test_the_lint_rule_keeps_the_arrows_downward(tmp_path, banned, package):
    ruff = Path(sys.executable).with_name("ruff")
    command = [str(ruff), "check", "--quiet", "--stdin-filename", str(ROOT / package / "planted.py"), "-"]
    done = subprocess.run(
        command, input=f'"""Planted."""\n\nimport {banned}\n', capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert "TID251" in done.stdout


def test_doctor_passes_on_a_machine_that_runs_the_tests():
    command = [sys.executable, "-m", "memdecay_agents", "doctor", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stdout
    assert '"check": "vllm"' in done.stdout
    kernels = next(finding for finding in json.loads(done.stdout)["findings"] if finding["check"] == "kernels")
    assert kernels["status"] == "ok"
    assert kernels["found"].startswith("native (")


@pytest.mark.parametrize(("choice", "status"), [("reference", "ok"), ("sse9", "failed")])
def test_doctor_says_which_kernels_run(choice, status):
    command = [sys.executable, "-m", "memdecay_agents", "doctor", "--json"]
    environment = {**os.environ, "MEMDECAY_KERNELS": choice}
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120, env=environment)
    kernels = next(finding for finding in json.loads(done.stdout)["findings"] if finding["check"] == "kernels")
    assert kernels["status"] == status
    assert choice in kernels["found"]


def test_doctor_says_what_to_do_about_a_missing_model(tmp_path):
    command = [sys.executable, "-m", "memdecay_agents", "doctor", "--json", "--model", str(tmp_path / "none")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 1
    assert "there is no such folder" in done.stdout
