"""Measurements against stock vLLM, each reproducible by one command.

statistics        paired ratios with their intervals
machine           what the figures were measured on
engine_under_test one engine, stock or ours, in a process of its own
engine_bench      ``memdecay bench engine``: steps, turns, agents at once, exactness
reference         the definition of right: transformers in float32 with evicted tokens masked
"""
