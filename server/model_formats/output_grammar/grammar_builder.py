"""`GrammarBuilder`: Lark expressions of texts, schemas and custom inputs, which the engine reads.
The family's own parser must be able to read every output of the grammar.

`escaped_grammar` rewrites a custom tool's Lark grammar for its input inside a JSON string. Texts and regular
expressions become rules of single characters: a terminal of any text would swallow the backslash of the
escape after it.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any

from engine.grammar.structured_output_to_lark import TEXT, in_slashes
from engine.request import StructuredOutput
from server.model_formats.model_format import PromptError, PromptTool
from server.model_formats.output_grammar.argument_schemas import enforced_schema
from server.model_formats.special_tokens import Markup


class GrammarBuilder:
    """Builds the expressions and rules of one grammar; `grammar` completes it."""

    def __init__(self, markup: Markup) -> None:
        self._markup = markup
        self._rules: dict[str, str] = {}
        self._shared: dict[tuple[str, str, str], str] = {}
        """The names of shared rules, by what `shared_rule` was called with."""

    def grammar(self, start: str) -> StructuredOutput:
        rules = [f"{head}: {body}" for head, body in self._rules.items()]
        return StructuredOutput(kind="lark", text="\n".join([f"start: {start}", *rules, TEXT]))

    def literal(self, text: str) -> str:
        pieces = self._markup.grammar_pieces(self._markup.restore(text))
        if not pieces:
            return '""'
        return " ".join(map(_piece, pieces))

    def rule(self, name: str, body: str) -> str:
        head, _, _ = name.partition("[")
        self._rules[name] = body
        return head

    def until(self, end: str) -> str:
        """Any text up to and including the first `end`."""
        first, *rest = self._markup.grammar_pieces(self._markup.restore(end))
        if isinstance(first, int):
            return f"{self._text_before(end)}? {self.literal(end)}"
        name = self.shared_rule("until", f"ANY {json.dumps(first)}", "[lazy]")
        return " ".join([name, *map(_piece, rest)])

    def _text_before(self, end: str) -> str:
        """Some text without the end where that can be spelled by other tokens."""
        spelled = self._markup.pieces(self._markup.restore(end))[0]
        if isinstance(spelled, int):
            return "TEXT"
        return self.shared_rule("TEXT", f"/(.|\\n)+/ & ~/(.|\\n)*{regex_of(spelled)}(.|\\n)*/")

    def terminated_string(self, text: str, end: str, banned: str) -> str:
        """The terminal `text` without `banned` in it, followed by `end`."""
        pieces = self._markup.grammar_pieces(self._markup.restore(end))
        stop = self._markup.pieces(self._markup.restore(banned))[0]
        apart = f" & ~/(.|\\n)*{regex_of(stop)}(.|\\n)*/" if isinstance(stop, str) else ""
        name = self.shared_rule("STRING", f"({text}){apart}")
        if isinstance(pieces[0], str):
            name = self.shared_rule("string", f"{name} {json.dumps(pieces.pop(0))}", "[lazy]")
        return " ".join([name, *map(_piece, pieces)])

    def text_without(self, texts: Iterable[str]) -> str:
        return self.rule("PLAIN", self.text_body(texts, empty=True))

    def text_body(self, texts: Iterable[str], start: str = "", *, empty: bool = False) -> str:
        """A terminal's body: text without these, whose first visible character matches `start`."""
        parts = [self._markup.pieces(self._markup.restore(text))[0] for text in texts]
        banned = [f" & ~/(.|\n)*{regex_of(part)}(.|\n)*/" for part in parts if isinstance(part, str)]
        whole = f"[ \n\t]*({start}(.|\n)*)?" if start else "(.|\n)*" if empty else "(.|\n)+"
        return f"/{whole}/{''.join(banned)}"

    def shared_rule(self, name: str, body: str, attributes: str = "") -> str:
        """The name of a rule with this body; equal bodies share one rule."""
        key = name, body, attributes
        if key not in self._shared:
            head = self._shared[key] = f"{name}_{len(self._rules)}"
            self._rules[head + attributes] = body
        return self._shared[key]

    def separated(self, parts: Sequence[tuple[str, bool]], separator: str) -> str:
        """(expression, required) pairs in order, with separators; optional ones may be absent."""
        after, begin = '""', '""'
        comma = self.literal(separator)
        for part, required in reversed(parts):
            rest = after
            after = self.shared_rule(
                "more", f"{comma} {part} {rest}" if required else f"({comma} {part})? {rest}"
            )
            begin = f"{part} {rest}" if required else f"{part} {rest} | {begin}"
            begin = self.shared_rule("some", begin)
        return begin if parts else '""'

    def json(self, schema: Mapping[str, Any] | bool) -> str:
        """A JSON value of the schema; equal schemas share one rule."""
        return self.shared_rule("json", f"%json {json.dumps(schema if isinstance(schema, Mapping) else {})}")

    def name(self) -> str:
        return self.rule("NAME", "/[A-Za-z_][A-Za-z0-9_]{0,63}/")

    def arguments(self, tool: PromptTool) -> str:
        if tool.kind == "custom":
            head, end = self.literal('{"input": '), self.literal("}")
            return f"{head} {self.string_input(tool)} {end}"
        return self.json(enforced_schema(tool))

    def string_input(self, tool: PromptTool) -> str:
        if tool.syntax == "lark":
            quote = self.literal('"')
            return f"{quote} %lark {{\n{escaped_grammar(tool.definition)}\n}} {quote}"
        pattern = {"pattern": f"^(?:{tool.definition})$"} if tool.syntax == "regex" else {}
        return self.json({"type": "string", **pattern})


def free_input(tool: PromptTool) -> str | None:
    """A custom tool's unescaped input; None for any text."""
    match tool.syntax:
        case "regex":
            return f"/(?:{in_slashes(tool.definition)})/"
        case "lark":
            return f"%lark {{\n{tool.definition}\n}}"
    return None


def _piece(piece: str | int) -> str:
    return f"<[{piece}]>" if isinstance(piece, int) else json.dumps(piece)


def regex_of(text: str) -> str:
    return "".join(character if character.isalnum() else f"\\x{{{ord(character):x}}}" for character in text)


_TOKEN = re.compile(
    r"""(?P<comment>(?://|\#)[^\n]*+)
    |(?P<range>(?P<first>"(?:\\.|[^"\\\n])*+")\s*+\.\.\s*+(?P<last>"(?:\\.|[^"\\\n])*+"))
    |(?P<text>"(?:\\.|[^"\\\n])*+")(?P<case>i?)
    |/(?P<regex>(?:\\[\s\S]|[^/\\])++)/(?P<flags>[a-z]*+)
    |(?P<open>["/])[\s\S]*+
    |%import\s++common\.(?P<import>\w++)[^\n]*+
    |(?P<directive>%\w++)
    |(?P<name>\b(?=[A-Z_]*[A-Z])[A-Z_][A-Z0-9_]*+\b)""",
    re.VERBOSE,
)
_ATOM = re.compile(
    r"""(?P<open>\(\?(?:[a-zA-Z-]*+:|P?<\w++>)|\()|(?P<syntax>[)|])
    |(?P<times>\{\d*+(?:,\d*+)?\}\??|[*+?]\??)
    |(?P<anchor>[\^$]|\\[bBAzZ]|\(\?)
    |(?P<atom>\[\^?\]?(?:\\.?|\[:\^?\w++:\]|[^\]\\])*+\]?|\\[xuU]\{[0-9a-fA-F]++\}|\\x[0-9a-fA-F]{2}
    |\\u[0-9a-fA-F]{4}|\\[pP]\{[^{}]*+\}|\\.|.)""",
    re.VERBOSE | re.DOTALL,
)
_CODE = re.compile(r"\\[xuU]\{([0-9a-fA-F]++)\}")
_PROPERTY = re.compile(r"\\[pP]\{[^{}]*+\}")
_SPECIAL = '"\\\n\r\t\b\f'
_ORDINARY = [chr(code) for code in range(0x20, 0x7F) if chr(code) not in _SPECIAL]
_PLAIN = r"[^\"\\\x00-\x1f]"
_COMMON = {
    "CR": r"/\r/",
    "CRLF": r"/\r\n/",
    "DIGIT": "/[0-9]/",
    "HEXDIGIT": "/[0-9a-fA-F]/",
    "INT": "/[0-9]+/",
    "LETTER": "/[a-zA-Z]/",
    "LF": r"/\n/",
    "NEWLINE": r"/(\r?\n)+/",
    "SIGNED_INT": "/[+-]?[0-9]+/",
    "WORD": "/[a-zA-Z]+/",
    "WS": r"/[ \t\f\r\n]+/",
    "WS_INLINE": r"/[ \t]+/",
}


def escaped_grammar(definition: str) -> str:
    """The grammar of the JSON-escaped input. Raises PromptError for unsupported syntax."""
    return _TOKEN.sub(_rewrite, definition)


def _rewrite(token: re.Match[str]) -> str:
    match token.lastgroup:
        case "comment":
            return token[0]
        case "range":
            first, last = _literal_text(token["first"]), _literal_text(token["last"])
            return _atom(f"[{re.escape(first)}-{re.escape(last)}]", "")
    if token["text"] is not None:
        letters = [_atom(re.escape(letter), token["case"]) for letter in _literal_text(token["text"])]
        return f"({' '.join(letters)})" if letters else '""'
    if token["regex"] is not None:
        return f"({' '.join(_expression(token['regex'], token['flags']))})"
    if token["import"] is not None:
        if token["import"] not in _COMMON:
            raise _unsupported(token[0])
        return f"{_rule(token['import'])}: {escaped_grammar(_COMMON[token['import']])}"
    if token["directive"] is not None or token["open"] is not None:
        raise _unsupported(token[0])
    return _rule(token["name"])


def _rule(name: str) -> str:
    return f"term_{name.lower()}"


def _literal_text(text: str) -> str:
    try:
        value: str = json.loads(text.replace("\\'", "'"))
    except ValueError:
        raise _unsupported(text) from None
    return value


def _expression(pattern: str, flags: str) -> Iterator[str]:
    """A regular expression as a Lark expression, in which groups, choices and repetitions are equal."""
    if flags.strip("is"):
        raise _unsupported(f"/{pattern}/{flags}")
    for part in _ATOM.finditer(pattern):
        if part["anchor"]:
            raise _unsupported(f"/{pattern}/")
        if part["open"]:
            yield "("
        elif part["atom"]:
            yield _atom(part["atom"], flags)
        else:
            yield part["syntax"] or part["times"][: -1 if part["times"][1:].endswith("?") else None]


@lru_cache(maxsize=4096)
def _atom(atom: str, flags: str) -> str:
    """The expression of the characters that a regex atom matches, escaped as in JSON."""
    case = "i" if "i" in flags else ""
    tested = re.compile(_for_python(atom), re.DOTALL if "s" in flags else 0)
    ways = [json.dumps(json.dumps(letter)[1:-1]) for letter in _SPECIAL if tested.fullmatch(letter)]
    if len(ways) == 1 and not any(tested.fullmatch(letter) for letter in _ORDINARY):
        return ways[0]
    inner = atom if atom.startswith("[") else _PLAIN if atom == "." else f"[{atom}]"
    ways.insert(0, f"/[{inner}&&{_PLAIN}]/{case}")
    return ways[0] if len(ways) == 1 else f"({' | '.join(ways)})"


def _for_python(atom: str) -> str:
    """The atom in Python's `re` syntax, equivalent for the characters that JSON escapes."""
    atom = _CODE.sub(_code, atom)
    atom = _PROPERTY.sub("", atom)
    try:
        re.compile(atom or "(?!)")
    except re.error:
        raise _unsupported(atom) from None
    return atom if atom not in ("", "[]") else "(?!)"


def _code(escape: re.Match[str]) -> str:
    number = escape[1].lstrip("0") or "0"
    if len(number) > 6 or int(number, 16) > 0x10FFFF:
        raise _unsupported(escape[0])
    return f"\\U{int(number, 16):08x}"


def _unsupported(what: str) -> PromptError:
    return PromptError(f"{what[:100]} in the grammar of a custom tool is not served.", "tools")
