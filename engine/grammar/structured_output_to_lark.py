"""Translates a request's `StructuredOutput` into one Lark grammar, the input of llguidance.

Pure functions, which run in `compile_process`. Kinds: a JSON schema (local references only); any JSON object;
a regular expression for the whole output; a grammar in Lark or EBNF; a structural form (parts in sequence,
choice or repetition); or structural tags: free text until a trigger, then a tag.

    {"triggers": ["<call"],
     "tags": [{"begin": "<call name=a>", "schema": {...}, "end": "</call>"}, ...],
     "at_least_one": false, "stop_after_first": false}

Each tag begins with one of the triggers. Between begin and end is text that matches `schema` or `regex`, or
any text. The text of a special token within a string stands for that token.

A structural form is a `format` of xgrammar's structural tags: `json_schema`, `regex`, `grammar`,
`const_string`, `any_text`, and composed of these a `tag`, a `sequence`, an `or`, `tags_with_separator`. Any
text ends with the text that follows it, or with the output.

A Lark grammar may have `%json {...}` (JSON of that schema), `%lark {...}` (a grammar), `<[id]>` (a token).
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import isfinite
from typing import Any

from engine.grammar.ebnf_to_lark import ebnf_to_lark, is_ebnf
from engine.grammar.matcher import BadGrammar
from engine.grammar.recursive_schemas import has_circle
from engine.request import StructuredOutput

HEADER = '%llguidance {"no_forcing": true}\n'
"""Allows every tokenization of a text, also where only one text fits; llguidance would force one."""
WHITESPACE = r"[ ]?|\n[ \t]{0,40}"
"""Between the parts of JSON. Bounded, or a model might write blanks forever."""
TEXT = "TEXT: /(.|\\n)+/\nANY: /(.|\\n)*/\n"

MAX_TEXT = 400_000
"""Characters of a grammar in the request, a schema's descriptions included."""
MAX_RAW_DEPTH = 64
"""Nesting of a schema's JSON, whatever it means; the compiler reads 128 levels."""
FORM_TYPES = "json_schema, regex, grammar, const_string, any_text, tag, sequence, or, tags_with_separator"
MAX_TAGS = 128
"""Structural tags, and parts of a structural form."""

_TAG_KEYS = {"begin", "schema", "regex", "end"}
_DIRECTIVE = re.compile(r"(?<![\w%])%(\w+)")
_TO_ESCAPE = re.compile(r"\\.|[/\n]", re.DOTALL)
_IN_SLASHES = {"/": "\\/", "\n": "\\n", "\\\n": "\\n"}
_DIRECTIVES = {"ignore", "import", "json", "lark"}
_LARK_LITERAL = re.compile(
    # A regular expression may go over several lines and ends at the first slash, within a class too.
    r'(?://|#)[^\n]*+|"(?:\\.|[^"\\\n])*+"|/(?:\\[\s\S]|[^/\\])++/|(?P<open>["/])[\s\S]*+'
)
"""Comments and literals of Lark. `open` matches a literal without an end, which is an error."""
_LARK_JSON = re.compile(_LARK_LITERAL.pattern + r"|(?P<json>(?<![\w%])%json\b\s*+)")


def parse_json(text: str) -> Any:
    """The JSON value of the text. Raises `BadGrammar`, also for nesting above `MAX_RAW_DEPTH`."""
    if len(text) > MAX_TEXT:
        raise BadGrammar(f"A grammar may have {MAX_TEXT} characters; this one has {len(text)}.")
    try:
        value = json.loads(text, parse_constant=_finite, parse_float=_finite)
    except RecursionError:
        raise BadGrammar("The JSON is nested too deeply.") from None
    except ValueError as error:
        raise BadGrammar(f"This is not JSON: {error}.") from None
    if is_nested_deeper(value, MAX_RAW_DEPTH):
        raise BadGrammar(f"The JSON may be nested {MAX_RAW_DEPTH} levels deep.")
    return value


def is_nested_deeper(value: Any, levels: int) -> bool:
    """Whether a JSON value has more than so many levels of objects and arrays."""
    level = [value]
    for _ in range(levels):
        level = [
            inner
            for outer in level
            if isinstance(outer, dict | list)
            for inner in (outer.values() if isinstance(outer, dict) else outer)
        ]
    return bool(level)


def _finite(digits: str) -> float:
    """Raises ValueError for `NaN`, too, which Python's parser would take."""
    number = float(digits)
    if not isfinite(number):
        raise ValueError(f"{digits[:40]} is no number of JSON, or larger than any here")
    return number


def to_lark(grammar: StructuredOutput, special: Mapping[int, str]) -> str:
    """The Lark source; `special` has the texts of special tokens by id. Raises `BadGrammar`."""
    match grammar.kind:
        case "json_schema":
            lark = f"start: {_json(parse_json(grammar.text))}\n"
        case "json_object":
            lark = f"start: {_json({'type': 'object'})}\n"
        case "regex":
            lark = f"start: {_regex(grammar.text)}\n"
        case "lark":
            lark = _lark(grammar.text)
        case "structural_tags":
            lark = _tags(parse_json(grammar.text), special)
        case "structural_form":
            lark = _Form(special).to_lark(parse_json(grammar.text))
        case _:
            raise BadGrammar(f"There are no grammars of kind {grammar.kind!r}.")
    try:
        lark.encode()
    except UnicodeEncodeError:
        raise BadGrammar("The grammar has half a character: a surrogate without its other.") from None
    return HEADER + lark


def _json(schema: Any) -> str:
    if not isinstance(schema, dict | bool):
        raise BadGrammar("A schema must be an object, true or false.")
    if schema is False:
        raise BadGrammar("The schema is false: no value would fit it.")
    if has_circle(schema):
        raise BadGrammar("A $ref leads back to itself, so that no value can ever fit the schema.")
    options = {"whitespace_pattern": WHITESPACE}
    return "%json " + json.dumps({**({} if schema is True else schema), "x-guidance": options})


def _regex(pattern: Any) -> str:
    if not isinstance(pattern, str):
        raise BadGrammar("A regular expression must be a string.")
    return f"/(?:{in_slashes(pattern)})/"


def in_slashes(pattern: str) -> str:
    """A regular expression escaped for a Lark terminal between slashes."""
    return _TO_ESCAPE.sub(lambda match: _IN_SLASHES.get(match[0], match[0]), pattern)


def _lark(text: str) -> str:
    """The grammar with each `%json {...}` as it is compiled."""
    if is_ebnf(text):
        text = ebnf_to_lark(text)
    written = bare = ""
    copied = search = 0
    while match := _LARK_JSON.search(text, search):
        search = match.end()
        if match["open"]:
            what = "string" if match["open"] == '"' else "regular expression"
            line = text.count("\n", 0, match.start()) + 1
            raise BadGrammar(f"In line {line} of the grammar, a {what} does not end.")
        if match["json"] is None:
            continue
        end = _json_end(text, match.end())
        written += text[copied : match.start()] + _json(parse_json(text[match.end() : end]))
        bare += text[copied : match.start()]
        copied = search = end
    for directive in _DIRECTIVE.findall(_LARK_LITERAL.sub('""', bare + text[copied:])):
        if directive not in _DIRECTIVES:
            raise BadGrammar(f"%{directive} is not served; %ignore, %import, %json and %lark are.")
    return written + text[copied:] + "\n"


def _json_end(text: str, start: int) -> int:
    try:
        return json.JSONDecoder().raw_decode(text, start)[1]
    except RecursionError:
        raise BadGrammar("The JSON is nested too deeply.") from None
    except ValueError as error:
        raise BadGrammar(f"After %json stands no JSON: {error}.") from None


Segment = str | int
"""Text, or the id of a special token."""


def _tags(described: Any, special: Mapping[int, str]) -> str:
    if not isinstance(described, dict):
        raise BadGrammar("Structural tags must be an object.")
    if unknown := described.keys() - {"triggers", "tags", "at_least_one", "stop_after_first"}:
        raise BadGrammar(f"Structural tags have no {min(unknown)!r}.")
    texts, names, tags = _Texts(special), _strings(described, "triggers"), described.get("tags")
    triggers = [texts.segments(text, "A trigger") for text in names]
    if not isinstance(tags, list) or not tags or not triggers:
        raise BadGrammar("Structural tags need tags and triggers.")
    if max(len(tags), len(triggers)) > MAX_TAGS:
        raise BadGrammar(f"There may be {MAX_TAGS} structural tags.")
    bodies: list[list[str]] = [[] for _ in triggers]
    for tag in tags:
        which, body = _tag(tag, names, texts)
        bodies[which].append(body)
    calls = [
        f"{_head(texts, trigger, number)} ({' | '.join(of_trigger)})"
        for number, (trigger, of_trigger) in enumerate(zip(triggers, bodies, strict=True))
        if of_trigger
    ]
    heads = {trigger[0] for trigger in triggers if isinstance(trigger[0], int)}
    free = ["TEXT", *_tokens(set(texts.special.values()) - heads)]
    start = {
        (False, False): "(free | call)*",
        (True, False): "free* call (free | call)*",
        (False, True): "free* call?",
        (True, True): "free* call",
    }[_flag(described, "at_least_one"), _flag(described, "stop_after_first")]
    lines = [f"start: {start}", f"free: {' | '.join(free)}", f"call: {' | '.join(calls)}"]
    return "\n".join([*lines, *texts.rules, TEXT])


def _flag(described: Mapping[str, Any], name: str) -> bool:
    value = described.get(name, False)
    if not isinstance(value, bool):
        raise BadGrammar(f"{name} must be true or false.")
    return value


def _head(texts: "_Texts", trigger: list[Segment], number: int) -> str:
    """The expression that ends free text: a special token, or text up to the first trigger."""
    if isinstance(trigger[0], int):
        return _sequence(trigger)
    texts.rules.append(f"trigger_{number}[lazy]: ANY {_sequence(trigger)}")
    return f"trigger_{number}"


def _tag(tag: Any, triggers: Sequence[str], texts: "_Texts") -> tuple[int, str]:
    """The index of the tag's trigger, and the expression that follows the trigger."""
    if not isinstance(tag, dict) or (tag.keys() - _TAG_KEYS):
        raise BadGrammar("A tag has begin, end, and one of schema and regex, or neither.")
    begin = tag.get("begin")
    for which, trigger in enumerate(triggers):
        if isinstance(begin, str) and begin.startswith(trigger):
            rest = texts.segments(begin[len(trigger) :])
            return which, " ".join([_sequence(rest), *_content(tag, texts)])
    raise BadGrammar("A tag must begin with one of the triggers.")


def _content(tag: Mapping[str, Any], texts: "_Texts") -> list[str]:
    end = tag.get("end", "")
    if not isinstance(end, str):
        raise BadGrammar("The end of a tag must be a string.")
    segments = texts.segments(end)
    if "schema" in tag and "regex" in tag:
        raise BadGrammar("A tag has a schema or a regex, not both.")
    if "schema" in tag or "regex" in tag:
        return [_json(tag["schema"]) if "schema" in tag else _regex(tag["regex"]), _sequence(segments)]
    if not segments:
        raise BadGrammar("A tag without schema and regex needs an end.")
    return [texts.until(segments)]


class _Texts:
    """Splits texts at special tokens, and collects the rules that expressions refer to."""

    def __init__(self, special: Mapping[int, str]) -> None:
        self.special = {text: token_id for token_id, text in special.items() if text}
        longest_first = sorted(self.special, key=len, reverse=True)
        self._split = re.compile("|".join(map(re.escape, longest_first)) or r"(?!)")
        self.rules: list[str] = []

    def until(self, segments: Sequence[Segment]) -> str:
        """Any text up to and including the first occurrence of these segments."""
        if isinstance(segments[0], int):
            return f"TEXT? {_sequence(segments)}"
        name = f"until_{len(self.rules)}"
        self.rules.append(f"{name}[lazy]: ANY {_sequence(segments[:1])}")
        return f"{name} {_sequence(segments[1:])}"

    def segments(self, text: str, what: str = "") -> list[Segment]:
        segments: list[Segment] = []
        start = 0
        for match in self._split.finditer(text):
            segments += [text[start : match.start()], self.special[match[0]]]
            start = match.end()
        segments = [segment for segment in [*segments, text[start:]] if segment != ""]
        if what and (not segments or (isinstance(segments[0], str) and len(segments) > 1)):
            raise BadGrammar(f"{what} must be text without special tokens, or begin with one.")
        return segments


class _Form:
    def __init__(self, special: Mapping[int, str]) -> None:
        self._texts = _Texts(special)
        self._parts = 0

    def to_lark(self, form: Any) -> str:
        return "\n".join([f"start: {self._expression(form)}", *self._texts.rules, TEXT])

    def _expression(self, form: Any) -> str:
        self._parts += 1
        if self._parts > MAX_TAGS:
            raise BadGrammar(f"A structural form may have {MAX_TAGS} parts.")
        match form:
            case {"type": "const_string", "value": str(text)}:
                return _sequence(self._texts.segments(text)) or '""'
            case {"type": "json_schema", "json_schema": schema}:
                return _json(schema)
            case {"type": "regex", "pattern": pattern}:
                return _regex(pattern)
            case {"type": "grammar", "grammar": str(text)}:
                return f"%lark {{\n{_lark(text)}}}"
            case {"type": "any_text"}:
                return "ANY"
            case {"type": "sequence"} | {"begin": _, "content": _, "end": _}:
                return f"({' '.join(self._in_a_row(_flat(form)))})"
            case {"type": "or", "elements": list(parts)} if parts:
                return self._either(parts)
            case {"type": "tags_with_separator", "tags": list(tags), "separator": str(separator)} if tags:
                each = self._either(tags)
                more = f" ({_sequence(self._texts.segments(separator))} {each})*"
                several = "" if form.get("stop_after_first") is True else more
                return f"({each}{several}){'' if form.get('at_least_one') is True else '?'}"
        raise BadGrammar(f"A part of a format is one of {FORM_TYPES}.")

    def _either(self, parts: list[Any]) -> str:
        return f"({' | '.join(map(self._expression, parts))})"

    def _in_a_row(self, parts: list[Any]) -> Iterator[str]:
        rest = iter(enumerate(parts, start=1))
        for number, part in rest:
            if number < len(parts) and isinstance(part, dict) and part.get("type") == "any_text":
                _, following = next(rest)
                text = following.get("value") if isinstance(following, dict) else None
                if not isinstance(text, str) or not (segments := self._texts.segments(text)):
                    raise BadGrammar("Behind any text must stand the text that ends it.")
                yield self._texts.until(segments)
            else:
                yield self._expression(part)


def _flat(part: Any) -> list[Any]:
    """The parts in a row that a sequence or a tag consists of; another part alone."""
    match part:
        case {"type": "sequence", "elements": list(parts)} if parts:
            return [inner for element in parts for inner in _flat(element)]
        case {"type": "sequence"}:
            raise BadGrammar("A sequence has elements.")
        case {"begin": str(begin), "content": content, "end": str(end)}:  # a tag; its type may be left out
            begins, ends = ({"type": "const_string", "value": text} for text in (begin, end))
            return [begins, *_flat(content), ends]
        case {"begin": _, "content": _, "end": _}:
            raise BadGrammar("A tag begins and ends with texts.")
    return [part]


def _strings(described: Mapping[str, Any], key: str) -> list[str]:
    texts = described.get(key)
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        raise BadGrammar(f"{key} must be an array of strings.")
    return texts


def _sequence(segments: Iterable[Segment]) -> str:
    return " ".join(f"<[{part}]>" if isinstance(part, int) else json.dumps(part) for part in segments)


def _tokens(token_ids: set[int]) -> list[str]:
    return [f"<[{','.join(map(str, sorted(token_ids)))}]>"] if token_ids else []
