"""A chat request as a response's: its messages as items, its parameters under their other names. Pure.

So a completion walks the same way as a response, and is only told otherwise.
"""

from typing import Any

from server.errors import InvalidRequest
from server.wire.chat import ChatRequest
from server.wire.errors import DecodeFailure
from server.wire.input import Given, read_input
from server.wire.request import CreateResponse, ReasoningOptions, TextFormat, TextOptions

_REFUSED: list[tuple[str, str]] = [
    ("use_beam_search", "Beam search is not available."),
    ("echo", "echo is not available; the messages are yours already."),
    ("prompt_logprobs", "Logprobs of the prompt are not available here."),
    ("return_token_ids", "Token ids are not told here; see /tokenize."),
    ("audio", "Audio is not available; this model writes text."),
    ("functions", "`functions` is OpenAI's old form; use tools."),
    ("function_call", "`function_call` is OpenAI's old form; use tool_choice."),
]


def refuse_unsupported(request: ChatRequest) -> None:
    """Raises InvalidRequest with the first parameter that cannot be honoured."""
    for param, sentence in _REFUSED:
        if getattr(request, param):
            raise InvalidRequest(sentence, param=param, code="unsupported_parameter")
    if request.modalities and request.modalities != ["text"]:
        raise InvalidRequest("This model writes text only.", param="modalities", code="unsupported_parameter")
    if request.stream_options and request.stream_options.continuous_usage_stats:
        raise InvalidRequest(
            "Usage is told once, at the end of the stream.",
            param="stream_options.continuous_usage_stats",
            code="unsupported_parameter",
        )
    if request.store and (request.n or 1) > 1:
        raise InvalidRequest("A stored completion has one choice.", param="n", code="unsupported_parameter")
    if request.top_logprobs and not request.logprobs:
        raise InvalidRequest("top_logprobs needs logprobs to be true.", param="top_logprobs")


def as_response_request(request: ChatRequest, choice: int) -> CreateResponse:
    """The request for one of its choices. Raises ApiError."""
    limit = request.max_completion_tokens or request.max_tokens
    return CreateResponse(
        model=request.model,
        input="",
        store=bool(request.store),
        stream=request.stream,
        metadata=request.metadata,
        max_output_tokens=limit,
        temperature=request.temperature,
        top_p=request.top_p,
        top_k=request.top_k,
        min_p=request.min_p,
        presence_penalty=request.presence_penalty,
        frequency_penalty=request.frequency_penalty,
        repetition_penalty=request.repetition_penalty,
        logit_bias=request.logit_bias,
        seed=None if request.seed is None else (request.seed + choice) % 2**63,
        stop=request.stop,
        include_stop_str_in_output=request.include_stop_str_in_output,
        ignore_eos=request.ignore_eos,
        min_tokens=request.min_tokens,
        top_logprobs=request.top_logprobs,
        include=["message.output_text.logprobs"] if request.logprobs else None,
        tools=[_tool(tool, index) for index, tool in enumerate(request.tools or [])],
        tool_choice=_tool_choice(request.tool_choice),
        parallel_tool_calls=request.parallel_tool_calls,
        reasoning=ReasoningOptions(request.reasoning_effort) if request.reasoning_effort else None,
        text=_text(request),
        structured_outputs=request.structured_outputs,
        chat_template_kwargs=request.chat_template_kwargs,
        documents=request.documents,
        add_generation_prompt=request.add_generation_prompt,
        continue_final_message=request.continue_final_message,
        priority=request.priority,
        cache_salt=request.cache_salt,
        user=request.user,
        safety_identifier=request.safety_identifier,
        prompt_cache_key=request.prompt_cache_key,
    )


def _tool(given: dict[str, Any], index: int) -> dict[str, Any]:
    """A tool in the flat form of a response's."""
    kind = given.get("type")
    inner = given.get(str(kind))
    if kind not in ("function", "custom") or not isinstance(inner, dict):
        raise DecodeFailure(
            "A tool is {type: function, function: {…}} or {type: custom, custom: {…}}.",
            f"tools[{index}]",
            "invalid_type",
        )
    flat = {**inner, "type": kind}
    grammar = flat.get("format")
    if kind == "custom" and isinstance(grammar, dict) and isinstance(grammar.get("grammar"), dict):
        flat["format"] = {"type": "grammar", **grammar["grammar"]}
    return flat


def _tool_choice(given: str | dict[str, Any] | None) -> str | dict[str, Any] | None:
    match given:
        case {"type": "function", "function": {"name": str(name)}}:
            return {"type": "function", "name": name}
        case {"type": "custom", "custom": {"name": str(name)}}:
            return {"type": "custom", "name": name}
        case {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": list(tools)}}:
            return {"type": "allowed_tools", "mode": mode, "tools": [_flat_choice(tool) for tool in tools]}
        case _:
            return given


def _flat_choice(tool: Any) -> Any:
    match tool:
        case {"type": "function", "function": {"name": str(name)}}:
            return {"type": "function", "name": name}
        case _:
            return tool


def _text(request: ChatRequest) -> TextOptions | None:
    asked = request.response_format
    if asked is None:
        return TextOptions(verbosity=request.verbosity) if request.verbosity else None
    if asked.type != "json_schema":
        return TextOptions(TextFormat(asked.type), request.verbosity)
    if asked.json_schema is None or asked.json_schema.schema is None:
        raise InvalidRequest(
            "A json_schema format needs a schema.", param="response_format.json_schema.schema"
        )
    given = asked.json_schema
    return TextOptions(
        TextFormat("json_schema", given.name or "answer", given.description, given.schema, given.strict),
        request.verbosity,
    )


def read_messages(messages: list[dict[str, Any]]) -> list[Given]:
    """The messages as items. Raises DecodeFailure with the message's path."""
    given: list[Given] = []
    for index, message in enumerate(messages):
        for element in _elements(message, f"messages[{index}]"):
            try:
                given += read_input([element])
            except DecodeFailure as failure:
                param = (failure.param or "").replace("input[0]", f"messages[{index}]", 1)
                text = str(failure).replace("input[0]", f"messages[{index}]")
                raise DecodeFailure(text, param, failure.code) from failure
    return given


def _elements(message: dict[str, Any], path: str) -> list[dict[str, Any]]:
    match message.get("role"):
        case "system" | "developer" | "user" as role:
            content = message.get("content")
            return [{"type": "message", "role": role, "content": _content(content, "input_text")}]
        case "assistant":
            return _assistant(message)
        case "tool":
            output = _content(message.get("content"), "input_text")
            return [
                {"type": "function_call_output", "call_id": message.get("tool_call_id"), "output": output}
            ]
    raise DecodeFailure(
        "A message's role is system, developer, user, assistant or tool.", f"{path}.role", "invalid_value"
    )


def _assistant(message: dict[str, Any]) -> list[dict[str, Any]]:
    """Reasoning, text and calls of one message, as the items that they are."""
    elements: list[dict[str, Any]] = []
    thought = message.get("reasoning_content") or message.get("reasoning")
    if isinstance(thought, str) and thought:
        part = {"type": "reasoning_text", "text": thought}
        elements.append({"type": "reasoning", "summary": [], "content": [part]})
    content = message.get("content")
    refusal = message.get("refusal")
    if isinstance(refusal, str) and refusal:
        elements.append(
            {"type": "message", "role": "assistant", "content": [{"type": "refusal", "refusal": refusal}]}
        )
    calls = message.get("tool_calls") or []
    if content or (not calls and not refusal):
        text = _content(content, "output_text") if content is not None else ""
        elements.append({"type": "message", "role": "assistant", "content": text})
    return elements + [_call(call) for call in calls if isinstance(call, dict)]


def _call(call: dict[str, Any]) -> dict[str, Any]:
    kind = call.get("type", "function")
    inner = call.get(kind) if isinstance(kind, str) else None
    inner = inner if isinstance(inner, dict) else {}
    if kind == "custom":
        return {
            "type": "custom_tool_call",
            "call_id": call.get("id"),
            "name": inner.get("name"),
            "input": inner.get("input"),
        }
    return {
        "type": "function_call",
        "call_id": call.get("id"),
        "name": inner.get("name"),
        "arguments": inner.get("arguments"),
    }


def _content(content: Any, text_type: str) -> Any:
    """Parts under the names that they have in a response's input; anything else is left to be refused."""
    if not isinstance(content, list):
        return content
    return [_part(part, text_type) for part in content]


def _part(part: Any, text_type: str) -> Any:
    match part:
        case {"type": "text", "text": text}:
            return {"type": text_type, "text": text}
        case {"type": "image_url", "image_url": {"url": url, **rest}}:
            return {"type": "input_image", "image_url": url, "detail": rest.get("detail")}
        case {"type": "file", "file": dict(file)}:
            return {"type": "input_file", **file}
        case _:
            return part
