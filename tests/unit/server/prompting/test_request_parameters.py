"""What a request asks of the sampler, in the engine's request and in a stored one that is read again."""

from dataclasses import replace
from typing import Any
from uuid import UUID

import msgspec
import pytest

from engine.request import EngineRequest
from engine.scripted_engine import ScriptedConfig, ScriptedEngine
from server.admission.request_validation import with_generation_config
from server.configuration.shipped_files import demo_model_folder
from server.errors import InvalidRequest
from server.model_formats.model_format import ModelFormat
from server.model_formats.select_format import load_model_format
from server.prompting.engine_request import MAX_LOGPROBS, logprobs_limit, prepare
from server.prompting.served_model import LoadedModel
from server.prompting.write_prompt import ResolvedRequest
from server.protocol.responses.items import InputText, Message
from server.protocol.responses.request import CreateResponse
from tests.support.builders import SpelledFormat

RESPONSE = UUID(int=1)
DEMO = load_model_format(demo_model_folder(), frozenset({1273}))
ITEMS = [Message("msg_1", "completed", "user", [InputText("Count to 5")])]
THINK = (1274, 1275)
"""The demo model's tokens around its reasoning."""


def served(model_format: ModelFormat = DEMO, **model: Any) -> LoadedModel:
    config = ScriptedConfig(vocabulary=(97,), stop_id=0, vocab_size=2048)
    engine = ScriptedEngine(config, lambda _messages: None)
    engine.model_info = replace(engine.model_info, **model)
    return LoadedModel(name="m", engine=engine, model_format=model_format)


def engine_request_of(request: CreateResponse, where: LoadedModel | None = None) -> EngineRequest:
    resolved = ResolvedRequest(
        tenant="tenant", request=request, tools=[], items=ITEMS, response=RESPONSE, seed=7
    )
    return prepare(where or served(), resolved).engine_request


def test_stored_request_gives_the_same_engine_request_again() -> None:
    request = CreateResponse(
        model="m",
        stop_token_ids=[5, 3],
        allowed_token_ids=[9, 2, 9],
        bad_words=["three", " 2"],
        logprob_token_ids=[4, 1],
        top_logprobs=1,
        truncate_prompt_tokens=7,
        truncation_side="right",
        thinking_token_budget=12,
    )
    engine_request = engine_request_of(request)
    assert engine_request == engine_request_of(
        msgspec.json.decode(msgspec.json.encode(request), type=CreateResponse)
    )
    assert (engine_request.stop_token_ids, engine_request.logprob_token_ids) == (frozenset({3, 5}), (4, 1))
    assert engine_request.sampling.allowed_token_ids == (2, 9)
    assert len(engine_request.prompt) == 7
    assert engine_request.thinking_budget is not None


def test_bad_word_is_banned_at_the_beginning_of_a_text_and_where_it_is_a_token_with_its_space() -> None:
    class Spaced(SpelledFormat):
        def encode(self, text: str, **_: object) -> tuple[int, ...]:
            known = {"one": (1,), " one": (2,), "two": (3, 4), " two": (5, 3, 4), "six": (6,), " six": (6,)}
            return known[text]

    engine_request = engine_request_of(
        CreateResponse(model="m", bad_words=["one", "  two", "six"]), served(Spaced())
    )
    assert engine_request.sampling.bad_words == ((1,), (2,), (3, 4), (6,))


@pytest.mark.parametrize(("effort", "opened"), [("none", False), ("high", True)])
def test_reasoning_that_the_prompt_opens_is_counted_from_there(effort: str, opened: bool) -> None:
    asked = {"model": "m", "thinking_token_budget": 0, "reasoning": {"effort": effort}}
    budget = engine_request_of(msgspec.convert(asked, CreateResponse)).thinking_budget
    assert budget is not None
    assert (budget.start, budget.end) == ((THINK[0],), (THINK[1],))
    assert (budget.tokens, budget.open, budget.spent) == (0, opened, int(opened))


def test_budget_of_minus_one_is_none() -> None:
    assert engine_request_of(CreateResponse(model="m", thinking_token_budget=-1)).thinking_budget is None


def test_model_without_marks_of_reasoning_has_no_budget_for_it() -> None:
    with pytest.raises(InvalidRequest, match="reasoning") as refused:
        engine_request_of(CreateResponse(model="m", thinking_token_budget=4), served(SpelledFormat()))
    assert refused.value.param == "thinking_token_budget"


def test_models_longest_output_counts_where_the_request_gives_no_limit() -> None:
    model = served(max_new_tokens=30)
    assert engine_request_of(CreateResponse(model="m"), model).max_tokens == 30
    assert engine_request_of(CreateResponse(model="m", max_output_tokens=50), model).max_tokens == 50
    assert engine_request_of(CreateResponse(model="m"), served()).max_tokens > 4000


@pytest.mark.parametrize(
    ("config", "temperature"),
    [
        ({"do_sample": False, "temperature": 0.7}, 0.0),
        ({"do_sample": True}, 1.0),
        ({"temperature": 0.7}, 0.7),
        ({"top_p": 0.5}, None),
    ],
)
def test_generation_config_samples_as_it_says(config: dict[str, Any], temperature: float | None) -> None:
    request = CreateResponse(model="m", generation_config=config)
    assert with_generation_config(request, "max_output_tokens").temperature == temperature
    own = CreateResponse(model="m", generation_config=config, temperature=0.3)
    assert with_generation_config(own, "max_output_tokens").temperature == 0.3


def test_more_log_probabilities_of_a_token_leave_fewer_tokens() -> None:
    assert logprobs_limit(0) == logprobs_limit(1) == MAX_LOGPROBS
    assert logprobs_limit(20) == MAX_LOGPROBS // 20
    assert logprobs_limit(None) > MAX_LOGPROBS
