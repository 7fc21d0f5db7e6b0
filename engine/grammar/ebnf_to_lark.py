"""Translates EBNF grammars, as vLLM documents them (`root ::= …`), to Lark, which the engine reads. Pure.

Rules without recursion become terminals. A terminal is one regular expression to the engine, so its text is
not split by a longer match of another terminal. Linear in the grammar's length.
"""

import json
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from graphlib import CycleError, TopologicalSorter

from engine.grammar.matcher import BadGrammar

ROOT = "root"
MAX_EBNF = 20_000
"""Characters. The engine's own limit applies to the resulting Lark."""
MAX_TERMINAL = 4096
"""Characters of a terminal with the terminals that it uses expanded; longer ones stay rules."""
_EBNF = re.compile(r"(?:\s|#[^\n]*+\n)*+[A-Za-z_][\w-]*+\s*+::=", re.ASCII)
_TOKEN = re.compile(
    r"(?P<space>(?:\s|#[^\n]*+)++)|(?P<defined>::=)|(?P<name>[A-Za-z_][\w-]*+)"
    r'|(?P<text>"(?:\\.|[^"\\\n])*+")|(?P<set>\[(?:\\.|[^\]\\\n])++\])'
    r"|(?P<times>\{\d{1,5}+(?:,\d{0,5}+)?\})|(?P<sign>[()|*+?])|(?P<any>\.)",
    re.ASCII,
)
_ESCAPES = {"n": "\n", "r": "\r", "t": "\t", "0": "\0"}
_CHARACTER = re.compile(r"\\(?:x(.{0,2})|u(.{0,4})|U(.{0,8})|(.))|.", re.DOTALL)
"""A code point in hexadecimal, of three lengths; another escaped character; one that stands for itself."""


def is_ebnf(text: str) -> bool:
    """Whether the text begins with an EBNF rule (`name ::=`)."""
    return len(text) <= MAX_EBNF and _EBNF.match(text) is not None


def ebnf_to_lark(text: str) -> str:
    """The grammar in Lark, whose `start` is the rule `root`. Raises BadGrammar."""
    rules = _rules(_tokens(text))
    used = {name: {word for kind, word in body if kind == "name"} for name, body in rules.items()}
    for name, words in used.items():
        if missing := words - rules.keys():
            raise BadGrammar(f"The rule {name!r} uses {min(missing)!r}, which is not defined.")
    if ROOT not in rules:
        raise BadGrammar("A grammar in EBNF has a rule named root.")
    terminals = _terminals(rules, used)
    names = {name: f"T{n}" if name in terminals else f"r{n}" for n, name in enumerate(rules)}
    lines = [f"start: {names[ROOT]}"]
    for name, body in rules.items():
        lines.append(f"{names[name]}: {' '.join(_lark_token(*token, names) for token in body)}")
    return "\n".join(lines)


def _tokens(text: str) -> list[tuple[str, str]]:
    tokens: list[tuple[str, str]] = []
    index = 0
    while index < len(text):
        match = _TOKEN.match(text, index)
        if match is None or match.lastgroup is None:
            line = text.count("\n", 0, index) + 1
            raise BadGrammar(f"In line {line} of the grammar, {text[index : index + 20]!r} is not EBNF.")
        index = match.end()
        if match.lastgroup != "space":
            tokens.append((match.lastgroup, match[0]))
    return tokens


def _rules(tokens: Sequence[tuple[str, str]]) -> dict[str, list[tuple[str, str]]]:
    """The tokens of each rule's body, by its name."""
    rules: dict[str, list[tuple[str, str]]] = {}
    body: list[tuple[str, str]] | None = None
    for index, token in enumerate(tokens):
        if token[0] == "defined":
            if index == 0 or tokens[index - 1][0] != "name":
                raise BadGrammar("Before ::= stands the name of a rule.")
            name = tokens[index - 1][1]
            if body:
                body.pop()  # the name of this rule, not a token of the one before
            if name in rules:
                raise BadGrammar(f"The rule {name!r} is defined twice.")
            body = rules[name] = []
        elif body is not None:
            body.append(token)
        elif index:
            raise BadGrammar("A grammar in EBNF begins with a rule.")
    for name, inner in rules.items():
        if not inner:
            raise BadGrammar(f"The rule {name!r} has no body.")
    return rules


def _terminals(rules: Mapping[str, Sequence[tuple[str, str]]], used: Mapping[str, set[str]]) -> set[str]:
    """The names of rules without recursion that have at most MAX_TERMINAL characters expanded."""
    sizes: dict[str, int] = {}
    sorter = TopologicalSorter(used)
    with suppress(CycleError):  # what uses no circle comes all the same
        sorter.prepare()
    while ready := sorter.get_ready():
        for name in ready:
            size = sum(sizes[word] if kind == "name" else len(word) for kind, word in rules[name])
            if size <= MAX_TERMINAL:
                sizes[name] = size
                sorter.done(name)
    return set(sizes)


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
    """A set of characters as a regular expression, each character by its code point."""
    negated = inner.startswith("^")
    characters = _characters(inner.removeprefix("^"), in_set=True)
    inside = "".join(f"\\x{{{ord(character):x}}}" if character else "-" for character in characters)
    if not inside:
        raise BadGrammar("A set of characters must not be empty.")
    return f"/[{'^' if negated else ''}{inside}]/"


def _characters(escaped: str, *, in_set: bool = False) -> list[str]:
    """The characters of a literal; in a set, "" stands for the `-` of a range."""
    characters: list[str] = []
    for match in _CHARACTER.finditer(escaped):
        character, kind = match[0], match.lastindex
        if kind == 4:
            character = _ESCAPES.get(match[4], match[4])
        elif kind is not None:
            try:
                character = chr(int(match[kind], 16))
            except (ValueError, OverflowError):
                raise BadGrammar(f"{match[0]} names no character.") from None
        elif character == "-" and in_set and characters and match.end() < len(escaped):
            character = ""
        characters.append(character)
    return characters
