"""The fake vLLM server answers as vLLM 0.32 does: these are answers of a real one, with the demo model."""

import json
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.engine_process import EngineServerProcess
from tests.support.fake_vllm import Call, read_call, read_model
from tests.support.fake_vllm_faults import ENDLESS, SILENT, STREAM, answers, events
from tests.support.rounds import example_count

FOLDER = Path(__file__).parents[2] / "demo" / "holdfast-demo"
MODEL = read_model(FOLDER, "holdfast-demo", 20, 4096, ())
GENERATE = "/inference/v1/generate"

TOKEN = (
    'data: {"request_id":"generate-tokens-t1","usage":null,"output_mode":"tokens","choices":[{"index":0,'
    '"finish_reason":null,"stop_reason":null,"token_ids":[70],"routed_experts":null,"sampling_mask":null,'
    '"weight_versions":null,"logprobs":{"content":[{"token_id":70,"logprob":-0.0003,"rank":1,"top_logprobs":'
    '[{"token_id":70,"logprob":-0.0003,"rank":1},{"token_id":73,"logprob":-9.7,"rank":2}]}]}}]}'
)
LAST_TOKEN = TOKEN.replace('"finish_reason":null', '"finish_reason":"length"').replace(
    '"weight_versions":null', '"weight_versions":[{"version":"default","start":0,"end":3}]'
)
STOPPED = (
    'data: {"request_id":"generate-tokens-s1","usage":null,"output_mode":"tokens","choices":[{"index":0,'
    '"finish_reason":"stop","stop_reason":70,"token_ids":[70],"routed_experts":null,"sampling_mask":null,'
    '"weight_versions":[{"version":"default","start":0,"end":1}],"logprobs":null}]}'
)
USAGE = (
    'data: {"request_id":"generate-tokens-t1","usage":{"prompt_tokens":4,"total_tokens":7,"completion_tokens"'
    ':3,"prompt_tokens_details":{"cached_tokens":0}},"output_mode":"tokens","choices":[]}'
)
WHOLE = (
    '{"request_id":"generate-tokens-t2","model":"holdfast-demo","created":1795427267,"usage":{"prompt_tokens"'
    ':4,"total_tokens":7,"completion_tokens":3,"prompt_tokens_details":{"cached_tokens":0,'
    '"created_cache_tokens":null,"multimodal_tokens":null},"completion_tokens_details":null},'
    '"prompt_logprobs":[null,{"50":{"logprob":-16.2,"rank":943,"decoded_token":"S"}},{"60":{"logprob":-22.6,'
    '"rank":789,"decoded_token":"]"}},{"70":{"logprob":-10.6,"rank":274,"decoded_token":"g"}}],'
    '"prompt_token_id_logprobs":null,"prompt_token_ids":null,"mm_placeholders":null,"metrics":null,'
    '"kv_transfer_params":null,"ec_transfer_params":null,"output_mode":"tokens","choices":[{"index":0,'
    '"finish_reason":"length","stop_reason":null,"token_ids":[70,70,70],"routed_experts":null,'
    '"sampling_mask":null,"weight_versions":[{"version":"default","start":0,"end":3}],"logprobs":{"content":'
    '[{"token_id":70,"logprob":-0.1,"rank":1,"top_logprobs":[{"token_id":70,"logprob":-0.1,"rank":1}]}]}}]}'
)
ERRORS = [
    (
        {"model": "nosuch", "token_ids": [1], "sampling_params": {}},
        404,
        (
            '{"error":{"message":"The model `nosuch` does not exist. Valid aliases: holdfast-demo.",'
            '"type":"NotFoundError","param":"model","code":404}}'
        ),
    ),
    (
        {"model": "holdfast-demo", "token_ids": [1, 9999999], "sampling_params": {}},
        400,
        (
            '{"error":{"message":"Token id 9999999 is out of vocabulary","type":"BadRequestError",'
            '"param":null,"code":400}}'
        ),
    ),
    (
        {"model": "holdfast-demo", "token_ids": [1, 2], "sampling_params": {"max_tokens": 0}},
        400,
        (
            '{"error":{"message":"max_tokens must be at least 1, got 0. (parameter=max_tokens, value=0)",'
            '"type":"BadRequestError","param":"max_tokens","code":400}}'
        ),
    ),
]


@pytest.fixture(scope="module")
def engine() -> Iterator[EngineServerProcess]:
    process = EngineServerProcess(length=20)
    process.start()
    yield process
    process.stop()


def post(engine: EngineServerProcess, request_id: str, *, stream: bool, **params: object) -> httpx.Response:
    body = {
        "request_id": request_id,
        "model": "holdfast-demo",
        "token_ids": [1, 50, 60, 70],
        "sampling_params": {"temperature": 0, **params},
        "stream": stream,
        "stream_options": {"include_usage": stream},
    }
    return httpx.post(engine.url + GENERATE, json=body)


def shape(value: Any) -> Any:
    """The value with its names in order, without its numbers."""
    if isinstance(value, dict):
        return [(name if not name.isdecimal() else "0", shape(one)) for name, one in value.items()]
    if isinstance(value, list):
        return [shape(one) for one in value]
    return type(value).__name__ if isinstance(value, int | float) else value


def event_shape(line: str) -> Any:
    return shape(json.loads(line.removeprefix("data: ")))


def test_a_stream_is_vllms(engine: EngineServerProcess) -> None:
    answer = post(engine, "t1", stream=True, max_tokens=3, logprobs=2)
    assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
    lines = answer.text.split("\n\n")
    assert [event_shape(line) for line in lines[:3]] == [
        event_shape(TOKEN), event_shape(TOKEN), event_shape(LAST_TOKEN)
    ]  # fmt: skip
    assert event_shape(lines[3]) == event_shape(USAGE)
    assert lines[4:] == ["data: [DONE]", ""]


def test_a_stop_token_is_delivered_and_named(engine: EngineServerProcess) -> None:
    first = json.loads(post(engine, "a", stream=False, max_tokens=1).text)["choices"][0]["token_ids"][0]
    stopped = post(engine, "s1", stream=True, stop_token_ids=[first], ignore_eos=True).text.split("\n\n")
    assert event_shape(stopped[0]) == event_shape(STOPPED)
    unstopped = post(engine, "s2", stream=False, stop_token_ids=[first], min_tokens=3).json()["choices"][0]
    assert first not in unstopped["token_ids"][:3]


def test_an_answer_that_is_not_streamed_is_vllms(engine: EngineServerProcess) -> None:
    answer = post(engine, "t2", stream=False, max_tokens=3, logprobs=1, prompt_logprobs=1).json()
    real = json.loads(WHOLE)
    real["choices"][0]["logprobs"]["content"] *= 3
    assert shape(answer) == shape(real)


@pytest.mark.parametrize(("body", "status", "expected"), ERRORS)
def test_errors_are_vllms(
    engine: EngineServerProcess, body: dict[str, object], status: int, expected: str
) -> None:
    answer = httpx.post(engine.url + GENERATE, json=body)
    assert (answer.status_code, answer.text) == (status, expected)


def test_what_a_client_asks_first_is_vllms(engine: EngineServerProcess) -> None:
    assert httpx.get(engine.url + "/version").json() == {"version": "0.32.0"}
    (model,) = httpx.get(engine.url + "/v1/models").json()["data"]
    assert (model["id"], model["parent"], model["max_model_len"]) == ("holdfast-demo", None, 8192)
    detokenized = httpx.post(engine.url + "/detokenize", json={"tokens": [50, 60, 70]})
    assert detokenized.json() == {"prompt": "S]g"}
    tokenized = httpx.post(
        engine.url + "/tokenize", json={"prompt": "Hello world", "return_token_strs": True}
    )
    assert tokenized.json() == {
        "count": 3, "max_model_len": 8192, "tokens": [654, 220, 1149], "token_strs": ["Hello", "Ġ", "world"]
    }  # fmt: skip
    line = 'vllm:num_requests_running{engine="0",model_name="holdfast-demo"} 0.0'
    assert line in httpx.get(engine.url + "/metrics").text


def run(tokens: list[int], **params: object) -> Call:
    body = {"token_ids": tokens, "sampling_params": params}
    call = read_call(json.dumps(body).encode(), MODEL)
    while call.finish is None:
        call.advance()
    return call


@given(st.lists(st.integers(0, 1270), min_size=1, max_size=30), st.integers(0, 30), st.integers(0, 2))
@settings(max_examples=example_count(100), deadline=None)
def test_a_call_from_any_token_on_returns_the_rest_of_the_answer(
    prompt: list[int], cut: int, seed: int
) -> None:
    whole = run(prompt, seed=seed)
    first = run(prompt, seed=seed, max_tokens=cut + 1)
    if first.finish == "length":
        assert first.tokens + run(prompt + first.tokens, seed=seed).tokens == whole.tokens
    assert whole.finish == "stop"
    assert len(whole.tokens) <= MODEL.length


def test_parameters_are_obeyed() -> None:
    prompt = [1, 50, 60, 70]
    assert set(run(prompt, allowed_token_ids=[70, 71], max_tokens=30).tokens) == {70, 71}
    assert len(run(prompt, ignore_eos=True, max_tokens=100).tokens) == 100
    assert len(run(prompt, min_tokens=50, max_tokens=90).tokens) >= 50
    assert run(prompt, seed=1).tokens != run(prompt, seed=2).tokens
    assert run(prompt, seed=1, temperature=0).tokens == run(prompt, seed=2, temperature=0).tokens


def test_an_aborted_call_ends_and_is_counted(engine: EngineServerProcess) -> None:
    engine.misbehave("hang", at=2)
    body = {"request_id": "x", "token_ids": [1], "sampling_params": {}, "stream": True}
    with httpx.stream("POST", engine.url + GENERATE, json=body) as stream:
        assert stream.status_code == 200
        assert engine.running == ["generate-tokens-x"]
        ids = {"request_ids": ["generate-tokens-x", "unknown"]}
        assert httpx.post(engine.url + "/inference/v1/abort_requests", json=ids).content == b""
        assert '"finish_reason":"abort"' in stream.read().decode()
    state = engine.state()
    assert (state["running"], state["ended"][-1]["how"], state["ended"][-1]["tokens"]) == ([], "aborted", 2)


def test_every_fault_can_be_ordered_and_the_server_survives_it(engine: EngineServerProcess) -> None:
    body = {"request_id": "x", "token_ids": [1], "sampling_params": {}, "stream": True}
    kinds = [*(STREAM.keys() - {"die"}), *events(), *ENDLESS, *answers(), "500", "429"]
    for kind in kinds:
        engine.misbehave(kind, at=2)
        with (
            suppress(httpx.HTTPError),
            httpx.stream("POST", engine.url + GENERATE, json=body, timeout=0.2) as stream,
        ):
            for size, _ in enumerate(stream.iter_raw(65536)):
                if size > 3:
                    break
        engine.clear()
        assert post(engine, "y", stream=False, max_tokens=1).status_code == 200
    assert answers().keys() >= SILENT
