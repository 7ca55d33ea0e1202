"""LangChain side of the adapters: tags, region inference, and prompts with a region for every token."""

from memdecay_adapters.langchain.marking import mark, tag
from memdecay_adapters.langchain.prompt import TaggedPrompt, build_prompt
from memdecay_adapters.langchain.region_rules import Between, RegionRules
from memdecay_adapters.langchain.regions import Label, infer_parts
from memdecay_adapters.langchain.tags import message_text, validate_tags
from memdecay_adapters.langchain.templates.render import fallback_count
from memdecay_adapters.langchain.warn import MemDecayWarning

__all__ = [
    "Between",
    "Label",
    "MemDecayWarning",
    "RegionRules",
    "TaggedPrompt",
    "build_prompt",
    "fallback_count",
    "infer_parts",
    "mark",
    "message_text",
    "tag",
    "validate_tags",
]
