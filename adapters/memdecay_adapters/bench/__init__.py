"""Measurements against stock vLLM, each reproducible by one command.

statistics        paired ratios with their intervals
machine           what the figures were measured on
serve_bench       agents with tools on one pool, part by part (serve_options, _workload, _loop, _pools, _steps, _report)
engine_under_test one engine, stock or ours, in a process of its own
engine_bench      ``memdecay bench engine``: steps, turns, agents at once, exactness
adapter_bench     ``memdecay bench adapters``: regions for every token against the plain render and tokenisation
reference         the definition of right: transformers in float32 with evicted tokens masked
"""
