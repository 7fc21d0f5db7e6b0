"""OpenAI's `shell` in a container: a registered server's `shell` runs the commands, the response goes on."""

import json
from collections.abc import Iterator
from threading import Event
from typing import Any

import pytest
from openai import BadRequestError, OpenAI
from openai.types.responses import (
    ResponseCompletedEvent,
    ResponseFunctionShellToolCall,
    ResponseFunctionShellToolCallOutput,
)

from tests.acceptance.sdk_types import check_goes_on, check_response
from tests.acceptance.test_code_runner import running_runner, tool_call
from tests.fix_server import SCRIPTED, Connect, StartServer
from tests.support.eventually import eventually
from tests.support.fake_mcp import FakeMcp
from tests.support.server_process import MODEL, ServerProcess
from tests.support.sse import Frame, create, replay

OUTPUTS: Any = "code_interpreter_call.outputs"
SHELL: Any = {"type": "shell", "environment": {"type": "container_auto"}}
COMMANDS = ["echo 42", "cat nothing"]
ANSWERS = json.dumps(
    [
        ("It is not known", "I cannot tell."),
        ("seen twice", "Twice."),
        ("Look again", tool_call("container__shell", commands=COMMANDS)),
        ("No such file", "There is no such file."),
        ("The sky has fallen", "It is broken."),
        ("Do it", tool_call("shell", commands=COMMANDS)),
        ("Reckon", tool_call("container__shell", commands=COMMANDS, timeout_ms=1000)),
        ("Wrong", tool_call("container__shell", commands="ls")),
    ]
)
RAN = [
    {"stdout": "42\n", "stderr": "", "outcome": {"type": "exit", "exit_code": 0}},
    {"stdout": "", "stderr": "No such file", "outcome": {"type": "exit", "exit_code": 1}},
]


@pytest.fixture(scope="module")
def container() -> Iterator[FakeMcp]:
    fake = FakeMcp()
    schema = {"type": "object", "properties": {"commands": {"type": "array", "items": {"type": "string"}}}}
    fake.tools = [{"name": "shell", "inputSchema": schema}, {"name": "exec", "inputSchema": schema}]
    yield fake
    fake.close()


@pytest.fixture(scope="module")
def scripted(module_database: str, container: FakeMcp) -> Iterator[ServerProcess]:
    settings = {**SCRIPTED, "scripted_answers": ANSWERS, "tool_server": f"container={container.url}"}
    server = ServerProcess(module_database, settings=settings)
    server.start()
    yield server
    server.stop()


@pytest.fixture
def client(scripted: ServerProcess, connect: Connect, container: FakeMcp) -> OpenAI:
    container.text = json.dumps(RAN)
    container.on_call = lambda: None
    container.calls.clear()
    container.headers.clear()
    return connect(scripted)


def test_commands_are_run_by_the_server_and_the_model_goes_on_with_what_they_wrote(
    client: OpenAI, container: FakeMcp
) -> None:
    stream = client.responses.create(model=MODEL, input="Reckon it.", tools=[SHELL], stream=True)
    *begun, end = stream
    assert isinstance(end, ResponseCompletedEvent)
    events: list[Any] = [event.to_dict() for event in begun]
    told = end.response
    call, ran = told.output[0], told.output[1]
    assert isinstance(call, ResponseFunctionShellToolCall)
    assert isinstance(ran, ResponseFunctionShellToolCallOutput)
    assert (call.status, call.action.commands, call.action.timeout_ms) == ("completed", COMMANDS, 1000)
    assert call.environment is not None
    assert call.environment.to_dict() == {
        "type": "container_reference",
        "container_id": told.id.replace("resp_", "cntr_"),
    }
    assert (ran.call_id, [one.to_dict() for one in ran.output]) == (call.call_id, RAN)
    assert told.output_text == "There is no such file."
    assert told.tools[0].to_dict() == SHELL
    check_response(told.to_json())
    (made,) = container.calls
    assert (made["name"], made["arguments"]["commands"]) == ("shell", COMMANDS)
    of_call = [event for event in events if event.get("output_index") == 0]
    assert [event["type"].removeprefix("response.") for event in of_call] == [
        "output_item.added",
        *["shell_call_command.added", "shell_call_command.delta", "shell_call_command.done"] * 2,
        "output_item.done",
    ]
    assert [event["command"] for event in of_call if event["type"].endswith("command.done")] == COMMANDS
    of_output = [event for event in events if event.get("output_index") == 1]
    assert [event["type"].removeprefix("response.") for event in of_output] == [
        "output_item.added",
        *["shell_call_output_content.delta", "shell_call_output_content.done"] * 2,
        "output_item.done",
    ]
    assert [event["output"] for event in of_output if "output" in event] == [[one] for one in RAN]


def test_a_conversation_stays_in_its_container_and_others_have_their_own(
    client: OpenAI, container: FakeMcp
) -> None:
    first = client.responses.create(model=MODEL, input="Reckon it.", tools=[SHELL])
    (call,) = (item for item in first.output if isinstance(item, ResponseFunctionShellToolCall))
    environment: Any = call.to_dict()["environment"]
    container.text = json.dumps([{**RAN[0], "stdout": "seen twice"}])
    ways: list[dict[str, Any]] = [
        {"previous_response_id": first.id},
        {"tools": [{"type": "shell", "environment": environment}]},
        {"input": [*[item.to_dict() for item in first.output], {"role": "user", "content": "Look again."}]},
        {},
    ]
    for way in ways:
        client.responses.create(**{"model": MODEL, "input": "Look again.", "tools": [SHELL], **way})
    session, *others = container.sessions()
    assert others[:3] == [session] * 3
    assert others[3] not in (session, None)
    of_calls = [headers for method, headers in container.headers if method == "tools/call"]
    assert ["x-session-goes-on" in headers for headers in of_calls] == [False, True, True, True, False]


@pytest.mark.parametrize(
    ("environment", "param"),
    [
        ({"type": "container_reference", "container_id": "cntr_of_nobody"}, "container_id"),
        ({"type": "container_reference"}, "container_id"),
        ({"type": "container_auto", "file_ids": ["file_1"]}, "file_ids"),
        (
            {
                "type": "container_auto",
                "network_policy": {"type": "allowlist", "allowed_domains": ["a.example"]},
            },
            "network_policy",
        ),
        ({"type": "container_auto", "skills": [{"type": "skill_reference", "skill_id": "s"}]}, "skills"),
    ],
)
def test_what_the_container_would_not_obey_is_refused(client: OpenAI, environment: Any, param: str) -> None:
    tool: Any = {"type": "shell", "environment": environment}
    with pytest.raises(BadRequestError) as refused:
        client.responses.create(model=MODEL, input="Reckon it.", tools=[tool])
    assert refused.value.param == f"tools[0].environment.{param}"


def test_a_network_that_is_off_is_what_the_container_has(client: OpenAI) -> None:
    tool: Any = {
        "type": "shell",
        "environment": {"type": "container_auto", "network_policy": {"type": "disabled"}},
    }
    assert client.responses.create(model=MODEL, input="Reckon it.", tools=[tool]).output_text


def test_a_shell_of_the_client_stays_the_clients(client: OpenAI, container: FakeMcp) -> None:
    for tool in ({"type": "shell"}, {"type": "shell", "environment": {"type": "local"}}):
        declared: Any = tool
        told = client.responses.create(model=MODEL, input="Hello", tools=[declared])
        assert told.tools[0].to_dict()["type"] == "shell"
    assert container.calls == []


def test_a_forced_shell_is_called(client: OpenAI, container: FakeMcp) -> None:
    told = client.responses.create(model=MODEL, input="Do it.", tools=[SHELL], tool_choice={"type": "shell"})
    assert [call["arguments"]["commands"] for call in container.calls] == [COMMANDS], told.to_json()


@pytest.mark.parametrize(
    "wrote", ["The sky has fallen.", '{"stdout": "The sky has fallen."}', '["The sky has fallen."]']
)
def test_what_is_no_output_of_commands_is_the_error_of_one(
    client: OpenAI, container: FakeMcp, wrote: str
) -> None:
    container.text = wrote
    told = client.responses.create(model=MODEL, input="Reckon it.", tools=[SHELL])
    (ran,) = (item for item in told.output if isinstance(item, ResponseFunctionShellToolCallOutput))
    assert [one.to_dict() for one in ran.output] == [
        {"stdout": "", "stderr": wrote, "outcome": {"type": "exit", "exit_code": 1}}
    ]


def test_one_command_as_a_string_is_run(client: OpenAI, container: FakeMcp) -> None:
    client.responses.create(model=MODEL, input="Wrong", tools=[SHELL])
    assert [call["arguments"]["commands"] for call in container.calls] == [["ls"]]


@pytest.mark.parametrize("background", [True, False])
def test_commands_of_a_killed_server_are_not_run_again(
    start_server: StartServer, container: FakeMcp, background: bool
) -> None:
    server = start_server(scripted_answers=ANSWERS, tool_server=f"container={container.url}")
    container.text = json.dumps(RAN)
    container.calls.clear()
    killed = Event()

    def wait() -> None:
        killed.wait()

    container.on_call = wait
    body = {"model": MODEL, "input": "Reckon it.", "tools": [SHELL], "background": background}
    seen: list[Frame] = []
    with create(server.url, body) as stream:
        for frame in stream:
            seen.append(frame)
            if frame.event == "response.output_item.done":
                break
        eventually(lambda: len(container.calls) == 1)
        server.kill()
    killed.set()
    server.start()
    with replay(server.url, seen[0].json["response"]["id"]) as stream:
        frames = list(stream)
    check_goes_on(seen, frames)
    assert len(container.calls) == 1
    told = frames[-1].json["response"]
    assert told["status"] == ("completed" if background else "failed")
    if background:
        assert "It is not known" in told["output"][1]["output"][0]["stderr"]
        assert told["output"][-1]["content"][0]["text"] == "I cannot tell."


def test_files_of_one_response_are_there_in_the_next(start_server: StartServer, connect: Connect) -> None:
    answers = [
        ("seven", "Read."),
        ("Look it up", tool_call("container__shell", commands=["cat a.txt; cat nothing", "exit 7"])),
        ("exit_code", "Written."),
        ("Write", tool_call("container__shell", commands=["printf sev > a.txt; printf en >> a.txt"])),
    ]
    with running_runner() as runner:
        url = f"container=http://127.0.0.1:{runner.port}/mcp"
        client = connect(start_server(scripted_answers=json.dumps(answers), tool_server=url))
        first = client.responses.create(model=MODEL, input="Write", tools=[SHELL])
        assert first.output_text == "Written."
        second = client.responses.create(
            model=MODEL, input="Look it up", tools=[SHELL], previous_response_id=first.id
        )
    (ran,) = (item for item in second.output if isinstance(item, ResponseFunctionShellToolCallOutput))
    read, left = ran.output
    assert (read.stdout, read.outcome.to_dict()) == ("seven", {"type": "exit", "exit_code": 1})
    assert "No such file" in read.stderr
    assert left.outcome.to_dict() == {"type": "exit", "exit_code": 7}


CODE: Any = {"type": "code_interpreter", "container": {"type": "auto"}}
GONE = "This container is new: the earlier one, with its files and variables, is gone."


@pytest.mark.parametrize(
    ("tool", "write", "read"),
    [
        (
            SHELL,
            tool_call("container__shell", commands=["touch a.txt", "echo begun"]),
            tool_call("container__shell", commands=["ls a.txt", "echo seen"]),
        ),
        (
            CODE,
            tool_call("python__python", code="print('begun'); open('a.txt', 'w').close()"),
            tool_call("python__python", code="import os; print(os.listdir(), 'seen')"),
        ),
    ],
    ids=["shell", "code"],
)
def test_a_conversation_whose_container_is_gone_is_told_so_once(
    start_server: StartServer, connect: Connect, tool: Any, write: str, read: str
) -> None:
    answers = [("Look again", read), (GONE, "It is gone."), ("seen", "Seen."), ("Look", read)]
    answers += [("begun", "Begun."), ("Write", write)]
    with running_runner("--sessions", "1") as runner:
        url = f"http://127.0.0.1:{runner.port}/mcp"
        tools = f"container={url},python={url}"
        client = connect(start_server(scripted_answers=json.dumps(answers), tool_server=tools))

        def asks(text: str, before: str | None = None) -> tuple[str, str, str]:
            told = client.responses.create(
                model=MODEL, input=text, tools=[tool], previous_response_id=before, include=[OUTPUTS]
            )
            outputs = [item.to_json() for item in told.output if item.type != "message"]
            return told.id, " ".join(outputs), told.output_text

        first, wrote, said = asks("Write")
        assert (GONE in wrote, said) == (False, "Begun.")
        assert GONE not in asks("Write")[1], "another conversation's, which takes the place of the first"
        second, looked, said = asks("Look", first)
        assert (looked.count(GONE), said) == (1, "It is gone.")
        assert GONE not in asks("Look", second)[1]
