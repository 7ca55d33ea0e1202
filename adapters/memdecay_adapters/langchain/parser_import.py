"""The slow first import of vLLM's parsers, out of the way of calls: a thread at engine start, never the event loop."""

from __future__ import annotations

import threading
from typing import Any

from memdecay_adapters.langchain.parser_choice import AUTO, NATIVE, known_parsers
from memdecay_adapters.langchain.prompt import chat_template_of
from memdecay_agents.errors import MemDecayError

_lock = threading.Lock()
_threads: dict[tuple[Any, ...], threading.Thread] = {}


def prepare_parsers(
    tokenizer: Any, chat_template: str | None, tool_parser: str, reasoning_parser: str | None
) -> threading.Thread | None:
    """Import the parsers that will read this model's answers, in a thread; once for equal settings.

    Args:
        tokenizer: the model's.
        chat_template: template in place of the tokenizer's.
        tool_parser: see `choose_parsers`.
        reasoning_parser: the same.

    Returns:
        The thread that imports or has imported; None: there is no template to tell the parsers by.
    """
    try:
        template = chat_template_of(tokenizer, chat_template)
    except MemDecayError:
        return None
    key = (template.source, tool_parser, reasoning_parser)
    with _lock:
        thread = _threads.get(key)
        if thread is None:

            def load() -> None:
                known = known_parsers(template) if AUTO in (tool_parser, reasoning_parser) else None
                tool = known.tool if tool_parser == AUTO and known else tool_parser
                reasoning = known.reasoning if reasoning_parser == AUTO and known else reasoning_parser
                _load(tool, reasoning)

            thread = _threads[key] = threading.Thread(target=load, name="memdecay parsers", daemon=True)
            thread.start()
    return thread


def _load(tool: str, reasoning: str | None) -> None:
    names = [None if name in (NATIVE, AUTO) else name for name in (tool, reasoning)]
    if names == [None, None]:
        return
    from memdecay_adapters.langchain.vllm_parsers import load_parser

    try:
        load_parser(*names)
    except MemDecayError:  # the call that needs it says so
        return
