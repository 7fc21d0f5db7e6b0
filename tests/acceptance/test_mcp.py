"""Tools of MCP servers, called by this server in the midst of a response."""

import contextlib
import os
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import psycopg
import pytest

from tests.acceptance.error_object import check_error
from tests.acceptance.sdk_types import check_event, check_response
from tests.fix_server import StartServer
from tests.support.attached import retrieve
from tests.support.eventually import eventually
from tests.support.fork_server import fork_server
from tests.support.invariants import check
from tests.support.server_process import MODEL, ServerProcess, free_port
from tests.support.sse import create

WEATHER = "What is the weather in Paris?"
TIME = "What time is it in Paris?"


@dataclass
class Mcp:
    """One MCP server of the test's."""

    port: int
    folder: Path

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/mcp"

    @property
    def calls(self) -> list[str]:
        """The calls that reached it."""
        file = self.folder / "calls"
        return file.read_text().splitlines() if file.exists() else []

    def does(self, what: str) -> None:
        (self.folder / what).touch()


@pytest.fixture(scope="module")
def shared_mcp(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mcp]:
    with running(Mcp(free_port(), tmp_path_factory.mktemp("mcp"))) as server:
        yield server


@pytest.fixture
def mcp(shared_mcp: Mcp) -> Iterator[Mcp]:
    """The MCP server, that was called by nobody and does as it should."""
    yield shared_mcp
    for left in shared_mcp.folder.iterdir():
        left.unlink(missing_ok=True)


@pytest.fixture(scope="module")
def by_events(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mcp]:
    """One that speaks by server-sent events."""
    with running(Mcp(free_port(), tmp_path_factory.mktemp("sse")), "sse") as server:
        yield server


@pytest.fixture(scope="module")
def settings(shared_mcp: Mcp, by_events: Mcp) -> dict[str, object]:
    """The settings of a server with the demo model that has the MCP servers, and one that is not there."""
    known = {
        "city": shared_mcp.url,
        "events": f"http://127.0.0.1:{by_events.port}/sse",
        "gone": f"http://127.0.0.1:{free_port()}/mcp",
    }
    return {
        "tool_server": ",".join(f"{label}={url}" for label, url in known.items()),
        "mcp_hosts": f"http://127.0.0.1:{shared_mcp.port}",
        "mcp_seconds": 5,
        "lease_seconds": 2,
        "torch_threads": 1,
    }


@pytest.fixture(scope="module")
def server(module_database: str, settings: dict[str, object]) -> Iterator[ServerProcess]:
    process = ServerProcess(module_database, settings=settings)
    try:
        process.start()
        yield process
    finally:
        process.stop()
    check(module_database)


@contextlib.contextmanager
def running(server: Mcp, transport: str = "streamable-http") -> Iterator[Mcp]:
    process = fork_server.fork(
        ["tests.support.mcp_server", str(server.port), str(server.folder), transport], os.environ
    )
    try:
        eventually(lambda: answers(server.port), within=60)
        yield server
    finally:
        process.kill()
        process.wait()


def answers(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
        return True
    return False


def ask(text: str = WEATHER, label: str = "city", **more: Any) -> dict[str, Any]:
    tool = {"type": "mcp", "server_label": label, "require_approval": "never"}
    only = ["get_weather"] if text == WEATHER else ["get_time"]
    body = {"model": MODEL, "input": text, "tools": [{**tool, "allowed_tools": only}], "temperature": 0}
    return body | {"tool_choice": "required", "max_output_tokens": 200} | more


def post(server: ServerProcess, body: dict[str, Any]) -> dict[str, Any]:
    answer = httpx.post(f"{server.api}/responses", json=body, timeout=120)
    assert answer.status_code == 200, answer.text
    check_response(answer.content)
    told: dict[str, Any] = answer.json()
    return told


def kinds(told: dict[str, Any]) -> list[str]:
    return [item["type"] for item in told["output"]]


def call_of(told: dict[str, Any]) -> dict[str, Any]:
    (call,) = [item for item in told["output"] if item["type"] == "mcp_call"]
    return dict(call)


def bare(told: dict[str, Any]) -> list[Any]:
    """The output without ids, which differ between responses."""
    return [{name: value for name, value in item.items() if name != "id"} for item in told["output"]]


def test_tool_is_called_in_the_midst_of_a_response_streamed_or_not(server: ServerProcess, mcp: Mcp) -> None:
    whole = post(server, ask())
    assert kinds(whole) == ["mcp_list_tools", "mcp_call", "message"]
    assert [tool["name"] for tool in whole["output"][0]["tools"]] == ["get_weather"]
    call = call_of(whole)
    assert (call["name"], call["status"], call["output"]) == ("get_weather", "completed", "It is sunny.")
    assert mcp.calls == ["get_weather Paris"]
    assert whole["status"] == "completed"
    with create(server.url, ask()) as stream:
        frames = list(stream)
    for frame in frames:
        check_event(frame.data)
    told = [frame.json for frame in frames]
    assert [event["sequence_number"] for event in told] == list(range(len(told)))
    assert [event["type"] for event in told if "mcp" in event["type"]] == [
        "response.mcp_list_tools.in_progress",
        "response.mcp_list_tools.completed",
        "response.mcp_call.in_progress",
        "response.mcp_call_arguments.delta",
        "response.mcp_call_arguments.done",
        "response.mcp_call.completed",
    ]
    assert bare(told[-1]["response"]) == bare(whole)
    assert told[-1]["response"]["usage"]["output_tokens"] == whole["usage"]["output_tokens"]


def test_usage_is_that_of_all_turns_and_the_next_request_reads_the_call(
    server: ServerProcess, mcp: Mcp
) -> None:
    first = post(server, ask())
    usage = first["usage"]
    assert usage["input_tokens_details"]["cached_tokens"] > 0
    details = [*usage["input_tokens_details"].values(), *usage["output_tokens_details"].values()]
    assert {type(count) for count in details} == {int}  # which is all that some clients take
    url = f"{server.api}/responses"
    told = httpx.post(url, json=ask(enable_response_messages=True), timeout=120).json()
    by_turn = told["usage"]
    assert httpx.get(f"{url}/{told['id']}").json()["usage"] == by_turn
    before, behind = by_turn["input_tokens_details"]["input_tokens_per_turn"]
    called, answered = by_turn["output_tokens_details"]["output_tokens_per_turn"]
    assert (before + behind, called + answered) == (usage["input_tokens"], usage["output_tokens"])
    assert (of_tools := behind - before - called) > 0
    assert by_turn["output_tokens_details"]["tool_output_tokens_per_turn"] == [0, of_tools]
    assert usage["output_tokens_details"]["tool_output_tokens"] == of_tools
    assert httpx.get(f"{url}/{first['id']}").json()["usage"] == usage
    assert httpx.get(url, params={"limit": 2}).json()["data"][1]["usage"] == usage
    chained = {"model": MODEL, "input": "Thank you", "previous_response_id": first["id"], "temperature": 0}
    later = post(server, chained)
    counted = httpx.post(f"{server.api}/responses/input_tokens", json=chained, timeout=60).json()
    assert later["usage"]["input_tokens"] == counted["input_tokens"]
    assert usage["input_tokens"] > counted["input_tokens"]


def test_tool_that_fails_is_an_item_that_the_model_reads(server: ServerProcess, mcp: Mcp) -> None:
    mcp.does("broken")
    told = post(server, ask())
    call = call_of(told)
    assert (call["status"], call["output"]) == ("failed", None)
    assert "The sky has fallen." in call["error"]["content"][0]["text"]
    assert told["status"] == "completed"
    assert kinds(told)[-1] == "message"


def test_tool_that_gives_no_answer_in_time_is_an_item_that_says_so(server: ServerProcess, mcp: Mcp) -> None:
    told = post(server, ask(TIME))
    call = call_of(told)
    assert (call["status"], call["error"]["type"]) == ("failed", "mcp_protocol_error")
    assert "5 seconds" in call["error"]["message"]
    assert told["status"] == "completed"


def test_output_that_is_too_long_is_cut_and_what_the_model_cannot_read_ends_the_answer(
    server: ServerProcess, mcp: Mcp
) -> None:
    mcp.does("huge")
    told = post(server, ask())
    assert len(call_of(told)["output"]) < 101_000
    assert call_of(told)["output"].endswith("[200000 more characters were left out]")
    assert (told["status"], told["error"]) == ("incomplete", None)
    assert told["incomplete_details"] == {"reason": "max_output_tokens"}


def test_a_response_whose_context_is_full_after_a_call_goes_on_with_less_of_it(
    server: ServerProcess, mcp: Mcp
) -> None:
    (model,) = httpx.get(f"{server.api}/models").json()["data"]
    room, body = model["max_model_len"] * 7 // 8, ask(max_output_tokens=2000)

    def body_of(words: int) -> dict[str, Any]:
        before = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "so it was " * 100}]
        fill = [{"role": "user", "content": "Go on"}, {"role": "assistant", "content": "so it was " * words}]
        return body | {"input": [*before, *fill, {"role": "user", "content": WEATHER}]}

    def count(words: int) -> int:
        counted = httpx.post(f"{server.api}/responses/input_tokens", json=body_of(words), timeout=60)
        tokens: int = counted.json()["input_tokens"]
        return tokens

    each = (count(200) - count(100)) / 100
    full = body_of(int((room - count(0)) / each) - 2) | {"enable_response_messages": True}

    def turns(truncation: str) -> list[int]:
        sent = {**full, "truncation": truncation}
        told = httpx.post(f"{server.api}/responses", json=sent, timeout=120).json()
        assert kinds(told) == ["mcp_list_tools", "mcp_call", "message"]
        read: list[int] = told["usage"]["input_tokens_details"]["input_tokens_per_turn"]
        return read

    before, after = turns("disabled")
    assert room - 20 < before <= room < after
    before, after = turns("auto")
    assert after < room - 100 < before <= room
    assert len(mcp.calls) == 2


def test_server_that_is_not_there_is_an_item_and_the_model_goes_on_without(server: ServerProcess) -> None:
    told = post(server, ask(label="gone", tool_choice="auto"))
    assert told["status"] == "completed"
    assert told["output"][0]["type"] == "mcp_list_tools"
    assert told["output"][0]["error"]


def test_tool_of_openais_whose_server_is_not_there_is_refused(start_server: StartServer) -> None:
    gone = f"http://127.0.0.1:{free_port()}/mcp"
    server = start_server(scripted_answers="[]", tool_server=f"python={gone}")
    body = {"model": MODEL, "input": "Hi", "tools": [{"type": "code_interpreter", "container": "auto"}]}
    answer = httpx.post(f"{server.api}/responses", json=body, timeout=60)
    assert (answer.status_code, answer.headers["x-should-retry"]) == (503, "true")
    error = answer.json()["error"]
    assert (error["param"], error["code"]) == ("tools", "tool_server_unavailable")
    assert "code_interpreter" in error["message"]


def test_no_more_calls_are_made_than_the_request_allows(server: ServerProcess, mcp: Mcp) -> None:
    both = {**ask(), "input": "What is the weather in Paris and in Rome?", "max_tool_calls": 1}
    told = post(server, both)
    assert told["status"] == "completed"
    assert len(mcp.calls) == 1


def test_server_that_speaks_by_events_is_called_too(server: ServerProcess) -> None:
    assert call_of(post(server, ask(label="events")))["output"] == "It is sunny."


def by_url(mcp: Mcp, query: str = "", **more: Any) -> dict[str, Any]:
    tool = {**ask()["tools"][0], "server_url": mcp.url + query, "server_label": "mine"}
    return ask() | {"tools": [tool | more]}


def test_server_is_called_by_a_url_that_the_operator_allows_and_no_secret_of_it_is_told_or_kept(
    server: ServerProcess, mcp: Mcp, module_database: str
) -> None:
    told = post(server, by_url(mcp, "?key=canary", headers={"X-Key": "canary"}, authorization="canary"))
    assert call_of(told)["output"] == "It is sunny."
    assert told["tools"][0]["server_url"] == f"http://127.0.0.1:{mcp.port}/<redacted>"
    with psycopg.connect(module_database) as connection:
        for table in ("responses", "items", "response_streams", "response_events_hot"):
            rows = connection.execute(f"select t::text from {table} t").fetchall()  # noqa: S608
            assert not [row for (row,) in rows if "canary" in row]
    assert "canary" not in server.said()


def test_call_that_must_be_allowed_waits_and_is_made_before_the_model_goes_on(
    server: ServerProcess, mcp: Mcp
) -> None:
    tool = {"type": "mcp", "server_label": "city", "allowed_tools": ["get_weather"]}
    first = post(server, ask(tools=[tool]))
    assert (kinds(first), first["status"]) == (["mcp_list_tools", "mcp_approval_request"], "completed")
    assert mcp.calls == []
    asked = first["output"][-1]
    answer = {"type": "mcp_approval_response", "approval_request_id": asked["id"], "approve": True}
    later = {**ask(tools=[tool]), "previous_response_id": first["id"], "input": [answer]}
    with create(server.url, later) as stream:
        told = [frame.json for frame in stream]
    final = told[-1]["response"]
    assert kinds(final) == ["mcp_call", "message"]
    assert call_of(final)["approval_request_id"] == asked["id"]
    assert call_of(final)["arguments"] == asked["arguments"]
    assert (call_of(final)["output"], mcp.calls) == ("It is sunny.", ["get_weather Paris"])
    assert [event["type"] for event in told[2:7]] == [
        "response.output_item.added",
        "response.mcp_call.in_progress",
        "response.mcp_call_arguments.delta",
        "response.mcp_call_arguments.done",
        "response.mcp_call.completed",
    ]
    own = post(server, {**ask(tools=[tool]), "store": False, "input": [*first["output"], answer]})
    assert bare(own)[1:] == [*bare(final)[1:]]
    denied = post(server, later | {"input": [answer | {"approve": False}], "tool_choice": "auto"})
    assert "mcp_call" not in kinds(denied)
    assert len(mcp.calls) == 1


def allowed(asked: dict[str, Any]) -> dict[str, Any]:
    return {"type": "mcp_approval_response", "approval_request_id": asked["id"], "approve": True}


WAITING: dict[str, Any] = {
    "tools": [{"type": "mcp", "server_label": "city", "allowed_tools": ["get_weather"]}]
}


@pytest.mark.parametrize(
    "way", ["response", "conversation", "items", "items in conversation", "unstored first"]
)
def test_an_approval_that_is_spent_gives_the_first_result_and_no_second_call(
    server: ServerProcess, mcp: Mcp, way: str
) -> None:
    def new_conversation() -> str:
        made: str = httpx.post(f"{server.api}/conversations", json={}).json()["id"]
        return made

    ours = {"conversation": new_conversation()} if way == "conversation" else {}
    first = post(server, ask(**WAITING, **ours))
    asked = first["output"][-1]
    copied = {"input": [*first["output"], allowed(asked)]}
    later = {
        "response": {"previous_response_id": first["id"], "input": [allowed(asked)]},
        "conversation": {**ours, "input": [allowed(asked)]},
        "items": copied,
        "items in conversation": copied,
        "unstored first": copied,
    }[way]
    made = []
    for number in range(3):
        own = {"conversation": new_conversation()} if way == "items in conversation" else {}
        stored = {"store": number > 0 or way != "unstored first"}
        made.append(post(server, {**ask(**WAITING), "tool_choice": "auto", **later, **own, **stored}))
    after = {"previous_response_id": made[-1]["id"], "input": [allowed(asked)]}
    if way == "response":
        made.append(post(server, {**ask(**WAITING), "tool_choice": "auto", **after}))
    assert mcp.calls == ["get_weather Paris"]
    assert {kinds(told)[0] for told in made} == {"mcp_call"}
    known = ["It is sunny."] + [None if way == "unstored first" else "It is sunny."] * (len(made) - 1)
    assert [call_of(told)["output"] for told in made] == known
    errors = [call_of(told)["error"] for told in made]
    assert [error and "not known" in error["message"] for error in errors] == [
        None if output else True for output in known
    ]


def test_of_two_approvals_at_once_one_is_answered_with_a_conflict_until_the_first_has_its_result(
    server: ServerProcess, mcp: Mcp, module_database: str, settings: dict[str, object]
) -> None:
    other = ServerProcess(module_database, settings=settings)
    other.start()
    try:
        first = post(server, ask(**WAITING))
        body = {**ask(**WAITING), "tool_choice": "auto", "previous_response_id": first["id"]}
        body["input"] = [allowed(first["output"][-1])]
        mcp.does("wait")
        with ThreadPoolExecutor() as pool:
            sent = [
                pool.submit(httpx.post, f"{replica.api}/responses", json=body, timeout=60)
                for replica in (server, other, server, other)
            ]
            eventually(lambda: sum(one.done() for one in sent) == 3, within=60)
            (mcp.folder / "wait").unlink()
            answers = [one.result() for one in sent]
        (told,) = [answer.json() for answer in answers if answer.status_code == 200]
        refused = [answer for answer in answers if answer.status_code != 200]
        for answer in refused:
            assert told["id"] in check_error(answer, 409, "invalid_request_error")["message"]
        assert call_of(post(other, body))["output"] == call_of(told)["output"] == "It is sunny."
        assert mcp.calls == ["get_weather Paris"]
    finally:
        other.stop()


def test_after_a_call_without_a_result_its_approval_is_spent_and_the_model_is_told_so(
    server: ServerProcess, mcp: Mcp
) -> None:
    first = post(server, ask(**WAITING))
    body = {**ask(**WAITING), "tool_choice": "auto", "previous_response_id": first["id"]}
    body["input"] = [allowed(first["output"][-1])]
    mcp.does("wait")
    begun = httpx.post(f"{server.api}/responses", json={**body, "background": True}, timeout=60).json()
    eventually(lambda: len(mcp.calls) == 1, within=60)
    httpx.post(f"{server.api}/responses/{begun['id']}/cancel", timeout=60).raise_for_status()
    eventually(lambda: retrieve(server, begun["id"])["status"] == "cancelled", within=60)
    (mcp.folder / "wait").unlink()
    told = post(server, body)
    assert "not known" in call_of(told)["error"]["message"]
    assert (kinds(told)[-1], len(mcp.calls)) == ("message", 1)


def test_allowed_call_is_made_on_the_uncompacted_context_and_compacted_after_it(
    server: ServerProcess, mcp: Mcp
) -> None:
    tool = {"type": "mcp", "server_label": "city", "allowed_tools": ["get_weather"]}
    said = {"role": "assistant", "content": "So it is, and so it was. " * 160}
    long = [{"role": "user", "content": "Hi"}, said, {"role": "user", "content": WEATHER}]
    low = {"context_management": [{"type": "compaction", "compact_threshold": 1000}]}
    first = post(server, ask(tools=[tool], input=long))
    asked = first["output"][-1]
    answer = {"type": "mcp_approval_response", "approval_request_id": asked["id"], "approve": True}
    later = {**ask(tools=[tool], previous_response_id=first["id"]), "input": [answer], **low}
    triggered = {**later, "input": [answer, {"type": "compaction_trigger"}]}
    refused = httpx.post(f"{server.api}/responses", json=triggered, timeout=60)
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "input")
    told = post(server, later)
    assert (kinds(told), mcp.calls[1:]) == (["mcp_call", "compaction", "message"], [])
    thanks = {"model": MODEL, "input": "Thank you", "previous_response_id": told["id"], "temperature": 0}
    assert kinds(post(server, thanks | low)) == ["message"]


@pytest.mark.faults
def test_call_that_was_perhaps_made_is_not_made_again_unless_its_tool_says_that_it_may(
    server: ServerProcess, mcp: Mcp
) -> None:
    mcp.does("wait")
    asked = httpx.post(f"{server.api}/responses", json=ask(background=True), timeout=60).json()
    eventually(lambda: len(mcp.calls) == 1, within=60)
    server.kill()
    (mcp.folder / "wait").unlink()
    server.start()
    address = f"{server.api}/responses/{asked['id']}"
    eventually(lambda: httpx.get(address).json()["status"] == "completed", within=60)
    told = httpx.get(address).json()
    first = next(item for item in told["output"] if item["type"] == "mcp_call")
    assert "It is not known" in first["error"]["message"]
    assert kinds(told)[-1] == "message"


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"server_label": "unknown"}, "tools[0].server_label"),
        ({"server_url": "http://169.254.169.254/"}, "tools[0].server_url"),
        ({"headers": {"Host": "elsewhere"}}, "tools[0].headers"),
    ],
)
def test_what_an_operator_has_not_allowed_is_refused_by_its_name(
    scripted_server: ServerProcess, change: dict[str, Any], param: str
) -> None:
    tool = {"type": "mcp", "server_label": "city", "require_approval": "never", **change}
    answer = httpx.post(f"{scripted_server.api}/responses", json={**ask(), "tools": [tool]}, timeout=60)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == param


def test_background_response_killed_during_its_call_is_finished_after_a_restart(
    server: ServerProcess, mcp: Mcp
) -> None:
    asked = httpx.post(f"{server.api}/responses", json=ask(TIME, background=True), timeout=60).json()
    eventually(lambda: len(mcp.calls) == 1, within=60)
    server.restart()
    eventually(lambda: len(mcp.calls) == 2, within=60)
    mcp.does("go")
    eventually(lambda: retrieve(server, asked["id"])["status"] == "completed", within=60)
    told = retrieve(server, asked["id"])
    assert call_of(told)["output"] == "It is noon."
    assert kinds(told)[-1] == "message"
    unbroken = post(server, ask(TIME))
    assert bare(unbroken) == bare(told)
    counted = [one["usage"]["output_tokens_details"] for one in (told, unbroken)]
    assert counted[0] == counted[1]
    assert counted[0]["tool_output_tokens"] > 0


@pytest.mark.faults
@pytest.mark.parametrize(("drain_seconds", "calls"), [(20, 1), (1, 2)])
def test_server_that_is_asked_to_end_during_a_call_hands_the_response_over_with_a_result_in_time(
    start_server: StartServer, mcp: Mcp, drain_seconds: int, calls: int
) -> None:
    server = start_server(engine="model", tool_server=f"city={mcp.url}", drain_seconds=drain_seconds)
    asked = httpx.post(f"{server.api}/responses", json=ask(TIME, background=True), timeout=60).json()
    eventually(lambda: len(mcp.calls) == 1, within=60)
    server.ask_to_end()
    if calls == 1:
        mcp.does("go")
    assert server.wait() == 0
    mcp.does("go")
    server.start()
    eventually(lambda: retrieve(server, asked["id"])["status"] == "completed", within=60)
    assert len(mcp.calls) == calls


def test_response_is_cancelled_during_its_call(server: ServerProcess, mcp: Mcp) -> None:
    asked = httpx.post(f"{server.api}/responses", json=ask(TIME, background=True), timeout=60).json()
    eventually(lambda: len(mcp.calls) == 1, within=60)
    httpx.post(f"{server.api}/responses/{asked['id']}/cancel", timeout=60)
    eventually(lambda: retrieve(server, asked["id"])["status"] == "cancelled", within=60)
    assert call_of(retrieve(server, asked["id"]))["status"] == "incomplete"
