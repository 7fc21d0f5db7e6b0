"""SmolLM2-135M-Instruct answers real questions through every engine that is there.

Elsewhere models are random or know nothing, so a wrong answer looks like a right one.
"""

import heapq
import json
import math
import shutil
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
from openai import OpenAI

from server.process.model.find_model import this_machine
from tests.fix_server import Connect, StartServer, running
from tests.support import llama_server, vllm_server
from tests.support.server_process import ServerProcess
from tests.support.smollm2 import FOLDER, GGUF, MISSING

pytestmark = [pytest.mark.real, pytest.mark.skipif(not FOLDER.is_dir(), reason=MISSING)]

NAME = FOLDER.name
ENGINES = ("model", "GGUF here", "llama-server", "vllm")
FACTS = {
    "What is the capital of France?": "Paris",
    "What is the capital of Japan?": "Tokyo",
    "Which planet do we live on?": "Earth",
    "What color is the sky on a clear day?": "blue",
    "Who wrote Romeo and Juliet?": "Shakespeare",
    "What is the chemical formula of water?": "H2O",
}
TEXT = heapq.__about__
"""English of the standard library."""


@pytest.fixture(scope="module", params=ENGINES)
def server(request: pytest.FixtureRequest, module_database: str) -> Iterator[ServerProcess]:
    engine: str = request.param
    settings: dict[str, object] = {"engine": engine, "model": FOLDER, "lease_seconds": 2}
    with ExitStack() as stack:
        if engine == "GGUF here":
            if not this_machine().reads_gguf:
                pytest.skip("pip install gguf accelerate")
            settings |= {"engine": "model", "model": GGUF, "model_name": NAME}
        if engine == "llama-server":
            if not llama_server.EXECUTABLE.is_file():
                pytest.skip(llama_server.MISSING)
            settings["engine_url"] = stack.enter_context(llama_server.llama_server(GGUF, context=4096)).url
        if engine == "vllm":
            if not vllm_server.installed():
                pytest.skip("`make vllm` installs vLLM")
            settings["engine_url"] = vllm_server.shared_vllm(FOLDER, "--max-model-len=4096").url
        yield from running(module_database, settings)


@pytest.fixture
def client(server: ServerProcess, connect: Connect) -> OpenAI:
    return connect(server)


def ask(client: OpenAI, question: str, **wishes: Any) -> Any:
    return client.responses.create(model=NAME, input=question, temperature=0, **wishes)


def test_it_knows_facts(client: OpenAI) -> None:
    said = {question: ask(client, question, max_output_tokens=60).output_text for question in FACTS}
    wrong = {question: said[question] for question, fact in FACTS.items() if fact not in said[question]}
    assert len(wrong) <= 1, wrong


def test_it_writes_json_of_a_schema(client: OpenAI) -> None:
    schema = {
        "type": "object",
        "properties": {"city": {"type": "string"}, "country": {"type": "string"}},
        "required": ["city", "country"],
        "additionalProperties": False,
    }
    form: Any = {"type": "json_schema", "name": "place", "strict": True, "schema": schema}
    question = "What is the capital of France, and in which country is it? Answer in JSON."
    said = json.loads(ask(client, question, text={"format": form}, max_output_tokens=100).output_text)
    assert list(said) == ["city", "country"]
    assert [name.casefold() for name in said.values()] == ["paris", "france"]


def test_a_forced_call_has_what_was_asked_for(client: OpenAI) -> None:
    parameters = {
        "type": "object",
        "properties": {"city": {"type": "string"}},
        "required": ["city"],
        "additionalProperties": False,
    }
    tool: Any = {
        "type": "function",
        "name": "get_weather",
        "description": "The weather in a city.",
        "parameters": parameters,
        "strict": True,
    }
    forced: Any = {"type": "function", "name": "get_weather"}
    asked = ask(
        client, "How is the weather in Paris?", tools=[tool], tool_choice=forced, parallel_tool_calls=False
    )
    (call,) = (item for item in asked.output if item.type == "function_call")
    assert call.name == "get_weather"
    assert "Paris" in json.loads(call.arguments)["city"]


def test_a_chain_remembers(client: OpenAI) -> None:
    first = ask(client, "My name is Anna. I have a dog called Rex.", max_output_tokens=40)
    asked = "What is the name of my dog?"
    second = ask(client, asked, previous_response_id=first.id, max_output_tokens=20)
    assert "Rex" in second.output_text


def test_an_answer_goes_on_after_a_kill(server: ServerProcess, client: OpenAI) -> None:
    """What was sent stays, and what follows is the rest of the same answer or of another."""
    asked = "Write a long story about the keeper of a lighthouse."
    stream = ask(client, asked, background=True, stream=True, max_output_tokens=300)
    before, response_id, last = "", "", 0
    for event in stream:
        last = event.sequence_number
        if event.type == "response.created":
            response_id = event.response.id
        if event.type == "response.output_text.delta":
            before += event.delta
            if len(before) > 150:
                break
    stream.close()
    server.restart()
    rest = client.responses.retrieve(response_id, stream=True, starting_after=last)
    after = "".join(event.delta for event in rest if event.type == "response.output_text.delta")
    whole = client.responses.retrieve(response_id)
    assert whole.output_text == before + after
    assert whole.usage is not None
    assert whole.usage.output_tokens == 300 or whole.status == "completed"
    assert len(after) > len(before)


def perplexity(client: OpenAI) -> float:
    """How unexpected the text is to the model; 1 is known by heart."""
    asked = client.completions.create(
        model=NAME, prompt=TEXT, max_tokens=1, extra_body={"prompt_logprobs": 0}
    )
    _first, *others = asked.choices[0].prompt_logprobs  # type: ignore[attr-defined]  # vLLM's field
    return math.exp(-fmean(next(iter(ranked.values()))["logprob"] for ranked in others))


def test_bfloat16_expects_a_text_as_float32_does(start_server: StartServer, connect: Connect) -> None:
    measured = {}
    for dtype in ("float32", "bfloat16"):
        server = start_server(engine="model", model=FOLDER, dtype=dtype)
        measured[dtype] = perplexity(connect(server))
        server.stop()
    assert measured["bfloat16"] == pytest.approx(measured["float32"], rel=0.02)
    assert measured["float32"] < 40


def test_without_its_template_it_answers_messages_as_plain_text(
    start_server: StartServer, connect: Connect, tmp_path: Path
) -> None:
    folder = shutil.copytree(FOLDER, tmp_path / NAME, ignore=shutil.ignore_patterns("chat_template.jinja"))
    server = start_server(engine="model", model=folder)
    assert "no chat template" in server.said()
    said = ask(connect(server), "What is the capital of France?", max_output_tokens=40).output_text
    assert "Paris" in said
    assert "User:" not in said
