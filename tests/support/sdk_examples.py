"""Request bodies in which fields of the OpenAI SDK's types occur, and what a refused one is named."""

from typing import Any

from tests.support.contract import ASK, FUNCTION, NOTHING, Body
from tests.support.server_process import MODEL

SCHEMA: Body = {"name": "a", "description": "An object.", "schema": NOTHING, "strict": True}
GRAMMAR: Body = {"type": "grammar", "syntax": "regex", "definition": "yes"}
PLACE: Body = {"type": "approximate", "city": "x", "country": "DE", "region": "x", "timezone": "x"}
CACHED: Body = {"prompt_cache_breakpoint": {"mode": "explicit", "ttl": "30m"}}
CHAT: Body = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 2}
PNG = "data:image/png;base64,AAAA"
TEXT_FILE = "data:text/plain;base64,SGVhciBtZQ=="
EXAMPLES: dict[str, list[Body]] = {
    "POST /responses": [
        {
            "access_programs": {"cyber": "standard"},
            "context_management": [{"type": "compaction", "compact_threshold": 1000}],
            "background_options": {"completion_window": "soonest", "continuation_id": "a"},
            "image": {"context_compression": "auto"},
            "reasoning": {"effort": "low", "context": "auto", "mode": "standard", "summary": "auto"},
        },
        {"reasoning": {"generate_summary": "auto"}, "text": {"verbosity": "low"}},
        {"text": {"format": {"type": "json_schema", **SCHEMA}}},
        {"prompt_cache_options": {"comparison_response_id": "x", "mode": "implicit", "ttl": "30m"}},
        {"prompt_cache_options": {"prewarm": True}},
        {"stream": True, "stream_options": {"include_obfuscation": True}},
        {"conversation": {"id": "conversation"}},
    ],
    "POST /responses/input_tokens": [
        {
            "instructions": "Be.",
            "model": MODEL,
            "parallel_tool_calls": True,
            "reasoning": {"effort": "low", "context": "auto", "mode": "standard", "summary": "auto"},
            "text": {"verbosity": "low", "format": {"type": "json_schema", **SCHEMA}},
            "tool_choice": "auto",
            "tools": [FUNCTION],
            "truncation": "auto",
            "personality": "friendly",
        },
        {"reasoning": {"generate_summary": "auto"}, "conversation": {"id": "conversation"}, "input": ASK},
        {"previous_response_id": "response"},
    ],
    "POST /chat/completions": [
        {
            "messages": [
                {"role": "system", "name": "x", "content": [{"type": "text", "text": "Be.", **CACHED}]},
                {"role": "user", "content": [{"type": "text", "text": "Hi"}]},
                {"role": "assistant", "content": [{"type": "refusal", "refusal": "No."}], "refusal": None},
                {"role": "user", "content": "Call."},
                {
                    "role": "assistant",
                    "tool_calls": [
                        {"id": "a", "type": "function", "function": {"name": "look", "arguments": "{}"}},
                        {"id": "b", "type": "custom", "custom": {"name": "speak", "input": "Hey"}},
                    ],
                },
                {"role": "tool", "tool_call_id": "a", "content": "A cat."},
                {"role": "tool", "tool_call_id": "b", "content": "Said."},
            ],
        },
        {
            "messages": [
                {
                    "role": "user",
                    "content": [
                        {"type": "image_url", "image_url": {"url": PNG, "detail": "low"}},
                        {"type": "file", "file": {"file_data": TEXT_FILE, "filename": "a.txt"}},
                    ],
                },
            ]
        },
        {"prediction": {"type": "content", "content": [{"type": "text", "text": "x", **CACHED}]}},
        {"prompt_cache_options": {"mode": "implicit", "ttl": "30m"}},
        {"response_format": {"type": "json_schema", "json_schema": SCHEMA}},
        {"stream": True, "stream_options": {"include_usage": True, "include_obfuscation": True}},
        {
            "tools": [
                {
                    "type": "function",
                    "function": {"name": "look", "description": "x", "parameters": NOTHING, "strict": True},
                },
                {
                    "type": "custom",
                    "custom": {
                        "name": "speak",
                        "description": "x",
                        "format": {"type": "grammar", "grammar": {"syntax": "regex", "definition": "yes"}},
                    },
                },
            ],
            "tool_choice": {
                "type": "allowed_tools",
                "allowed_tools": {
                    "mode": "auto",
                    "tools": [{"type": "function", "function": {"name": "look"}}],
                },
            },
        },
        *(
            {
                "tools": [
                    {"type": "function", "function": {"name": "x", "parameters": NOTHING}},
                    {"type": "custom", "custom": {"name": "y"}},
                ],
                "tool_choice": choice,
            }
            for choice in (
                {"type": "function", "function": {"name": "x"}},
                {"type": "custom", "custom": {"name": "y"}},
            )
        ),
    ],
    "POST /completions": [
        {"stream": True, "stream_options": {"include_usage": True, "include_obfuscation": True}},
    ],
}
"""Bodies that together have every field of an object that works or is ignored."""
DEFAULTS: dict[str, Body] = {
    "POST /responses": {"input": ASK, "max_output_tokens": 3},
    "POST /responses/input_tokens": {},
    "POST /chat/completions": CHAT,
    "POST /completions": {"prompt": "Hi", "max_tokens": 2},
}


def said(role: str, **message: Any) -> Body:
    return {"messages": [{"role": role, **message}, {"role": "user", "content": "Hi"}]}


def part(**fields: Any) -> Body:
    return said("user", content=[fields])


REFUSED: dict[str, tuple[Body, str]] = {
    "messages.audio.id": (said("assistant", audio={"id": "x"}), "messages[0].audio"),
    "messages.function_call.name messages.function_call.arguments": (
        said("assistant", function_call={"name": "look", "arguments": "{}"}),
        "messages[0].function_call",
    ),
    "messages.content.input_audio.data messages.content.input_audio.format": (
        part(type="input_audio", input_audio={"data": "AA==", "format": "wav"}),
        "messages[0].content[0].type",
    ),
    "messages.content.file.file_id": (
        part(type="file", file={"file_id": "x"}),
        "messages[0].content[0].file.file_id",
    ),
}
"""Chats with refused fields of objects, and what the error names."""

CALL: Body = {"type": "function_call", "call_id": "c", "name": "look", "arguments": "{}"}
CUSTOM_CALL: Body = {"type": "custom_tool_call", "call_id": "d", "name": "speak", "input": "Hey"}
DIRECT: Body = {"type": "direct"}
PROGRAM: Body = {"type": "program", "caller_id": "call_p"}
OUTPUT: Body = {"type": "function_call_output", "call_id": "c", "output": "A cat."}
LISTED: Body = {
    "name": "look",
    "description": "x",
    "input_schema": NOTHING,
    "annotations": {"readOnlyHint": True},
}
SEARCH: Body = {
    "id": "tsc_x",
    "type": "tool_search_call",
    "arguments": {"query": "look"},
    "call_id": "call_x",
    "execution": "client",
    "status": "completed",
}
FOUND: Body = {
    **{name: SEARCH[name] for name in ("call_id", "execution", "status")},
    "id": "tso_x",
    "type": "tool_search_output",
    "tools": [{**FUNCTION, "strict": False, "description": None}],
}
ITEMS: dict[str, list[Body]] = {
    "message": [
        {"type": "message", "role": "user", "content": "Hi", "status": "completed"},
        {
            "id": "msg_x",
            "type": "message",
            "role": "assistant",
            "content": [{"type": "output_text", "text": "Hi.", "annotations": [], "logprobs": []}],
            "phase": "commentary",
            "status": "completed",
        },
    ],
    "function_call": [
        {**CALL, "id": "fc_x", "status": "completed", "namespace": "all", "caller": PROGRAM, "async": True},
        {**CALL, "caller": DIRECT, "call_id": "e"},
    ],
    "function_call_output": [
        CALL,
        {**OUTPUT, "id": "x", "status": "completed", "name": "look", "namespace": "all", "caller": PROGRAM},
        {"type": "function_call_output", "name": "bell", "output": "It rings."},
    ],
    "custom_tool_call": [
        {**CUSTOM_CALL, "id": "ctc_x", "namespace": "all", "caller": PROGRAM, "async": False},
    ],
    "custom_tool_call_output": [
        CUSTOM_CALL,
        {"id": "x", "type": "custom_tool_call_output", "call_id": "d", "output": "Said.", "caller": PROGRAM},
    ],
    "reasoning": [
        {
            "id": "rs_x",
            "type": "reasoning",
            "summary": [],
            "content": [{"type": "reasoning_text", "text": "Hm."}],
            "encrypted_content": "somebody else's",
            "status": "completed",
        }
    ],
    "compaction": [{"id": "cmp_x", "type": "compaction", "encrypted_content": "somebody else's"}],
    "additional_tools": [
        {
            "id": "at_x",
            "type": "additional_tools",
            "role": "developer",
            "tools": [{**FUNCTION, "strict": False, "description": None}],
        }
    ],
    "tool_search_call": [SEARCH, FOUND],
    "tool_search_output": [SEARCH, FOUND],
    "configuration_update": [
        {"id": "cu_x", "type": "configuration_update", "reasoning": {"effort": "high"}},
        {"type": "configuration_update", "text": {"format": {"type": "json_schema", **SCHEMA}}},
        {"type": "configuration_update", "text": {"format": {"type": "text"}}},
    ],
    "mcp_list_tools": [
        {"id": "mcpl_x", "type": "mcp_list_tools", "server_label": "s", "tools": [LISTED], "error": None}
    ],
    "mcp_call": [
        {
            "id": name,
            "type": "mcp_call",
            "server_label": "s",
            "name": "look",
            "arguments": "{}",
            "status": "failed",
            "output": None,
            "approval_request_id": None,
            "error": error,
        }
        for name, error in (
            ("mcp_x", {"type": "mcp_tool_execution_error", "content": [{"type": "text", "text": "No."}]}),
            ("mcp_y", {"type": "http_error", "code": 500, "message": "No."}),
        )
    ],
    "mcp_approval_response": [
        {
            "id": "mcpr_x",
            "type": "mcp_approval_request",
            "server_label": "s",
            "name": "look",
            "arguments": "{}",
        },
        {
            "id": "mcpa_x",
            "type": "mcp_approval_response",
            "approval_request_id": "mcpr_x",
            "approve": False,
            "reason": "No.",
        },
    ],
}
_SKILL: Body = {"name": "pdf", "description": "Reads PDFs.", "path": "/skills/pdf"}
_RAN: list[Body] = [
    {"stdout": "a.txt", "stderr": "", "outcome": {"type": "exit", "exit_code": 0}},
    {"stdout": "", "stderr": "", "outcome": {"type": "timeout"}},
]
ITEMS["shell_call"] = [
    {
        "id": "sh_x",
        "type": "shell_call",
        "call_id": "f",
        "action": {"commands": ["ls"], "timeout_ms": 5, "max_output_length": 10},
        "environment": {"type": "local", "skills": [_SKILL], "container_id": None},
        "caller": PROGRAM,
        "status": "completed",
    }
]
ITEMS["shell_call_output"] = [
    *ITEMS["shell_call"],
    {
        "id": "x",
        "type": "shell_call_output",
        "call_id": "f",
        "output": _RAN,
        "max_output_length": 10,
        "caller": PROGRAM,
        "status": "completed",
    },
]
ITEMS["local_shell_call"] = [
    {
        "id": "lsh_x",
        "type": "local_shell_call",
        "call_id": "g",
        "action": {
            "type": "exec",
            "command": ["ls"],
            "env": {"A": "b"},
            "timeout_ms": 5,
            "user": "me",
            "working_directory": "/",
        },
        "status": "completed",
    }
]
ITEMS["local_shell_call_output"] = [
    *ITEMS["local_shell_call"],
    {"id": "g", "type": "local_shell_call_output", "output": "a.txt", "status": "completed"},
]
ITEMS["apply_patch_call"] = [
    {
        "id": "apc_x",
        "type": "apply_patch_call",
        "call_id": "h",
        "operation": {"type": "update_file", "path": "a.txt", "diff": "@@\n-a\n+b"},
        "caller": PROGRAM,
        "status": "completed",
    }
]
ITEMS["apply_patch_call_output"] = [
    *ITEMS["apply_patch_call"],
    {
        "id": "x",
        "type": "apply_patch_call_output",
        "call_id": "h",
        "status": "failed",
        "output": "No.",
        "caller": PROGRAM,
    },
]
ITEMS["mcp_approval_request"] = ITEMS["mcp_approval_response"][:1]

PARTS: dict[str, tuple[str, list[Body]]] = {
    "input_text": ("user", [{"type": "input_text", "text": "Hi", **CACHED}]),
    "input_image": (
        "user",
        [
            {"type": "input_image", "image_url": PNG, "detail": "low", **CACHED},
            {"type": "input_image", "file_id": "file_x", "detail": "auto"},
        ],
    ),
    "input_file": (
        "user",
        [{"type": "input_file", "file_data": TEXT_FILE, "filename": "a.txt", "detail": "low", **CACHED}],
    ),
    "refusal": ("assistant", [{"type": "refusal", "refusal": "No."}]),
    "reasoning_text": ("assistant", [{"type": "reasoning_text", "text": "Hm."}]),
    "summary_text": ("assistant", [{"type": "summary_text", "text": "Hm."}]),
}

MORE: Body = {"allowed_callers": ["direct", "programmatic"], "async": False, "defer_loading": False}
TOOLS: dict[str, Body] = {
    "function": {**FUNCTION, "strict": True, "description": "x", "output_schema": NOTHING, **MORE},
    "custom": {"type": "custom", "name": "speak", "description": "x", "format": GRAMMAR, **MORE},
}
TOOLS["tool_search"] = {
    "type": "tool_search",
    "description": "x",
    "execution": "client",
    "parameters": NOTHING,
}
TOOLS["namespace"] = {
    "type": "namespace",
    "name": "all",
    "description": "All.",
    "tools": [TOOLS["function"], TOOLS["custom"]],
}

TOOLS["shell"] = {
    "type": "shell",
    "environment": {"type": "local", "skills": [_SKILL]},
    "allowed_callers": ["direct"],
}
TOOLS["local_shell"] = {"type": "local_shell"}
TOOLS["apply_patch"] = {"type": "apply_patch", "allowed_callers": ["direct"]}

LOOK: Body = {"type": "function", "name": "look"}
CHOICES: dict[str, object] = {
    **{word: word for word in ("none", "auto", "required")},
    "function": LOOK,
    "custom": {"type": "custom", "name": "speak"},
    "shell": {"type": "shell"},
    "apply_patch": {"type": "apply_patch"},
    "allowed_tools": {
        "type": "allowed_tools",
        "mode": "auto",
        "tools": [{"type": "function", "name": "look"}],
    },
}

_LIST = {"limit": "2", "order": "asc", "after": ""}
_INCLUDE = {"include": "message.output_text.logprobs"}
QUERIES: dict[str, dict[str, str]] = {
    "GET /responses/{id}": {
        **_INCLUDE,
        "stream": "true",
        "starting_after": "0",
        "include_obfuscation": "true",
    },
    "GET /responses/{id}/input_items": {**_LIST, **_INCLUDE},
    "GET /conversations/{id}/items": {**_LIST, **_INCLUDE},
    "GET /chat/completions": {**_LIST, "metadata": "", "model": MODEL},
    "GET /chat/completions/{id}/messages": _LIST,
}
"""Queries with every parameter of an address."""
