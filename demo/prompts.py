"""Long system prompts such as coding agents and chat front ends send.

They are made of headings, sentences, lists, tags, code, JSON, paths and short dialogues, in random
order. Nothing in them is to be obeyed: the model learns to answer as if they were not there, except
for the persona, which a setting puts before or after them.
"""

from __future__ import annotations

import json
from collections.abc import Callable

from demo import prompt_words
from demo.vocabulary import Vocabulary
from demo.words import DICTIONARY, KEYS

_CODE_LINES = (
    "def {a}({b}: str) -> {c}:",
    "    return {a}({b}, {n})",
    "import {a}",
    "from {a}.{b} import {c}",
    "class {A}({B}):",
    "    self.{a} = {b}[{n}]",
    "if {a} == {n}:",
    "for {a} in {b}:",
    "const {a} = await {b}({{ {c}: '{d}' }});",
    "let {a}: {B} = {n};",
    "function {a}({b}) {{ return {c}.{d}; }}",
    "$ {a} --{b} {c}/{d}",
    "{a} | {b} -{n}",
    '<{a} {b}="{c}">{d}</{a}>',
    "# {a} {b} {c}",
    "// {a} {b} {c} {d}",
    "}}",
    "    {a}.{b}({c}, {n})",
    "assert {a}({b}) == {n}",
    "- {a}: {b}",
    "SELECT {a} FROM {b} WHERE {c} = {n};",
    "{n} {a}: {b} {c}",
    "+    {a} = {b}",
    "-    {a} = {c}({n})",
    "@@ -{n},{n} +{n},{n} @@",
    "Error: {a} {b} ({c}:{n})",
    '  File "{a}/{b}.py", line {n}, in {c}',
)
_LANGUAGES = ("python", "sh", "json", "js", "", "diff", "text", "sql")
_ENDINGS = ("py", "ts", "md", "json", "rs", "go", "toml", "txt", "yml", "c", "html")


def filler(vocabulary: Vocabulary) -> str:
    """Return a word of a prompt: ordinary, of computing, or one that nobody has seen."""
    share = vocabulary.random.random()
    if share < 0.42:
        return vocabulary.choose(DICTIONARY)
    if share < 0.6:
        return vocabulary.choose(prompt_words.TECHNICAL)
    return vocabulary.glued() if share < 0.85 else vocabulary.invented()


def identifier(vocabulary: Vocabulary) -> str:
    """Return a name as it stands in code."""
    parts = [filler(vocabulary) for _ in range(vocabulary.choose((1, 1, 2, 2, 3)))]
    share = vocabulary.random.random()
    if share < 0.6:
        return "_".join(parts)
    if share < 0.8:
        return parts[0] + "".join(part.capitalize() for part in parts[1:])
    return "-".join(parts)


def file_path(vocabulary: Vocabulary) -> str:
    """Return a path of one to four parts."""
    folders = [identifier(vocabulary) for _ in range(vocabulary.choose((0, 1, 1, 2, 3)))]
    name = f"{identifier(vocabulary)}.{vocabulary.choose(_ENDINGS)}"
    return vocabulary.choose(("", "", "/", "./")) + "/".join([*folders, name])


def date(vocabulary: Vocabulary) -> str:
    """Return a date, now and then with a time."""
    year, month, day = vocabulary.number(1990, 2035), vocabulary.number(1, 12), vocabulary.number(1, 28)
    time = (
        f"T{vocabulary.number(0, 23):02d}:{vocabulary.number(0, 59):02d}Z" if vocabulary.chance(0.3) else ""
    )
    return f"{year}-{month:02d}-{day:02d}{time}"


def sentence(vocabulary: Vocabulary) -> str:
    """Return a sentence of rules or of nonsense."""
    words = [_sentence_part(vocabulary) for _ in range(vocabulary.number(3, 16))]
    if vocabulary.chance(0.75):
        words.insert(0, vocabulary.choose(prompt_words.SENTENCE_OPENINGS))
    else:
        words[0] = words[0].capitalize()
    if len(words) > 6 and vocabulary.chance(0.4):
        words[vocabulary.number(2, 5)] += ","
    return " ".join(words) + vocabulary.choose((".", ".", ".", ".", "!", "?", ":", ""))


def _sentence_part(vocabulary: Vocabulary) -> str:
    share = vocabulary.random.random()
    if share < 0.9:
        return filler(vocabulary)
    kinds: tuple[Callable[[], str], ...] = (
        lambda: f"`{identifier(vocabulary)}`",
        lambda: f'"{filler(vocabulary)} {filler(vocabulary)}"',
        lambda: file_path(vocabulary),
        vocabulary.figure,
        lambda: f"({filler(vocabulary)} {filler(vocabulary)})",
        lambda: f"**{filler(vocabulary)}**",
        lambda: filler(vocabulary).upper(),
        lambda: f"{vocabulary.name()}'s",
        lambda: f"<{identifier(vocabulary)}>",
        lambda: date(vocabulary),
        lambda: f"https://{vocabulary.invented()}.com/{identifier(vocabulary)}",
    )
    return vocabulary.choose(kinds)()


def paragraph(vocabulary: Vocabulary) -> str:
    """Return a few sentences on one line."""
    return " ".join(sentence(vocabulary) for _ in range(vocabulary.number(1, 5)))


def _heading(vocabulary: Vocabulary) -> str:
    text = vocabulary.choose(prompt_words.HEADINGS)
    if vocabulary.chance(0.5):
        text = f"{filler(vocabulary)} {filler(vocabulary)}".capitalize()
    return vocabulary.choose(("# {}", "## {}", "### {}", "**{}**", "{}:", "=== {} ===", "{}")).format(text)


def _bullets(vocabulary: Vocabulary) -> str:
    mark = vocabulary.choose(("- ", "* ", "  - ", "• "))
    return "\n".join(mark + sentence(vocabulary) for _ in range(vocabulary.number(2, 6)))


def _numbered(vocabulary: Vocabulary) -> str:
    lines = range(1, vocabulary.number(3, 7))
    return "\n".join(f"{number}. {sentence(vocabulary)}" for number in lines)


def code(vocabulary: Vocabulary, low: int = 2, high: int = 8) -> str:
    """Return lines that look like code, a log or a diff."""
    return "\n".join(code_line(vocabulary) for _ in range(vocabulary.number(low, high)))


def code_line(vocabulary: Vocabulary) -> str:
    """Return one such line."""
    names = {key: identifier(vocabulary) for key in "abcd"}
    titles = {key.upper(): filler(vocabulary).capitalize() for key in "ab"}
    return vocabulary.fill(_CODE_LINES, **names, **titles, n=vocabulary.figure())


def _fenced(vocabulary: Vocabulary) -> str:
    inside = json_example(vocabulary) if vocabulary.chance(0.3) else code(vocabulary)
    return f"```{vocabulary.choose(_LANGUAGES)}\n{inside}\n```"


def json_example(vocabulary: Vocabulary, depth: int = 0) -> str:
    """Return a JSON object, on one line or on several."""
    value = _json_value(vocabulary, depth)
    return json.dumps(value, ensure_ascii=False, indent=vocabulary.choose((None, 2)))


def json_line(vocabulary: Vocabulary) -> str:
    """Return a JSON object on one line."""
    return json.dumps(_json_value(vocabulary, 0), ensure_ascii=False)


def _json_value(vocabulary: Vocabulary, depth: int) -> dict[str, object]:
    value: dict[str, object] = {}
    for _ in range(vocabulary.number(1, 4)):
        key = vocabulary.choose(KEYS) if vocabulary.chance(0.5) else identifier(vocabulary)
        share = vocabulary.random.random()
        if share < 0.2 and depth < 2:
            value[key] = _json_value(vocabulary, depth + 1)
        elif share < 0.35:
            value[key] = [filler(vocabulary) for _ in range(vocabulary.number(0, 3))]
        elif share < 0.55:
            value[key] = vocabulary.choose((True, False, None, vocabulary.number(0, 9999)))
        else:
            value[key] = " ".join(filler(vocabulary) for _ in range(vocabulary.number(1, 5)))
    return value


def _tagged(vocabulary: Vocabulary) -> str:
    tag = identifier(vocabulary)
    inside = vocabulary.choose((paragraph, _bullets, _environment, _dialogue))(vocabulary)
    return f"<{tag}>\n{inside}\n</{tag}>"


def _environment(vocabulary: Vocabulary) -> str:
    lines = []
    for _ in range(vocabulary.number(2, 6)):
        value = vocabulary.choose((date, file_path, identifier, filler, Vocabulary.figure))(vocabulary)
        lines.append(f"{identifier(vocabulary).capitalize()}: {value}")
    return "\n".join(lines)


def _files(vocabulary: Vocabulary) -> str:
    return "\n".join(file_path(vocabulary) for _ in range(vocabulary.number(3, 12)))


def _table(vocabulary: Vocabulary) -> str:
    width = vocabulary.number(2, 3)
    rows = [
        "| " + " | ".join(filler(vocabulary) for _ in range(width)) + " |"
        for _ in range(vocabulary.number(2, 5))
    ]
    return "\n".join([rows[0], "|---" * width + "|", *rows[1:]])


#: What the dialogues of a prompt say: requests that would mean something if a user made them.
_SPOKEN = (
    "My name is {name}.",
    "What is my name?",
    "Say {word}",
    "Repeat after me: {word} {word}",
    "Hi",
    "What is the weather in {name}?",
    "What is {figure} + {figure}?",
    "Count to {figure}",
    "Call {tool} with {word} {word}",
    "{sentence}",
    "{sentence}",
    "{sentence}",
)


def _dialogue(vocabulary: Vocabulary) -> str:
    asker, answerer = vocabulary.choose((("User", "Assistant"), ("user", "assistant"), ("Q", "A")))
    lines = []
    for _ in range(vocabulary.number(1, 3)):
        said = vocabulary.fill(
            _SPOKEN,
            name=vocabulary.name(),
            word=filler(vocabulary),
            figure=vocabulary.number(0, 99),
            tool=identifier(vocabulary),
            sentence=sentence(vocabulary),
        )
        lines += [f"{asker}: {said}", f"{answerer}: {sentence(vocabulary)}"]
    return "\n".join(lines)


_SECTIONS: tuple[tuple[Callable[[Vocabulary], str], float], ...] = (
    (paragraph, 8),
    (_heading, 7),
    (_bullets, 7),
    (_numbered, 3),
    (_fenced, 4),
    (_tagged, 4),
    (_environment, 2),
    (_files, 1),
    (_table, 1),
    (_dialogue, 2),
    (json_example, 1),
)


def long_prompt(vocabulary: Vocabulary, characters: int) -> str:
    """Return a system prompt of about so many characters."""
    kinds = [kind for kind, _ in _SECTIONS]
    weights = [weight * vocabulary.choose((0, 1, 1, 3)) for _, weight in _SECTIONS]
    weights[0] += 1
    sections = [f"You are {vocabulary.choose(prompt_words.ROLES)}."] if vocabulary.chance(0.6) else []
    length = 0
    while length < characters:
        [kind] = vocabulary.random.choices(kinds, weights)
        section = kind(vocabulary)
        sections.append(section)
        length += len(section) + 2
    gap = vocabulary.choose(("\n", "\n\n", "\n\n"))
    return gap.join(sections)[:characters].rstrip()
