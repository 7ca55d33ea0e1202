"""Seeded made-up traces with planted facts.

``planted`` is for the published protocol and for tuning, ``varied``, ``reworded`` and ``longwinded`` are for tuning;
``paraphrased`` and ``retold`` say their facts in yet other words, of other domains, and no parameter of this project
was chosen by them.
"""

from memdecay_agents.evaluation.synthetic.builder import GENERATORS, synthetic_trace

__all__ = ["GENERATORS", "synthetic_trace"]
