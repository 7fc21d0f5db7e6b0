"""The request's parameters as its Response repeats them, with the model's defaults filled in. Pure."""

from collections.abc import Sequence
from typing import Any

import msgspec

from engine.request import ModelInfo
from server.protocol.responses import tools
from server.protocol.responses.request import (
    ConversationReference,
    CreateResponse,
    ReasoningOptions,
    TextOptions,
)
from server.protocol.responses.response import ConversationEcho, Echo, ReasoningEcho, TextEcho


def request_echo(request: CreateResponse, parsed_tools: Sequence[tools.Tool], model: ModelInfo) -> Echo:
    return Echo(
        background=bool(request.background),
        conversation=_conversation(request.conversation),
        frequency_penalty=request.frequency_penalty or 0.0,
        instructions=request.instructions,
        max_output_tokens=request.max_output_tokens,
        max_tool_calls=request.max_tool_calls,
        metadata=request.metadata or {},
        model=request.model,
        parallel_tool_calls=request.parallel_tool_calls is not False,
        presence_penalty=request.presence_penalty or 0.0,
        previous_response_id=request.previous_response_id,
        prompt=request.prompt if request.prompt is not None else msgspec.UNSET,
        prompt_cache_key=request.prompt_cache_key,
        reasoning=_reasoning(request.reasoning),
        safety_identifier=request.safety_identifier,
        service_tier="default",
        store=request.store is not False,
        temperature=request.temperature if request.temperature is not None else model.temperature,
        text=_text(request.text),
        tool_choice=request.tool_choice or "auto",
        tools=[tools.echo(tool) for tool in parsed_tools],
        top_logprobs=request.top_logprobs or 0,
        top_p=request.top_p if request.top_p is not None else model.top_p,
        truncation=request.truncation or "disabled",
        user=request.user,
    )


def _conversation(reference: str | ConversationReference | None) -> ConversationEcho | msgspec.UnsetType:
    if reference is None:
        return msgspec.UNSET
    return ConversationEcho(reference if isinstance(reference, str) else reference.id)


def asks_for_summary(request: CreateResponse) -> bool:
    """Whether the request wants a summary of the model's reasoning."""
    return _reasoning(request.reasoning).summary is not None


def _reasoning(options: ReasoningOptions | None) -> ReasoningEcho:
    if options is None:
        return ReasoningEcho()
    return ReasoningEcho(options.effort, options.summary or options.generate_summary)


def _text(text: TextOptions | None) -> TextEcho:
    verbosity = text.verbosity if text and text.verbosity else msgspec.UNSET
    if text is None or text.format is None:
        return TextEcho(verbosity=verbosity)
    wanted = text.format
    echo: dict[str, Any] = {"type": wanted.type}
    if wanted.type == "json_schema":
        echo |= {
            "name": wanted.name or "answer",
            "description": wanted.description,
            "schema": wanted.schema,
            "strict": bool(wanted.strict),
        }
    return TextEcho(echo, verbosity)
