"""Exit codes of the program, for scripts: the one table of them."""

from __future__ import annotations

from enum import IntEnum

from memdecay_agents.errors import MemDecayError


class ExitCode(IntEnum):
    """What the program ends with."""

    ok = 0
    """The work is done, and what was checked holds."""
    check_failed = 1
    """The work is done, and the answer is no: a bound was missed, a check of `doctor` failed."""
    usage = 2
    """The input is wrong: an option, a configuration, a file, the name of a session."""
    work_failed = 3
    """The work broke off: the engine stopped, a time limit passed, an invariant does not hold."""
    unsupported = 4
    """This machine, installation or model cannot do it; `doctor` says what to change."""
    server = 5
    """The server cannot be reached, refuses the key, or cannot be understood."""
    bug = 70
    """An error that is none of ours; please report it with the output of ``--debug``."""
    interrupted = 130
    """Stopped by Ctrl-C."""


_BY_CODE = {
    **dict.fromkeys(
        (
            "config",
            "budget",
            "unknown_region",
            "spans",
            "tags",
            "hints",
            "trace",
            "policy",
            "explain",
            "payload",
            "ledger_file",
        ),
        ExitCode.usage,
    ),
    **dict.fromkeys(("unsupported", "model"), ExitCode.unsupported),
    "remote": ExitCode.server,
}


def exit_code_of(error: Exception) -> ExitCode:
    """The code for an error that ended the work."""
    if isinstance(error, MemDecayError):
        return _BY_CODE.get(error.code, ExitCode.work_failed)
    return ExitCode.unsupported if isinstance(error, ImportError) else ExitCode.bug
