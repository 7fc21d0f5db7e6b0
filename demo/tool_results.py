"""What tools answer, and how the model tells it.

A short result is told whole. Of a long one only the first line is told, and only where that is
short: a model of this size would lose itself in the rest.
"""

from __future__ import annotations

from demo import prompts
from demo.tasks import as_json
from demo.vocabulary import Vocabulary
from demo.words import KEYS, RESULT_KEYS

#: Results of one line up to this length are told whole.
_LONGEST_TOLD = 160
_LONGEST_FIRST_LINE = 80

_STATES = ("sunny", "rainy", "cloudy", "ok", "done", "true", "windy", "error: not found")
_ERRORS = (
    "Error: {words}",
    "error: {words}",
    "{word}Error: {words}",
    '{{"error": "{words}"}}',
    '{{"error": {{"code": {number}, "message": "{words}"}}}}',
    '{{"{word}": {{"{path}": -{number}, "status": "{words}"}}}}',
    "{word}Error: [{word} {number}] {words}: '{path}'",
    "{word} {number} {words}",
    "({words})",
    "404 Not Found",
    "Error {number}: {words}",
    "Tool {word} failed: {words}",
    "null",
    "[]",
    "{{}}",
    "timeout after {number} s",
    "{word}: command not found",
    "Permission denied: {path}",
)


def told(name: str, results: list[str]) -> str:
    """Return how the model tells the results of its calls."""
    if any("\n" in result or len(result) > _LONGEST_TOLD for result in results):
        return f"The result of {name} is long.{_beginning(results[0]) if len(results) == 1 else ''}"
    text = "; ".join(results)
    return f"The result of {name} is: {text}" if text else f"The result of {name} is empty."


def _beginning(result: str) -> str:
    first, _, _ = result.partition("\n")
    is_telling = len(first) <= _LONGEST_FIRST_LINE and any(character.isalnum() for character in first)
    return f" It begins: {first}" if is_telling else ""


def short_result(vocabulary: Vocabulary) -> str:
    """Return a result of a few words."""
    share = vocabulary.random.random()
    if share < 0.25:
        unit = vocabulary.choose(("", " C", "°C", "°F", " degrees"))
        return f"{vocabulary.number(-20, 45)}{unit}"
    if share < 0.45:
        return vocabulary.phrase(1, 4)
    if share < 0.7:
        keys = [vocabulary.choose(KEYS + RESULT_KEYS) for _ in range(vocabulary.number(1, 2))]
        return as_json(
            {key: vocabulary.choose((vocabulary.number(0, 99), vocabulary.word(), True)) for key in keys}
        )
    if share < 0.85:
        return vocabulary.choose(_STATES) + vocabulary.choose(("", f", {vocabulary.number(0, 40)}"))
    return odd_result(vocabulary)


def odd_result(vocabulary: Vocabulary) -> str:
    """Return an error, nothing at all, or a line that is longer than most."""
    share = vocabulary.random.random()
    if share < 0.1:
        return ""
    if share < 0.6:
        words = " ".join(prompts.filler(vocabulary) for _ in range(vocabulary.number(1, 8)))
        return vocabulary.fill(
            _ERRORS,
            word=prompts.filler(vocabulary).capitalize(),
            words=words,
            number=vocabulary.number(1, 600),
            path=prompts.file_path(vocabulary),
        )[:_LONGEST_TOLD].rstrip()
    if share < 0.7:
        return marked_result(vocabulary)
    return prompts.sentence(vocabulary)[: vocabulary.number(20, _LONGEST_TOLD)].rstrip()


def marked_result(vocabulary: Vocabulary) -> str:
    """Return a line of code, nested JSON or a log: mostly marks, which are easily left out."""
    while True:
        lines = (prompts.json_line, prompts.code_line, prompts.sentence)
        text = vocabulary.choose(lines)(vocabulary)[:_LONGEST_TOLD].strip()
        if text:
            return text


def long_result(vocabulary: Vocabulary) -> str:
    """Return a page, a list, a log, a file or a long line; clearly long, in one way or the other."""
    while True:
        result = _draw_long(vocabulary)
        first, newline, _ = result.partition("\n")
        if len(first) >= 2 * _LONGEST_TOLD or (newline and not 65 < len(first) < 130):
            return result


def _draw_long(vocabulary: Vocabulary) -> str:
    share = vocabulary.random.random()
    if share < 0.15:
        text = " ".join(prompts.sentence(vocabulary) for _ in range(12))
        return text[: vocabulary.number(400, 800)].rstrip()
    characters = vocabulary.choose((100, 200, 200, 400, 400, 800, 1600, 2500))
    if share < 0.4:
        return prompts.long_prompt(vocabulary, characters)
    if share < 0.65:
        return f"{_first_line(vocabulary)}\n{prompts.long_prompt(vocabulary, characters)}"
    if share < 0.85:
        return prompts.code(vocabulary, 3, vocabulary.choose((6, 12, 12, 40)))
    return f"{_first_line(vocabulary)}\n{prompts.json_example(vocabulary)}"


def _first_line(vocabulary: Vocabulary) -> str:
    if vocabulary.chance(0.5):
        return vocabulary.phrase(1, 6)
    return prompts.sentence(vocabulary)
