"""What a response repeats of its request, the model's own defaults filled in. Pure."""

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


def request_echo(request: CreateResponse, model: ModelInfo) -> Echo:
    """Raises DecodeFailure for tools that are wrong."""
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
        tools=[tools.echo(tool) for tool in tools.read_tools(request.tools)],
        top_logprobs=request.top_logprobs or 0,
        top_p=request.top_p if request.top_p is not None else model.top_p,
        truncation=request.truncation or "disabled",
        user=request.user,
    )


def _conversation(given: str | ConversationReference | None) -> ConversationEcho | msgspec.UnsetType:
    if given is None:
        return msgspec.UNSET
    return ConversationEcho(given if isinstance(given, str) else given.id)


def asks_for_summary(request: CreateResponse) -> bool:
    """Whether the model's reasoning is to have a summary."""
    return _reasoning(request.reasoning).summary is not None


def _reasoning(given: ReasoningOptions | None) -> ReasoningEcho:
    if given is None:
        return ReasoningEcho()
    return ReasoningEcho(given.effort, given.summary or given.generate_summary)


def _text(text: TextOptions | None) -> TextEcho:
    verbosity = text.verbosity if text and text.verbosity else msgspec.UNSET
    if text is None or text.format is None:
        return TextEcho(verbosity=verbosity)
    asked = text.format
    told: dict[str, Any] = {"type": asked.type}
    if asked.type == "json_schema":
        told |= {
            "name": asked.name or "answer",
            "description": asked.description,
            "schema": asked.schema,
            "strict": bool(asked.strict),
        }
    return TextEcho(told, verbosity)
