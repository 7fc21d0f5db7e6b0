"""What a user asks about a picture and what else is said around it, with the answers, word for word."""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType

from demo.vision.pictures import DIGITS

GREETING = "Hello! Show me a picture and ask me what is in it."
SELF_DESCRIPTION = "I am a tiny demo model. I name colours, shapes and digits in drawn pictures."
THANKS_ANSWER = "You are welcome!"
FAREWELL = "Goodbye!"
NO_PICTURE = "I see no picture here. Please send me one."
FALLBACK = "I only name colours, shapes and digits in drawn pictures."

_STORY = (
    "Once upon a time there was {one}. It lived alone in a picture. Every morning it looked around and "
    "saw nothing at all. One day a pencil came by and asked: Who are you? I am {one}, it said, and I am "
    "looking for a friend. The pencil thought for a while. Then it drew a house, a tree and the sun. "
    "From that day on the {named} was never alone again. The end."
)


def _with_article(noun: str) -> str:
    return f"{'an' if noun[0] in 'aeiou' else 'a'} {noun}"


@dataclass(frozen=True, slots=True)
class Sight:
    """What a picture shows."""

    colour: str
    #: One of ``demo.vision.pictures.THINGS``.
    thing: str
    #: Which picture of a pool it is.
    place: int = 0

    @property
    def is_digit(self) -> bool:
        """Tell whether it is a digit, not a shape."""
        return self.thing in DIGITS

    def described(self) -> str:
        """Return the answer to what there is to see."""
        if self.is_digit:
            return f"The digit {self.thing}, in {self.colour}."
        described = _with_article(f"{self.colour} {self.thing}")
        return f"{described[0].upper()}{described[1:]}."

    def coloured(self) -> str:
        """Return the answer to which colour it is."""
        return f"It is {self.colour}."

    def shaped(self) -> str:
        """Return the answer to which shape it is."""
        return f"It is the digit {self.thing}." if self.is_digit else f"It is {_with_article(self.thing)}."

    def read(self) -> str:
        """Return the answer to which digit it is."""
        if self.is_digit:
            return f"The digit is {self.thing}."
        return f"There is no digit. {self.shaped()}"

    def told(self) -> str:
        """Return a story about it, which is long enough to be interrupted."""
        named = f"{self.colour} {'digit ' if self.is_digit else ''}{self.thing}"
        return _STORY.format(one=_with_article(named), named=named)


#: Questions about what there is to see; {picture} is one of ``PICTURE_WORDS``.
SEE = (
    "What do you see?",
    "What do you see?",
    "What can you see?",
    "What is in this {picture}?",
    "What is in the {picture}?",
    "What's in this {picture}?",
    "What do you see in this {picture}?",
    "What does this {picture} show?",
    "What does the {picture} show?",
    "Describe the {picture}.",
    "Describe this {picture}.",
    "Describe what you see.",
    "What is this?",
    "What is it?",
    "What is shown here?",
    "What is drawn here?",
    "Tell me what you see.",
    "Tell me what is in the {picture}.",
    "Name what is in the {picture}.",
    "What is on the {picture}?",
)
#: The same with a picture that has just been sent.
SEE_NEW = (*SEE, "And this one?", "And now?", "Look at this.", "What about this one?", "This {picture}?", "")
#: The same about a picture from before.
SEE_AGAIN = (
    *SEE,
    "What was in the {picture}?",
    "What did you see?",
    "What was it?",
    "What did the {picture} show?",
    "Tell me again what you see.",
    "What did I show you?",
    "What was in the {picture} again?",
    "What was that {picture}?",
)
COLOUR = (
    "What {colour} is it?",
    "What {colour} is it?",
    "Which {colour} is it?",
    "What {colour} is the shape?",
    "Which {colour} is the shape?",
    "What {colour} is the digit?",
    "Which {colour} does it have?",
    "Which {colour} does the shape have?",
    "What {colour} is the shape in the {picture}?",
    "What {colour} is the thing in the {picture}?",
    "What {colour} is in the {picture}?",
    "Which {colour} do you see?",
    "What is the {colour} of the shape?",
    "What is its {colour}?",
    "What is the {colour}?",
    "Name the {colour}.",
    "Tell me the {colour}.",
    "And the {colour}?",
    "What {colour} is this?",
    "What {colour} was it?",
    "Which {colour} was the shape?",
)
SHAPE = (
    "Which shape is it?",
    "Which shape is it?",
    "What shape is it?",
    "What shape is this?",
    "What kind of shape is it?",
    "Which shape is in the {picture}?",
    "What shape is in the {picture}?",
    "What shape do you see?",
    "Which shape do you see?",
    "Which shape does the {picture} show?",
    "What is the shape?",
    "Name the shape.",
    "Tell me the shape.",
    "And the shape?",
    "What shape was it?",
    "Which shape was in the {picture}?",
)
DIGIT = (
    "Which {digit} is in the {picture}?",
    "Which {digit} is in the {picture}?",
    "What {digit} is in the {picture}?",
    "Which {digit} is it?",
    "What {digit} is it?",
    "What {digit} is this?",
    "Which {digit} do you see?",
    "What {digit} do you see?",
    "Which {digit} does the {picture} show?",
    "What is the {digit}?",
    "Read the {digit}.",
    "Name the {digit}.",
    "Tell me the {digit}.",
    "And the {digit}?",
    "Which {digit} was it?",
    "What {digit} was in the {picture}?",
)
STORY = (
    "Tell me a story about it.",
    "Tell me a story about the {picture}.",
    "Tell me a story about this {picture}.",
    "Write a story about the {picture}.",
    "Tell a story about what you see.",
    "Tell me a long story about it.",
)
#: About one of two pictures.
ORDINAL = (
    "What is in the {ordinal} {picture}?",
    "What do you see in the {ordinal} {picture}?",
    "What does the {ordinal} {picture} show?",
    "Describe the {ordinal} {picture}.",
    "What was in the {ordinal} {picture}?",
    "And in the {ordinal} {picture}?",
)
ORDINALS = ("first", "second")
PICTURE_WORDS = ("picture", "picture", "image", "image", "drawing", "photo")
COLOUR_WORDS = ("colour", "color")
DIGIT_WORDS = ("digit", "digit", "number")

#: (requests, answer) without a picture.
SMALL_TALK = MappingProxyType(
    {
        GREETING: (
            *("Hi", "hi", "Hello", "hello", "Hello!", "hey", "Hey there", "Hi there!", "Hello there."),
            *("Good morning", "Good evening!", "Hello, how are you?", "How are you?", "Say hello."),
        ),
        SELF_DESCRIPTION: (
            *("What are you?", "who are you", "Who are you?", "What can you do?", "what can you do"),
            *("Which model are you?", "Tell me about yourself.", "help", "Introduce yourself."),
        ),
        THANKS_ANSWER: ("thanks", "Thanks!", "Thank you!", "thank you", "Thanks a lot.", "Great, thank you."),
        FAREWELL: ("bye", "Bye!", "Goodbye!", "See you."),
    }
)

#: What may stand before and after a question.
OPENINGS = (
    *(
        "Please tell me: ",
        "Hey! ",
        "Hello! ",
        "Now: ",
        "OK, ",
        "And now: ",
        "Thanks. ",
        "One more question: ",
    ),
    *("Look at the picture. ", "Look. ", "Please look at this image. ", "Here is a picture. "),
)
ENDINGS = (
    *(" Please.", " Answer briefly.", " Answer in one sentence.", " Thank you!", " Be brief.", " Thanks."),
    *(" Answer in one short sentence.", " One sentence, please.", " Say it in a few words."),
)
