"""The prompt of a response: its conversation checked, written by the model format, truncated to fit."""

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from uuid import UUID

import msgspec

from server.errors import InvalidRequest
from server.generation.client_tools import prompt_tool
from server.generation.hosted_items import items_for_model
from server.limits.long_prompts import ITEM_CHARACTERS, LONG_CHARACTERS
from server.model_formats.model_format import (
    ModelFormat,
    Prompt,
    PromptConversation,
    PromptError,
    PromptTool,
    PromptTooLong,
)
from server.model_formats.tool_names import without_labels
from server.prompting.prompt_limits import (
    MAX_COUNTED_CONTEXTS,
    check_tools_and_format,
    too_long,
    too_long_to_count,
)
from server.prompting.served_model import LoadedModel
from server.prompting.structured_outputs import structured_output_grammar
from server.prompting.tool_search import describe_found, search_tool, with_loaded_tools
from server.prompting.truncation import room_for_prompt, truncate
from server.protocol.completions.requests import ChoiceRequest, PlainRequest
from server.protocol.ids import unix_seconds
from server.protocol.responses import tools as wire
from server.protocol.responses.items import Item, Message, text_of
from server.protocol.responses.request import CreateResponse, SharedParameters, TextFormat
from server.sealing.sealed_items import unseal_items

_AUTOMATIC = wire.ToolChoice()


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolvedRequest:
    """The source of a prompt and its engine request, for a new response, a resumed one and a later turn."""

    tenant: str
    request: CreateResponse
    tools: Sequence[wire.Tool]
    """`request.tools`, parsed."""
    items: Sequence[Item]
    """History and new input, in order, before the response's own output."""
    response: UUID
    """Its time is the date that templates show."""
    seed: int
    dropped_items: int = 0
    """Items that the turn before left out, by `truncation`."""


def write_prompt(served: LoadedModel, resolved: ResolvedRequest, *, max_tokens: int | None = None) -> Prompt:
    """The prompt of a response.

    With `truncation: "auto"` it has the newest items that leave room for an answer, and leaves out at least
    those that the turn before left out. `max_tokens` replaces the model's context as the limit where tokens
    are only counted. Raises ApiError for what cannot be written, and for a longer prompt.
    """
    context, request, items = served.model_info.context_length, resolved.request, resolved.items
    grammar = None if request.structured_outputs is None else structured_output_grammar(request)
    if not all(isinstance(item, Message) for item in items):
        items = unseal_items(items, served.seal, resolved.tenant)
    created_at = datetime.fromtimestamp(unix_seconds(resolved.response), UTC)
    conversation = make_conversation(request, resolved.tools, items, created_at)
    if resolved.tools or request.text is not None:
        check_tools_and_format(conversation, request.tools)
    if isinstance(request, PlainRequest):
        return Prompt(token_ids=request.token_ids, stop_ids=served.model_info.stop_ids, grammar=grammar)
    limit, room = context - 1 if max_tokens is None else max_tokens, None
    if request.truncation == "auto":
        room = room_for_prompt(context, request.max_output_tokens) if max_tokens is None else limit
    elif request.truncate_prompt_tokens is not None:
        limit = max(limit, MAX_COUNTED_CONTEXTS * context)
    characters = characters_of(conversation)
    work = characters + ITEM_CHARACTERS * len(items)
    try:
        with served.long_prompts.slot(resolved.tenant, work) if work > LONG_CHARACTERS else nullcontext():
            prompt = write_within(
                served.model_format, conversation, limit, characters, room, resolved.dropped_items
            )
    except PromptError as error:
        raise InvalidRequest(str(error), param=error.param) from error
    except PromptTooLong as error:
        raise (too_long(context) if max_tokens is None else too_long_to_count(error.limit)) from error
    if request.truncate_prompt_tokens is None:
        return prompt
    if prompt.images:
        raise InvalidRequest(
            "A prompt with pictures is not cut within them: leave out truncate_prompt_tokens.",
            param="truncate_prompt_tokens",
        )
    token_ids = truncate_tokens(prompt.token_ids, request, context, request.max_output_tokens)
    return replace(prompt, token_ids=token_ids)


def characters_of(conversation: PromptConversation) -> int:
    """Characters that any chat template puts into the prompt; tools are not counted."""
    return len(conversation.instructions or "") + sum(len(text_of(item) or "") for item in conversation.items)


def write_within(
    model_format: ModelFormat,
    conversation: PromptConversation,
    limit: int,
    characters: int,
    room: int | None = None,
    dropped: int = 0,
) -> Prompt:
    """The prompt of a conversation; with `room`, of its newest items if the whole has more tokens.

    A conversation with more characters than `limit` tokens can have is not written; `characters` is its
    number, and `dropped` that of the items that the turn before left out. Raises PromptError, and
    PromptTooLong if tokenizing stopped at the limit; a prompt may exceed `limit`.
    """
    longest = model_format.max_chars_per_token if characters > limit else None
    most = None if longest is None else longest * limit

    def write(retained: Sequence[Item]) -> Prompt:
        if most is not None and characters_of(replace(conversation, items=retained)) > most:
            raise PromptTooLong(limit)
        loaded = with_loaded_tools(conversation, retained) if conversation.tools else conversation
        if not all(isinstance(item, Message) for item in retained):
            retained = items_for_model(retained, partial(describe_found, loaded.tools))
        return model_format.write(replace(loaded, items=retained, max_tokens=limit))

    if room is None:
        return write(conversation.items)
    return truncate(conversation.items, model_format, write, room, limit, dropped)


def truncate_tokens(
    token_ids: tuple[int, ...], request: SharedParameters, context: int, max_output: int | None
) -> tuple[int, ...]:
    """VLLM's `truncate_prompt_tokens`: the last tokens of a prompt, the first ones with side `right`.

    None keeps all; -1 keeps as many as leave room for `max_output` tokens in the context. Raises
    InvalidRequest if none is left.
    """
    most = request.truncate_prompt_tokens
    if most is None:
        return token_ids
    if most < 0:
        most = max(1, context - max(1, max_output or 1))
    if most == 0:
        raise InvalidRequest("No token of the prompt would be left.", param="truncate_prompt_tokens")
    return token_ids[:most] if request.truncation_side == "right" else token_ids[-most:]


def make_conversation(
    request: CreateResponse, tools: Sequence[wire.Tool], items: Sequence[Item], moment: datetime | None
) -> PromptConversation:
    """Raises InvalidRequest for a format without its schema and for a wrong tool choice."""
    choice = _AUTOMATIC if request.tool_choice is None else wire.read_choice(request.tool_choice, list(tools))
    text = request.text
    return PromptConversation(
        items=items,
        instructions=request.instructions,
        tools=without_labels([tool for declared in tools for tool in _tools(declared, tools)]),
        tool_choice=msgspec.structs.replace(choice, parallel=request.parallel_tool_calls is not False),
        format=_format(request),
        reasoning_effort=request.reasoning.effort if request.reasoning else None,
        reasoning_context=request.reasoning.context if request.reasoning else None,
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


def _tools(declared: wire.Tool, tools: Sequence[wire.Tool], namespace: str | None = None) -> list[PromptTool]:
    match declared:
        case wire.ToolSearchTool():
            return search_tool(declared, tools)
        case wire.ShellTool() | wire.LocalShellTool() | wire.ApplyPatchTool():
            return [prompt_tool(declared)]
        case wire.NamespaceTool(name, inner):
            return [tool for member in inner for tool in _tools(member, tools, name)]
        case wire.McpTool(label):
            return [
                PromptTool(
                    name=listed.name,
                    description=listed.description,
                    parameters=listed.input_schema,
                    namespace=label,
                    builtin=label in ("python", "browser"),
                    hosted=True,
                    prefixed=False,
                    deferred=bool(declared.defer_loading),
                )
                for listed in declared.offered
            ]
        case wire.CustomTool(name, description, form):
            tool = PromptTool(name=name, description=description, kind="custom", namespace=namespace)
            if isinstance(form, wire.GrammarFormat):
                tool = replace(tool, syntax=form.syntax, definition=form.definition)
            return [replace(tool, deferred=bool(declared.defer_loading))]
        case wire.FunctionTool(name, description, parameters, strict):
            return [
                PromptTool(
                    name=name,
                    description=description,
                    parameters=parameters,
                    strict=bool(strict),
                    namespace=namespace,
                    deferred=bool(declared.defer_loading),
                )
            ]


def _format(request: CreateResponse) -> TextFormat:
    output_format = (request.text.format if request.text else None) or TextFormat("text")
    if output_format.type == "json_schema" and output_format.schema is None:
        raise InvalidRequest("A json_schema format needs a schema.", param="text.format.schema")
    return output_format
