"""The held-out evaluation: greedy answers about fresh pictures, compared letter for letter.

``python -m demo.vision.evaluate MODEL`` prints a table and exits with 1 where a kind is below its floor.
Pictures are files of any size from 40 to 800 pixels a side; they are read and resized by the folder's own
processor.
"""

from __future__ import annotations

import argparse
import io
import random
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from transformers import AutoModelForImageTextToText, AutoProcessor

from demo.threads import one_thread
from demo.vision import questions
from demo.vision.pictures import Picture, random_picture
from demo.vision.questions import Sight

DEFAULT_SEED = 987_654_321
DEFAULT_CASES = 50
_FORMATS = ("PNG", "JPEG", "WEBP")
_LONGEST_ANSWER = 400

#: The questions of the evaluation, and how each is answered.
QUESTIONS: tuple[tuple[str, Callable[[Sight], str]], ...] = (
    ("What do you see?", Sight.described),
    ("What is in this picture?", Sight.described),
    ("What colour is the shape?", Sight.coloured),
    ("Which shape is it?", Sight.shaped),
    ("Which digit is in the picture?", Sight.read),
)
_LATER = (
    ("What was in the picture?", Sight.described),
    ("What colour was it?", Sight.coloured),
)
_CHATTER = (
    "Thanks!",
    "How are you?",
    "What can you do?",
    "Who are you?",
    "hello",
    "Write a poem about rain.",
)


@dataclass(frozen=True, slots=True)
class Case:
    """A conversation as chat templates take it, its picture files in order, and the right answer."""

    messages: list[dict[str, Any]]
    files: list[bytes]
    expected: str


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of case, and which share has to be right."""

    name: str
    floor: float
    write: Callable[[random.Random], Case]


@dataclass(frozen=True, slots=True)
class Result:
    """How a model did on the cases of one kind."""

    kind: Kind
    cases: int
    #: Wrong answers, each with the case.
    mistakes: tuple[tuple[Case, str], ...]

    @property
    def share_right(self) -> float:
        """Return the share of right answers."""
        return 1 - len(self.mistakes) / self.cases

    @property
    def is_below_floor(self) -> bool:
        """Tell whether the model fails on this kind."""
        return self.share_right < self.kind.floor

    def row(self) -> str:
        """Return the result as a line of the table, with the first mistakes."""
        mark = " BELOW ITS FLOOR" if self.is_below_floor else ""
        row = f"{self.kind.name:24s} {self.share_right:6.1%} of {self.cases:4d}"
        row += f"  floor {self.kind.floor:4.0%}{mark}"
        for case, answer in self.mistakes[:3]:
            row += f"\n    hoped {case.expected!r}, heard {answer!r:.100}"
        return row


def user(text: str, pictures: int = 0, *, pictures_last: bool = False) -> dict[str, Any]:
    """Return a user's message as chat templates take it."""
    images: list[dict[str, str]] = [{"type": "image"}] * pictures
    texts = [{"type": "text", "text": text}]
    return {"role": "user", "content": texts + images if pictures_last else images + texts}


def assistant(text: str) -> dict[str, Any]:
    """Return the model's own message from before."""
    return {"role": "assistant", "content": text}


def sight_of(picture: Picture) -> Sight:
    """Return what a picture shows."""
    return Sight(picture.colour, picture.thing)


def file_of(chooser: random.Random, picture: Picture) -> bytes:
    """Return a file of any format; those with losses have a quality from 60 to 95."""
    return picture.encoded(chooser.choice(_FORMATS), chooser.randint(60, 95))


def _shown(chooser: random.Random) -> tuple[Sight, bytes]:
    picture = random_picture(chooser)
    return sight_of(picture), file_of(chooser, picture)


def _about_one(chooser: random.Random, text: str, answer: Callable[[Sight], str]) -> Case:
    sight, file = _shown(chooser)
    message = user(text, 1, pictures_last=chooser.random() < 0.5)
    return Case([message], [file], answer(sight))


def _any_question(chooser: random.Random) -> Case:
    return _about_one(chooser, *chooser.choice(QUESTIONS))


def _asking(place: int) -> Callable[[random.Random], Case]:
    return lambda chooser: _about_one(chooser, *QUESTIONS[place])


def _turns_later(chooser: random.Random) -> Case:
    """Ask again two turns after the picture."""
    sight, file = _shown(chooser)
    first, answer = chooser.choice(QUESTIONS)
    messages = [user(first, 1), assistant(answer(sight))]
    for text in chooser.sample(_CHATTER, 2):
        messages += [user(text), assistant(_reply(text))]
    again, answer = chooser.choice((*QUESTIONS, *_LATER))
    return Case([*messages, user(again)], [file], answer(sight))


def _reply(text: str) -> str:
    for answer, requests in questions.SMALL_TALK.items():
        if text in requests:
            return answer
    return questions.FALLBACK


def _newest_of_two(chooser: random.Random) -> Case:
    (one, file), (other, newer) = _shown(chooser), _shown(chooser)
    (first, answer), (second, last) = chooser.choice(QUESTIONS), chooser.choice(QUESTIONS)
    messages = [user(first, 1), assistant(answer(one)), user(second, 1)]
    return Case(messages, [file, newer], last(other))


def _one_of_two(chooser: random.Random) -> Case:
    shown = [_shown(chooser), _shown(chooser)]
    place = chooser.randrange(2)
    text = f"What is in the {questions.ORDINALS[place]} picture?"
    return Case([user(text, 2)], [file for _, file in shown], shown[place][0].described())


def _without_picture(chooser: random.Random) -> Case:
    return Case([user(chooser.choice(QUESTIONS)[0])], [], questions.NO_PICTURE)


def _greeting(chooser: random.Random) -> Case:
    return Case([user(chooser.choice(("Hello!", "Hi", "Good morning")))], [], questions.GREETING)


def _beyond(chooser: random.Random) -> Case:
    subjects = ("rain", "the capital of France", "prime numbers", "your favourite book", "Rome")
    text = chooser.choice(("Tell me about {}.", "Write a poem about {}.", "Explain {}.", "Why {}?"))
    return Case([user(text.format(chooser.choice(subjects)))], [], questions.FALLBACK)


def _story(chooser: random.Random) -> Case:
    return _about_one(chooser, "Tell me a story about it.", Sight.told)


KINDS = (
    Kind("any question", 0.95, _any_question),
    Kind("what there is", 0.94, _asking(0)),
    Kind("colour", 0.94, _asking(2)),
    Kind("shape", 0.94, _asking(3)),
    Kind("digit", 0.94, _asking(4)),
    Kind("story", 0.94, _story),
    Kind("two turns later", 0.94, _turns_later),
    Kind("newest of two", 0.94, _newest_of_two),
    Kind("one of two", 0.94, _one_of_two),
    Kind("without a picture", 0.94, _without_picture),
    Kind("greeting", 1.0, _greeting),
    Kind("beyond it", 0.9, _beyond),
)


class Subject:
    """A model under evaluation."""

    def __init__(self, folder: Path) -> None:
        """Load the folder as any user of transformers would."""
        self._processor: Any = AutoProcessor.from_pretrained(folder)  # type: ignore[no-untyped-call]
        self._model: Any = AutoModelForImageTextToText.from_pretrained(folder, dtype="auto")

    def answer(self, case: Case) -> str:
        """Return the greedy answer."""
        prompt = self._processor.apply_chat_template(
            case.messages, tokenize=False, add_generation_prompt=True
        )
        images = [Image.open(io.BytesIO(file)).convert("RGB") for file in case.files]
        inputs = self._processor(images=images or None, text=prompt, return_tensors="pt")
        if images:
            inputs["pixel_values"] = inputs["pixel_values"].to(self._model.dtype)
        with torch.inference_mode():
            ids = self._model.generate(**inputs, max_new_tokens=_LONGEST_ANSWER, do_sample=False)
        text = self._processor.decode(ids[0, inputs.input_ids.shape[1] :], skip_special_tokens=True)
        assert isinstance(text, str)
        return text


def cases_of(kind: Kind, count: int, seed: int = DEFAULT_SEED) -> list[Case]:
    """Return the cases of a kind: always the same ones for the same count and seed."""
    chooser = random.Random(f"{seed} {kind.name}")
    return [kind.write(chooser) for _ in range(count)]


def evaluate(
    folder: Path, cases: int, kinds: Sequence[Kind] = KINDS, seed: int = DEFAULT_SEED
) -> list[Result]:
    """Return how the model does on each kind, printing each row as it is known."""
    subject = Subject(folder)
    results = []
    with one_thread():
        for kind in kinds:
            asked = cases_of(kind, cases, seed)
            answers = [(case, subject.answer(case)) for case in asked]
            mistakes = tuple((case, answer) for case, answer in answers if answer != case.expected)
            results.append(Result(kind, len(asked), mistakes))
            print(results[-1].row(), flush=True)
    return results


def is_good_enough(results: Sequence[Result]) -> bool:
    """Tell whether no kind is below its floor, and say so."""
    failed = [result.kind.name for result in results if result.is_below_floor]
    print(f"below their floors: {', '.join(failed) or 'none'}")
    return not failed


def main(arguments: Sequence[str] | None = None) -> int:
    """Evaluate the folder named on the command line."""
    parser = argparse.ArgumentParser(prog="python -m demo.vision.evaluate", description=__doc__)
    parser.add_argument("model", type=Path, help="a Hugging Face folder")
    parser.add_argument("--cases", type=int, default=DEFAULT_CASES, help="cases of each kind")
    parser.add_argument("--seed", type=int, default=DEFAULT_SEED, help="other cases, other seed")
    options = parser.parse_args(arguments)
    results = evaluate(options.model, options.cases, seed=options.seed)
    return 0 if is_good_enough(results) else 1


if __name__ == "__main__":
    sys.exit(main())
