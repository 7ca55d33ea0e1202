"""``with_structured_output``: the schema becomes the answer's grammar, and the answer is read strictly."""

from __future__ import annotations

import json
from collections.abc import Mapping
from operator import itemgetter
from typing import Any, Literal

from langchain_core.exceptions import OutputParserException
from langchain_core.messages import AIMessage
from langchain_core.runnables import Runnable, RunnableLambda, RunnableMap, RunnablePassthrough
from langchain_core.utils.function_calling import convert_to_json_schema
from pydantic import BaseModel, ValidationError
from pydantic.v1 import BaseModel as BaseModelV1
from pydantic.v1 import ValidationError as ValidationErrorV1

from memdecay_agents.errors import ConfigError

StructuredMethod = Literal["json_schema", "function_calling", "json_mode"]
"""json_schema: the answer is JSON of the schema; function_calling: one tool call; json_mode: any object."""

Schema = Mapping[str, Any] | type
"""A JSON or OpenAI schema, a TypedDict, or a pydantic class."""


def response_schema(response_format: Any) -> dict[str, Any] | None:
    """Return the JSON schema that a ``response_format`` asks for; None: text.

    Accepts OpenAI's dicts (``json_schema``, ``json_object``, ``text``), a bare JSON schema, and classes.

    Raises:
        ConfigError: another type.
    """
    if response_format is None:
        return None
    if isinstance(response_format, type):
        return convert_to_json_schema(response_format)
    if isinstance(response_format, Mapping):
        kind = response_format.get("type")
        if kind == "text":
            return None
        if kind == "json_object":
            return {"type": "object"}
        if kind == "json_schema" and isinstance(response_format.get("json_schema"), Mapping):
            inner = response_format["json_schema"]
            return dict(inner.get("schema", inner))
        if kind == "object" or "$ref" in response_format or "anyOf" in response_format:
            return dict(response_format)
    raise ConfigError(
        where="response_format",
        rule=f"cannot be read: {response_format!r:.80}",
        remedy='Give {"type": "json_schema", "json_schema": {"name": ..., "schema": ...}} or a class.',
    )


def response_format_of(schema: Schema) -> dict[str, Any]:
    """Return OpenAI's ``response_format`` for a schema.

    Raises:
        ConfigError: the schema is no type that has a JSON schema.
    """
    try:
        converted = convert_to_json_schema(dict(schema) if isinstance(schema, Mapping) else schema)
    except (ValueError, TypeError) as error:
        raise ConfigError(
            where="with_structured_output(schema)",
            rule=f"no JSON schema can be made of it ({error})",
            remedy="Give a pydantic class, a TypedDict, or a JSON schema with a title.",
        ) from error
    name = str(converted.get("title") or "response")
    return {"type": "json_schema", "json_schema": {"name": name, "schema": converted}}


def structured_chain(model: Runnable[Any, AIMessage], schema: Schema | None, include_raw: bool) -> Runnable[Any, Any]:
    """Put the reader behind the model.

    Args:
        model: bound so that its answer is JSON or one tool call.
        schema: what to validate with; a pydantic class gives its instances, anything else dicts.
        include_raw: return ``{"raw", "parsed", "parsing_error"}`` and raise nothing.
    """
    pydantic = schema if isinstance(schema, type) and issubclass(schema, (BaseModel, BaseModelV1)) else None
    parse: Runnable[Any, Any] = RunnableLambda(lambda message: parse_structured(message, pydantic))
    if not include_raw:
        return model | parse
    assign = RunnablePassthrough.assign(parsed=itemgetter("raw") | parse, parsing_error=lambda _: None)
    failed = RunnablePassthrough.assign(parsed=lambda _: None)
    return RunnableMap(raw=model) | assign.with_fallbacks([failed], exception_key="parsing_error")


def parse_structured(message: AIMessage, pydantic: type[BaseModel] | type[BaseModelV1] | None) -> Any:
    """Read the JSON of an answer: the arguments of its call, or its text. Broken JSON is never completed.

    Raises:
        OutputParserException: no JSON, JSON that broke off, or values that the class refuses.
    """
    finish = message.response_metadata.get("finish_reason")
    hint = " The answer broke off: raise max_tokens." if finish == "length" else ""
    text = str(message.text)
    if message.tool_calls:
        value: Any = message.tool_calls[0]["args"]
    else:
        if message.invalid_tool_calls:
            text = str(message.invalid_tool_calls[0]["args"])
        try:
            value = json.loads(text)
        except ValueError as error:
            raise OutputParserException(
                f"The answer is no JSON ({error}).{hint} Answer: {text!r:.500}", llm_output=text
            ) from error
    if pydantic is None:
        return value
    try:
        return pydantic.parse_obj(value) if issubclass(pydantic, BaseModelV1) else pydantic.model_validate(value)
    except (ValidationError, ValidationErrorV1) as error:
        raise OutputParserException(
            f"The answer does not fit {pydantic.__name__}: {error}{hint}", llm_output=text
        ) from error
