"""What is sent to vLLM 0.32 and how its answers, which were recorded and shortened, are read."""

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from llguidance import LLMatcher, LLTokenizer
from tokenizers import Tokenizer

from engine.remote.engine_protocol import (
    CallFault,
    EngineMismatch,
    ExpectedModel,
    GenerateCall,
    HttpRequest,
)
from engine.remote.vllm_protocol import VllmProtocol
from engine.request import TokenLogprobs
from server.configuration.shipped_files import demo_model_folder
from tests.support.engines import make_request

PROTOCOL = VllmProtocol()
EVENT = (
    b'{"request_id":"generate-tokens-a6","usage":null,"output_mode":"tokens","choices":[{"index":0,'
    b'"finish_reason":null,"stop_reason":null,"token_ids":[8],"routed_experts":null,"sampling_mask":null,'
    b'"weight_versions":null,"logprobs":{"content":[{"token_id":8,"logprob":-1.5,"rank":2,"top_logprobs":['
    b'{"token_id":8,"logprob":-1.5,"rank":2},{"token_id":7,"logprob":-0.5,"rank":1},'
    b'{"token_id":3,"logprob":-1.5,"rank":3}]}]}}]}'
)
LAST = (
    b'{"request_id":"generate-tokens-a6","usage":null,"output_mode":"tokens","choices":[{"index":0,'
    b'"finish_reason":"stop","stop_reason":10,"token_ids":[10],"weight_versions":[{"version":"default",'
    b'"start":0,"end":3}],"logprobs":null}]}'
)
USAGE = (
    b'{"request_id":"generate-tokens-a6","usage":{"prompt_tokens":6,"total_tokens":10,"completion_tokens":4,'
    b'"prompt_tokens_details":{"cached_tokens":5}},"output_mode":"tokens","choices":[]}'
)
FAILURE = (
    b'{"error":{"message":"EngineCore encountered\\nan issue.","type":"InternalServerError","code":500}}'
)
SCORED = (
    b'{"request_id":"generate-tokens-81","prompt_logprobs":[null,{"6":{"logprob":-2.7,"rank":2,'
    b'"decoded_token":null},"9":{"logprob":-0.9,"rank":1,"decoded_token":null}},{"7":{"logprob":-0.1,'
    b'"rank":1,"decoded_token":null}}],"choices":[]}'
)


OF_CALL = ("lark", "allowed_token_ids", "banned_token_ids", "score_prompt", "min_tokens", "logit_bias")


def call_of(**settings: Any) -> GenerateCall:
    of_call = {name: settings.pop(name) for name in OF_CALL if name in settings}
    if "allowed_token_ids_of_request" in settings:
        settings["allowed_token_ids"] = settings.pop("allowed_token_ids_of_request")
    request = make_request("a", [5, 6, 7], **settings)
    return GenerateCall(call_id="a", request=request, tokens=(5, 6, 7), max_tokens=4, seed=11, **of_call)


def sent(call: GenerateCall) -> dict[str, Any]:
    request = PROTOCOL.generate_request(call, "base")
    assert (request.method, request.path) == ("POST", "/inference/v1/generate")
    body = json.loads(request.body)
    assert isinstance(body, dict)
    return body


def test_a_call_names_every_parameter_that_the_request_has() -> None:
    call = call_of(
        temperature=0.5, top_p=0.9, top_k=3, min_p=0.1, presence_penalty=0.2, frequency_penalty=0.3,
        repetition_penalty=1.1, allowed_token_ids_of_request=(1, 2), stop_ids=frozenset({3}),
        stop_token_ids=frozenset({4}), min_tokens=2, logit_bias=((9, 1.5),), logprobs=2, cache_salt="salt",
        priority=-1, adapter="lora",
    )  # fmt: skip
    body = sent(call)
    assert body["token_ids"] == [5, 6, 7]
    assert (body["model"], body["cache_salt"], body["priority"]) == ("lora", "salt", -1)
    assert body["stream"]
    assert body["sampling_params"] == {
        "max_tokens": 4, "temperature": 0.5, "top_p": 0.9, "top_k": 3, "min_p": 0.1, "presence_penalty": 0.2,
        "frequency_penalty": 0.3, "repetition_penalty": 1.1, "seed": 11, "min_tokens": 2,
        "stop_token_ids": [3, 4], "ignore_eos": True, "detokenize": False, "allowed_token_ids": [1, 2],
        "logit_bias": {"9": 1.5}, "logprobs": 3,
    }  # fmt: skip


def test_ignored_end_tokens_end_nothing() -> None:
    call = call_of(stop_ids=frozenset({3}), stop_token_ids=frozenset({4}), ignore_eos=True)
    assert sent(call)["sampling_params"]["stop_token_ids"] == [4]


def test_a_restricted_call_and_a_grammar_are_sent() -> None:
    params = sent(call_of(lark="start: /a/", allowed_token_ids=(8, 9)))["sampling_params"]
    assert params["structured_outputs"] == {"grammar": "start: /a/"}
    assert params["allowed_token_ids"] == [8, 9]


def test_banned_tokens_are_biases() -> None:
    params = sent(call_of(logit_bias=((9, 1.5),), banned_token_ids=(2, 7)))["sampling_params"]
    assert params["logit_bias"] == {"9": 1.5, "2": -100.0, "7": -100.0}


MANY = (*range(10, 1034), 1200, 1202)
"""More tokens than may be named one by one: with them the server's engine would end."""


def test_more_allowed_tokens_than_the_server_takes_are_a_grammar() -> None:
    params = sent(call_of(allowed_token_ids=MANY))["sampling_params"]
    assert "allowed_token_ids" not in params
    assert params["structured_outputs"]["grammar"].endswith("start: (<[10-1033,1200,1202]>)\n")
    params = sent(call_of(allowed_token_ids_of_request=MANY))["sampling_params"]
    assert params["structured_outputs"]["grammar"].endswith("start: (<[10-1033,1200,1202]>)+\n")


def test_such_a_grammar_allows_these_tokens_alone() -> None:
    grammar = sent(call_of(allowed_token_ids=MANY))["sampling_params"]["structured_outputs"]
    size = 1280
    tokenizer = LLTokenizer(Tokenizer.from_file(str(demo_model_folder() / "tokenizer.json")).to_str())
    mask = LLMatcher(tokenizer, grammar["grammar"]).compute_bitmask()
    assert [token for token in range(size) if mask[token >> 3] >> (token & 7) & 1] == list(MANY)


def test_chosen_logprobs_are_asked_for_with_one_more() -> None:
    params = sent(call_of(logprobs=0, logprob_token_ids=(8, 9)))["sampling_params"]
    assert params["logprob_token_ids"] == [8, 9, 9]
    assert params["logprobs"] == 3


def test_a_token_comes_with_its_top_logprobs_in_order() -> None:
    chunk = PROTOCOL.read_event(EVENT, call_of(logprobs=2))
    assert chunk is not None
    assert chunk.token_ids == (8,)
    assert chunk.logprobs == (TokenLogprobs(-1.5, ((7, -0.5), (3, -1.5))),)
    assert chunk.finish_reason is None


def test_chosen_logprobs_come_in_their_own_order() -> None:
    chunk = PROTOCOL.read_event(EVENT, call_of(logprobs=0, logprob_token_ids=(3, 7)))
    assert chunk is not None
    assert chunk.logprobs == (TokenLogprobs(-1.5, ((3, -1.5), (7, -0.5))),)


def test_the_end_of_a_stream_is_read() -> None:
    last, usage = (PROTOCOL.read_event(data, call_of()) for data in (LAST, USAGE))
    assert last is not None
    assert (last.token_ids, last.finish_reason, last.logprobs) == ((10,), "stop", None)
    assert usage is not None
    assert (usage.token_ids, usage.cached_tokens) == ((), 5)
    assert PROTOCOL.read_event(b"[DONE]", call_of()) is None


def test_prompt_logprobs_are_those_of_the_prompts_own_tokens() -> None:
    call = replace(call_of(prompt_logprobs=1, score_prompt=True), tokens=(5, 6, 7))
    assert "stream" not in sent(call)
    chunk = PROTOCOL.read_answer(SCORED, call)
    assert chunk.prompt_logprobs == (TokenLogprobs(-2.7, ((9, -0.9),)), TokenLogprobs(-0.1, ((7, -0.1),)))


@pytest.mark.parametrize(
    "data",
    [
        FAILURE,
        b"not JSON",
        b"",
        b"[]",
        b'{"choices": 5}',
        b'{"choices": [{"token_ids": ["8"]}]}',
        b'{"choices": [{"token_ids": [1.5]}]}',
        b'{"choices": [{"token_ids": [1e400]}]}',
        b'{"choices": [{"token_ids": [8], "finish_reason": "error"}]}',
        b'{"choices": [{"token_ids": [8], "logprobs": {"content": [{}]}}]}',
        b"[" * 100_000,
    ],
)
def test_an_error_and_an_answer_that_is_none_are_faults(data: bytes) -> None:
    with pytest.raises(CallFault) as raised:
        PROTOCOL.read_event(data, call_of())
    assert raised.value.kind == "failed"
    assert "\n" not in str(raised.value)
    assert len(str(raised.value)) < 500


@pytest.mark.parametrize(
    "body", [b"{}", b"x", b'{"prompt_logprobs": [null, {}, {}]}', b'{"prompt_logprobs": []}']
)
def test_prompt_logprobs_that_are_missing_are_a_fault(body: bytes) -> None:
    with pytest.raises(CallFault):
        PROTOCOL.read_answer(body, call_of(prompt_logprobs=1, score_prompt=True))


@pytest.mark.parametrize(
    ("status", "kind"), [(400, "refused"), (422, "refused"), (503, "overloaded"), (500, "failed")]
)
def test_a_streamed_call_is_refused_after_its_head_as_before_it(status: int, kind: str) -> None:
    """A request that the server cannot do would else open the circuit of one server after the other."""
    event = {"error": {"message": "Requested sample logprobs of 20", "type": "", "code": status}}
    with pytest.raises(CallFault) as raised:
        PROTOCOL.read_event(json.dumps(event).encode(), call_of())
    assert raised.value.kind == kind
    assert str(raised.value) == f"it answered {status}: Requested sample logprobs of 20"


def test_aborted_calls_are_named_as_the_server_names_them() -> None:
    request = PROTOCOL.abort_request(["a", "b"])
    assert request is not None
    assert json.loads(request.body) == {"request_ids": ["generate-tokens-a", "generate-tokens-b"]}


def expected_model(
    name: str | None = None, tokens: tuple[bytes, ...] = (b"<|end|>", b"cat", b"dog", b" ", b"bird")
) -> ExpectedModel:
    return ExpectedModel(name=name, tokens=tokens, special=frozenset({0}))


@dataclass
class Server:
    """Answers probes."""

    answers: Mapping[str, tuple[int, object]] = field(default_factory=dict)

    async def fetch(self, request: HttpRequest) -> tuple[int, bytes]:
        usual: dict[str, tuple[int, object]] = {
            "/version": (200, {"version": "0.32.0"}),
            "/v1/models": (
                200,
                {
                    "data": [
                        {"id": "base", "max_model_len": 4096, "parent": None},
                        {"id": "lora", "max_model_len": 4096, "parent": "base"},
                    ]
                },
            ),
            "/health": (200, b""),
            "/inference/v1/generate": (400, {}),
            "/detokenize": (200, {"prompt": "catdogbird"}),
        }
        status, answer = (usual | dict(self.answers))[request.path]
        return status, answer if isinstance(answer, bytes) else json.dumps(answer).encode()


def test_a_probe_says_what_the_server_serves() -> None:
    description = asyncio.run(PROTOCOL.probe(Server().fetch, expected_model()))
    assert (description.version, description.model, description.context_length) == ("0.32.0", "base", 4096)
    assert tuple(description.adapters) == ("lora",)
    assert description == asyncio.run(
        PROTOCOL.probe(Server({"/version": (200, {"version": "1.0"})}).fetch, expected_model())
    )


def test_a_probe_says_where_the_server_has_its_weights_from() -> None:
    rows = [
        {"id": "sql", "parent": "base", "root": "/lora/sql"},
        {"id": "base", "max_model_len": 4096, "root": "/models/v1"},
        {"id": "chat", "parent": "base", "root": "/lora/chat"},
    ]
    description = asyncio.run(
        PROTOCOL.probe(Server({"/v1/models": (200, {"data": rows})}).fetch, expected_model())
    )
    assert description.origin == "/models/v1"
    assert description.adapters == {"chat": "/lora/chat", "sql": "/lora/sql"}
    assert list(description.adapters) == ["chat", "sql"]


@pytest.mark.parametrize(
    ("answers", "name", "words"),
    [
        ({"/version": (200, {"version": "0.19.1"})}, None, "0.32 is the oldest"),
        ({"/version": (200, b"<html>")}, None, "not vLLM's"),
        ({"/v1/models": (200, {"data": []})}, None, "no model"),
        ({}, "other", "it serves base, not other"),
        ({"/v1/models": (200, {"data": [{"id": "base"}]})}, None, "how long its context is"),
        ({"/inference/v1/generate": (404, {})}, None, "--enable-scale-out"),
        ({"/detokenize": (200, {"prompt": "catdogcow"})}, None, "vocabulary"),
    ],
)
def test_a_server_that_does_not_fit_is_refused_with_a_sentence(
    answers: Mapping[str, tuple[int, object]], name: str | None, words: str
) -> None:
    with pytest.raises(EngineMismatch, match=words):
        asyncio.run(PROTOCOL.probe(Server(answers).fetch, expected_model(name=name)))


@pytest.mark.parametrize("path", ["/version", "/health"])
def test_a_server_that_cannot_answer_or_compute_is_a_fault(path: str) -> None:
    with pytest.raises(CallFault):
        asyncio.run(PROTOCOL.probe(Server({path: (503, {})}).fetch, expected_model()))


def test_an_event_that_is_nested_too_deeply_is_a_fault() -> None:
    with pytest.raises(CallFault):
        PROTOCOL.read_event(b'{"choices":[{"x":' + b"[" * 100_000, call_of())
