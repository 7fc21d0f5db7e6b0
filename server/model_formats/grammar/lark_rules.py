"""Builder of Lark grammars in the syntax of `engine.grammar.lark_source`.

In literals, texts and signs of special tokens become the special tokens. The family's own parser must be able
to read every output of the grammar.
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
    """Builds the expressions and rules of one grammar; `grammar` completes it."""

    def __init__(self, markup: Markup) -> None:
        self._markup = markup
        self._rules: dict[str, str] = {}

    def grammar(self, start: str) -> StructuredOutput:
        rules = [f"{head}: {body}" for head, body in self._rules.items()]
        return StructuredOutput(kind="lark", text="\n".join([f"start: {start}", *rules, _TERMINALS]))

    def literal(self, text: str) -> str:
        """The expression of exactly this text."""
        pieces = self._markup.pieces(self._markup.restore(text))
        if not pieces:
            return '""'
        return " ".join(map(_piece, pieces))

    def rule(self, name: str, body: str) -> str:
        """Defines a rule and returns its name."""
        head, _, _ = name.partition("[")
        self._rules[name] = body
        return head

    def until(self, end: str) -> str:
        """Any text up to and including the first `end`."""
        first, *rest = self._markup.pieces(self._markup.restore(end))
        if isinstance(first, int):
            return f"TEXT? {self.literal(end)}"
        name = self.shared_rule("until", f"ANY {json.dumps(first)}", "[lazy]")
        return " ".join([name, *map(_piece, rest)])

    def terminated_string(self, text: str, end: str, banned: str) -> str:
        """The terminal `text` without `banned` in it, followed by `end`."""
        pieces = self._markup.pieces(self._markup.restore(end))
        stop = self._markup.pieces(self._markup.restore(banned))[0]
        apart = f" & ~/(.|\\n)*{regex_of(stop)}(.|\\n)*/" if isinstance(stop, str) else ""
        name = self.shared_rule("STRING", f"({text}){apart}")
        if isinstance(pieces[0], str):
            name = self.shared_rule("string", f"{name} {json.dumps(pieces.pop(0))}", "[lazy]")
        return " ".join([name, *map(_piece, pieces)])

    def text_without(self, texts: Iterable[str]) -> str:
        """Any text without these, possibly empty."""
        return self.rule("PLAIN", self.text_body(texts, empty=True))

    def text_body(self, texts: Iterable[str], start: str = "", *, empty: bool = False) -> str:
        """A terminal's body: text without these, whose first visible character matches `start`."""
        parts = [self._markup.pieces(self._markup.restore(text))[0] for text in texts]
        banned = [f" & ~/(.|\n)*{regex_of(part)}(.|\n)*/" for part in parts if isinstance(part, str)]
        whole = f"[ \n\t]*({start}(.|\n)*)?" if start else "(.|\n)*" if empty else "(.|\n)+"
        return f"/{whole}/{''.join(banned)}"

    def shared_rule(self, name: str, body: str, attributes: str = "") -> str:
        """The name of a rule with this body; equal bodies share one rule."""
        for head, known in self._rules.items():
            if known == body and head.endswith(attributes) and head.startswith(f"{name}_"):
                return head.removesuffix(attributes)
        head = f"{name}_{len(self._rules)}"
        self._rules[head + attributes] = body
        return head

    def separated(self, parts: Sequence[tuple[str, bool]], separator: str) -> str:
        """(expression, required) pairs in order, with separators; optional ones may be absent."""
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
        """A JSON value of the schema; equal schemas share one rule."""
        return self.shared_rule("json", f"%json {json.dumps(schema if isinstance(schema, Mapping) else {})}")

    def name(self) -> str:
        """The name of an additional argument."""
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
    """A regular expression that matches exactly this text."""
    return "".join(character if character.isalnum() else f"\\x{{{ord(character):x}}}" for character in text)


def in_slashes(pattern: str) -> str:
    """A regular expression escaped for a Lark terminal between slashes."""
    escaped = ""
    position = 0
    while position < len(pattern):
        size = 2 if pattern[position] == "\\" else 1
        atom = pattern[position : position + size]
        escaped += {"/": "\\/", "\n": "\\n", "\\\n": "\\n"}.get(atom, atom)
        position += size
    return escaped
