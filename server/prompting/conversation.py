"""A request and its items as the `Conversation` that a model format writes as a prompt. Pure."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime

from server.errors import InvalidRequest
from server.model_formats.interface import Conversation, OutputFormat, Tool, ToolChoice
from server.model_formats.tool_index import without_labels
from server.protocol.completions.requests import ChoiceRequest
from server.protocol.responses import tools as wire
from server.protocol.responses.items import Item
from server.protocol.responses.request import CreateResponse


def make_conversation(
    request: CreateResponse, tools: Sequence[wire.Tool], items: Sequence[Item], moment: datetime | None
) -> Conversation:
    """Raises InvalidRequest for a format without its schema, DecodeFailure for a wrong tool choice."""
    choice = wire.read_choice(request.tool_choice, list(tools))
    text = request.text
    return Conversation(
        items=items,
        instructions=request.instructions,
        tools=without_labels([tool for declared in tools for tool in _tools(declared)]),
        tool_choice=ToolChoice(
            mode=choice.mode, allowed=choice.allowed, parallel=request.parallel_tool_calls is not False
        ),
        format=_format(request),
        reasoning_effort=request.reasoning.effort if request.reasoning else None,
        verbosity=text.verbosity if text else None,
        chat_template=request.chat_template,
        chat_template_kwargs=request.chat_template_kwargs or {},
        documents=request.documents or (),
        created_at=moment,
        continue_final_message=bool(request.continue_final_message),
        add_special_tokens=isinstance(request, ChoiceRequest) and request.add_special_tokens,
        add_generation_prompt=request.add_generation_prompt is not False
        and not request.continue_final_message,
    )


def _tools(declared: wire.Tool, namespace: str | None = None) -> list[Tool]:
    match declared:
        case wire.NamespaceTool(name, inner):
            return [tool for one in inner for tool in _tools(one, name)]
        case wire.McpTool(label):
            return [
                Tool(
                    name=listed.name,
                    description=listed.description,
                    parameters=listed.input_schema,
                    namespace=label,
                    builtin=label in ("python", "browser"),
                    hosted=True,
                    prefixed=not declared.plain_names,
                )
                for listed in declared.offered
            ]
        case wire.CustomTool(name, description, form):
            tool = Tool(name=name, description=description, kind="custom", namespace=namespace)
            if isinstance(form, wire.GrammarFormat):
                tool = replace(tool, syntax=form.syntax, definition=form.definition)
            return [tool]
        case wire.FunctionTool(name, description, parameters, strict):
            return [
                Tool(
                    name=name,
                    description=description,
                    parameters=parameters,
                    strict=bool(strict),
                    namespace=namespace,
                )
            ]


def _format(request: CreateResponse) -> OutputFormat:
    output_format = request.text.format if request.text else None
    if output_format is None:
        return OutputFormat()
    if output_format.type == "json_schema" and output_format.schema is None:
        raise InvalidRequest("A json_schema format needs a schema.", param="text.format.schema")
    return OutputFormat(
        kind=output_format.type,
        schema=output_format.schema,
        name=output_format.name or "",
        description=output_format.description,
        strict=bool(output_format.strict),
    )
