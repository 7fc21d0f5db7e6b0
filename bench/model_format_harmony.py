"""Time per token of writing and parsing the harmony format, compared with openai-harmony."""

import random

import openai_harmony

from bench.rounds import divide, take_times, tell
from server.model_formats.harmony.harmony_parser import HarmonyParser
from server.model_formats.harmony.vocabulary import STOPS
from server.model_formats.model_format import Delta, Prompt, PromptConversation
from server.protocol.responses.items import InputText, Item, Message
from tests.support.harmony import encoding, harmony_format, ids_of, oracle

WORDS = [
    "The",
    " weather",
    " in",
    " Ulm",
    ", which",
    " is",
    " 18",
    "°C",
    ".\n",
    " 天気",
    " 🙂",
    " {",
    '"city"',
    "}",
]
MESSAGES, LENGTH = 40, 200
ROUNDS = 9
GOAL_MICROSECONDS = 10.0


def run() -> None:
    """Microseconds a token of reading one by one, ÷ openai-harmony's parser; and of writing; seconds."""
    output = _make_output()
    prompt = Prompt(token_ids=tuple(ids_of("<|start|>assistant")), stop_ids=STOPS)
    times = take_times(
        {"ours": lambda _: _read(prompt, output), "theirs": lambda _: _read_with_library(output)}, ROUNDS
    )
    tell("reading, microseconds a token", _each(times["ours"], len(output)), f"<={GOAL_MICROSECONDS}")
    tell("reading ÷ openai-harmony's, four getters", divide(times["ours"], times["theirs"]), "<=1.0")
    text = "".join(WORDS) * 500
    items: list[Item] = [Message("m", "completed", "user", [InputText(text)]) for _ in range(10)]
    conversation = PromptConversation(items=items)
    size = len(harmony_format().write(conversation).token_ids)
    written = take_times({"": lambda _: harmony_format().write(conversation)}, ROUNDS)[""]
    tell("writing, microseconds a token", _each(written, size), f"<={GOAL_MICROSECONDS}")


def _each(seconds: list[float], tokens: int) -> list[float]:
    """Microseconds of one token."""
    return [whole / tokens * 1e6 for whole in seconds]


def _make_output() -> list[int]:
    dice = random.Random(3)  # noqa: S311
    tokens: list[int] = []
    for number in range(MESSAGES):
        text = "".join(dice.choices(WORDS, k=LENGTH))
        opening = "<|start|>assistant" if number else ""
        tokens += ids_of(f"{opening}<|channel|>{dice.choice(('analysis', 'final'))}<|message|>{text}<|end|>")
    return tokens


def _read(prompt: Prompt, output: list[int]) -> list[Delta]:
    parser = HarmonyParser(encoding().tokens, prompt)
    return [delta for token in output for delta in parser.feed([token])] + parser.close()


def _read_with_library(output: list[int]) -> list[object]:
    parser = openai_harmony.StreamableParser(oracle(), openai_harmony.Role.ASSISTANT)
    told: list[object] = []
    for token in output:
        parser.process(token)
        told.append((parser.current_channel, parser.current_recipient, parser.current_content_type))
        told.append(parser.last_content_delta)
    return told
