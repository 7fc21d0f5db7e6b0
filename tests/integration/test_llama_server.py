"""The demo model on a real llama-server, through `RemoteEngine`; `make llama-server` builds one.

The contract suite (`tests/contract`) runs on it too; here is what only this server does.
"""

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from engine.remote.engine_protocol import CallFault, EngineMismatch, HttpRequest, status_fault, sum_metrics
from engine.remote.fleet import RemoteConfig
from engine.remote.http_client import EngineClient
from engine.remote.llama_protocol import LlamaProtocol
from engine.remote.remote_engine import RemoteEngine
from engine.remote.vocabulary_files import ModelFolder, read_model_folder
from engine.request import EngineRequest, Finished, TokenLogprobs, Tokens
from tests.support.engines import Listener, make_request, start_model
from tests.support.llama_server import EXECUTABLE, MISSING, REPOSITORY, LlamaServer, llama_server

pytestmark = pytest.mark.skipif(not EXECUTABLE.is_file(), reason=MISSING)

DEMO = REPOSITORY / "demo" / "holdfast-demo"
CONTEXT = 2048
ENDS = frozenset({1271, 1273})


class RemoteBench:
    def __init__(self, url: str, folder: ModelFolder) -> None:
        self.listener = Listener()
        protocol = LlamaProtocol(folder.model_info.vocab_size)
        self.engine = RemoteEngine(RemoteConfig(urls=url, start_seconds=10), protocol, folder, self.listener)

    def run(self, *requests: EngineRequest) -> list[list[int]]:
        for request in requests:
            self.engine.submit(request)
        return [self.listener.outcome(request.request_id).tokens for request in requests]

    def logprobs(self, request_id: str) -> list[TokenLogprobs]:
        messages = [m for m in self.listener.of(request_id) if isinstance(m, Tokens)]
        return [one for message in messages for one in message.logprobs or ()]


@pytest.fixture(scope="module")
def folder() -> ModelFolder:
    return read_model_folder(DEMO)


@pytest.fixture(scope="module")
def server() -> Iterator[LlamaServer]:
    with llama_server(DEMO, context=CONTEXT) as server:
        yield server


@pytest.fixture(scope="module")
def bench(server: LlamaServer, folder: ModelFolder) -> Iterator[RemoteBench]:
    bench = RemoteBench(server.url, folder)
    bench.engine.start()
    yield bench
    bench.engine.close(drain=False)


def prompt_of(text: str) -> tuple[int, ...]:
    tokenizer: Any = Tokenizer.from_file(str(DEMO / "tokenizer.json"))
    chat = f"<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n"
    return tuple(tokenizer.encode(chat).ids)


HELLO = "Hello"


def ids_of_bytes(folder: ModelFolder, spelled: bytes) -> list[int]:
    """The tokens of single bytes."""
    return [folder.tokens.index(bytes([byte])) for byte in spelled]


# Tokens


def test_the_context_is_that_of_a_slot(bench: RemoteBench) -> None:
    assert bench.engine.model_info.context_length == CONTEXT


def test_greedy_answers_and_their_logprobs_are_those_of_the_local_engine(bench: RemoteBench) -> None:
    local = start_model(DEMO)
    try:
        for index, text in enumerate([HELLO, "What is the capital of France?", "Count to five."]):
            request = make_request(
                f"greedy {index}", prompt_of(text), 40, stop_ids=ENDS, logprobs=3, logit_bias=((30, 0.5),)
            )
            (tokens,) = bench.run(request)
            (expected,) = local.run(request)
            assert tokens == expected.tokens
            theirs = bench.logprobs(request.request_id)
            ours = [
                one
                for message in local.listener.of(request.request_id)
                if isinstance(message, Tokens)
                for one in message.logprobs or ()
            ]
            for their, our in zip(theirs, ours, strict=True):
                assert their.chosen == pytest.approx(our.chosen, abs=2e-3)
                assert [token for token, _ in their.top[:1]] == [token for token, _ in our.top[:1]]
    finally:
        local.engine.close(drain=False)


def test_penalties_are_those_of_the_local_engine(bench: RemoteBench) -> None:
    local = start_model(DEMO)
    wishes: list[dict[str, Any]] = [
        {"presence_penalty": 1.5},
        {"frequency_penalty": 0.8},
        {"presence_penalty": 2.0, "frequency_penalty": 2.0},
        {"repetition_penalty": 1.4},
    ]
    try:
        for index, wish in enumerate(wishes):
            request = make_request(f"penalties {index}", prompt_of("Say you you you"), 30, **wish)
            assert bench.run(request) == [local.run(request)[0].tokens], wish
    finally:
        local.engine.close(drain=False)


@pytest.mark.parametrize("logprobs", [None, 1])
def test_tokens_within_characters_are_delivered(
    bench: RemoteBench, folder: ModelFolder, logprobs: int | None
) -> None:
    allowed = ids_of_bytes(folder, "😀é日".encode())
    request = make_request(
        f"bytes {logprobs}",
        prompt_of(HELLO),
        60,
        temperature=1.5,
        seed=5,
        allowed_token_ids=tuple(sorted(set(allowed))),
        logprobs=logprobs,
    )
    (tokens,) = bench.run(request)
    assert len(tokens) == 60
    assert set(tokens) <= set(allowed)
    assert logprobs is None or len(bench.logprobs(request.request_id)) == 60


def test_the_same_seed_gives_the_same_tokens_and_another_one_others(bench: RemoteBench) -> None:
    sampled = make_request("seed 1", prompt_of(HELLO), 30, temperature=20.0, seed=1)
    again, other = replace(sampled, request_id="seed 1 again"), replace(sampled, request_id="seed 2")
    other = replace(other, sampling=replace(sampled.sampling, seed=2))
    first, second, third = bench.run(sampled, again, other)
    assert first == second != third


def test_an_ignored_end_is_a_token_like_others(bench: RemoteBench) -> None:
    request = make_request("ignored", prompt_of(HELLO), 40, stop_ids=ENDS, ignore_eos=True)
    (tokens,) = bench.run(request)
    assert (len(tokens), bool(ENDS & set(tokens[:-1]))) == (40, True)


def test_a_second_turn_says_what_was_cached(bench: RemoteBench) -> None:
    prompt = prompt_of("Please tell me about the weather in Paris.")
    (tokens,) = bench.run(make_request("turn 1", prompt, 8))
    bench.run(make_request("turn 2", (*prompt, *tokens, 5, 6), 8))
    last = bench.listener.outcome("turn 2").last
    assert isinstance(last, Finished)
    assert last.usage.cached >= len(prompt)


def test_more_requests_than_slots_all_end(bench: RemoteBench) -> None:
    requests = [make_request(f"many {n}", prompt_of(f"Hello {n}"), 12) for n in range(24)]
    assert [len(tokens) for tokens in bench.run(*requests)] == [12] * 24


# Probes


def probe_with(server: LlamaServer, folder: ModelFolder) -> None:
    bench = RemoteBench(server.url, folder)
    try:
        bench.engine.start()
    finally:
        bench.engine.close(drain=False)


def test_a_folder_with_another_vocabulary_is_refused(server: LlamaServer, folder: ModelFolder) -> None:
    assert folder.vocabulary is not None
    shifted = (*folder.vocabulary.tokens[1:], b"!")
    other = replace(folder, vocabulary=replace(folder.vocabulary, tokens=shifted))
    with pytest.raises((EngineMismatch, CallFault), match="its vocabulary is not that"):
        probe_with(server, other)


def test_a_server_of_another_name_is_refused(server: LlamaServer, folder: ModelFolder) -> None:
    with pytest.raises((EngineMismatch, CallFault), match="not other"):
        probe_with(server, replace(folder, name="other"))


async def fetch(url: str, request: HttpRequest) -> tuple[int, bytes]:
    client = EngineClient(LlamaProtocol(1280), None, None, 10.0)
    client.open()
    try:
        return await client.fetch(url, request)
    finally:
        await client.close()


def test_its_load_is_read(server: LlamaServer) -> None:
    status, body = asyncio.run(fetch(server.url, HttpRequest("GET", "/metrics")))
    assert status == 200
    assert sum_metrics(body, LlamaProtocol.load_metrics) == 0


def test_what_it_refuses_is_refused(server: LlamaServer) -> None:
    request = HttpRequest("POST", "/completion", b'{"prompt": [99999], "n_predict": 1}')
    status, body = asyncio.run(fetch(server.url, request))
    assert status_fault(status, body).kind == "refused"


def test_the_gguf_is_named_after_its_folder(server: LlamaServer) -> None:
    assert Path(DEMO).name in str(asyncio.run(fetch(server.url, HttpRequest("GET", "/props")))[1])
