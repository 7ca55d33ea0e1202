"""From a conversation to the prompt's text and its labelled stretches.

The text is transformers' own render, always. The tracked render must give the same text; where it does not, or
fails, the regions come from the text alone (``fallback``), with one warning per template.
"""

from __future__ import annotations

import hashlib
import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import lru_cache
from types import MappingProxyType
from typing import Any, NamedTuple

import jinja2

from memdecay_adapters.langchain.regions import Label
from memdecay_adapters.langchain.templates.completeness import Piece, complete
from memdecay_adapters.langchain.templates.environment import EntryDict, TaintEnvironment
from memdecay_adapters.langchain.templates.fallback import anchored_runs
from memdecay_adapters.langchain.templates.features import Features, probe_features
from memdecay_adapters.langchain.templates.resolve import Resolved, Stretch, resolve, with_generation
from memdecay_adapters.langchain.templates.taint import runs_of
from memdecay_adapters.langchain.warn import warn_once
from memdecay_agents.errors import UnsupportedError

SYSTEM = Label("system")
"""Label of the preamble and of tool schemas."""


class Rendered(NamedTuple):
    """A prompt's text, cut into labelled stretches."""

    text: str
    stretches: list[Stretch]
    fallback_reason: str | None
    """Why the regions are approximate; None: they are exact."""
    generation_start: int | None = None
    """First character of the generation prompt; None: there is none, or it was not found."""
    entries: Mapping[int, tuple[int, int]] = MappingProxyType({})
    """Characters of each entry; see `Resolved`. The generation prompt is nobody's."""


class ChatTemplate:
    """A tokenizer's chat template: what it can do, and how to render it.

    Args:
        tokenizer: a transformers tokenizer.
        source: the template's text.
        options: further template variables (``enable_thinking`` ...).
    """

    def __init__(self, tokenizer: Any, source: str, options: Mapping[str, Any]) -> None:
        self.tokenizer = tokenizer
        self.source = source
        self.options = dict(options)
        digest = hashlib.sha256(source.encode("utf-8", "surrogatepass")).hexdigest()[:8]
        self.name = f"{getattr(tokenizer, 'name_or_path', '') or type(tokenizer).__name__} (template {digest})"

    @property
    def features(self) -> Features:
        """What the template can do; probed once for each template text."""
        key = (self.source, tuple(sorted((k, str(v)) for k, v in self.tokenizer.special_tokens_map.items())))
        features = _features.get(key)
        if features is None:
            features = probe_features(self.source, lambda messages, tools: self._apply(messages, tools, False))
            _features[key] = features
        return features

    def plain(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Any] | None, add_generation_prompt: bool
    ) -> str:
        """Render as transformers does.

        Raises:
            UnsupportedError: the template refuses the conversation, with its reason.
        """
        try:
            return self._apply(messages, tools, add_generation_prompt)
        except jinja2.TemplateSyntaxError as error:
            raise UnsupportedError(
                where=f"chat template of {self.name}, line {error.lineno}",
                rule=f"it is no valid Jinja template: {error.message}".rstrip("."),
                remedy="Correct that line, or leave chat_template out: the tokenizer's own is used then.",
            ) from error
        except Exception as error:  # templates refuse with exceptions of their own making
            raise UnsupportedError(
                where=f"chat template of {self.name}",
                rule=f"it refuses the conversation: {type(error).__name__}: {error}".rstrip("."),
                remedy="Change the order or the kinds of the messages, or pass another chat_template.",
            ) from error

    def tracked(self, entries: Sequence[EntryDict], tools: Sequence[Any] | None, add_generation_prompt: bool) -> str:
        """Render with origins; raises whatever the template raises."""
        variables = {**self.tokenizer.special_tokens_map, **self.options}
        return compile_tracked(self.source).render(
            messages=list(entries),
            tools=tools,
            documents=None,
            add_generation_prompt=add_generation_prompt,
            **variables,
        )

    def _apply(self, messages: Any, tools: Any, add_generation_prompt: bool) -> str:
        return str(
            self.tokenizer.apply_chat_template(
                messages,
                tools=tools,
                chat_template=self.source,
                add_generation_prompt=add_generation_prompt,
                tokenize=False,
                **self.options,
            )
        )


def render_regions(
    template: ChatTemplate,
    entries: Sequence[EntryDict],
    plain_messages: Sequence[Mapping[str, Any]],
    defaults: Sequence[Label],
    *,
    tools: Sequence[Any] | None,
    plain_tools: Sequence[Any] | None,
    add_generation_prompt: bool,
    generation: Label,
) -> Rendered:
    """Render a conversation and label its text.

    Args:
        template: the chat template.
        entries: messages with origins in their strings.
        plain_messages: the same without.
        defaults: default label of each entry.
        tools: tool schemas with origins; ``plain_tools`` the same without.
        add_generation_prompt: open the assistant's message at the end.
        generation: label of that opening.

    Raises:
        UnsupportedError: the template refuses the conversation.
    """
    text = template.plain(plain_messages, plain_tools, add_generation_prompt)
    reason = None
    try:
        tracked = template.tracked(entries, tools, add_generation_prompt)
        if tracked != text:
            reason = "the tracked render gives another text than transformers'"
    except Exception as error:  # a template that transformers renders must never end a run here
        tracked, reason = "", f"the tracked render failed: {type(error).__name__}: {error}"
    if reason is None:
        checked = complete(text, runs_of(tracked), entries)
        if checked.found:
            reason = "it writes some messages by ways that lose their origins"
            note_fallback(template.name, f"{reason}. Token ids are exact; those messages' regions are searched for.")
        _warn_of_missing(template.name, checked.missing)
        resolved = resolve(checked.runs, defaults, SYSTEM)
    else:
        note_fallback(
            template.name,
            f"{reason}. Token ids are exact, but regions are found by searching the text for the messages and are "
            "approximate.",
        )
        resolved = resolve(anchored_runs(text, entries), defaults, SYSTEM)
    stretches, start = resolved.stretches, None
    if add_generation_prompt:
        start = _generation_start(template, text, resolved, plain_messages, plain_tools)
        if start is not None:
            stretches = with_generation(stretches, start, generation)
    last = len(text) if start is None else start
    places = {entry: (min(first, last), min(end, last)) for entry, (first, end) in resolved.entries.items()}
    return Rendered(text, stretches, reason, start, places)


def _warn_of_missing(name: str, missing: Sequence[Piece]) -> None:
    for role in {piece.role for piece in missing}:
        kind = _KINDS.get(role, f"message of role {role!r}")
        warn_once(
            ("text missing", name, role),
            f"Chat template of {name} leaves out or rewrites the text of a {kind}: the model may not see it. Another "
            "chat_template, or another kind of message, may write it.",
        )


_KINDS = {"system": "SystemMessage", "user": "HumanMessage", "assistant": "AIMessage", "tool": "ToolMessage"}


def _generation_start(
    template: ChatTemplate,
    text: str,
    resolved: Resolved,
    messages: Sequence[Mapping[str, Any]],
    tools: Sequence[Any] | None,
) -> int | None:
    """Where the generation prompt begins: by the marks, else what a render without it leaves out."""
    if "add_generation_prompt" not in template.source:
        return None
    if resolved.generation_start is not None:
        return resolved.generation_start
    try:
        shorter = template.plain(messages, tools, False)
    except UnsupportedError:
        return None
    return len(shorter) if text.startswith(shorter) else None


def fallback_count(name: str | None = None) -> int:
    """Prompts of this process whose regions are approximate; of one template by its name, or of all."""
    with _lock:
        return _fallbacks[name] if name is not None else sum(_fallbacks.values())


@lru_cache(maxsize=64)
def compile_tracked(source: str) -> jinja2.Template:
    """Compile a template for tracked rendering (cached)."""
    return _environment().from_string(source)


@lru_cache(maxsize=1)
def _environment() -> TaintEnvironment:
    return TaintEnvironment()


_features: dict[tuple[Any, ...], Features] = {}
_fallbacks: Counter[str] = Counter()
_lock = threading.Lock()


def note_fallback(name: str, what: str) -> None:
    """Count a prompt whose regions are approximate, and warn about the first one of a template."""
    with _lock:
        _fallbacks[name] += 1
    warn_once(
        ("fallback", name),
        f"Chat template of {name}: {what} Later prompts of this template are not reported; "
        "fallback_count() counts them.",
    )
