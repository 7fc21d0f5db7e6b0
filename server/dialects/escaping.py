r"""A custom tool's Lark grammar, rewritten for its input as it stands inside a JSON string.

There `"` and `\` have a backslash before them, and control characters are escapes. Each literal and each
regular expression is rewritten by itself, an atom at a time; the rules stay as they are.
"""

import json
import re

from server.dialects.base import PromptError

_TERMINAL = re.compile(
    r'//[^\n]*|(?P<text>"(?:\\.|[^"\\\n])*")(?P<case>i?)|/(?P<regex>(?:\\.|[^/\\\n])+)/(?P<flags>[a-z]*)'
)
_ATOM = re.compile(
    r"""\(\?[a-zA-Z-]*[:)]|\(\?P?<\w+>|\[\^?\]?(?:\\.|\[:\^?\w+:\]|[^\]\\])*\]|\\[xuU]\{[0-9a-fA-F]+\}"""
    r"""|\\x[0-9a-fA-F]{2}|\\u[0-9a-fA-F]{4}|\\[pP]\{[^}]*\}|\{\d*,?\d*\}|\\.|.""",
    re.DOTALL,
)
_SPECIAL = {
    '"': '\\\\"',
    "\\": "\\\\\\\\",
    "\n": "\\\\n",
    "\r": "\\\\r",
    "\t": "\\\\t",
    "\b": "\\\\b",
    "\f": "\\\\f",
}
"""Characters that are written otherwise in JSON, each with a pattern for how."""
_PLAIN = r"[^\"\\\x00-\x1f]"
_SYNTAX = set("()|*+?^$")


def escaped_grammar(definition: str) -> str:
    """The grammar of the JSON-escaped input. Raises PromptError for what cannot be rewritten."""
    return _TERMINAL.sub(_rewrite, definition)


def _rewrite(found: re.Match[str]) -> str:
    if found["text"] is not None:
        try:
            said = json.loads(found["text"].replace("\\'", "'"))
        except ValueError:
            raise PromptError(f"The literal {found['text']} is not understood.", "tools") from None
        return json.dumps(json.dumps(said, ensure_ascii=False)[1:-1]) + found["case"]
    if found["regex"] is None:
        return found[0]
    if found["flags"].strip("is"):
        raise PromptError(f"The flags of {found[0]} are not served.", "tools")
    dot_is_all = "s" in found["flags"]
    pattern = "".join(_atom(atom[0], dot_is_all) for atom in _ATOM.finditer(found["regex"]))
    return f"/{pattern}/{'i' if 'i' in found['flags'] else ''}"


def _atom(atom: str, dot_is_all: bool) -> str:
    """One atom of a regular expression, as it is in a JSON string."""
    if atom in _SYNTAX or atom.startswith(("{", "(?")) or atom in ("\\b", "\\B", "\\A", "\\z"):
        return atom
    if len(atom) == 1 and atom not in '.[{"\n\t\r\f':
        return atom
    if len(atom) == 2 and atom[0] == "\\" and atom[1] in "/.-[](){}|*+?^$":
        return atom
    tested = re.compile(_for_python(atom), re.DOTALL if dot_is_all else 0)
    written = [how for character, how in _SPECIAL.items() if tested.fullmatch(character)]
    inner = "[^\\n]" if atom == "." else atom if atom.startswith("[") else f"[{atom}]"
    if atom == "." and dot_is_all:
        inner = _PLAIN
    only_special = len(written) == 1 and not _may_be_plain(tested)
    plain = [] if only_special else [f"[{inner}&&{_PLAIN}]" if inner != _PLAIN else _PLAIN]
    alternatives = [*plain, *written]
    return alternatives[0] if len(alternatives) == 1 else f"(?:{'|'.join(alternatives)})"


def _may_be_plain(tested: re.Pattern[str]) -> bool:
    return any(tested.fullmatch(chr(code)) for code in range(0x20, 0x250) if chr(code) not in '"\\') or any(
        tested.fullmatch(character) for character in "日é😀\u2028"
    )


def _for_python(atom: str) -> str:
    """The same atom for Python's `re`, as far as the characters matter that JSON escapes."""
    atom = re.sub(r"\\[xuU]\{([0-9a-fA-F]+)\}", lambda found: f"\\U{int(found[1], 16):08x}", atom)
    atom = re.sub(r"\\[pP]\{[^}]*\}", "", atom)
    try:
        re.compile(atom or "(?!)")
    except re.error:
        raise PromptError(f"The pattern {atom} is not understood.", "tools") from None
    return atom or "(?!)"
