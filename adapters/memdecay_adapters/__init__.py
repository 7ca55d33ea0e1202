"""Adapters of MemDecay: LangGraph and LangChain on one side, vLLM on the other.

    memdecay_adapters.langgraph   wrap graphs, read node metadata, stamp what nodes write
    memdecay_adapters.langchain   region inference, exact token spans, the chat model
    memdecay_adapters.engine      everything that touches vLLM's engine
    memdecay_adapters.server      the same in vLLM's server: tenants, sessions over HTTP, a gate
    memdecay_adapters.remote      the client of such a server
    memdecay_adapters.models      the default model, without a hub

The public names below are imported on first use: importing this package starts nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from memdecay_adapters.engine import MemDecayEngine
    from memdecay_adapters.langchain.chat_model import ChatMemDecay
    from memdecay_adapters.langchain.chat_remote import ChatMemDecayRemote
    from memdecay_adapters.langchain.marking import mark, tag
    from memdecay_adapters.langchain.middleware import MemDecayMiddleware
    from memdecay_adapters.langchain.region_rules import Between, RegionRules
    from memdecay_adapters.langgraph.state_graph import MemDecayStateGraph
    from memdecay_adapters.langgraph.wrap import wrap

_HOME = {
    "Between": "memdecay_adapters.langchain.region_rules",
    "ChatMemDecay": "memdecay_adapters.langchain.chat_model",
    "ChatMemDecayRemote": "memdecay_adapters.langchain.chat_remote",
    "MemDecayEngine": "memdecay_adapters.engine",
    "MemDecayMiddleware": "memdecay_adapters.langchain.middleware",
    "MemDecayStateGraph": "memdecay_adapters.langgraph.state_graph",
    "RegionRules": "memdecay_adapters.langchain.region_rules",
    "mark": "memdecay_adapters.langchain.marking",
    "tag": "memdecay_adapters.langchain.marking",
    "wrap": "memdecay_adapters.langgraph.wrap",
}

__all__ = [
    "Between",
    "ChatMemDecay",
    "ChatMemDecayRemote",
    "MemDecayEngine",
    "MemDecayMiddleware",
    "MemDecayStateGraph",
    "RegionRules",
    "mark",
    "tag",
    "wrap",
]


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_HOME[name]), name)
