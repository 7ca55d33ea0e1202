"""Traces from public data sets, replayed against the data sets' own tool back ends.

Each module is run as a program in a process of its own, with the data set's package on its path, and prints JSON Lines:
``bfcl`` (multi-turn and memory sets of the Berkeley Function Calling Leaderboard, PyPI ``bfcl-eval``, Apache-2.0)
and ``agentdojo`` (PyPI ``agentdojo``, MIT). ``build`` installs the packages into a folder and runs them.
"""
