"""OpenAI's tools that the client runs, as the official client sends and reads them: shells and patches."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from openai import BadRequestError, OpenAI
from openai.types.responses import (
    ResponseApplyPatchToolCall,
    ResponseFunctionShellToolCall,
    ResponseOutputMessage,
)
from openai.types.responses.response_output_item import LocalShellCall

from tests.acceptance.sdk_types import check_response
from tests.acceptance.test_code_runner import tool_call
from tests.fix_server import SCRIPTED, Connect, StartServer
from tests.support.attached import retrieve
from tests.support.eventually import eventually
from tests.support.server_process import MODEL, ServerProcess

SHELL: Any = {"type": "shell", "environment": {"type": "local"}}
LOCAL_SHELL: Any = {"type": "local_shell"}
PATCH: Any = {"type": "apply_patch"}
CHANGE = {"type": "update_file", "path": "a.py", "diff": "@@\n-old\n+new\n"}
ANSWERS = json.dumps(
    [
        ("a.txt b.txt", "There are two files."),
        ("The patch has completed", "Patched."),
        ("List", tool_call("shell", commands=["ls", "pwd"], timeout_ms=1000)),
        ("Older", tool_call("local_shell", command=["ls", "-l"])),
        ("Broken", tool_call("apply_patch", type="update_file", path="a.py")),
        ("Patch", tool_call("apply_patch", **CHANGE)),
    ]
)
COMMAND_EVENTS = [f"response.shell_call_command.{end}" for end in ("added", "delta", "done")]
EXIT = {"type": "exit", "exit_code": 0}


@pytest.fixture(scope="module")
def scripted(module_database: str) -> Iterator[ServerProcess]:
    server = ServerProcess(module_database, settings={**SCRIPTED, "scripted_answers": ANSWERS})
    server.start()
    yield server
    server.stop()


@pytest.fixture
def client(scripted: ServerProcess, connect: Connect) -> OpenAI:
    return connect(scripted)


def shell_output(call_id: str) -> Any:
    ran = {"stdout": "a.txt b.txt", "stderr": "", "outcome": EXIT}
    return {"type": "shell_call_output", "call_id": call_id, "output": [ran], "max_output_length": 4096}


@pytest.mark.parametrize("way", ["response", "conversation", "items"])
def test_commands_are_run_by_the_client_and_the_model_goes_on_with_what_they_wrote(
    client: OpenAI, way: str
) -> None:
    place: Any = {"conversation": client.conversations.create().id} if way == "conversation" else {}
    first = client.responses.create(
        model=MODEL, input="List the files.", tools=[SHELL], store=way != "items", **place
    )
    (call,) = first.output
    assert isinstance(call, ResponseFunctionShellToolCall)
    assert (call.status, call.action.commands, call.action.timeout_ms) == ("completed", ["ls", "pwd"], 1000)
    assert first.tools[0].to_dict() == SHELL
    check_response(first.to_json())
    sent: list[Any] = [shell_output(call.call_id)]
    if way == "response":
        place = {"previous_response_id": first.id}
    if way == "items":
        sent = [{"role": "user", "content": "List the files."}, call.to_dict(), *sent]
    second = client.responses.create(model=MODEL, input=sent, tools=[SHELL], **place)
    assert second.output_text == "There are two files."
    listed = client.responses.input_items.list(second.id).data
    assert next(item.type for item in listed) == "shell_call_output"


def test_a_streamed_call_is_whole_when_its_item_is_done(client: OpenAI) -> None:
    with client.responses.stream(model=MODEL, input="List the files.", tools=[SHELL]) as stream:
        events: list[dict[str, Any]] = [event.to_dict() for event in stream]
    assert [event["type"] for event in events[2:]] == [
        "response.output_item.added",
        *COMMAND_EVENTS * 2,
        "response.output_item.done",
        "response.completed",
    ]
    added, done = (event["item"] for event in events if "item" in event)
    assert (added["status"], added["action"]["commands"]) == ("in_progress", [])
    assert (done["id"], done["action"]["commands"]) == (added["id"], ["ls", "pwd"])


def test_the_older_shell_is_called_with_words(client: OpenAI) -> None:
    first = client.responses.create(model=MODEL, input="Older", tools=[LOCAL_SHELL])
    (call,) = first.output
    assert isinstance(call, LocalShellCall)
    assert (call.action.type, call.action.command) == ("exec", ["ls", "-l"])
    output: Any = {"type": "local_shell_call_output", "id": call.call_id, "output": "a.txt b.txt"}
    second = client.responses.create(
        model=MODEL, input=[output], tools=[LOCAL_SHELL], previous_response_id=first.id
    )
    assert second.output_text == "There are two files."


def test_a_patch_is_applied_by_the_client(client: OpenAI) -> None:
    first = client.responses.create(model=MODEL, input="Patch it.", tools=[PATCH])
    (call,) = first.output
    assert isinstance(call, ResponseApplyPatchToolCall)
    assert call.operation.to_dict() == CHANGE
    check_response(first.to_json())
    output: Any = {"type": "apply_patch_call_output", "call_id": call.call_id, "status": "completed"}
    second = client.responses.create(
        model=MODEL, input=[output], tools=[PATCH], previous_response_id=first.id
    )
    assert second.output_text == "Patched."


def test_a_patch_without_a_diff_is_incomplete_so_that_nobody_applies_it(client: OpenAI) -> None:
    (call,) = client.responses.create(model=MODEL, input="Broken", tools=[PATCH]).output
    assert (call.type, call.to_dict()["status"]) == ("apply_patch_call", "incomplete")


def test_a_choice_of_the_tool_forces_a_call_that_its_schema_allows(demo_server: ServerProcess) -> None:
    client = OpenAI(base_url=demo_server.api, api_key="none")
    for tool, kind in ((SHELL, "shell"), (PATCH, "apply_patch")):
        choice: Any = {"type": kind}
        made = client.responses.create(
            model=MODEL, input="Hello", tools=[tool], tool_choice=choice, max_output_tokens=600
        )
        assert made.output[-1].type == f"{kind}_call"


def test_what_is_no_output_of_a_call_is_refused(client: OpenAI) -> None:
    with pytest.raises(BadRequestError) as refused:
        client.responses.create(model=MODEL, input=[shell_output("call_unknown")], tools=[SHELL])
    assert "No tool call found" in refused.value.message
    wrong: Any = {**shell_output("call_1"), "output": "a.txt"}
    with pytest.raises(BadRequestError) as refused:
        client.responses.create(model=MODEL, input=[wrong], tools=[SHELL])
    assert refused.value.param == "input[0].output"


def test_a_shell_in_a_container_is_named_as_not_served(client: OpenAI) -> None:
    tool: Any = {"type": "shell", "environment": {"type": "container_auto"}}
    made = client.responses.create(model=MODEL, input="List the files.", tools=[tool])
    assert made.to_dict()["ignored_tools"] == ["shell"]
    assert isinstance(made.output[0], ResponseOutputMessage)


def test_a_kill_while_the_call_is_written_gives_the_same_call(start_server: StartServer) -> None:
    slow = {**SCRIPTED, "scripted_answers": ANSWERS, "scripted_step_seconds": 0.05}
    server = start_server(**slow)
    with OpenAI(base_url=server.api, api_key="none") as client:
        made = client.responses.create(model=MODEL, input="List the files.", tools=[SHELL], background=True)
    eventually(lambda: retrieve(server, made.id)["status"] == "in_progress", within=60)
    server.kill()
    server.start()
    eventually(lambda: retrieve(server, made.id)["status"] == "completed", within=60)
    (call,) = retrieve(server, made.id)["output"]
    assert call["action"]["commands"] == ["ls", "pwd"]
