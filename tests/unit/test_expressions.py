"""Every regular expression of ours takes linear time, whatever a caller, a model or a page has written.

They are found by reading the sources: a new one fails here until the table says how long the texts are that
reach it.
"""

import ast
import importlib
import re
import time
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from engine.grammar.ebnf_to_lark import MAX_EBNF
from engine.grammar.structured_output_to_lark import MAX_TEXT
from server.prompting.prompt_limits import MAX_DEFINITION, MAX_TOOL_CHARACTERS

ROOT = Path(__file__).parents[2]
OPERATOR = 0
"""Texts of the operator's files, settings and programs, and of our own sources."""
TEXT = 10 * 2**20
"""Any text of a request's body."""
PAGE = 2 * 2**20
OUTPUT = 2**20
"""More than any model writes in one answer."""
HEADER = 65_536
SHORT = 2048

REACH = {
    "engine/grammar/ebnf_to_lark.py:_CHARACTER": MAX_EBNF,
    "engine/model/lora_adapter_files.py": OPERATOR,
    "engine/grammar/structured_output_to_lark.py:_DIRECTIVE": MAX_TEXT,
    "engine/grammar/structured_output_to_lark.py:_LARK_JSON": MAX_TEXT,
    "engine/grammar/structured_output_to_lark.py:_LARK_LITERAL": MAX_TEXT,
    "engine/grammar/structured_output_to_lark.py:_TO_ESCAPE": MAX_TEXT,
    "engine/grammar/structured_output_to_lark.py:self._split": MAX_TEXT,  # literals of a vocabulary
    "engine/grammar/matcher.py:_LISTING": MAX_TEXT,
    "engine/grammar/matcher.py:_PLACE": MAX_TEXT,
    "engine/config.py:HUB_KERNEL": OPERATOR,
    "server/configuration/model_source.py:_ID": OPERATOR,
    "engine/vocabulary.py": OPERATOR,
    "server/http/query_and_headers.py:_METADATA": HEADER,
    "server/prompting/tool_search.py:_WORD": 2**20,  # the tools of a request
    "server/admission/request_validation.py:_FIRST_NAME": SHORT,  # a path in a body
    "server/admission/request_validation.py:_INDEXED": SHORT,
    "server/protocol/completions/chat_messages.py:_FIRST_NAME": SHORT,
    "server/protocol/completions/chat_messages.py:_IN_PART": SHORT,
    "server/console/pages/history.py:_METADATA": SHORT,
    "server/console/pages/history.py:_TEXT": HEADER,
    "server/console/pages/history.py:_CUT_ESCAPE": HEADER,
    "server/store/console/reader_session.py:_NAME": 20_000,  # a query of the console
    "server/store/transfer.py:_NUL": TEXT,  # a value of an import
    "server/store/content/item_rows.py:_IMAGE_TYPE": TEXT,  # the head of a data URL
    "server/logs/formats.py": OPERATOR,  # messages of the engine's log
    "tool_servers/browser/page.py:_CHARSET": PAGE,
    "tool_servers/browser/page.py:from_html": PAGE,  # a literal and digits
    "tool_servers/browser/page.py:_text": PAGE,
    "server/cli/db/database_roles.py": OPERATOR,
    "server/configuration/settings.py": OPERATOR,
    "server/outbound_http/guarded_http.py:_LINE_END": HEADER,  # what a socket gives at once
    "engine/grammar/ebnf_to_lark.py:_EBNF": MAX_EBNF,
    "engine/grammar/ebnf_to_lark.py:_TOKEN": MAX_EBNF,
    "server/configuration/environment.py": OPERATOR,
    "server/model_formats/tool_calls/python_calls.py:_NAME": OUTPUT,
    "server/model_formats/tool_calls/python_calls.py:_KEY": OUTPUT,
    "server/model_formats/tool_calls/python_calls.py:_BARE": OUTPUT,
    "server/model_formats/tool_calls/json_calls.py:_NAME": OUTPUT,
    "server/model_formats/tool_calls/json_calls.py:_NUMBER": OUTPUT,
    "server/model_formats/tool_calls/json_calls.py:_WORD": OUTPUT,
    "server/model_formats/tool_calls/python_calls.py:_CUT_COLLECTION": OUTPUT,
    "server/model_formats/tool_calls/python_calls.py:_CUT_NUMBER": OUTPUT,
    "server/model_formats/tool_calls/json_calls.py:_LETTER": OUTPUT,
    "server/model_formats/tool_calls/python_calls.py:_WORD": OUTPUT,
    "server/model_formats/harmony/harmony_parser.py:_GLUED": OUTPUT,
    "server/model_formats/harmony/harmony_parser.py:_NAMESPACED": OUTPUT,
    "server/model_formats/tool_calls/xml_calls.py:_DIGIT": OUTPUT,
    "server/model_formats/tool_calls/xml_calls.py:_IN_NESTED_TAG": OUTPUT,
    "server/model_formats/tool_calls/xml_calls.py:_LETTER": OUTPUT,
    "server/model_formats/tool_calls/json_reader.py:NUMBER": OUTPUT,
    "server/model_formats/tool_calls/json_reader.py:_CONTROL": OUTPUT,
    "server/model_formats/tool_calls/xml_calls.py:_IN_WORD": OUTPUT,
    "server/model_formats/tool_calls/xml_calls.py:_IN_QUOTES": OUTPUT,
    "server/model_formats/tool_calls/xml_calls.py:_IN_TAG": OUTPUT,
    "server/generation/written_item.py:_WORDS": OUTPUT,
    "server/model_formats/output_grammar/relaxed_schemas.py:_SPECIAL": MAX_TOOL_CHARACTERS,
    "server/model_formats/chat_template/template.py:_NOT_ASCII": TEXT,
    "server/model_formats/output_grammar/grammar_builder.py:_TOKEN": MAX_DEFINITION,
    "server/model_formats/output_grammar/grammar_builder.py:_ATOM": MAX_DEFINITION,
    "server/model_formats/output_grammar/grammar_builder.py:_CODE": MAX_DEFINITION,
    "server/model_formats/output_grammar/grammar_builder.py:_PROPERTY": MAX_DEFINITION,
    "server/model_formats/output_grammar/grammar_builder.py:_atom": MAX_DEFINITION,  # one atom, on characters
    "server/model_formats/output_grammar/grammar_builder.py:_for_python": MAX_DEFINITION,  # compiled only
    "server/model_formats/harmony/encoding.py:_CONTROL": TEXT,
    "server/model_formats/harmony/harmony_parser.py:_TO": HEADER,
    "server/model_formats/harmony/harmony_parser.py:_ASSISTANT": HEADER,
    "server/model_formats/harmony/harmony_parser.py:_AUTHOR": HEADER,
    "server/model_formats/harmony/harmony_parser.py:_CHANNEL": HEADER,
    "server/model_formats/harmony/harmony_parser.py:_RECIPIENT": HEADER,
    "server/model_formats/harmony/harmony_parser.py:_TYPE": HEADER,
    "server/model_formats/harmony/tools.py:_LONG_WORD": TEXT,
    "server/model_formats/harmony/tools.py:_LONG_SPACE": TEXT,
    "server/model_formats/special_tokens.py:_ANY": TEXT,
    "server/model_formats/special_tokens.py:self._find": TEXT,  # literals of a vocabulary
    "server/model_formats/special_tokens.py:self._find_in_grammars": TEXT,  # as above
    "server/model_formats/chat_template/template_messages.py:_IMAGE_PART": TEXT,
    "server/model_formats/chat_template/template_messages.py:_NINE": TEXT,
    "server/model_formats/text_scanner.py:SPACE": OUTPUT,
    "server/model_formats/text_scanner.py:self.search": OUTPUT,  # literals, of the family's format
    "server/model_formats/text_scanner.py:self.search_beginning": OUTPUT,  # of the last few characters
    "server/model_formats/chat_template/template.py:_DROPPED": TEXT,
    "server/model_formats/chat_template/template.py:_LOOKS_LIKE_CONTROL": OPERATOR,
    "server/model_formats/chat_template/template.py:_start_of_any": TEXT,  # literals of a vocabulary
    "server/model_formats/output_grammar/unquoted_strings.py:_ATOM": MAX_TOOL_CHARACTERS,
    "server/model_formats/tool_calls/json_reader.py:_OUTSIDE": OUTPUT,
    "server/model_formats/tool_calls/json_reader.py:_IN_STRING": OUTPUT,
    "server/model_formats/tool_calls/json_reader.py:_SCALAR": OUTPUT,
    "server/model_formats/tool_calls/json_reader.py:_ONE": OUTPUT,
    "server/model_formats/tool_calls/json_reader.py:_UNIT": OUTPUT,
    "server/model_formats/tool_calls/json_reader.py:_PYTHON_UNIT": OUTPUT,
    "server/model_formats/tool_calls/json_reader.py:_CUSTOM_HEAD": OUTPUT,
    "server/model_formats/tool_calls/json_reader.py:_INSIDE": OUTPUT,
    "server/http/openapi.py": OPERATOR,
    "server/cli/prompts.py": OPERATOR,
    "server/hosted_tools/mcp_discovery.py:_HEADER": TEXT,
    "server/hosted_tools/mcp_discovery.py:_VALUE": TEXT,
    "server/generation/hosted_items.py:_URL_IN_TEXT": OUTPUT,
    "server/process/model/scripted_model.py": OPERATOR,
    "server/embedded_postgres/binaries.py": OPERATOR,
    "server/embedded_postgres/data_directory.py": OPERATOR,
    "tool_servers/browser/allowed_web.py:_HOST_NAME": SHORT,
    "tool_servers/browser/allowed_web.py:_ENTRY": OPERATOR,
    "server/outbound_http/allowed_addresses.py:_HOST_NAME": SHORT,
    "server/outbound_http/allowed_addresses.py:_ENTRY": OPERATOR,
    "server/outbound_http/allowed_addresses.py:read_url": SHORT,
    "server/outbound_http/allowed_addresses.py:_check_syntax": SHORT,
    "server/protocol/responses/tools.py:ALLOWED_NAME": TEXT,
    "server/generation/hosted_items.py:_SOURCE_URL": SHORT,
    "server/hosted_tools/registered_servers.py": OPERATOR,
    "server/caller.py:TENANT": HEADER,
    "server/cli/options.py:_DURATION": OPERATOR,
    "server/oidc/access_tokens.py:_PLAIN": HEADER,
    "server/protocol/decode.py:_BACKSLASHES": TEXT,
    "server/protocol/input_images.py:_CONTENT": TEXT,
    "server/protocol/decode.py:_BOUND_ERROR": HEADER,
    "server/protocol/decode.py:_ERROR_PATH": HEADER,
    "server/protocol/decode.py:_ERROR_FIELD": HEADER,
    "server/protocol/ids.py:_ITEM_ID": TEXT,
    "server/protocol/ids.py:_OUTPUT_ID": TEXT,
    "server/protocol/ids.py:_RESPONSE_ITEM": TEXT,
    "server/store/timeout_connection.py:_SYNCHRONOUS_COMMIT": OPERATOR,
    "server/store/schema/partitions.py": OPERATOR,  # bounds, as Postgres writes them
    "server/protocol/responses/events.py:_ID": HEADER,
    "server/protocol/ids.py:_TAGGED_ID": TEXT,
    "server/protocol/responses/prompt_variables.py:_VARIABLE": TEXT,
    "server/store/cluster/notifications.py:_ID": SHORT,
}
"""How many characters of whose text reach each expression, or all of a file."""
AT_ONE_PLACE = {
    *(
        f"server/model_formats/harmony/harmony_parser.py:_{name}"
        for name in ("ASSISTANT", "AUTHOR", "CHANNEL", "RECIPIENT")
    ),
    "server/model_formats/harmony/harmony_parser.py:_TYPE",
    "server/model_formats/tool_calls/json_reader.py:_CUSTOM_HEAD",
    "server/model_formats/tool_calls/json_reader.py:_UNIT",
    *(f"server/hosted_tools/mcp_discovery.py:_{name}" for name in ("HEADER", "VALUE")),
    "tool_servers/browser/allowed_web.py:_HOST_NAME",
    "server/outbound_http/allowed_addresses.py:_HOST_NAME",
    "server/console/pages/history.py:_METADATA",
    "server/http/query_and_headers.py:_METADATA",
    "server/protocol/decode.py:_BACKSLASHES",
    "engine/grammar/ebnf_to_lark.py:_EBNF",
    "engine/grammar/ebnf_to_lark.py:_TOKEN",
}
"""Never searched for: matched where the text begins."""

Expression = re.Pattern[Any]
SAMPLE = 3000
"""Characters of which an expression of quadratic time takes far more than `SUSPICIOUS` seconds."""
SUSPICIOUS = 0.004
MOST_TRIED = 2**20
"""Longer texts take as much longer as they are."""
SECONDS_OF_MILLION = 2.0
"""Of processor time for a million characters: linear work takes a tenth of it."""
GENERIC = ("a", "A", "0", " ", '"', "\\", "[", "]", "(", "{", "/", "<", "`", "\n", "é")


class Used(ast.NodeVisitor):
    """The places of one file where expressions are made."""

    def __init__(self, file: str) -> None:
        self.file, self.scope = file, ""
        self.found: list[tuple[str, ast.expr]] = []

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        self._within(node.name, node)

    visit_AsyncFunctionDef = visit_FunctionDef  # type: ignore[assignment]  # noqa: N815

    def visit_Assign(self, node: ast.Assign) -> None:
        target = node.targets[0]
        local = self.scope and isinstance(target, ast.Name)
        self._within(self.scope if local else ast.unparse(target), node)

    def visit_Call(self, node: ast.Call) -> None:
        made = isinstance(node.func, ast.Attribute) and ast.unparse(node.func.value) == "re"
        if made and node.func.attr != "escape":  # type: ignore[attr-defined]
            self.found.append((f"{self.file}:{self.scope}", node.args[0]))
        self.generic_visit(node)

    def _within(self, scope: str, node: ast.AST) -> None:
        before, self.scope = self.scope, scope
        self.generic_visit(node)
        self.scope = before


def expressions() -> dict[str, Expression | None]:
    """By place; None for those that are made from other texts as the program runs."""
    found: dict[str, Expression | None] = {}
    for folder in ("server", "engine", "tool_servers"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            file = str(path.relative_to(ROOT))
            text = path.read_text(encoding="utf-8")
            used = Used(file)
            if re.search(r"\bre\.", text):  # most files make none, and parsing takes time
                used.visit(ast.parse(text))
            for place, source in used.found:
                found[place] = _made(place, source) if file not in REACH else None
    return found


def _made(place: str, source: ast.expr) -> Expression | None:
    file, _, name = place.partition(":")
    module = importlib.import_module(file.removesuffix(".py").replace("/", "."))
    made = getattr(module, name, None)
    made = next(iter(made.values())) if isinstance(made, dict) else made
    if isinstance(made, re.Pattern):
        return made
    return re.compile(ast.literal_eval(source)) if isinstance(source, ast.Constant) else None


FOUND = expressions()
MET = [place for place, made in FOUND.items() if made is not None and REACH.get(place)]


def test_of_every_expression_is_written_down_what_text_reaches_it() -> None:
    known = {place for place in FOUND if place in REACH or place.partition(":")[0] in REACH}
    assert FOUND.keys() == known, "say in REACH how long the texts are that they meet"
    assert REACH.keys() <= FOUND.keys() | {place.partition(":")[0] for place in FOUND}
    assert len(MET) > 50


@pytest.mark.parametrize("place", MET)
def test_an_expression_takes_linear_time_for_any_text(place: str) -> None:
    expression = FOUND[place]
    assert expression is not None
    at_once = place in AT_ONE_PLACE
    slowest, worst = 0.0, "xa"
    for text in hostile(expression):
        size, seconds = tried(expression, text, at_once)
        if seconds > SUSPICIOUS:
            once = min(taken(expression, text, size, at_once) for _ in range(3))
            more = min(taken(expression, text, size * 4, at_once) for _ in range(3))
            linear = size == SAMPLE and more < max(once * 9, 0.01)
            assert linear, f"for {text!r}, again and again"
        if seconds > slowest:
            slowest, worst = seconds, text
    size = min(REACH[place], MOST_TRIED)
    bound = max(size / 1e6, 0.05) * SECONDS_OF_MILLION
    assert taken(expression, worst, size, at_once) < bound, f"slow for {size} characters of {worst!r}"


def tried(expression: Expression, text: str, at_once: bool) -> tuple[int, float]:
    """At which size the text takes suspiciously long, and how long, or how long the largest takes.

    The sizes grow slowly, so that an expression of exponential time is found out before it takes for ever.
    """
    for size in (20, 32, 44, 56, 68, SAMPLE):
        seconds = taken(expression, text, size, at_once)
        if seconds > SUSPICIOUS:  # or this thread was interrupted, which is not so each time
            seconds = min(seconds, *(taken(expression, text, size, at_once) for _ in range(3)))
        if seconds > SUSPICIOUS:
            break
    return size, seconds


def taken(expression: Expression, text: str, size: int, at_once: bool) -> float:
    """Processor seconds to find the expression everywhere in a text of this size.

    The text is this one again and again, behind its first character and before one that ends nothing.
    """
    whole: Any = text[0] + text[1:] * (size // max(len(text) - 1, 1)) + "\x01"
    if isinstance(expression.pattern, bytes):
        whole = whole.encode()
    begun = time.thread_time()
    if at_once:
        expression.match(whole)
        expression.fullmatch(whole)
    else:
        for _ in expression.finditer(whole):
            pass
    return time.thread_time() - begun


def hostile(expression: Expression) -> Iterator[str]:
    """A character to begin with and what follows it again and again, of the expression's own characters."""
    own = letters(expression)
    yield from (first + unit for first, unit in product(own, own))
    source = expression.pattern if isinstance(expression.pattern, str) else expression.pattern.decode()
    words = [word for word in re.findall(r"[a-z%<=@]{2,}", source) if len(word) < 20][:4]
    yield from ("x" + word + letter for word, letter in product(words, own))
    for unit in (
        "[a]",
        '\\"',
        "\\/",
        '"" ',
        "[:a:]",
        "{1",
        "{{ ",
        "\\p{",
        "(?a",
        "A_",
        "%a",
        "<|a",
        "``",
        " - at `$",
    ):
        yield "x" + unit
        yield from (first + unit for first in '"/[{(')


def letters(expression: Expression) -> list[str]:
    """Characters that the expression names, and one or two that it does not."""
    source = expression.pattern if isinstance(expression.pattern, str) else expression.pattern.decode()
    named = [letter for letter in dict.fromkeys(source) if letter.isprintable() and not letter.isalnum()]
    return list(dict.fromkeys([*named[:8], *GENERIC]))[:14]


@pytest.mark.parametrize(
    "slow",
    [r"\"(?:\\.|[^\"\\])*\"", r"(?:a|a)*b", r"\s+x", r"[A-Z_]*[A-Z][A-Z0-9_]*\b", r"/(?:\[a\]|[^/])+/"],
)
def test_the_texts_are_hostile_enough_to_find_what_is_not_linear(slow: str) -> None:
    expression = re.compile(slow)
    assert any(tried(expression, text, at_once=False)[1] > SUSPICIOUS for text in hostile(expression))
