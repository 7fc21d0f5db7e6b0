"""Grammars in the making: expressions of Lark, as `engine.grammar.lark_source` reads it, and their rules.

Texts become literals, in which special tokens are meant where their texts or signs stand. Whatever is
built here is read again by the same family's parser.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from engine.request import StructuredOutput
from server.model_formats.grammar.lark_in_json_string import escaped_grammar
from server.model_formats.interface import Tool
from server.model_formats.text_stream.special_tokens import Markup
from server.model_formats.tool_names import enforced_schema

_TERMINALS = "TEXT: /(.|\\n)+/\nANY: /(.|\\n)*/\n"


class GrammarBuilder:
    """Expressions for one grammar; `grammar` ends it."""

    def __init__(self, markup: Markup) -> None:
        self._markup = markup
        self._rules: dict[str, str] = {}

    def grammar(self, start: str) -> StructuredOutput:
        rules = [f"{head}: {body}" for head, body in self._rules.items()]
        return StructuredOutput(kind="lark", text="\n".join([f"start: {start}", *rules, _TERMINALS]))

    def literal(self, text: str) -> str:
        """Exactly this text."""
        pieces = self._markup.pieces(self._markup.restore(text))
        if not pieces:
            return '""'
        return " ".join(map(_piece, pieces))

    def rule(self, name: str, body: str) -> str:
        """The name of a rule with this body, which is made once."""
        head, _, _ = name.partition("[")
        self._rules[name] = body
        return head

    def until(self, end: str) -> str:
        """Any text up to where this one comes first, itself included."""
        first, *rest = self._markup.pieces(self._markup.restore(end))
        if isinstance(first, int):
            return f"TEXT? {self.literal(end)}"
        name = self.shared_rule("until", f"ANY {json.dumps(first)}", "[lazy]")
        return " ".join([name, *map(_piece, rest)])

    def terminated_string(self, text: str, end: str, banned: str) -> str:
        """What this terminal's body allows and has nothing `banned` in it, and the `end`."""
        pieces = self._markup.pieces(self._markup.restore(end))
        stop = self._markup.pieces(self._markup.restore(banned))[0]
        apart = f" & ~/(.|\\n)*{regex_of(stop)}(.|\\n)*/" if isinstance(stop, str) else ""
        name = self.shared_rule("STRING", f"({text}){apart}")
        if isinstance(pieces[0], str):
            name = self.shared_rule("string", f"{name} {json.dumps(pieces.pop(0))}", "[lazy]")
        return " ".join([name, *map(_piece, pieces)])

    def text_without(self, texts: Iterable[str]) -> str:
        """Any text that has none of these, which may be nothing."""
        return self.rule("PLAIN", self.text_body(texts, empty=True))

    def text_body(self, texts: Iterable[str], start: str = "", *, empty: bool = False) -> str:
        """A terminal's body: text that has none of these, and whose first visible character is of `start`."""
        parts = [self._markup.pieces(self._markup.restore(text))[0] for text in texts]
        banned = [f" & ~/(.|\n)*{regex_of(part)}(.|\n)*/" for part in parts if isinstance(part, str)]
        whole = f"[ \n\t]*({start}(.|\n)*)?" if start else "(.|\n)*" if empty else "(.|\n)+"
        return f"/{whole}/{''.join(banned)}"

    def shared_rule(self, name: str, body: str, attributes: str = "") -> str:
        """The name of a rule with this body; equal bodies share one."""
        for head, known in self._rules.items():
            if known == body and head.endswith(attributes) and head.startswith(f"{name}_"):
                return head.removesuffix(attributes)
        head = f"{name}_{len(self._rules)}"
        self._rules[head + attributes] = body
        return head

    def separated(self, parts: Sequence[tuple[str, bool]], separator: str) -> str:
        """Expressions with separators between; each may be left out unless it is marked as wanted."""
        after, begin = '""', '""'
        comma = self.literal(separator)
        for part, wanted in reversed(parts):
            rest = after
            after = self.shared_rule(
                "more", f"{comma} {part} {rest}" if wanted else f"({comma} {part})? {rest}"
            )
            begin = f"{part} {rest}" if wanted else f"{part} {rest} | {begin}"
            begin = self.shared_rule("some", begin)
        return begin if parts else '""'

    def json(self, schema: Mapping[str, Any] | bool) -> str:
        """JSON of a schema; equal ones are in the grammar once."""
        return self.shared_rule("json", f"%json {json.dumps(schema if isinstance(schema, Mapping) else {})}")

    def name(self) -> str:
        """The name of an argument that no schema names."""
        return self.rule("NAME", "/[A-Za-z_][A-Za-z0-9_]{0,63}/")

    def arguments(self, tool: Tool) -> str:
        """A tool's arguments as a JSON object."""
        if tool.kind == "custom":
            head, end = self.literal('{"input": '), self.literal("}")
            return f"{head} {self.string_input(tool)} {end}"
        return self.json(enforced_schema(tool))

    def string_input(self, tool: Tool) -> str:
        """A custom tool's input as a JSON string."""
        if tool.syntax == "lark":
            quote = self.literal('"')
            return f"{quote} %lark {{\n{escaped_grammar(tool.definition)}\n}} {quote}"
        pattern = {"pattern": f"^(?:{tool.definition})$"} if tool.syntax == "regex" else {}
        return self.json({"type": "string", **pattern})

    def input(self, tool: Tool) -> str | None:
        """A custom tool's input as it stands; None where it is any text."""
        match tool.syntax:
            case "regex":
                return f"/(?:{in_slashes(tool.definition)})/"
            case "lark":
                return f"%lark {{\n{tool.definition}\n}}"
        return None


def _piece(piece: str | int) -> str:
    return f"<[{piece}]>" if isinstance(piece, int) else json.dumps(piece)


def regex_of(text: str) -> str:
    """A regular expression, between slashes, that is this text."""
    return "".join(character if character.isalnum() else f"\\x{{{ord(character):x}}}" for character in text)


def in_slashes(pattern: str) -> str:
    """A regular expression as it stands between slashes."""
    escaped = ""
    position = 0
    while position < len(pattern):
        size = 2 if pattern[position] == "\\" else 1
        atom = pattern[position : position + size]
        escaped += {"/": "\\/", "\n": "\\n", "\\\n": "\\n"}.get(atom, atom)
        position += size
    return escaped
