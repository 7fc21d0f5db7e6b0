"""Whatever a model wants to say: calls that must come are legal, and answers in a format have it.

By models that know nothing, of one family each, by a tiny gpt-oss and by the demo model, over HTTP.
"""

import json
import os
import random
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import pytest
from openai import OpenAI

from engine.grammar.compiler import GrammarCompiler
from engine.request import StructuredOutput
from server.embedded_postgres.embedded_server import EmbeddedPostgres
from tests.fix_postgres import temporary_database
from tests.fix_tally import Tally
from tests.support.families import ids_of
from tests.support.random_models import RANDOM_MODELS, random_model
from tests.support.schemas import check_value, random_parameters
from tests.support.server_process import ServerProcess
from tests.support.tiny_gpt_oss import GREETING, QUESTION, tiny_gpt_oss
from tests.support.walks import compiler_of

COUNT = 200 if os.environ.get("FAULT_ROUNDS") else 8
MOST_TOKENS = 600
LEAST_COMPLETE = 0.5
"""The share of outputs that must have come to their end, or these tests would say nothing."""
SMALL = {"demo", "glm45"}
"""What is tried with every change; the others take their time."""
SUBJECTS = ["demo", *RANDOM_MODELS, "gpt_oss"]


@dataclass(frozen=True)
class Subject:
    """A model behind a server."""

    name: str
    model: str
    client: OpenAI

    def ask(self, api: str, chance: random.Random, **fields: Any) -> Any:
        asked = {"gpt_oss": QUESTION if "tools" in fields else GREETING}.get(
            self.name, f"Hi {chance.random()}"
        )
        more = {"extra_body": {"logit_bias": self.bias}} if self.bias else {}
        return getattr(self.client, api).create(
            model=self.model,
            input=asked,
            max_output_tokens=MOST_TOKENS,
            **({} if self.name == "gpt_oss" else {"reasoning": {"effort": "none"}}),
            **more,
            **fields,
        )

    @property
    def bias(self) -> dict[str, int]:
        """Where a template always opens the reasoning, it must be ended."""
        if self.name != "qwen3_coder":
            return {}
        (end,) = ids_of(self.name, "</think>")
        return {str(end): 12}


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(name, marks=[] if name in SMALL | {"demo"} else [pytest.mark.faults])
        for name in SUBJECTS
    ],
)
def subject(
    request: pytest.FixtureRequest,
    cluster: EmbeddedPostgres,
    template_database: str,
    demo_server: ServerProcess,
) -> Iterator[Subject]:
    name = request.param
    if name == "demo":
        with OpenAI(base_url=demo_server.api, api_key="none", max_retries=0, timeout=300) as client:
            yield Subject(name, "holdfast-demo", client)
        return
    folder = tiny_gpt_oss() if name == "gpt_oss" else random_model(name)
    with temporary_database(cluster, f"legal_{name}", template=template_database) as database:
        settings = {"model": folder, "model_name": name, "torch_threads": 1}
        server = ServerProcess(cluster.url_of(database), settings=settings)
        try:
            server.start()
            with OpenAI(base_url=server.api, api_key="none", max_retries=0, timeout=300) as client:
                yield Subject(name, name, client)
        finally:
            server.stop()


@pytest.fixture(scope="module")
def begins() -> Callable[[str, Any], bool]:
    """Whether a text is JSON of a schema, or the beginning of one."""
    compiler: GrammarCompiler = compiler_of("hermes")
    letters = {token: place for place, token in enumerate(compiler.vocabulary.tokens) if len(token) == 1}

    def check(text: str, schema: Any) -> bool:
        matcher: Any = compiler.compiled(
            StructuredOutput(kind="json_schema", text=json.dumps(schema))
        ).begin()
        spelled = [letters[bytes([byte])] for byte in text.removesuffix("\ufffd").encode()]
        return bool(matcher.try_consume_tokens(spelled) == len(spelled))

    return check


def in_turn(check: Callable[[int], bool], name: str, what: str, tally: Tally) -> None:
    """Eight at a time; enough of them must have been complete."""
    with ThreadPoolExecutor(8) as pool:
        complete = sum(pool.map(check, range(COUNT)))
    tally["F0", f"outputs of {name} {what}"] += COUNT
    tally["F0", f"outputs of {name} {what}, complete"] += complete
    assert complete >= LEAST_COMPLETE * COUNT, f"only {complete} of {COUNT} came to their end"


def choices(chance: random.Random, names: list[str]) -> tuple[Any, set[str]]:
    """A tool choice by which something must be called, and what may be."""
    one = chance.choice(names)
    some = chance.sample(names, chance.randint(1, len(names)))
    listed = [{"type": "function", "name": name} for name in some]
    return chance.choice(
        [
            ("required", set(names)),
            ({"type": "function", "name": one}, {one}),
            ({"type": "allowed_tools", "mode": "required", "tools": listed}, set(some)),
        ]
    )


def test_only_legal_calls_come_where_a_call_must(
    subject: Subject, begins: Callable[[str, Any], bool], tally: Tally
) -> None:
    def check(number: int) -> bool:
        chance = random.Random(f"{subject.name} {number}")
        names = chance.sample(["weather", "get_time", "a-b", "Sum_2"], chance.randint(1, 3))
        schemas = {name: random_parameters(chance) for name in names}
        tools = [
            {"type": "function", "name": name, "parameters": schema, "strict": True}
            for name, schema in schemas.items()
        ]
        choice, allowed = choices(chance, names)
        parallel = chance.random() < 0.25
        response = subject.ask(
            "responses", chance, tools=tools, tool_choice=choice, parallel_tool_calls=parallel
        )
        calls = [item for item in response.output if item.type == "function_call"]
        items = list(response.output)
        if response.status == "incomplete" and items and items[-1].type == "message":
            items.pop()  # a call that was cut off before its name was known is text
        assert {item.type for item in items} <= {"function_call", *ASIDES.get(subject.name, ())}, items
        assert {call.name for call in calls} <= allowed
        assert parallel or len(calls) <= 1
        for call in calls:
            schema = schemas[call.name]
            if call.status == "completed":
                check_value(json.loads(call.arguments), schema)
            else:
                assert begins(call.arguments, schema), (call.arguments, schema)
        if response.status == "completed":
            assert calls
            assert all(call.status == "completed" for call in calls)
        else:
            assert response.incomplete_details.reason == "max_output_tokens"
        return bool(response.status == "completed")

    in_turn(check, subject.name, "that must call", tally)


ASIDES = {"gpt_oss": ("reasoning", "message"), "qwen3_coder": ("reasoning",)}
"""What a model may say before it calls."""


def test_only_json_of_the_schema_comes_where_it_must(
    subject: Subject, begins: Callable[[str, Any], bool], tally: Tally
) -> None:
    def check(number: int) -> bool:
        chance = random.Random(f"{subject.name} {number}")
        schema = random_parameters(chance)
        wanted: Any = {"type": "json_schema", "name": "answer", "schema": schema, "strict": True}
        response = subject.ask("responses", chance, text={"format": wanted})
        if response.status == "completed":
            check_value(json.loads(response.output_text), schema)
            return True
        assert response.incomplete_details.reason == "max_output_tokens"
        finals = [item for item in response.output if item.type == "message" and item.phase != "commentary"]
        for item in finals:
            assert begins(item.content[0].text, schema), (item.content[0].text, schema)
        return False

    in_turn(check, subject.name, "in a format", tally)
