r"""A custom tool's Lark grammar, rewritten for its input as it stands inside a JSON string.

There `"` and `\` have a backslash before them, and line breaks and tabs are escapes of two characters. Every
text and every regular expression becomes a rule of single characters, each as JSON writes it: as one
terminal, a line of any text would swallow the backslash with which the escape after it begins.
"""

import json
import re
from collections.abc import Iterator
from functools import lru_cache

from server.model_formats.interface import PromptError

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
"""Characters that JSON strings escape."""
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
"""Terminals of Lark's library `common`."""


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
        said: str = json.loads(text.replace("\\'", "'"))
    except ValueError:
        raise _unsupported(text) from None
    return said


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
