"""Evaluation with a real model and a real engine: the parts that the core cannot have.

trace_files   traces from files of messages, facts in tool results that later calls quote
tokenised     a trace as tokens, its regions inferred as for any agent
recorder      attention of one full-cache pass (transformers), kept on disk
verify        real eviction in the embedded engine, then the questions
run           all stages in order, resumable
"""
