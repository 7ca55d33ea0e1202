"""Measurements against stock vLLM, each reproducible by one command.

statistics        paired ratios with their intervals
machine           what the figures were measured on
engine_under_test one engine, stock or ours, in a process of its own
engine_bench      ``memdecay bench engine``: steps, turns, agents at once, exactness
adapter_bench     ``memdecay bench adapters``: regions for every token against the plain render and tokenisation
reference         the definition of right: transformers in float32 with evicted tokens masked
"""
