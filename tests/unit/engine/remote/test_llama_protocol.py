"""Recorded answers of llama-server, and answers that it never gives, as `LlamaProtocol` reads them."""

import asyncio
import json
from dataclasses import dataclass, field
from typing import Any

import pytest

from engine.remote.engine_protocol import (
    AnswerChunk,
    CallFault,
    EngineDescription,
    EngineMismatch,
    ExpectedModel,
    GenerateCall,
    HttpRequest,
)
from engine.remote.llama_protocol import NO_LOGPROB, LlamaProtocol
from engine.request import EngineRequest, SamplingParams, TokenLogprobs

PROTOCOL = LlamaProtocol(1280)

PROGRESS = (
    b'{"index":0,"content":"","tokens":[0],"stop":false,"tokens_predicted":0,"tokens_evaluated":9,'
    b'"prompt_progress":{"total":9,"cache":8,"processed":9,"time_ms":0}}'
)
HELLO = (
    b'{"index":0,"content":"Hello","tokens":[654],"stop":false,"id_slot":-1,"tokens_predicted":1,'
    b'"tokens_evaluated":9}'
)
HELLO_LOGPROBS = (
    b'{"index":0,"content":"Hello","tokens":[654],"stop":false,"id_slot":-1,"tokens_predicted":1,'
    b'"tokens_evaluated":9,"completion_probabilities":[{"id":654,"token":"Hello","bytes":[72,101,108,108,111],'
    b'"logprob":-1.14e-05,"top_logprobs":[{"id":654,"token":"Hello","bytes":[72,101,108,108,111],'
    b'"logprob":-1.14e-05},{"id":1042,"token":"hello","bytes":[104,101,108,108,111],"logprob":-11.9}]}]}'
)
AFTER_A_MISSING_TOKEN = (
    '{"index":0,"content":"\ufffd68","tokens":[725],"stop":false,"id_slot":-1,"tokens_predicted":4,'
    '"tokens_evaluated":9}'
).encode()
END_TOKEN = (
    b'{"index":0,"content":"","tokens":[1273],"stop":false,"tokens_predicted":14,"tokens_evaluated":9}'
)
EOS = (
    b'{"stop":true,"tokens":[],"tokens_predicted":14,"stop_type":"eos","timings":{"cache_n":8,"prompt_n":1,'
    b'"prompt_ms":0.3,"predicted_n":14}}'
)
LIMIT = EOS.replace(b'"eos"', b'"limit"')
WHOLE = (
    b'{"stop":true,"tokens":[172,253,654],"tokens_predicted":3,"stop_type":"limit","timings":{"cache_n":8},'
    b'"completion_probabilities":[{"id":654,"token":"Hello","bytes":[72],"logprob":-0.5,"top_logprobs":'
    b'[{"id":654,"token":"Hello","bytes":[72],"logprob":-0.5}]}]}'
)
LOADING = b'{"error":{"message":"Loading model","type":"unavailable_error","code":503}}'


def call_for(
    prompt: tuple[int, ...] = (1, 2, 3), *, max_tokens: int = 20, streamed: bool = True, **fields: Any
) -> GenerateCall:
    sampling = SamplingParams(seed=7, presence_penalty=fields.pop("presence_penalty", 0.0))
    min_tokens = fields.pop("min_tokens", 0)
    request = EngineRequest(request_id="r", prompt=prompt, max_tokens=max_tokens, sampling=sampling, **fields)
    return GenerateCall(
        call_id="r",
        request=request,
        tokens=prompt,
        max_tokens=max_tokens,
        seed=7,
        min_tokens=min_tokens,
        streamed=streamed,
    )


# Requests


def test_a_call_is_streamed_on_a_connection_that_the_server_closes() -> None:
    http = PROTOCOL.generate_request(call_for(), "demo.gguf")
    assert (http.method, http.path, http.streamed, http.keep_alive) == ("POST", "/completion", True, False)
    assert json.loads(http.body)["stream"] is True


@pytest.mark.parametrize(
    "call", [call_for(max_tokens=1), call_for(min_tokens=1), call_for(streamed=False)], ids=str
)
def test_a_call_for_one_token_or_for_missed_ones_is_not_streamed(call: GenerateCall) -> None:
    http = PROTOCOL.generate_request(call, "demo.gguf")
    assert (http.streamed, http.keep_alive) == (False, True)
    assert json.loads(http.body)["stream"] is False


def test_a_call_ends_with_its_connection() -> None:
    assert PROTOCOL.abort_request(["r"]) is None


# Answers


def test_progress_says_what_was_cached_and_has_no_tokens() -> None:
    assert PROTOCOL.read_event(PROGRESS, call_for()) == AnswerChunk(cached_tokens=8)


def test_an_event_has_a_token_and_the_count_of_all() -> None:
    assert PROTOCOL.read_event(HELLO, call_for()) == AnswerChunk(token_ids=(654,), generated_tokens=1)


def test_an_event_after_a_missing_token_counts_it() -> None:
    chunk = PROTOCOL.read_event(AFTER_A_MISSING_TOKEN, call_for())
    assert chunk == AnswerChunk(token_ids=(725,), generated_tokens=4)


@pytest.mark.parametrize(("count", "top"), [(0, ()), (2, ((654, -1.14e-05), (1042, -11.9)))])
def test_logprobs_have_as_many_top_tokens_as_were_asked_for(
    count: int, top: tuple[tuple[int, float], ...]
) -> None:
    chunk = PROTOCOL.read_event(HELLO_LOGPROBS, call_for(logprobs=count))
    assert chunk is not None
    assert chunk.logprobs == (TokenLogprobs(-1.14e-05, top),)


@pytest.mark.parametrize("value", [b"-3.4028234663852886e38", b"null"])
def test_a_token_without_a_probability_has_the_logprob_of_an_unlikely_one(value: bytes) -> None:
    event = HELLO_LOGPROBS.replace(b'"logprob":-1.14e-05', b'"logprob":' + value)
    chunk = PROTOCOL.read_event(event, call_for(logprobs=0))
    assert chunk is not None
    assert chunk.logprobs == (TokenLogprobs(NO_LOGPROB),)


def test_an_end_token_is_delivered() -> None:
    chunk = PROTOCOL.read_event(END_TOKEN, call_for())
    assert chunk == AnswerChunk(token_ids=(1273,), generated_tokens=14)


@pytest.mark.parametrize(
    ("event", "finish"), [(EOS, "stop"), (LIMIT, "length"), (EOS.replace(b'"eos"', b'"none"'), "abort")]
)
def test_the_last_event_says_why_the_call_ended(event: bytes, finish: str) -> None:
    chunk = PROTOCOL.read_event(event, call_for())
    assert chunk is not None
    assert (chunk.finish_reason, chunk.cached_tokens, chunk.generated_tokens) == (finish, 8, 14)


def test_a_whole_answer_has_tokens_within_characters_without_their_logprobs() -> None:
    chunk = PROTOCOL.read_answer(WHOLE, call_for(logprobs=1))
    assert chunk.token_ids == (172, 253, 654)
    none = TokenLogprobs(NO_LOGPROB)
    assert chunk.logprobs == (none, none, TokenLogprobs(-0.5, ((654, -0.5),)))
    assert (chunk.finish_reason, chunk.generated_tokens) == ("length", None)


def test_a_call_ends_where_its_presence_penalties_do() -> None:
    chunk = PROTOCOL.read_answer(WHOLE, call_for((253, 9), presence_penalty=0.5))
    assert (chunk.token_ids, chunk.finish_reason) == ((172, 253), "length")
    event = PROTOCOL.read_event(HELLO, call_for((654, 9), presence_penalty=0.5))
    assert event == AnswerChunk(token_ids=(654,), finish_reason="length", generated_tokens=1)


# Faults


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[DONE]",
        b"[]",
        b"{}",
        b"\xff",
        b"[" * 5000,
        b'{"stop":false,"tokens":["a"]}',
        b'{"stop":false,"tokens":[-1]}',
        b'{"stop":false,"tokens":[4294967296]}',
        b'{"stop":false,"tokens":[' + b"1," * 30 + b"1]}",
        HELLO_LOGPROBS.replace(b'"top_logprobs":[', b'"top_logprobs":[' + b'{"id":1,"logprob":-1},' * 20),
    ],
)
def test_what_is_no_answer_is_a_fault(data: bytes) -> None:
    with pytest.raises(CallFault) as raised:
        PROTOCOL.read_event(data, call_for())
    assert raised.value.kind == "failed"
    with pytest.raises(CallFault):
        PROTOCOL.read_answer(data, call_for())


def test_an_error_within_a_stream_is_a_fault() -> None:
    with pytest.raises(CallFault, match="it answered 500: Context size") as raised:
        PROTOCOL.read_event(
            b'{"error":{"code":500,"message":"Context size has been\\nexceeded"}}', call_for()
        )
    assert raised.value.kind == "failed"


# Probes

TOKENS = (b"ab", b"c", b"\xf0", b"<end>", b"", b"de")
PROPERTIES = {
    "default_generation_settings": {"params": {}, "n_ctx": 8192},
    "total_slots": 4,
    "model_alias": "demo.gguf",
    "model_path": "/models/demo.gguf",
    "build_info": "b10760-1a2b3c4",
}
MODELS = {"data": [{"id": "demo.gguf", "meta": {"n_vocab": 6, "n_ctx": 8192}}]}


def expected_model(name: str | None = None, tokens: tuple[bytes, ...] = TOKENS) -> ExpectedModel:
    return ExpectedModel(name=name, tokens=tokens, special=frozenset({3}))


@dataclass
class Server:
    """Answers by path; a tuple is a status and a body."""

    answers: dict[str, Any]
    asked: list[HttpRequest] = field(default_factory=list)

    async def fetch(self, request: HttpRequest) -> tuple[int, bytes]:
        self.asked.append(request)
        answer = self.answers.get(request.path, (404, b'{"error":{"message":"File Not Found","code":404}}'))
        return answer if isinstance(answer, tuple) else (200, json.dumps(answer).encode())


def server(**changes: Any) -> Server:
    """Answers by the last word of their path."""
    answers = {"/props": PROPERTIES, "/v1/models": MODELS, "/detokenize": {"content": "abcde"}}
    paths = {path.rpartition("/")[2]: path for path in answers}
    return Server(answers | {paths[name]: answer for name, answer in changes.items()})


def probe(answering: Server, expected: ExpectedModel | None = None) -> EngineDescription:
    return asyncio.run(PROTOCOL.probe(answering.fetch, expected or expected_model()))


def test_a_probe_describes_the_server() -> None:
    description = probe(server())
    assert (description.model, description.context_length) == ("demo.gguf", 8192)
    assert description.version == "b10760-1a2b3c4"
    assert description == probe(server(props={**PROPERTIES, "build_info": "b10800-0"}))


def test_a_probe_says_which_file_the_server_has_read() -> None:
    assert probe(server()).origin == "/models/demo.gguf"
    meta = {"n_vocab": 6, "n_params": 752, "size": 1504}
    sized = probe(server(models={"data": [{"meta": meta}]}))
    assert sized.origin == "/models/demo.gguf with 752 parameters in 1504 bytes"
    other = probe(server(models={"data": [{"meta": {**meta, "size": 1000}}]}))
    assert other.weights() != sized.weights()


def test_a_probe_compares_tokens_that_every_decoder_leaves_alone() -> None:
    answering = server()
    probe(answering)
    assert json.loads(answering.asked[-1].body) == {"tokens": [0, 1, 5]}


@pytest.mark.parametrize("name", ["demo.gguf", None])
def test_a_server_of_the_named_model_is_taken(name: str | None) -> None:
    assert probe(server(), expected_model(name=name)).model == "demo.gguf"


@pytest.mark.parametrize(
    ("answering", "expected", "sentence"),
    [
        (server(), expected_model(name="other"), "it serves demo.gguf, not other"),
        (
            server(props={**PROPERTIES, "build_info": "b9000-f"}),
            expected_model(),
            "it is llama.cpp b9000; b10760",
        ),
        (server(detokenize={"content": "other"}), expected_model(), "its vocabulary is not that"),
        (
            server(models={"data": [{"meta": {"n_vocab": 5}}]}),
            expected_model(),
            "its vocabulary has 5 tokens",
        ),
        (server(models={"data": []}), expected_model(), "its answer to /v1/models is not llama-server's"),
        (server(props=[]), expected_model(), "its answer to /props is not llama-server's"),
        (server(props=(200, b"\xff")), expected_model(), "its answer to /props is not llama-server's"),
        (Server({}), expected_model(), "it has no /props, so it is not llama-server"),
    ],
)
def test_a_server_that_does_not_fit_is_refused(
    answering: Server, expected: ExpectedModel, sentence: str
) -> None:
    with pytest.raises(EngineMismatch, match=sentence):
        probe(answering, expected)


@pytest.mark.parametrize(("status", "kind"), [(503, "overloaded"), (500, "failed"), (401, "failed")])
def test_a_server_that_is_not_ready_is_asked_again(status: int, kind: str) -> None:
    with pytest.raises(CallFault) as raised:
        probe(server(props=(status, LOADING)))
    assert raised.value.kind == kind


def test_a_folder_without_a_tokenizer_fits_any_vocabulary() -> None:
    assert probe(server(), expected_model(tokens=())).vocabulary
