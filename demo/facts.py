"""What a user tells about themselves, and asks for later.

Answers are taken from the conversation or the model says that it was not told: it is trained on
both, so that it does not guess.
"""

from __future__ import annotations

from dataclasses import dataclass

from demo.chat import Exchange
from demo.vocabulary import Vocabulary
from demo.words import BELONGINGS, CITIES, COLOURS, NAMES

_PETS = ("dog", "cat", "fish", "horse", "bird")
_NUMBERED = ("number", "age", "size", "phone", "password")
_ADJECTIVES = ("", "", "favourite ", "favorite ", "lucky ")


@dataclass(frozen=True, slots=True)
class Fact:
    """One thing to remember; ``subject`` tells two facts about the same thing apart."""

    subject: str
    statement: str
    acknowledgement: str
    question: str
    answer: str
    answer_if_untold: str

    def told(self) -> Exchange:
        """Return the exchange in which the user tells it."""
        return Exchange(self.statement, self.acknowledgement, "I will remember this.")

    def asked(self) -> Exchange:
        """Return the exchange in which the user asks for it after telling it."""
        return Exchange(self.question, self.answer, "The user told me before.")

    def asked_untold(self) -> Exchange:
        """Return the exchange in which the user asks for it without having told it."""
        return Exchange(self.question, self.answer_if_untold, "The user has not told me.")


def random_fact(vocabulary: Vocabulary) -> Fact:
    """Return something to tell."""
    kind = vocabulary.choose_weighted(((_name, 2), (_belonging, 3), (_home, 1), (_pet, 1), (_code_word, 1)))
    return kind(vocabulary)


def _name(vocabulary: Vocabulary) -> Fact:
    name = vocabulary.name(NAMES)
    statements = (
        "My name is {name}.",
        "my name is {name}",
        "I am {name}.",
        "Hi, my name is {name}.",
        "Hello, I'm {name}.",
        "Call me {name}.",
    )
    questions = (
        "What is my name?",
        "what is my name?",
        "What's my name?",
        "Who am I?",
        "Do you remember my name?",
    )
    return Fact(
        subject="name",
        statement=vocabulary.fill(statements, name=name),
        acknowledgement=f"Nice to meet you, {name}.",
        question=vocabulary.choose(questions),
        answer=f"Your name is {name}.",
        answer_if_untold="You have not told me your name.",
    )


def _home(vocabulary: Vocabulary) -> Fact:
    city = vocabulary.name(CITIES)
    return Fact(
        subject="home",
        statement=vocabulary.fill(("I live in {city}.", "I am from {city}."), city=city),
        acknowledgement=f"OK, you live in {city}.",
        question=vocabulary.choose(("Where do I live?", "where do I live?", "Where am I from?")),
        answer=f"You live in {city}.",
        answer_if_untold="You have not told me where you live.",
    )


def _code_word(vocabulary: Vocabulary) -> Fact:
    word = vocabulary.word()
    statements = (
        "The code word is {word}.",
        "Remember the code word {word}.",
        "Remember this word: {word}",
    )
    questions = ("What is the code word?", "What was the word?", "what is the code word")
    return Fact(
        subject="code word",
        statement=vocabulary.fill(statements, word=word),
        acknowledgement=f"I will remember {word}.",
        question=vocabulary.choose(questions),
        answer=f"The code word is {word}.",
        answer_if_untold="You have not told me the code word.",
    )


def _pet(vocabulary: Vocabulary) -> Fact:
    pet, name = vocabulary.choose(_PETS), vocabulary.name()
    statements = ("My {pet} is called {name}.", "I have a {pet} called {name}.")
    questions = ("What is my {pet} called?", "What is the name of my {pet}?")
    return Fact(
        subject=f"name of the {pet}",
        statement=vocabulary.fill(statements, pet=pet, name=name),
        acknowledgement=f"{name} is a nice name for a {pet}.",
        question=vocabulary.fill(questions, pet=pet),
        answer=f"Your {pet} is called {name}.",
        answer_if_untold=f"You have not told me the name of your {pet}.",
    )


def _belonging(vocabulary: Vocabulary) -> Fact:
    noun = vocabulary.choose(BELONGINGS)
    # "My name" is another fact, asked for in the same words.
    thing = "middle name" if noun == "name" else vocabulary.choose(_ADJECTIVES) + noun
    statements = (
        "My {thing} is {value}.",
        "my {thing} is {value}",
        "Remember that my {thing} is {value}.",
    )
    questions = (
        "What is my {thing}?",
        "what is my {thing}?",
        "What's my {thing}?",
        "Tell me my {thing}.",
    )
    value = _belonging_value(vocabulary, noun)
    return Fact(
        subject=thing,
        statement=vocabulary.fill(statements, thing=thing, value=value),
        acknowledgement=f"OK, your {thing} is {value}.",
        question=vocabulary.fill(questions, thing=thing),
        answer=f"Your {thing} is {value}.",
        answer_if_untold=f"You have not told me your {thing}.",
    )


def _belonging_value(vocabulary: Vocabulary, noun: str) -> str:
    if noun in ("colour", "color") and vocabulary.chance(0.5):
        return vocabulary.choose(COLOURS)
    if noun in _NUMBERED and vocabulary.chance(0.8):
        return vocabulary.figure()
    return vocabulary.word()
