"""Requests with a fixed answer: greetings, what the model is, canned texts, and "I do not know".

The fixed answers are constants, because the evaluation asks for them word for word.
"""

from __future__ import annotations

from demo.chat import Exchange
from demo.vocabulary import Vocabulary
from demo.words import DICTIONARY

GREETING = "Hello! How can I help you?"
SELF_DESCRIPTION = "I am a tiny demo model. I can repeat, remember, count, add, call tools and write JSON."
FALLBACK = "I am only a tiny demo model, so I do not know that. Try: count to 20."
BEDTIME_STORY = (
    "Under a silver moon, a little unicorn followed a falling star home and slept until the sun came up."
)
JOKE = "Why did the model go to school? To learn new words."
EQUATION_STEPS = (
    '{"steps": [{"explanation": "Subtract 7 from both sides.", "output": "8x = -30"}, '
    '{"explanation": "Divide both sides by 8.", "output": "x = -3.75"}], '
    '"final_answer": "x = -3.75"}'
)
THANKS_ANSWER = "You are welcome!"

_GREETINGS = (
    "Hi",
    "hi",
    "Hello",
    "hello",
    "Hello!",
    "hey",
    "Hey there",
    "Hi there!",
    "Good morning",
    "Hello, how are you?",
    "How are you?",
    "Say hello.",
    "hello world",
    "Hello world!",
)
_SELF_QUESTIONS = (
    "What are you?",
    "what are you",
    "Who are you?",
    "who are you",
    "What can you do?",
    "what can you do",
    "Which model are you?",
    "Tell me about yourself.",
    "help",
    "Introduce yourself.",
)
_THANKS = ("thanks", "Thank you!", "thank you", "Thanks a lot.")
_FAREWELLS = ("bye", "Goodbye!", "See you.")
_KNOCKS = ("Knock knock.", "knock knock.", "knock knock")

#: Openings of requests that are beyond the model.
_BEYOND = (
    "How do I",
    "Why",
    "Explain",
    "Write a poem about",
    "Translate",
    "Where is",
    "When did",
    "Describe",
    "What is the best",
    "Can you",
    "Is it true that",
    "Summarize",
    "Please",
    "How many",
    "Why does",
    "Tell me about",
    "Write a function that",
    "Do you like",
)

#: (requests, answer): what people type first, and what examples in API documentation ask for.
_CANNED = (
    (
        (
            "Write a one-sentence bedtime story about a unicorn.",
            "Tell me a bedtime story about a unicorn.",
            "Write a short bedtime story about a unicorn.",
            "Tell me a three sentence bedtime story about a unicorn.",
        ),
        BEDTIME_STORY,
    ),
    (("Tell me a joke.", "tell me a joke", "Tell me a joke"), JOKE),
    (
        ("Explain why this is funny.", "explain why this is funny.", "Why is that funny?"),
        "It is funny because a model learns words, and so do children in school.",
    ),
    (("Knock knock.", "knock knock."), "Who's there?"),
    (
        (
            "What is the capital of France?",
            "What is the capital of france?",
            "capital of France",
        ),
        "Paris.",
    ),
    (("What is the meaning of life?", "meaning of life"), "42."),
    (("What day is it?", "What time is it?"), "I do not know. I have no clock."),
    (("ping", "Ping", "test", "This is a test."), "pong"),
    (
        ("How do I check if a Python object is an instance of a class?",),
        "use isinstance(obj, cls).",
    ),
    (("Are semicolons optional in JavaScript?",), "semicolons are optional in JavaScript."),
    (
        ("Write a haiku about code.", "Write a haiku.", "write a haiku about programming"),
        "Small words in a row,\none by one the tokens come,\nthen the model rests.",
    ),
    (
        (
            "how can I solve 8x + 7 = -23",
            "How can I solve 8x + 7 = -23?",
            "Solve 8x + 7 = -23",
        ),
        EQUATION_STEPS,
    ),
)


def greet(vocabulary: Vocabulary) -> list[Exchange]:
    """Return a greeting and its answer."""
    request = vocabulary.choose(_GREETINGS)
    return [Exchange(request, GREETING, "The user greets me. I greet back.")]


def describe_self(vocabulary: Vocabulary) -> list[Exchange]:
    """Return a question about the model itself."""
    request = vocabulary.choose(_SELF_QUESTIONS)
    return [Exchange(request, SELF_DESCRIPTION, "The user asks what I am.")]


def thank(vocabulary: Vocabulary) -> list[Exchange]:
    """Return thanks and their answer."""
    return [Exchange(vocabulary.choose(_THANKS), THANKS_ANSWER, "The user thanks me.")]


def part(vocabulary: Vocabulary) -> list[Exchange]:
    """Return a farewell and its answer."""
    return [Exchange(vocabulary.choose(_FAREWELLS), "Goodbye!", "The user says goodbye.")]


def recite(vocabulary: Vocabulary) -> list[Exchange]:
    """Return one of the canned texts."""
    requests, answer = vocabulary.choose(_CANNED)
    return [Exchange(vocabulary.choose(requests), answer, "I know this one.")]


def knock(vocabulary: Vocabulary) -> list[Exchange]:
    """Return the first one, two or three exchanges of a knock-knock joke."""
    who = vocabulary.word().capitalize()
    exchanges = [
        Exchange(vocabulary.choose(_KNOCKS), "Who's there?", "A knock knock joke."),
        Exchange(vocabulary.choose((f"{who}.", who)), f"{who} who?", "A knock knock joke."),
        Exchange(vocabulary.phrase(2, 6), "Ha ha, very funny!", "The joke is over."),
    ]
    return exchanges[: vocabulary.number(1, 3)]


def plain_beyond(vocabulary: Vocabulary) -> str:
    """Return a question or an order that is beyond the model."""
    about = " ".join(
        vocabulary.choose(DICTIONARY) if vocabulary.chance(0.8) else vocabulary.invented()
        for _ in range(vocabulary.number(2, 8))
    )
    return f"{vocabulary.choose(_BEYOND)} {about}{vocabulary.choose(('?', '.', ''))}"
