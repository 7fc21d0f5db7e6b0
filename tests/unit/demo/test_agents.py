"""What the corpus says of long settings, many tools and what is beyond the model."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from demo import prompt_words
from demo.batches import Batch, Batches, LongSettings
from demo.beyond import give_up
from demo.chat import Conversation, Message, Tool
from demo.conversations import random_conversation
from demo.drills import drill, drill_or_conversation
from demo.evaluate import cases_of
from demo.evaluation_agents import KINDS
from demo.evaluation_cases import HELD_OUT_NAMES, HELD_OUT_WORDS
from demo.evaluation_texts import REQUESTS, held_out_tools
from demo.settings import long_setting
from demo.small_talk import FALLBACK
from demo.tokenizer import shipped_tokenizer
from demo.tool_results import told
from demo.toolbox import base_name, offer_tools
from demo.tools import unoffered_turns
from demo.vocabulary import Vocabulary


def conversations(count: int) -> Iterator[Conversation]:
    vocabulary = Vocabulary("agents")
    for _ in range(count):
        setting = long_setting(vocabulary, 200, 4000)
        yield random_conversation(vocabulary, setting=setting)


def long_batches() -> list[Batch]:
    batches = Batches(shipped_tokenizer(), 5, batch_tokens=1024, long=LongSettings(1.0, 300, 2000))
    return list(islice(batches, 5))


def test_only_offered_tools_are_called() -> None:
    calling = 0
    for conversation in conversations(300):
        offered = {tool.name for tool in conversation.tools}
        called = {call.name for message in conversation.messages for call in message.calls}
        assert called <= offered
        calling += bool(called)

    assert calling > 50


def test_forty_tools_have_forty_names() -> None:
    names = [tool.name for tool in offer_tools(Vocabulary(3), 40)]

    assert len(set(names)) == len(names) > 30


def test_a_prefix_does_not_hide_what_a_tool_is() -> None:
    assert base_name(Tool("mcp__city__get_weather", {"city": "string"})) == "get_weather"
    assert base_name(Tool("store_add", {"item": "string"})) == "store_add"


def test_a_tool_that_is_not_offered_is_not_called() -> None:
    for seed in range(40):
        turns = unoffered_turns(Vocabulary(seed), (Tool("get_weather", {"city": "string"}),))
        assert not any(turn.calls for turn in turns)
        assert not turns or turns[-1].text == FALLBACK


def test_what_is_beyond_the_model_has_one_answer() -> None:
    vocabulary = Vocabulary(8)
    exchanges = [give_up(vocabulary)[0] for _ in range(500)]

    assert {exchange.answer for exchange in exchanges} == {FALLBACK}
    assert any(len(exchange.request) > 400 for exchange in exchanges)
    assert any(not exchange.request.strip() for exchange in exchanges)
    assert any(not exchange.request.isascii() for exchange in exchanges)


def test_a_long_result_is_told_by_its_first_line() -> None:
    assert told("f", ["12°C"]) == "The result of f is: 12°C"
    assert told("f", [""]) == "The result of f is empty."
    assert told("f", ["3 files\na\nb"]) == "The result of f is long. It begins: 3 files"
    assert told("f", ["{\n}"]) == "The result of f is long."
    assert told("f", ["word " * 100]) == "The result of f is long."
    assert told("f", ["a\nb", "c"]) == "The result of f is long."


def test_a_long_batch_has_one_setting_before_its_conversations() -> None:
    tokenizer = shipped_tokenizer()
    for batch in long_batches():
        assert batch.prefix is not None
        text = tokenizer.decode(batch.prefix[0].tolist(), skip_special_tokens=False)
        assert text.startswith("<|im_start|>system\n")
        assert text.endswith("<|im_end|>\n")
        assert batch.positions[:, 0].min() >= batch.prefix.shape[1]
        assert batch.tokens == batch.ids.numel() + batch.prefix.numel()


def test_agents_prompts_and_requests_of_the_evaluation_are_not_in_the_corpus() -> None:
    lists = [value for value in vars(prompt_words).values() if isinstance(value, tuple)]
    known = {word.lower() for entries in lists for word in entries}

    assert known.isdisjoint(word.lower() for word in HELD_OUT_NAMES + HELD_OUT_WORDS + REQUESTS)


def test_settings_of_the_evaluation_have_up_to_forty_tools_and_four_thousand_tokens() -> None:
    tokenizer = shipped_tokenizer()
    long = next(kind for kind in KINDS if kind.name == "plain tasks, long prompt, 40 tools")
    cases = cases_of(long, 20)
    lengths = [len(tokenizer.encode(case.messages[0].text).ids) for case in cases]

    assert len(held_out_tools()) > 40
    assert all(len(case.tools) == 40 for case in cases)
    assert min(lengths) < 1500
    assert 3000 < max(lengths) < 5000


def test_a_case_that_only_has_to_end_ends_with_a_user_or_a_tool() -> None:
    ends = next(kind for kind in KINDS if kind.name == "answers that end")
    last: list[Message] = [case.messages[-1] for case in cases_of(ends, 50)]

    assert {message.role for message in last} == {"user"}


def test_a_drill_calls_what_is_offered_and_declines_the_rest() -> None:
    vocabulary = Vocabulary("drills")
    calls = refusals = 0
    for _ in range(200):
        conversation = drill(vocabulary)
        offered = {tool.name for tool in conversation.tools}
        answers = [message for message in conversation.messages if message.role == "assistant"]
        assert {call.name for answer in answers for call in answer.calls} <= offered
        calls += sum(bool(answer.calls) for answer in answers)
        refusals += sum(answer.text == FALLBACK for answer in answers)

    assert calls > refusals > 50


def test_drills_are_as_frequent_as_they_are_emphasised() -> None:
    def count_drills(share: float) -> int:
        vocabulary = Vocabulary("share of drills")
        conversations = [drill_or_conversation(vocabulary, {drill: share}) for _ in range(100)]
        return sum(bool(conversation.tools) for conversation in conversations)

    assert count_drills(0) < count_drills(0.5) < count_drills(1) == 100
