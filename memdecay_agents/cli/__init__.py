"""The command line. Commands come from entry points in the group ``memdecay.commands``."""

from memdecay_agents.cli.program import main

__all__ = ["main"]
