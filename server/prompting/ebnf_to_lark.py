"""Grammars in EBNF, as vLLM documents them (`root ::= …`), in the Lark that the engine reads. Pure.

Rules that no recursion reaches become terminals, each of which is one regular expression to the engine: so
the texts that they match are never cut by a longer match of another. Time is linear in the grammar.
"""

import json
import re
from collections.abc import Mapping, Sequence
from functools import lru_cache

ROOT = "root"
MAX_EBNF = 20_000
"""Characters. The engine's own bound for Lark applies to what is made of them, too."""
MAX_TERMINAL = 4096
"""Characters of a terminal with all that it uses written out: longer ones stay rules."""
_EBNF = re.compile(r"(?:\s|#[^\n]*+\n)*+[A-Za-z_][\w-]*+\s*+::=", re.ASCII)
_TOKEN = re.compile(
    r"(?P<space>(?:\s|#[^\n]*+)++)|(?P<defined>::=)|(?P<name>[A-Za-z_][\w-]*+)"
    r'|(?P<text>"(?:\\.|[^"\\\n])*+")|(?P<set>\[(?:\\.|[^\]\\\n])++\])'
    r"|(?P<times>\{\d{1,5}+(?:,\d{0,5}+)?\})|(?P<sign>[()|*+?])|(?P<any>\.)",
    re.ASCII,
)
_ESCAPES = {"n": "\n", "r": "\r", "t": "\t", "0": "\0"}
_HEX = {"x": 2, "u": 4, "U": 8}


class BadEbnf(ValueError):
    """The grammar is not EBNF; `str()` is a sentence for the caller."""


def is_ebnf(text: str) -> bool:
    """Whether the text begins as a grammar in EBNF does."""
    return len(text) <= MAX_EBNF and _EBNF.match(text) is not None


@lru_cache(maxsize=64)
def ebnf_to_lark(text: str) -> str:
    """The same grammar in Lark, which starts with the rule `root`. Raises BadEbnf."""
    rules = _rules(_tokens(text))
    used = {name: {word for kind, word in body if kind == "name"} for name, body in rules.items()}
    for name, words in used.items():
        if missing := words - rules.keys():
            raise BadEbnf(f"The rule {name!r} uses {min(missing)!r}, which is not defined.")
    if ROOT not in rules:
        raise BadEbnf("A grammar in EBNF has a rule named root.")
    terminals = _terminals(rules, used)
    names = {name: f"T{n}" if name in terminals else f"r{n}" for n, name in enumerate(rules)}
    lines = [f"start: {names[ROOT]}"]
    lines += [f"{names[name]}: {_lark_body(body, names)}" for name, body in rules.items()]
    return "\n".join(lines)


def _tokens(text: str) -> list[tuple[str, str]]:
    tokens: list[tuple[str, str]] = []
    place = 0
    while place < len(text):
        found = _TOKEN.match(text, place)
        if found is None or found.lastgroup is None:
            line = text.count("\n", 0, place) + 1
            raise BadEbnf(f"In line {line} of the grammar, {text[place : place + 20]!r} is not EBNF.")
        place = found.end()
        if found.lastgroup != "space":
            tokens.append((found.lastgroup, found[0]))
    return tokens


def _rules(tokens: Sequence[tuple[str, str]]) -> dict[str, list[tuple[str, str]]]:
    """The tokens of each rule's body, by its name."""
    rules: dict[str, list[tuple[str, str]]] = {}
    body: list[tuple[str, str]] | None = None
    for index, token in enumerate(tokens):
        if token[0] == "defined":
            if index == 0 or tokens[index - 1][0] != "name":
                raise BadEbnf("Before ::= stands the name of a rule.")
            name = tokens[index - 1][1]
            if body:
                body.pop()  # the name, which is not a part of the rule before
            if name in rules:
                raise BadEbnf(f"The rule {name!r} is defined twice.")
            body = rules[name] = []
        elif body is not None:
            body.append(token)
        elif index:
            raise BadEbnf("A grammar in EBNF begins with a rule.")
    for name, inner in rules.items():
        if not inner:
            raise BadEbnf(f"The rule {name!r} has no body.")
    return rules


def _terminals(rules: Mapping[str, Sequence[tuple[str, str]]], used: Mapping[str, set[str]]) -> set[str]:
    """The rules that reach no recursion, as far as they are not too long when they are written out."""
    sizes: dict[str, int] = {}
    users: dict[str, list[str]] = {}
    open_uses = {name: len(words) for name, words in used.items()}
    for name, words in used.items():
        for word in words:
            users.setdefault(word, []).append(name)
    ready = [name for name, count in open_uses.items() if count == 0]
    terminals: set[str] = set()
    while ready:
        name = ready.pop()
        sizes[name] = sum(sizes[word] if kind == "name" else len(word) for kind, word in rules[name])
        if sizes[name] > MAX_TERMINAL:
            continue
        terminals.add(name)
        for user in users.get(name, ()):
            open_uses[user] -= 1
            if open_uses[user] == 0:
                ready.append(user)
    return terminals


def _lark_body(body: Sequence[tuple[str, str]], names: Mapping[str, str]) -> str:
    return " ".join(_lark_token(kind, word, names) for kind, word in body)


def _lark_token(kind: str, word: str, names: Mapping[str, str]) -> str:
    match kind:
        case "name":
            return names[word]
        case "text":
            return json.dumps("".join(_characters(word[1:-1])))
        case "set":
            return _character_class(word[1:-1])
        case "any":
            return "/(.|\\n)/"
    return word


def _character_class(inner: str) -> str:
    """A set of characters as a regular expression, each written by its number."""
    negated = inner.startswith("^")
    characters = _characters(inner.removeprefix("^"), in_set=True)
    parts = [character if character == "" else f"\\x{{{ord(character):x}}}" for character in characters]
    inside = "".join("-" if part == "" else part for part in parts)
    if not inside:
        raise BadEbnf("A set of characters must not be empty.")
    return f"/[{'^' if negated else ''}{inside}]/"


def _characters(escaped: str, *, in_set: bool = False) -> list[str]:
    """The characters that a literal has; in a set, "" stands for the sign of a range."""
    characters: list[str] = []
    place = 0
    while place < len(escaped):
        character = escaped[place]
        place += 1
        if character == "\\":
            character, place = _unescaped(escaped, place)
        elif character == "-" and in_set and characters and place < len(escaped):
            character = ""
        characters.append(character)
    return characters


def _unescaped(escaped: str, place: int) -> tuple[str, int]:
    """The character behind a backslash, and the place after it."""
    sign = escaped[place]
    digits = _HEX.get(sign)
    if digits is None:
        return _ESCAPES.get(sign, sign), place + 1
    number = escaped[place + 1 : place + 1 + digits]
    try:
        return chr(int(number, 16)), place + 1 + len(number)
    except (ValueError, OverflowError):
        raise BadEbnf(f"\\{sign}{number} names no character.") from None
