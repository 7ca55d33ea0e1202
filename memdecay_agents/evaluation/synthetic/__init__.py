"""Seeded made-up traces with planted facts.

``planted`` is for tuning and for the published protocol; ``paraphrased`` says its facts in other words, of another
domain, and no parameter of this project was ever chosen by it.
"""

from memdecay_agents.evaluation.synthetic.builder import GENERATORS, synthetic_trace

__all__ = ["GENERATORS", "synthetic_trace"]
