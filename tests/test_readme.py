"""The README's code runs: its Python blocks as one program, its commands exist."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()


@pytest.mark.engine
@pytest.mark.slow
def test_the_python_blocks_run_in_order_as_a_script(tmp_path, no_engine):
    blocks = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)
    assert len(blocks) >= 4
    script = tmp_path / "readme.py"  # no __main__ guard, as a user would write it
    script.write_text("\n".join(blocks))
    done = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, timeout=300, check=False, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    assert re.search(r"\{'user': \d+", done.stdout), "the printed dict says which pages were freed"


def test_the_shell_commands_are_targets_of_the_makefile():
    makefile = (ROOT / "Makefile").read_text()
    commands = re.findall(r"^make (\w+)", README, flags=re.MULTILINE)
    assert commands == ["demo", "test", "soak"]
    for target in commands:
        assert re.search(rf"^{target}:", makefile, flags=re.MULTILINE)


def test_linked_files_exist():
    for link in re.findall(r"\]\(([^)#]+)\)", README):
        assert (ROOT / link).exists()
