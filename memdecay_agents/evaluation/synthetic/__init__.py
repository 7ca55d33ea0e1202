"""Seeded made-up traces with planted facts.

``planted`` is for the published protocol and for tuning, ``varied`` and ``reworded`` are for tuning; ``paraphrased``
says its facts in yet other words, of another domain, and no parameter of this project was chosen by it.
"""

from memdecay_agents.evaluation.synthetic.builder import GENERATORS, synthetic_trace

__all__ = ["GENERATORS", "synthetic_trace"]
