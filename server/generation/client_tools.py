"""OpenAI's tools that the client runs, `shell`, `local_shell` and `apply_patch`: what the model is told of
them, its calls as items, and items as the calls and outputs of functions, which templates write. Pure.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import msgspec
from msgspec import UNSET

from server.generation.call_arguments import parse_object
from server.model_formats.model_format import PromptTool
from server.protocol.decode import decode_as
from server.protocol.responses.items import (
    CLIENT_ID_PREFIXES,
    ApplyPatchCall,
    ApplyPatchCallOutput,
    ClientCall,
    ClientOutput,
    FunctionCall,
    FunctionCallOutput,
    Item,
    ItemStatus,
    LocalShellAction,
    LocalShellCall,
    LocalShellCallOutput,
    PatchOperation,
    ShellAction,
    ShellCall,
    ShellCallOutput,
)
from server.protocol.responses.tools import ClientTool, ShellTool

_MILLISECONDS = {"type": ["integer", "null"], "description": "Milliseconds after which a command is stopped."}
_WORDS = {"type": "array", "items": {"type": "string"}}


def _tool(name: str, description: str, required: list[str], **properties: dict[str, Any]) -> PromptTool:
    schema = {"type": "object", "properties": properties, "required": required, "additionalProperties": False}
    return PromptTool(name=name, description=description, parameters=schema)


_FUNCTIONS = (
    _tool(
        "shell",
        "Runs commands in a shell, one after the other, and returns what each one wrote.",
        ["commands"],
        commands={**_WORDS, "description": "Commands as a shell reads them."},
        timeout_ms=_MILLISECONDS,
        max_output_length={
            "type": ["integer", "null"],
            "description": "Characters of output that are returned of each command.",
        },
    ),
    _tool(
        "local_shell",
        "Runs one program on the user's machine and returns what it wrote.",
        ["command"],
        command={**_WORDS, "description": 'The program and its arguments: ["bash", "-lc", "ls"].'},
        working_directory={"type": ["string", "null"], "description": "Where it is run."},
        timeout_ms=_MILLISECONDS,
    ),
    _tool(
        "apply_patch",
        "Creates, changes or deletes one file. The diff of a new file is its lines, each after a +. That "
        "of a change has, for each place, a line @@ with an optional line of the code around it, then "
        "lines of context after a space, removed ones after a -, and added ones after a +.",
        ["type", "path"],
        type={"type": "string", "enum": ["create_file", "update_file", "delete_file"]},
        path={"type": "string", "description": "The file's path, relative to the project's folder."},
        diff={"type": "string", "description": "What changes; not for delete_file."},
    ),
)
CLIENT_TOOLS = {tool.name: tool for tool in _FUNCTIONS}
"""The functions that stand for the tools in a prompt, by the tools' types, which are their names."""
_UNREADABLE: dict[str, ShellAction | LocalShellAction | PatchOperation] = {
    "shell": ShellAction(commands=[]),
    "local_shell": LocalShellAction(command=[]),
    "apply_patch": PatchOperation("update_file", "", ""),
}
"""The empty action or operation, by the tool's type, of a call whose arguments the tool does not take."""


def prompt_tool(tool: ClientTool) -> PromptTool:
    """The function that stands for a tool in a prompt; a shell's names the skills that the client has."""
    function = CLIENT_TOOLS[tool.name]
    environment = tool.environment if isinstance(tool, ShellTool) else None
    if environment is None or not environment.skills:
        return function
    lines = [f"- {skill.name} ({skill.path}): {skill.description}" for skill in environment.skills]
    skills = ["These skills are there; read SKILL.md in a skill's folder before you use it:", *lines]
    return replace(function, description="\n".join([function.description or "", *skills]))


def client_call(name: str, item_id: str, status: ItemStatus, call_id: str, arguments: str) -> ClientCall:
    """The item of a call. Arguments that cannot be read leave it incomplete, so that nobody runs them."""
    fields = parse_object(arguments)
    if isinstance(command := fields.get("commands"), str):
        fields["commands"] = [command]
    if isinstance(command := fields.get("command"), str):
        fields["command"] = ["bash", "-lc", command]
    action = _UNREADABLE[name]
    try:
        action = decode_as(msgspec.json.encode(fields), type(action))
        if isinstance(action, PatchOperation) and action.type != "delete_file" and action.diff is UNSET:
            raise msgspec.ValidationError("no diff")
    except msgspec.ValidationError:
        action, status = _UNREADABLE[name], "in_progress" if status == "in_progress" else "incomplete"
    match action:
        case ShellAction():
            return ShellCall(item_id, status, call_id, action, {"type": "local"})
        case LocalShellAction():
            return LocalShellCall(item_id, status, call_id, action)
        case PatchOperation():
            return ApplyPatchCall(item_id, status, call_id, action)


def client_prefix(name: str) -> str:
    """The id prefix of the tool's calls."""
    return next(prefix for kind, prefix in CLIENT_ID_PREFIXES.items() if _tag(kind) == f"{name}_call")


def tool_of(item: ClientCall) -> str:
    """The type of the tool that is called."""
    return _tag(type(item)).removesuffix("_call")


def _tag(kind: type[Any]) -> str:
    return str(kind.__struct_config__.tag)


def as_function(item: ClientCall | ClientOutput) -> Iterator[Item]:
    """A call as that of a function, an output as a function's."""
    match item:
        case ShellCall(action=arguments) | LocalShellCall(action=arguments):
            yield _call(item, arguments)
        case ApplyPatchCall(operation=arguments):
            yield _call(item, arguments)
        case ShellCallOutput(output=results):
            yield FunctionCallOutput(
                item.id, "completed", item.call_id, msgspec.json.encode(results).decode()
            )
        case LocalShellCallOutput(output=text):
            yield FunctionCallOutput(item.id, "completed", item.call_id or item.id, text)
        case ApplyPatchCallOutput(status=status, output=text):
            yield FunctionCallOutput(item.id, "completed", item.call_id, text or f"The patch has {status}.")


def _call(item: ClientCall, arguments: msgspec.Struct) -> FunctionCall:
    """The function's call, without the fields that the model has not set."""
    fields = {
        name: value
        for name, value in msgspec.to_builtins(arguments).items()
        if value not in (None, {}, "exec")
    }
    text = msgspec.json.encode(fields).decode()
    return FunctionCall(item.id, "completed", item.call_id, tool_of(item), text)
