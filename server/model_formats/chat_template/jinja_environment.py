"""The sandboxed Jinja environment for chat templates, equal to transformers' but without torch."""

import json
import re
from datetime import datetime
from typing import Any, NoReturn

from jinja2 import Template, TemplateError, meta, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

_NOT_ASCII = re.compile(r"[^\x00-\x7f]")


class _Generation(Extension):
    """`{% generation %}`, which marks the assistant's part for training; its content is rendered as is."""

    tags = {"generation"}  # noqa: RUF012 - Jinja reads a set here

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def compile_template(source: str, marker: str) -> Template:
    """Compiles a template. `marker` is a character that `tojson` never escapes.

    Raises jinja2.TemplateError.
    """

    def raise_exception(message: str) -> NoReturn:
        raise TemplateError(message)

    def tojson(
        value: object,
        ensure_ascii: bool = False,
        indent: int | None = None,
        separators: tuple[str, str] | None = None,
        sort_keys: bool = False,
    ) -> str:
        text = json.dumps(
            value, ensure_ascii=False, indent=indent, separators=separators, sort_keys=sort_keys
        )
        return _NOT_ASCII.sub(lambda match: _in_ascii(match[0], marker), text) if ensure_ascii else text

    def strftime_now(pattern: str) -> str:
        return datetime.now().astimezone().strftime(pattern)

    environment = _environment()
    environment.filters["tojson"] = tojson
    environment.globals["raise_exception"] = raise_exception
    environment.globals["strftime_now"] = strftime_now
    return environment.from_string(source)


def variables_of(source: str) -> frozenset[str]:
    """The undeclared variables of a template."""
    return frozenset(meta.find_undeclared_variables(_environment().parse(source)))


def literals_of(source: str) -> str:
    """All text and string constants of a template, joined with NUL."""
    tree = _environment().parse(source)
    texts: list[Any] = [node.data for node in tree.find_all(nodes.TemplateData)]
    texts += [node.value for node in tree.find_all(nodes.Const) if isinstance(node.value, str)]
    return "\0".join(texts)


def _environment() -> ImmutableSandboxedEnvironment:
    return ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols]
    )


def _in_ascii(character: str, marker: str) -> str:
    return character if character == marker else json.dumps(character)[1:-1]
