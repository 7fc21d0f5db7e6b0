"""Grammars of callers under all of their names, and in all of the languages that they are written in."""

import json
import time
from contextlib import suppress
from typing import Any

import pytest

from engine.grammar.compiler import GrammarCompiler
from engine.grammar.ebnf_to_lark import MAX_EBNF, ebnf_to_lark, is_ebnf
from engine.grammar.matcher import BadGrammar
from engine.request import RequestRefused, StructuredOutput
from engine.vocabulary import Vocabulary
from server.errors import InvalidRequest
from server.prompting.structured_outputs import structured_output_grammar, with_modern_names
from server.protocol.responses.request import CreateResponse

BYTES = Vocabulary(tuple(bytes([byte]) for byte in range(256)), frozenset())
SQL = """
root ::= select_statement

select_statement ::= "SELECT " column " from " table " where " condition

column ::= "col_1 " | "col_2 "

table ::= "table_1 " | "table_2 "

condition ::= column "= " number

number ::= "1 " | "2 "
"""
SUMS = """# recursive, and with sets and counts
root ::= sum "="
sum ::= term ([-+] term)*
term ::= "(" sum ")" | num
num ::= [0-9]{1,3} ("." [0-9]+)?
"""


@pytest.fixture(scope="module")
def compiler() -> Any:
    made = GrammarCompiler(BYTES)
    yield made
    made.close()


def allows(compiler: GrammarCompiler, grammar: StructuredOutput | None, text: str) -> bool:
    assert grammar is not None
    matcher = compiler.compiled(grammar).begin()
    return all(matcher.consume_token(byte) for byte in text.encode()) and matcher.is_accepting()


def asked(**given: Any) -> StructuredOutput | None:
    return structured_output_grammar(with_modern_names(CreateResponse(model="m", input="x", **given)))


@pytest.mark.parametrize(
    ("ebnf", "text", "fits"),
    [
        (SQL, "SELECT col_1  from table_2  where col_2 = 1 ", True),
        (SQL, "SELECT col_3  from table_2 ", False),
        (SUMS, "(1+2)-3.55=", True),
        (SUMS, "(1+2-3=", False),
        (SUMS, "1234=", False),
        ('root ::= "if" | [a-z]+ "!"', "ifs!", True),
        ('root ::= [^"\\n/&-]+ "\\"" "\\u00e9" .', 'a[b"éx', True),
        ('root ::= [^"\\n/&-]+', "a-b", False),
        ('root ::= "a" root? "b"', "aabb", True),
        ('root ::= "a" root? "b"', "aab", False),
        ('root ::=\n  "a" |\n  "b" # or\n', "b", True),
    ],
)
def test_a_grammar_in_ebnf_allows_what_it_says(
    compiler: GrammarCompiler, ebnf: str, text: str, fits: bool
) -> None:
    assert allows(compiler, asked(structured_outputs={"grammar": ebnf}), text) is fits


@pytest.mark.parametrize(
    "ebnf",
    [
        "root ::= ",
        "root ::= other",
        'rule ::= "a"',
        'root ::= "a" ; b',
        'root ::= "\\xzz"',
        'root ::= "a"\nroot ::= "b"',
        "root ::= [",
    ],
)
def test_what_is_no_ebnf_is_refused_with_a_sentence(compiler: GrammarCompiler, ebnf: str) -> None:
    with pytest.raises(RequestRefused, match=r"\.$"):
        compiler.compiled(StructuredOutput(kind="lark", text=ebnf))


def test_a_grammar_in_lark_is_left_as_it_is() -> None:
    lark = 'start: "a" // ::= is no sign of Lark\n'
    assert asked(structured_outputs={"grammar": lark}) == StructuredOutput(kind="lark", text=lark)


@pytest.mark.parametrize(
    "ebnf",
    [
        "root ::= " + "(" * 9000,
        "root ::= " + '"a" ' * 4900,
        "root ::= " + "[" * 19_000,
        'root ::= "' + "\\" * 19_000,
        "\n" * 19_000 + "root",
        "#\n" * 9_000 + "root ::=",
        "root ::= a0\n" + "".join(f"a{n} ::= a{n + 1} a{n + 1}\n" for n in range(60)) + 'a60 ::= "x"',
    ],
)
def test_reading_ebnf_takes_linear_time(ebnf: str) -> None:
    assert len(ebnf) <= MAX_EBNF
    begun = time.thread_time()
    if is_ebnf(ebnf):
        with suppress(BadGrammar):
            assert len(ebnf_to_lark(ebnf)) < 20 * MAX_EBNF
    assert time.thread_time() - begun < 1


@pytest.mark.parametrize(
    ("name", "value", "modern"),
    [
        ("guided_json", {"type": "integer"}, {"json": {"type": "integer"}}),
        ("guided_regex", "a+", {"regex": "a+"}),
        ("guided_choice", ["a", "b"], {"choice": ["a", "b"]}),
        ("guided_grammar", 'root ::= "a"', {"grammar": 'root ::= "a"'}),
        ("guided_json_object", True, {"json_object": True}),
    ],
)
def test_guided_names_are_fields_of_structured_outputs(name: str, value: Any, modern: Any) -> None:
    assert asked(**{name: value}) == asked(structured_outputs=modern) is not None


def test_guided_names_beside_structured_outputs_or_each_other_are_refused() -> None:
    with pytest.raises(InvalidRequest) as refused:
        asked(guided_regex="a", structured_outputs={"regex": "b"})
    assert refused.value.param == "guided_regex"
    with pytest.raises(InvalidRequest, match="exactly one"):
        asked(guided_regex="a", guided_choice=["b"])


NUMBER = {"type": "integer"}
OLDER = {
    "type": "structural_tag",
    "structures": [{"begin": "<n>", "schema": NUMBER, "end": "</n>"}],
    "triggers": ["<n"],
}
NEWER = {
    "type": "structural_tag",
    "format": {
        "type": "triggered_tags",
        "triggers": ["<n"],
        "tags": [
            {"begin": "<n>", "content": {"type": "json_schema", "json_schema": NUMBER}, "end": "</n>"},
            {"begin": "<no>", "content": {"type": "regex", "pattern": "x+"}, "end": "</no>"},
        ],
        "at_least_one": True,
    },
}


@pytest.mark.parametrize("tag", [OLDER, NEWER, json.dumps(OLDER), json.dumps(NEWER)])
def test_a_structural_tag_holds_what_follows_its_trigger(compiler: GrammarCompiler, tag: Any) -> None:
    grammar = asked(structured_outputs={"structural_tag": tag})
    assert allows(compiler, grammar, "It is <n>12</n>.")
    assert not allows(compiler, grammar, "It is <n>twelve</n>.")


def test_at_least_one_tag_must_come_where_that_is_asked(compiler: GrammarCompiler) -> None:
    assert allows(compiler, asked(structured_outputs={"structural_tag": OLDER}), "None.")
    assert not allows(compiler, asked(structured_outputs={"structural_tag": NEWER}), "None.")
    assert allows(compiler, asked(structured_outputs={"structural_tag": NEWER}), "<no>xx</no>")


@pytest.mark.parametrize(
    ("form", "text"),
    [
        ({"type": "json_schema", "json_schema": NUMBER}, "12"),
        ({"type": "regex", "pattern": "a+"}, "aa"),
        ({"type": "const_string", "value": 'say "a"'}, 'say "a"'),
        ({"type": "grammar", "grammar": 'root ::= "a"'}, "a"),
    ],
)
def test_a_format_may_be_of_the_whole_output(
    compiler: GrammarCompiler, form: dict[str, Any], text: str
) -> None:
    grammar = asked(structured_outputs={"structural_tag": {"format": form}})
    assert allows(compiler, grammar, text)
    assert not allows(compiler, grammar, "no")


TAG = {"begin": "<n>", "content": {"type": "json_schema", "json_schema": NUMBER}, "end": "</n>"}
SAYS = {"type": "const_string", "value": "It is "}
FREE = {"type": "tag", "begin": "<q>", "content": {"type": "any_text"}, "end": "</q>"}
ROW = {"type": "sequence", "elements": [SAYS, {"type": "tag", **TAG}, {"type": "regex", "pattern": "[.!]"}]}
EITHER = {"type": "or", "elements": [{"type": "tag", **TAG}, {"type": "grammar", "grammar": 'root ::= "a"+'}]}
MANY = {"type": "tags_with_separator", "tags": [TAG, FREE], "separator": ", "}


@pytest.mark.parametrize(
    ("form", "fitting", "others"),
    [
        (FREE, ["<q>a < b</q>", "<q></q>"], ["q", "<q>a</q>b"]),
        (ROW, ["It is <n>12</n>!"], ["It is <n>12</n>", "<n>12</n>."]),
        (EITHER, ["<n>-1</n>", "aaa"], ["", "<n>a</n>"]),
        (MANY, ["", "<n>1</n>", "<n>1</n>, <q>no</q>, <n>2</n>"], ["<n>1</n><n>2</n>", "<n>1</n>, "]),
        ({**MANY, "at_least_one": True}, ["<q>x</q>"], [""]),
        ({**MANY, "stop_after_first": True}, ["", "<n>1</n>"], ["<n>1</n>, <n>2</n>"]),
        ({"type": "sequence", "elements": [SAYS, {"type": "any_text"}]}, ["It is ", "It is late."], ["It"]),
        (
            {
                "type": "sequence",
                "elements": [{"type": "sequence", "elements": [{"type": "any_text"}]}, SAYS],
            },
            ["Oh. It is "],
            ["Oh.", "It is so"],
        ),
    ],
)
def test_a_format_may_be_composed_of_others(
    compiler: GrammarCompiler, form: dict[str, Any], fitting: list[str], others: list[str]
) -> None:
    grammar = asked(structured_outputs={"structural_tag": {"format": form}})
    assert [text for text in fitting if not allows(compiler, grammar, text)] == []
    assert [text for text in others if allows(compiler, grammar, text)] == []


@pytest.mark.parametrize(
    "form",
    [
        {"type": "or", "elements": [SAYS] * 200},
        {"type": "sequence", "elements": [{"type": "any_text"}, {"type": "regex", "pattern": "a"}]},
        {"type": "or", "elements": [{"type": "triggered_tags"}]},
        {"type": "tag", "begin": "<a>", "end": 1},
        {"type": "sequence", "elements": []},
    ],
)
def test_a_composed_format_that_is_none_or_too_much_is_refused_when_it_is_compiled(
    compiler: GrammarCompiler, form: dict[str, Any]
) -> None:
    with pytest.raises(RequestRefused):
        compiler.compiled(
            asked(structured_outputs={"structural_tag": {"format": form}})
            or StructuredOutput(kind="json_object")
        )


@pytest.mark.parametrize(
    "tag",
    [
        "{",
        "[]",
        {},
        {"format": {"type": "triggered_tags", "triggers": ["<"], "tags": [{"begin": "<a>"}]}},
        {"structures": ["<a>"], "triggers": ["<"]},
    ],
)
def test_what_is_no_structural_tag_is_refused_by_its_name(tag: Any) -> None:
    with pytest.raises(InvalidRequest) as refused:
        asked(structured_outputs={"structural_tag": tag})
    assert refused.value.param == "structured_outputs.structural_tag"


def test_a_structural_tag_whose_trigger_never_comes_is_refused(compiler: GrammarCompiler) -> None:
    tag = {**OLDER, "triggers": ["<other"]}
    with pytest.raises(RequestRefused, match="begin with one of the triggers"):
        compiler.compiled(
            asked(structured_outputs={"structural_tag": tag}) or StructuredOutput(kind="json_object")
        )
