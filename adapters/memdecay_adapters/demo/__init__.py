"""The demo: a LangGraph agent with planner, worker, tools and answer nodes under a budget far below its trace.

scenario    what the agent is told, and the facts planted in it
site        the database and the log files that its tools really read
graph       the LangGraph agent, wrapped
probes      does the cache still know each fact: an 8-way choice by log-probability
watch       what each call of the model kept and freed
report      the result as JSON
peak_memory the most memory that this process has held
run         all of it, in order
"""
