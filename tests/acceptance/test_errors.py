"""Mistakes of clients: OpenAI's error object, naming the parameter, and never a word about our insides."""

import json
from collections.abc import Mapping

import httpx
import pytest
from openai import APIStatusError, BadRequestError, NotFoundError

from tests.acceptance.error_object import check_error
from tests.fix_server import Connect
from tests.support.server_process import MODEL, ServerProcess
from tests.support.sse import create

HELLO: dict[str, object] = {"model": MODEL, "input": "Hello"}
UNKNOWN_ID = "resp_" + "0" * 32


def post(server: ServerProcess, body: Mapping[str, object]) -> httpx.Response:
    return httpx.post(f"{server.api}/responses", json=body)


WRONG = [
    ({"input": "Hello"}, "model"),
    ({"model": MODEL}, "input"),
    ({"model": None, "input": "Hello"}, "model"),
    ({"model": 7, "input": "Hello"}, "model"),
    ({**HELLO, "input": 7}, "input"),
    ({**HELLO, "input": None}, "input"),
    ({**HELLO, "input": {}}, "input"),
    ({**HELLO, "input": ["Hello"]}, "input[0]"),
    ({**HELLO, "input": [{"role": "user"}]}, "input[0].content"),
    ({**HELLO, "input": [{"content": "Hello"}]}, "input[0].role"),
    ({**HELLO, "input": [{"role": "wizard", "content": "Hello"}]}, "input[0].role"),
    ({**HELLO, "input": [{"role": "user", "content": 7}]}, "input[0].content"),
    ({**HELLO, "input": [{"role": "user", "content": [7]}]}, "input[0].content[0]"),
    ({**HELLO, "input": [{"role": "user", "content": [{"type": "input_text"}]}]}, "input[0].content[0].text"),
    ({**HELLO, "input": [{"role": "user", "content": [{"text": "x"}]}]}, "input[0].content[0].type"),
    ({**HELLO, "input": [{"type": ["message"]}]}, "input[0].type"),
    ({**HELLO, "input": [{"type": "telepathy"}]}, "input[0].type"),
    ({**HELLO, "instructions": 7}, "instructions"),
    ({**HELLO, "tools": [{"type": "function"}]}, "tools[0].name"),
    ({**HELLO, "tools": [{"name": "f"}]}, "tools[0].type"),
    ({**HELLO, "tools": [{"type": "function", "name": "f"}] * 2}, "tools"),
    ({**HELLO, "tool_choice": "required"}, "tool_choice"),
    ({**HELLO, "tool_choice": "maybe"}, "tool_choice"),
    ({**HELLO, "tool_choice": {"type": "function", "name": "f"}}, "tool_choice"),
    ({**HELLO, "tool_choice": {"type": "web_search"}}, "tool_choice"),
    ({**HELLO, "text": {"format": {"type": "json_schema", "name": "x"}}}, "text.format.schema"),
    ({**HELLO, "text": {"format": {"type": "yaml"}}}, "text.format.type"),
    ({**HELLO, "logit_bias": {"hello": 1}}, "logit_bias"),
    ({**HELLO, "input": [{"type": "function_call_output", "call_id": "c", "output": "x"}]}, "input"),
    ({**HELLO, "stream": "yes"}, "stream"),
    ({**HELLO, "store": 1}, "store"),
    ({**HELLO, "temperature": "hot"}, "temperature"),
    ({**HELLO, "temperature": 2.5}, "temperature"),
    ({**HELLO, "temperature": -1}, "temperature"),
    ({**HELLO, "top_p": 1.5}, "top_p"),
    ({**HELLO, "max_output_tokens": 0}, "max_output_tokens"),
    ({**HELLO, "max_output_tokens": 1.5}, "max_output_tokens"),
    ({**HELLO, "seed": 2**63}, "seed"),
    ({**HELLO, "seed": -(2**64)}, "seed"),
    ({**HELLO, "metadata": {"a": 1}}, "metadata.a"),
    ({**HELLO, "metadata": {str(n): "x" for n in range(17)}}, "metadata"),
    ({**HELLO, "metadata": {"a": "x" * 513}}, "metadata.a"),
    ({**HELLO, "previous_response_id": 7}, "previous_response_id"),
    ({**HELLO, "reasoning": {"effort": "enormous"}}, "reasoning.effort"),
    ({**HELLO, "text": {"verbosity": 7}}, "text.verbosity"),
    ({**HELLO, "truncation": "maybe"}, "truncation"),
    ({**HELLO, "conversation": 7}, "conversation"),
    ({**HELLO, "conversation": {}}, "conversation.id"),
    ({**HELLO, "prompt": "p"}, "prompt"),
    ({**HELLO, "prompt": {}}, "prompt.id"),
    ({**HELLO, "prompt": {"id": "p", "version": 1}}, "prompt.version"),
]


@pytest.mark.parametrize(("body", "param"), WRONG, ids=[f"{n}-{param}" for n, (_, param) in enumerate(WRONG)])
def test_wrong_value_is_refused_by_name(
    scripted_server: ServerProcess, body: Mapping[str, object], param: str
) -> None:
    error = check_error(post(scripted_server, body), 400, "invalid_request_error")
    assert error["param"] == param


def test_parameters_that_change_nothing_are_accepted(scripted_server: ServerProcess) -> None:
    tolerated = {
        "include": ["reasoning.encrypted_content", "file_search_call.results"],
        "client_metadata": {"app": "x"},
        "service_tier": "flex",
        "stream_options": {"include_obfuscation": True},
        "tools": [],
        "tool_choice": "auto",
        "prompt_cache_key": "k",
        "safety_identifier": "s",
        "never_heard_of": {"a": [1]},
        "metadata": None,
        "temperature": None,
    }
    assert post(scripted_server, {**HELLO, **tolerated}).status_code == 200


def test_unknown_model_is_not_found(scripted_server: ServerProcess, connect: Connect) -> None:
    error = check_error(post(scripted_server, {**HELLO, "model": "gpt-9"}), 404, "invalid_request_error")
    assert (error["param"], error["code"]) == ("model", "model_not_found")
    check_error(httpx.get(f"{scripted_server.api}/models/gpt-9"), 404, "invalid_request_error")
    with pytest.raises(NotFoundError):
        connect(scripted_server).responses.create(model="gpt-9", input="Hello")


def test_models_are_listed(scripted_server: ServerProcess, connect: Connect) -> None:
    client = connect(scripted_server)
    (model,) = client.models.list()
    assert model.id == MODEL
    assert client.models.retrieve(MODEL) == model


def test_deleted_id_and_unknown_one_look_the_same(scripted_server: ServerProcess) -> None:
    gone = post(scripted_server, HELLO).json()["id"]
    httpx.delete(f"{scripted_server.api}/responses/{gone}")
    for method, suffix in (("GET", ""), ("GET", "?stream=true"), ("DELETE", "")):
        deleted, unknown = (
            httpx.request(method, f"{scripted_server.api}/responses/{given}{suffix}")
            for given in (gone, UNKNOWN_ID)
        )
        check_error(unknown, 404, "invalid_request_error")
        assert (deleted.status_code, deleted.text.replace(gone, UNKNOWN_ID)) == (404, unknown.text)
    deleted, unknown = (
        post(scripted_server, {**HELLO, "previous_response_id": given}) for given in (gone, UNKNOWN_ID)
    )
    error = check_error(unknown, 400, "invalid_request_error")
    assert (error["param"], error["code"]) == ("previous_response_id", "previous_response_not_found")
    assert (deleted.status_code, deleted.text.replace(gone, UNKNOWN_ID)) == (400, unknown.text)


@pytest.mark.parametrize(
    "strange", ["resp_1", "resp_", "x", "resp_" + "F" * 32, "msg_" + "0" * 32, "%00", "%ff", "..", "a" * 5000]
)
def test_strange_id_is_not_found(scripted_server: ServerProcess, strange: str) -> None:
    check_error(httpx.get(f"{scripted_server.api}/responses/{strange}"), 404, "invalid_request_error")


@pytest.mark.parametrize("after", ["-1", "x", "1.5", "", "1e3", "٣", "99999999999999999999", "+1", " 1"])
def test_bad_starting_after_is_refused_by_name(scripted_server: ServerProcess, after: str) -> None:
    response_id = post(scripted_server, HELLO).json()["id"]
    address = f"{scripted_server.api}/responses/{response_id}"
    answer = httpx.get(address, params={"stream": "true", "starting_after": after})
    assert check_error(answer, 400, "invalid_request_error")["param"] == "starting_after"


def test_bad_stream_flag_is_refused_by_name(scripted_server: ServerProcess) -> None:
    response_id = post(scripted_server, HELLO).json()["id"]
    answer = httpx.get(f"{scripted_server.api}/responses/{response_id}?stream=maybe")
    assert check_error(answer, 400, "invalid_request_error")["param"] == "stream"


@pytest.mark.parametrize("path", ["/", "/v1", "/v2/responses", "/v1/responses/a/b", "/v1/embeddings"])
def test_unknown_address_is_not_found(scripted_server: ServerProcess, path: str) -> None:
    check_error(httpx.get(scripted_server.url + path), 404, "invalid_request_error")


def test_browser_is_led_from_the_bare_address_to_the_console_and_others_to_the_list_of_addresses(
    scripted_server: ServerProcess,
) -> None:
    browser = {"accept": "text/html,application/xhtml+xml,*/*;q=0.8"}
    led = httpx.get(scripted_server.url + "/", headers=browser)
    assert (led.status_code, led.headers["location"]) == (303, "/console")
    answer = httpx.get(scripted_server.url + "/docs", headers=browser)
    assert "/openapi.json" in check_error(answer, 404, "invalid_request_error")["message"]


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("PUT", "responses"),
        ("POST", "models"),
        ("PATCH", "responses/x"),
    ],
)
def test_wrong_method_is_refused(scripted_server: ServerProcess, method: str, path: str) -> None:
    answer = httpx.request(method, f"{scripted_server.api}/{path}")
    check_error(answer, 405, "invalid_request_error")
    takes = {"responses": "GET, HEAD, POST", "models": "GET, HEAD", "responses/x": "DELETE, GET, HEAD"}
    assert answer.headers["allow"] == takes[path]


def test_too_long_input_is_refused_before_anything_is_kept(
    scripted_server: ServerProcess, connect: Connect
) -> None:
    with pytest.raises(BadRequestError) as refused:
        connect(scripted_server).responses.create(model=MODEL, input="Hello there. " * 10_000)
    assert refused.value.code == "context_length_exceeded"
    assert refused.value.param == "input"


LONG = "Hello there. " * 10_000
CONTEXT_LENGTH = 32768
"""Of the scripted engine."""
MANY = [10] * CONTEXT_LENGTH


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("responses", {"input": LONG}, "input"),
        ("responses", {"input": [{"role": "user", "content": LONG}]}, "input"),
        ("responses", {"input": "Hello", "instructions": LONG}, "input"),
        ("chat/completions", {"messages": [{"role": "user", "content": LONG}]}, "messages"),
        ("completions", {"prompt": LONG}, "prompt"),
        ("completions", {"prompt": MANY}, "prompt"),
        ("completions", {"prompt": [MANY]}, "prompt"),
    ],
)
def test_overflow_is_told_in_words_that_clients_know(
    scripted_server: ServerProcess, path: str, body: dict[str, object], param: str
) -> None:
    """LiteLLM, aider and inspect look for the one, LangChain for the other; their SDKs drop the code."""
    answer = httpx.post(f"{scripted_server.api}/{path}", json={"model": MODEL, **body}, timeout=60)
    error = check_error(answer, 400, "invalid_request_error")
    assert (error["param"], error["code"]) == (param, "context_length_exceeded")
    assert f"this model's maximum context length is {CONTEXT_LENGTH} tokens" in error["message"]
    assert error["message"].startswith("Input tokens exceed the configured limit of ")


def test_overflow_of_a_chats_tokens_names_its_messages(scripted_server: ServerProcess) -> None:
    """More than is counted, which is more than a model reads."""
    body = {"messages": [{"role": "user", "content": LONG * 5}]}
    answer = httpx.post(f"{scripted_server.url}/tokenize", json=body, timeout=60)
    error = check_error(answer, 400, "invalid_request_error")
    assert (error["param"], error["code"]) == ("messages", "context_length_exceeded")
    assert f"Input tokens exceed the configured limit of {4 * CONTEXT_LENGTH} tokens" in error["message"]


def test_refusals_of_a_chats_input_name_its_messages(scripted_server: ServerProcess) -> None:
    messages = [{"role": "user", "content": "Hi"}, {"role": "tool", "tool_call_id": "x", "content": "y"}]
    answer = httpx.post(
        f"{scripted_server.api}/chat/completions", json={"model": MODEL, "messages": messages}
    )
    assert check_error(answer, 400, "invalid_request_error")["param"] == "messages"


def test_going_on_from_running_response_is_refused(paced_server: ServerProcess) -> None:
    with create(paced_server.url, HELLO) as stream:
        running = stream.take(3)[0].json["response"]["id"]
        answer = post(paced_server, {**HELLO, "previous_response_id": running})
    assert check_error(answer, 400, "invalid_request_error")["param"] == "previous_response_id"


def test_refused_stream_is_an_error_and_not_a_stream(scripted_server: ServerProcess) -> None:
    answer = post(scripted_server, {**HELLO, "stream": True, "model": "gpt-9"})
    check_error(answer, 404, "invalid_request_error")


def test_client_library_is_told_not_to_try_again(scripted_server: ServerProcess, connect: Connect) -> None:
    with pytest.raises(APIStatusError) as refused:
        connect(scripted_server).responses.create(model=MODEL, input="Hello", temperature=9)
    assert refused.value.response.headers["x-should-retry"] == "false"
    assert refused.value.request_id is not None
    assert json.loads(refused.value.response.text)["error"]["param"] == "temperature"
