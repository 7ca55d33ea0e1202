"""``python -m memdecay_agents``: the same program as ``memdecay``."""

from memdecay_agents.cli import main

if __name__ == "__main__":
    main()
