"""Build hook: compile the native library into the package; without a compiler the wheel is made without it."""

from __future__ import annotations

import importlib.util
import sysconfig
from pathlib import Path
from types import ModuleType
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

NATIVE = Path(__file__).parent / "kernels" / "memdecay_kernels" / "native"


class NativeLibraryHook(BuildHookInterface[Any]):
    """Runs for wheels and for editable installs."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile, then name the wheel for the platform but for every Python: the library has a plain C interface."""
        builder = _native_build()
        try:
            library = builder.build()
        except builder.BuildError as error:
            self.app.display_warning(f"memdecay-agents is built without its native library: {error}")
            return
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{sysconfig.get_platform().replace('-', '_').replace('.', '_')}"
        build_data["artifacts"].append(str(library.relative_to(Path(self.root))))


def _native_build() -> ModuleType:
    spec = importlib.util.spec_from_file_location("memdecay_native_build", NATIVE / "build.py")
    if spec is None or spec.loader is None:
        raise FileNotFoundError(NATIVE / "build.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
