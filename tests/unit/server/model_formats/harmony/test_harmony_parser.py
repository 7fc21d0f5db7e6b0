"""Reading gpt-oss's output: as OpenAI's own parser where that can, and without fail where it cannot."""

import random
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import openai_harmony
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from server.model_formats.harmony.harmony_parser import MAX_HEADER, HarmonyParser
from server.model_formats.harmony.vocabulary import CALL, CHANNEL, END, MESSAGE, RETURN, START, STOPS
from server.model_formats.model_format import (
    CallDelta,
    CallEnd,
    CallStart,
    Delta,
    MessageStart,
    Prompt,
    PromptTool,
    ReasoningDelta,
    TextDelta,
    merge_deltas,
)
from tests.support.harmony import CONTROL, encoding, ids_of, oracle, places_of
from tests.support.rounds import example_count

TOOLS = (
    PromptTool(name="weather"),
    PromptTool(name="patch", kind="custom"),
    PromptTool(name="read", namespace="files"),
)
OPENING = "<|start|>user<|message|>hi<|end|><|start|>assistant"
THINKS = "<|channel|>analysis<|message|>Hm<|end|>"
ANSWERS = "<|channel|>final<|message|>Yes<|end|>"
FLIES = "<|channel|>commentary to=functions.fly <|constrain|>json<|message|>{}"
FINAL, COMMENTARY = MessageStart("final_answer"), MessageStart("commentary")


def make_parser(prompt: str = OPENING, tools: Sequence[PromptTool] = TOOLS) -> HarmonyParser:
    return HarmonyParser(
        encoding().tokens, Prompt(token_ids=tuple(ids_of(prompt)), stop_ids=STOPS, tools=tools)
    )


def read(output: str | Sequence[int], prompt: str = OPENING) -> list[Delta]:
    parser = make_parser(prompt)
    deltas = parser.feed(ids_of(output) if isinstance(output, str) else output)
    return merge_deltas(deltas + parser.close())


WELL_FORMED: dict[str, tuple[str, list[Delta]]] = {
    "thoughts and an answer": (
        THINKS + "<|start|>assistant<|channel|>final<|message|>4.<|return|>",
        [ReasoningDelta("Hm"), FINAL, TextDelta("4.")],
    ),
    "a plan and a call": (
        THINKS
        + "<|start|>assistant<|channel|>commentary<|message|>I ask.<|end|><|start|>assistant"
        + '<|channel|>commentary to=functions.weather <|constrain|>json<|message|>{"city":"Ulm"}<|call|>',
        [
            ReasoningDelta("Hm"),
            COMMENTARY,
            TextDelta("I ask."),
            CallStart("weather"),
            CallDelta('{"city":"Ulm"}'),
            CallEnd(),
        ],
    ),
    "a recipient before the channel": (
        " to=functions.weather<|channel|>commentary <|constrain|>json<|message|>{}<|call|>",
        [CallStart("weather"), CallDelta("{}"), CallEnd()],
    ),
    "a call while thinking": (
        "<|channel|>analysis to=functions.weather json<|message|>{}<|call|>",
        [CallStart("weather"), CallDelta("{}"), CallEnd()],
    ),
    "a tool that takes text": (
        "<|channel|>commentary to=functions.patch<|message|>*** a\n+ b<|call|>",
        [CallStart("patch", kind="custom"), CallDelta("*** a\n+ b"), CallEnd()],
    ),
    "a tool in a namespace": (
        "<|channel|>commentary to=files.read <|constrain|>json<|message|>{}<|call|>",
        [CallStart("read", namespace="files"), CallDelta("{}"), CallEnd()],
    ),
    "python": (
        "<|channel|>analysis to=python code<|message|>print(1)<|call|>",
        [CallStart("python", kind="custom", namespace="python"), CallDelta("print(1)"), CallEnd()],
    ),
    "browser": (
        '<|channel|>analysis to=browser.search code<|message|>{"query":"x"}<|call|>',
        [CallStart("search", namespace="browser"), CallDelta('{"query":"x"}'), CallEnd()],
    ),
    "a tool that nobody offered": (
        FLIES + "<|call|>",
        [CallStart("fly"), CallDelta("{}"), CallEnd()],
    ),
    "calls one after the other": (
        FLIES + "<|end|><|start|>assistant" + FLIES + "<|call|>",
        [CallStart("fly"), CallDelta("{}"), CallEnd()] * 2,
    ),
    "two thoughts": (
        "<|channel|>analysis<|message|>One.<|end|><|start|>assistant<|channel|>analysis<|message|>Two.<|end|>",
        [ReasoningDelta("One.\nTwo.")],
    ),
    "an empty answer": ("<|channel|>final<|message|><|return|>", [FINAL]),
    "nothing": ("", []),
    "cut in a thought": ("<|channel|>analysis<|message|>Hm", [ReasoningDelta("Hm")]),
    "cut in a header": (
        "<|channel|>analysis<|message|>a<|end|><|start|>assistant<|chan",
        [ReasoningDelta("a")],
    ),
    "cut in a call": (
        '<|channel|>commentary to=functions.weather <|constrain|>json<|message|>{"ci',
        [CallStart("weather"), CallDelta('{"ci')],
    ),
    "an end of text": ("<|channel|>final<|message|>Yes<|endoftext|>", [FINAL, TextDelta("Yes")]),
}

LOOSE: dict[str, tuple[str, list[Delta]]] = {
    "a type for the answer": (
        '<|channel|>final <|constrain|>json<|message|>{"a":1}<|return|>',
        [FINAL, TextDelta('{"a":1}')],
    ),
    "no space before the recipient": (
        "<|channel|>commentaryto=functions.weather<|constrain|>json<|message|>{}<|call|>",
        [CallStart("weather"), CallDelta("{}"), CallEnd()],
    ),
    "a recipient without its namespace": (
        "<|channel|>commentary to=weather json<|message|>{}<|call|>",
        [CallStart("weather"), CallDelta("{}"), CallEnd()],
    ),
}

BROKEN: dict[str, tuple[str, list[Delta]]] = {
    "no header at all": ("Hello you<|return|>", [MessageStart(), TextDelta("Hello you")]),
    "no header and no end": ("Hello you", [MessageStart(), TextDelta("Hello you")]),
    "no header for long": ("la " * 500, [MessageStart(), TextDelta("la " * 500)]),
    "no channel": ("<|message|>Hello<|return|>", [MessageStart(), TextDelta("Hello")]),
    "an unknown channel": ("<|channel|>comment<|message|>Yes<|return|>", [MessageStart(), TextDelta("Yes")]),
    "an empty channel": ("<|channel|><|message|>Yes<|return|>", [MessageStart(), TextDelta("Yes")]),
    "two channels": ("<|channel|>analysis<|channel|>final<|message|>Yes<|end|>", [FINAL, TextDelta("Yes")]),
    "words too many": (
        "<|channel|>commentary to=functions.weather please use json<|message|>{}<|call|>",
        [CallStart("weather"), CallDelta("{}"), CallEnd()],
    ),
    "a call without its message marker": (
        '<|channel|>commentary to=functions.weather <|constrain|>json{"a":1}<|call|>',
        [CallStart("weather"), CallDelta('{"a":1}'), CallEnd()],
    ),
    "an answer without its message marker": ("<|channel|>final Hello<|return|>", [FINAL, TextDelta("Hello")]),
    "a start within a message": (
        "<|channel|>analysis<|message|>Hm<|start|>assistant<|channel|>final<|message|>Yes<|return|>",
        [ReasoningDelta("Hm"), FINAL, TextDelta("Yes")],
    ),
    "a channel within a message": (
        "<|channel|>analysis<|message|>Hm<|channel|>final<|message|>Yes<|return|>",
        [ReasoningDelta("Hm"), FINAL, TextDelta("Yes")],
    ),
    "a marker within a message": (
        "<|channel|>final<|message|>Y<|constrain|>e<|message|>s<|return|>",
        [FINAL, TextDelta("Yes")],
    ),
    "no start after an end": (
        THINKS + "assistant<|channel|>final<|message|>Yes<|return|>",
        [ReasoningDelta("Hm"), FINAL, TextDelta("Yes")],
    ),
    "text after an end": (
        THINKS + "Yes<|return|>",
        [ReasoningDelta("Hm"), MessageStart(), TextDelta("Yes")],
    ),
    "the user's words": (
        ANSWERS + "<|start|>user<|message|>And?<|end|>",
        [FINAL, TextDelta("Yes")],
    ),
    "a tool's words": (
        ANSWERS + "<|start|>functions.weather to=assistant<|channel|>commentary<|message|>sun<|end|>",
        [FINAL, TextDelta("Yes")],
    ),
    "an answer to the user": ("<|channel|>final to=user<|message|>Yes<|return|>", [FINAL, TextDelta("Yes")]),
    "a plan for the user": (
        " to=user<|channel|>commentary<|message|>I ask.<|end|>", [COMMENTARY, TextDelta("I ask.")],
    ),
    "a thought for the user": ("<|channel|>analysis to=user<|message|>Hm<|end|>", [ReasoningDelta("Hm")]),
    "a channel at the author": (
        THINKS + "<|start|>assistant--commentary to=functions.weather <|constrain|>json<|message|>{}<|call|>",
        [ReasoningDelta("Hm"), CallStart("weather"), CallDelta("{}"), CallEnd()],
    ),
    "a channel at the author of the prompt": (
        "--commentary to=functions.weather<|message|>{}<|call|>",
        [CallStart("weather"), CallDelta("{}"), CallEnd()],
    ),
    "a thought's channel at the author": (
        "analysis<|message|>Hm<|end|><|start|>assistantfinal<|message|>Yes<|return|>",
        [ReasoningDelta("Hm"), FINAL, TextDelta("Yes")],
    ),
    "a stray channel": (
        "<|channel|>commentary to=assistant<|channel|>analysis<|message|>Hm<|end|>", [ReasoningDelta("Hm")],
    ),
    "a channel and nothing said": (
        THINKS + "<|start|>assistant<|channel|>commentary<|end|><|start|>assistant" + ANSWERS,
        [ReasoningDelta("Hm"), FINAL, TextDelta("Yes")],
    ),
    "a channel and a new start": (
        "<|channel|>commentary<|start|>assistant" + ANSWERS, [FINAL, TextDelta("Yes")],
    ),
    "a line between messages": (
        THINKS + "\n<|start|>assistant" + ANSWERS, [ReasoningDelta("Hm"), FINAL, TextDelta("Yes")],
    ),
    "junk between messages": (
        THINKS + "assistant Hm json<|start|>assistant" + ANSWERS,
        [ReasoningDelta("Hm"), FINAL, TextDelta("Yes")],
    ),
    "junk in an answer's header": (
        "<|channel|>final v1.2 of it<|message|>Yes<|return|>", [FINAL, TextDelta("Yes")],
    ),
    "a number in a plan's header": (
        "<|channel|>commentary 1.2<|message|>I ask.<|end|>", [COMMENTARY, TextDelta("I ask.")],
    ),
    "a name and nothing said": (ANSWERS + "<|start|>user<|end|>", [FINAL, TextDelta("Yes")]),
}  # fmt: skip


@pytest.mark.parametrize("name", WELL_FORMED)
def test_what_is_well_formed_is_read(name: str) -> None:
    output, expected = WELL_FORMED[name]
    assert read(output) == expected


@pytest.mark.parametrize("name", LOOSE)
def test_what_is_loose_but_clear_is_read(name: str) -> None:
    output, expected = LOOSE[name]
    assert read(output) == expected


@pytest.mark.parametrize("name", BROKEN)
def test_what_is_broken_is_repaired(name: str) -> None:
    output, expected = BROKEN[name]
    assert read(output) == expected


def test_a_long_speech_without_a_header_is_told_before_it_ends() -> None:
    assert make_parser().feed(ids_of("la " * 20)) != []


def test_a_header_without_an_end_is_given_up_at_some_length() -> None:
    output = ids_of("<|channel|>final" + " la" * MAX_HEADER)
    assert make_parser().feed(output) == [FINAL, TextDelta("la" + " la" * (MAX_HEADER - 1))]


def test_a_prompt_that_ends_in_a_message_has_it_continued() -> None:
    opened = OPENING + "<|channel|>final<|message|>Once upon"
    assert read(" a time<|return|>", opened) == [FINAL, TextDelta(" a time")]


def test_thoughts_are_counted_with_their_markup() -> None:
    parser = make_parser()
    thought = ids_of("<|channel|>analysis<|message|>one two three<|end|>")
    parser.feed(thought)
    parser.feed(ids_of("<|start|>assistant<|channel|>final<|message|>four<|return|>"))
    assert parser.reasoning_tokens == len(thought)


def test_a_character_of_several_tokens_comes_whole() -> None:
    emoji = "\N{EXTRATERRESTRIAL ALIEN}\N{VARIATION SELECTOR-16} 𒀱"
    output = ids_of("<|channel|>final<|message|>" + emoji)
    parser = make_parser()
    told = [delta for token in output for delta in parser.feed([token])]
    assert merge_deltas(told) == [FINAL, TextDelta(emoji)]
    assert all("\ufffd" not in delta.text for delta in told if isinstance(delta, TextDelta))
    assert len(told) < len(output) - 2


def test_half_a_character_at_the_end_is_replaced() -> None:
    output = ids_of("<|channel|>final<|message|>𒀱")
    assert read(output[:-1]) == [FINAL, TextDelta("\ufffd")]
    assert read([*output[:-1], RETURN]) == [FINAL, TextDelta("\ufffd")]


# Against OpenAI's own parser

WORDS = [
    "hello",
    " world",
    "\n",
    " to=functions.x",
    " assistant",
    "日本",
    "🙂",
    "é",
    "{}",
    " <|end|>",
    " analysis",
    "𒀱",
]
RECIPIENTS = [None, None, "functions.weather", "functions.patch", "files.read", "browser.open", "python"]


def random_output(chance: random.Random) -> list[int]:
    """Messages of the assistant as the format has them."""
    tokens: list[int] = []
    for number in range(chance.randint(1, 4)):
        tokens += [START, *ids_of("assistant")] if number else []
        recipient, before = chance.choice(RECIPIENTS), chance.random() < 0.3
        to = f" to={recipient}" if recipient else ""
        kind = chance.choice(["", " <|constrain|>json", " json", " code"]) if recipient else ""
        tokens += ids_of(to) if before else []
        tokens += [CHANNEL, *ids_of(chance.choice(["analysis", "commentary", "final"]))]
        tokens += [*ids_of(("" if before else to) + kind), MESSAGE]
        for _ in range(chance.randint(0, 12)):
            tokens += encoding().encode(chance.choice(WORDS))
        tokens.append(chance.choice([CALL, END]) if recipient else END)
    tokens[-1] = tokens[-1] if tokens[-1] == CALL else RETURN
    return tokens


def by_oracle(output: list[int]) -> list[Delta]:
    """What OpenAI's parser makes of it, in our words."""
    parser = openai_harmony.StreamableParser(oracle(), openai_harmony.Role.ASSISTANT)
    for token in output:
        parser.process(token)
    told: list[Delta] = []
    for message in parser.messages:
        text: Any = message.content[0]
        if message.recipient is not None:
            namespace, _, name = message.recipient.rpartition(".")
            told.append(
                CallStart(
                    name,
                    kind="custom" if name in ("patch", "python") else "function",
                    namespace={"functions": None, "": name}.get(namespace, namespace),
                )
            )
            told += [CallDelta(text.text)] if text.text else []
            told.append(CallEnd())
        elif message.channel == "analysis":
            gap = "\n" if told and isinstance(told[-1], ReasoningDelta) else ""
            told += [ReasoningDelta(gap + text.text)] if text.text else []
        else:
            told.append(FINAL if message.channel == "final" else COMMENTARY)
            told += [TextDelta(text.text)] if text.text else []
    return merge_deltas(told)


def test_random_well_formed_outputs_are_read_as_openai_reads_them() -> None:
    chance = random.Random(1)
    for _ in range(1500):
        output = random_output(chance)
        assert read(output) == by_oracle(output), output


# Against chance

MARKUP = sorted(CONTROL.values())
PIECES = [*MARKUP, *MARKUP, 200_000, 200_015, 201_087, 201_088, 10**9, -1]


def random_tokens(chance: random.Random, words: Sequence[int]) -> list[int]:
    return [
        chance.choice(PIECES) if chance.random() < 0.5 else chance.choice(words)
        for _ in range(chance.randint(0, 24))
    ]


def words_of_headers() -> list[int]:
    known = ids_of("assistant analysis commentary final to=functions.weather json code user tool {} python")
    return [*known, *ids_of(" assistantfinal to=\n"), *range(120, 260), 100_000, 199_997]


def test_random_tokens_never_raise() -> None:
    chance, words = random.Random(2), words_of_headers()
    prompt = Prompt(token_ids=tuple(ids_of(OPENING)), stop_ids=STOPS, tools=TOOLS)
    tokens = encoding().tokens
    for _ in range(30_000):
        parser = HarmonyParser(tokens, prompt)
        parser.feed(random_tokens(chance, words))
        parser.close()


@settings(max_examples=example_count(300), deadline=None)
@given(seed=st.integers(0, 2**32), cuts=st.lists(st.integers(0, 40), max_size=8))
def test_any_split_of_the_tokens_gives_the_same_deltas(seed: int, cuts: list[int]) -> None:
    chance = random.Random(seed)
    output = random_output(chance) if seed % 2 else random_tokens(chance, words_of_headers())
    whole, split = make_parser(), make_parser()
    deltas: list[Delta] = []
    places = [0, *sorted(cuts), len(output)]
    for begin, end in pairwise(places):
        deltas += split.feed(output[begin:end])
    deltas += split.close()
    expected = merge_deltas(whole.feed(output) + whole.close())
    assert merge_deltas(deltas) == expected
    assert places_of(merge_deltas(deltas)) == places_of(expected)
    assert split.reasoning_tokens == whole.reasoning_tokens


def test_calls_are_started_before_they_go_on_and_end_at_most_once() -> None:
    chance, words = random.Random(3), words_of_headers()
    for _ in range(5000):
        open_call = False
        for delta in read(random_tokens(chance, words)):
            match delta:
                case CallStart():
                    open_call = True
                case CallDelta() | CallEnd():
                    assert open_call
                    open_call = isinstance(delta, CallDelta)
                case TextDelta() | ReasoningDelta() | MessageStart():
                    open_call = False


def test_of_a_call_that_must_come_no_header_is_shown_where_it_is_cut_off() -> None:
    for called in (" to=functions.weather<|channel|>commentary <|constrain|>json<|message|>", FLIES):
        ids = ids_of(called)
        for size in range(ids.index(MESSAGE)):
            prompt = Prompt(token_ids=tuple(ids_of(OPENING)), stop_ids=STOPS, tools=TOOLS, must_call=True)
            parser = HarmonyParser(encoding().tokens, prompt)
            assert parser.feed(ids[:size]) + parser.close() == [], size
