"""Tools for models whose chat template writes none: described in the system message, results as texts.

Calls have the template's own form if it shows one, else that of Hermes, which most models know.
"""

import json

from server.model_formats.tool_calls.tool_call_format import ToolCallFormat
from server.model_formats.tool_index import ToolIndex, function_schema


def describe_tools(tools: ToolIndex, calls: ToolCallFormat) -> str:
    """The part of the system message that says which tools there are, and how one is called."""
    schemas = (function_schema(name, tool)["function"] for name, tool in tools.tools.items())
    lines = "\n".join(json.dumps(schema, ensure_ascii=False) for schema in schemas)
    example = calls.render_calls([("NAME", '{"PARAMETER": "VALUE"}')])
    return f"{_FUNCTIONS}\n<tools>\n{lines}\n</tools>\n\n{_HOW}\n{example}\n\n{_RESULTS}"


_FUNCTIONS = "# Functions\n\nYou may call these functions. Each line describes one, with a JSON schema:"
_HOW = "To call a function, write its name and all of its arguments like this:"
_RESULTS = (
    "End your message after the calls. The next message has each call's result between <tool_response> and "
    "</tool_response>. If no function helps, answer without a call."
)


def result_text(output: str) -> str:
    """The text of a call's result in a message of the user."""
    return f"<tool_response>\n{output}\n</tool_response>"
