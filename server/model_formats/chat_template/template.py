"""A model folder's Jinja chat template and tokenizer: renders messages and encodes them as token ids.
Templates are trusted, whether from the model folder or from a request: their running time is not limited.
Text of messages must not act as markup: every control token in it is split by a marker before rendering, and
the rendered text is encoded piece by piece between markers.
"""

import copy
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from itertools import chain
from pathlib import Path
from typing import Any, NoReturn

from jinja2 import Template, TemplateError, meta, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import Tokenizer

from server.model_formats.model_format import PromptError, PromptTooLong

_MARKER = "\ufdd0"
"""A Unicode noncharacter: never valid in interchanged text, so removing it from input loses nothing."""
_END = "\ufdd1"
"""Another noncharacter, which marks the end of the message to continue."""
_DROPPED = re.compile(f"[{_MARKER}{_END}\ud800-\udfff]")
_LOOKS_LIKE_CONTROL = re.compile(r"<[|｜].*[|｜]>|\[/?[A-Z_]+\]", re.DOTALL)

_TEMPLATE_ERRORS = (TypeError, ValueError, ArithmeticError, LookupError, AttributeError, RecursionError)

Message = dict[str, Any]

PIECE = 65_536
"""Characters counted in one call, at most 25 MB of memory; 1 million tokens take 380 MB and 1 s."""
CHARACTERS_PER_TOKEN = 2
"""A text of at most this many characters per allowed token is tokenized without counting."""
TOKENS_PER_CUT = 32
"""Tokens that a cut within a word may add to the count."""
MAX_COMPOSED = 4
"""Characters that NFC and NFKC may compose into one."""

PLAIN_TEMPLATE = """{% for message in messages %}{{ message.role | title }}:
{{ message.content }}

{% endfor %}{% if add_generation_prompt %}Assistant:
{% endif %}"""
"""For base models, which have no template: they go on with any text."""
PLAIN_STOPS = ("\n\nUser:", "\nUser:")
"""Texts with which such a model would go on to the user's turn."""


class MarkupText(str):
    """Text whose markup is intended; its untrusted parts have been through `ChatTemplate.guard`."""

    __slots__ = ()


class ChatTemplate:
    """The chat template and tokenizer of one model folder. Thread-safe."""

    def __init__(
        self, folder: Path, image_placeholder: str | None = None, template_file: Path | None = None
    ) -> None:
        """`image_placeholder` is what the template writes for a picture; None if the model reads none.
        `template_file` replaces the folder's; without either it is `PLAIN_TEMPLATE`. Raises
        FileNotFoundError or ValueError, naming the file, for an unusable folder.
        """
        tokenizer_file = folder / "tokenizer.json"
        if not tokenizer_file.is_file():
            raise FileNotFoundError(f"{tokenizer_file} does not exist; a model folder needs it.")
        self.tokenizer = _read_tokenizer(tokenizer_file)
        self.tokens = BoundedTokenizer(self.tokenizer)
        self.image_placeholder = image_placeholder
        config = read_json(folder / "tokenizer_config.json")
        self._param = "input"
        try:
            sources = _template_sources(folder, config, template_file)
            self.is_plain = not sources
            self._read(sources or {"default": PLAIN_TEMPLATE})
        except (TemplateError, UnicodeDecodeError) as error:
            of = template_file or folder
            raise ValueError(f"The chat template of {of} is not valid: {error}.") from error
        self._special = _special_tokens(config)
        self._lead = _prefix_of(self.tokenizer)
        self._lead_size = len(self.tokenizer.encode(self._lead, add_special_tokens=False).ids)

    def _read(self, sources: Mapping[str, str]) -> None:
        compiled = {name: _compiled(source) for name, source in sources.items()}
        self._templates = {name: template for name, (template, _, _) in compiled.items()}
        inputs = chain.from_iterable(names for _, names, _ in compiled.values())
        self.variables = frozenset(inputs) - _ENVIRONMENT.globals.keys()
        """The variables that the templates read from outside."""
        self.source = "\0".join(sources.values())
        literals = "\0".join(texts for _, _, texts in compiled.values())
        controls = _control_tokens(self.tokenizer, literals)
        self._control_start = _start_of_any([*controls, self.image_placeholder or ""])

    def replaced(self, source: str) -> "ChatTemplate":
        """A copy with another template. Raises PromptError if that is invalid."""
        other = copy.copy(self)
        other._param, other.is_plain = "chat_template", False
        try:
            other._read({"default": source})
        except (TemplateError, *_TEMPLATE_ERRORS) as error:
            raise PromptError(f"chat_template is not valid: {error}.", other._param) from error
        return other

    def render(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        documents: Sequence[Mapping[str, Any]] | None = None,
        generates: bool = True,
        continues: bool = False,
        **variables: object,
    ) -> str:
        """The prompt's text, with markers; with `continues` it ends within the last message."""
        guarded = self.guard(list(messages))
        if continues:
            guarded[-1]["content"] = _with_end_mark(guarded[-1]["content"])
        template = self._templates.get("tool_use" if tools else "default", self._templates["default"])
        if "functions" in self.variables:  # templates of 2024, before there were `tools`
            now: Any = variables.get("strftime_now", _strftime_now)
            variables["functions"] = json.dumps(tools or [], indent=4)
            variables["datetime"] = now("%B %d %Y, %H:%M:%S")
        try:
            rendered = template.render(
                messages=guarded,
                tools=None if tools is None else self.guard(list(tools)),
                documents=self.guard(list(documents)) if documents else None,
                add_generation_prompt=generates and not continues,
                **self._special,
                **self.guard(variables),
            )
        except (TemplateError, *_TEMPLATE_ERRORS) as error:
            sentence = f"The model's chat template refused the conversation: {error}."
            raise PromptError(sentence, self._param) from error
        return _cut_at_end_mark(rendered) if continues else rendered

    def insert_images(self, rendered: str, texts: Sequence[str]) -> str:
        """The rendered text with these texts in place of the placeholders. Raises PromptError."""
        if self.image_placeholder is None:
            return rendered
        pieces = rendered.split(self.image_placeholder)
        if len(pieces) != len(texts) + 1:
            raise PromptError("The model's chat template writes another number of pictures than there are.")
        return pieces[0] + "".join(text + piece for text, piece in zip(texts, pieces[1:], strict=True))

    def encode(self, rendered: str, limit: int | None = None) -> tuple[int, ...]:
        """The token ids of a rendered text. Raises PromptTooLong, see `BoundedTokenizer.encode`."""
        first, *rest = rendered.split(_MARKER)
        begun = [first, *(self._lead + piece for piece in rest)]
        if limit is not None and self._lead:
            limit += self._lead_size * len(rest)
        pieces = self.tokens.encode(begun, limit)
        ids = pieces[0]
        for piece in pieces[1:]:
            ids += piece[self._lead_size :]
        return tuple(ids)

    def surround(self, token_ids: tuple[int, ...]) -> tuple[int, ...]:
        """The ids with the tokenizer's own special tokens (BOS, EOS) around them."""
        bare, whole = (
            self.tokenizer.encode("a", add_special_tokens=special).ids for special in (False, True)
        )
        begin = next((at for at in range(len(whole)) if whole[at : at + len(bare)] == bare), None)
        if begin is None:
            return token_ids  # special tokens change the text's own tokens: nothing can be added
        return (*whole[:begin], *token_ids, *whole[begin + len(bare) :])

    def plain(self, rendered: str) -> str:
        return rendered.replace(_MARKER, "")

    def guard(self, value: Any) -> Any:
        """The value with all control tokens in strings and keys split by markers."""
        match value:
            case MarkupText():
                return value
            case str():
                return self._control_start.sub(lambda match: match[0] + _MARKER, _DROPPED.sub("", value))
            case Mapping():
                return {self.guard(name): self.guard(inner) for name, inner in value.items()}
            case list() | tuple():
                return _Given(self.guard(inner) for inner in value)
        return value


def _with_end_mark(content: Any) -> Any:
    """The content of a message, text or parts, with the end mark after its text."""
    if isinstance(content, str):
        return f"{content}{_END} "
    *before, last = content
    return [*before, {**last, "text": f"{last['text']}{_END} "}]


def _cut_at_end_mark(rendered: str) -> str:
    """The text up to the end mark; templates may have trimmed the space after it."""
    end = rendered.rfind(_END)
    if end < 0:
        raise PromptError("The model's chat template leaves out the message that is to be continued.")
    before = rendered[:end]
    return before if rendered.startswith(f"{_END} ", end) else before.rstrip()


def _control_tokens(tokenizer: Tokenizer, literals: str) -> list[str]:
    """Special tokens, and added ones that are markup, which clients must not produce, unlike blanks, HTML."""
    return [
        token.content
        for token in tokenizer.get_added_tokens_decoder().values()
        if token.special
        or (len(token.content.strip()) > 1 and any(text in literals for text in _both_ends(token.content)))
        or _LOOKS_LIKE_CONTROL.fullmatch(token.content)
    ]


def _both_ends(tag: str) -> tuple[str, str]:
    """The start and end tag of a pair; a template that contains one uses both."""
    return tag, tag.replace("</", "<", 1) if tag.startswith("</") else tag.replace("<", "</", 1)


def _start_of_any(controls: Iterable[str]) -> re.Pattern[str]:
    """Matches the first character of every control token, also of those that overlap."""
    rests: dict[str, list[str]] = {}
    for text in controls:
        if len(text) > 1:
            rests.setdefault(text[0], []).append(re.escape(text[1:]))
    starts = [f"{re.escape(first)}(?={'|'.join(following)})" for first, following in rests.items()]
    return re.compile("|".join(starts) or r"(?!)")


def _prefix_of(tokenizer: Tokenizer) -> str:
    """A line break before pieces after the first, against leading spaces, as in transformers; or nothing."""
    alone = tokenizer.encode("a", add_special_tokens=False).ids
    lead = tokenizer.encode("\n", add_special_tokens=False).ids
    after = tokenizer.encode("\na", add_special_tokens=False).ids
    return "\n" if lead and after[: len(lead)] == lead and after[len(lead) :] != alone else ""


def _read_tokenizer(path: Path) -> Tokenizer:
    try:
        return Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises plain Exception
        raise ValueError(f"{path} cannot be read as a tokenizer: {error}.") from error


def read_json(path: Path) -> dict[str, Any]:
    """The file's JSON object; empty without a file. Raises ValueError."""
    if not path.is_file():
        return {}
    try:
        content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path} is not valid JSON: {error}.") from error
    return content


def _template_sources(folder: Path, config: Mapping[str, Any], file: Path | None) -> dict[str, Any]:
    """The templates by name: `default`, and `tool_use` if there is one; empty if there is none."""
    if file is not None:
        return {"default": file.read_text(encoding="utf-8")}
    template = config.get("chat_template")
    sources = {"default": template}
    if isinstance(template, list):
        sources = {entry["name"]: entry["template"] for entry in template}
    if template is None:  # of a processor, in folders of older releases of transformers
        sources["default"] = read_json(folder / "chat_template.json").get("chat_template")
    for name, file in (
        ("default", folder / "chat_template.jinja"),
        ("tool_use", folder / "additional_chat_templates" / "tool_use.jinja"),
    ):
        if file.is_file():
            sources[name] = file.read_text(encoding="utf-8")
    if not isinstance(sources.get("default"), str):
        return {}
    return {name: sources[name] for name in ("default", "tool_use") if isinstance(sources.get(name), str)}


def _special_tokens(config: Mapping[str, Any]) -> dict[str, str]:
    tokens = {key: value for key, value in config.items() if key.endswith("_token") and value}
    return {key: token["content"] if isinstance(token, dict) else str(token) for key, token in tokens.items()}


class _Given(list[Any]):
    """A list of a conversation, which templates may not change, unlike their own lists."""


class _Environment(ImmutableSandboxedEnvironment):
    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        if type(obj) is list and attr in ("append", "pop"):
            return True
        return super().is_safe_attribute(obj, attr, value)


_NOT_ASCII = re.compile(f"[^\\x00-\\x7f{_MARKER}]")


class _Generation(Extension):
    """`{% generation %}`, which marks the assistant's part for training; its content is rendered as is."""

    tags = {"generation"}  # noqa: RUF012 - Jinja reads a set here

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _raise_exception(message: str) -> NoReturn:
    raise TemplateError(message)


def _tojson(
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON in which markers are never escaped."""
    text = json.dumps(value, ensure_ascii=False, indent=indent, separators=separators, sort_keys=sort_keys)
    return _NOT_ASCII.sub(lambda match: json.dumps(match[0])[1:-1], text) if ensure_ascii else text


def _strftime_now(pattern: str) -> str:
    return datetime.now().astimezone().strftime(pattern)


@lru_cache(maxsize=16)
def _compiled(source: str) -> tuple[Template, set[str], str]:
    """A template, `_inputs_of` it and `_literals_of` it."""
    tree = _ENVIRONMENT.parse(source)
    return _ENVIRONMENT.from_string(source), _inputs_of(tree), _literals_of(tree)


def _inputs_of(tree: nodes.Template) -> set[str]:
    """The variables that a template reads, without those that it has set before."""
    first: dict[str, str] = {}
    for name in _names_of(tree):
        first.setdefault(name.name, name.ctx)
    undeclared = meta.find_undeclared_variables(tree)
    return {name for name in undeclared if first.get(name) == "load"}


def _names_of(node: nodes.Node) -> Iterator[nodes.Name]:
    """All names of a template in the order in which it reads and sets them."""
    if isinstance(node, nodes.Name):
        yield node
    children = list(node.iter_child_nodes())
    if isinstance(node, nodes.Assign | nodes.For):  # the target comes first, and is set last
        children.insert(1, children.pop(0))
    for child in children:
        yield from _names_of(child)


def _literals_of(tree: nodes.Template) -> str:
    """All text and string constants of a template, joined with NUL."""
    texts: list[Any] = [node.data for node in tree.find_all(nodes.TemplateData)]
    texts += [node.value for node in tree.find_all(nodes.Const) if isinstance(node.value, str)]
    return "\0".join(texts)


_ENVIRONMENT = _Environment(trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols])
_ENVIRONMENT.filters["tojson"] = _tojson
_ENVIRONMENT.globals |= {"raise_exception": _raise_exception, "strftime_now": _strftime_now}


class BoundedTokenizer:
    """One model's tokenizer with a token limit, so that long texts do not cost unbounded time, memory or GIL
    time. They are found by their characters, then in pieces. Only the library's batch call releases the GIL.
    Thread-safe.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self.max_chars_per_token = _max_chars_per_token(tokenizer)
        """Maximum characters of a token; None if the tokenizer may drop or join any number of characters."""

    def encode(
        self, texts: Sequence[str], limit: int | None = None, *, special: bool = False
    ) -> list[list[int]]:
        """The ids of each text, with BOS and EOS if `special`. Raises PromptTooLong well beyond `limit`."""
        if limit is not None:
            self._refuse_long(texts, limit)
        return [
            piece.ids for piece in self._tokenizer.encode_batch_fast(list(texts), add_special_tokens=special)
        ]

    def _refuse_long(self, texts: Sequence[str], limit: int) -> None:
        size = sum(map(len, texts))
        if self.max_chars_per_token is not None and size > limit * self.max_chars_per_token:
            raise PromptTooLong(limit)
        if size <= max(PIECE, limit * CHARACTERS_PER_TOKEN):
            return
        count = 0
        for cuts, batch in enumerate(_batches(texts), 1):
            count += sum(map(len, self._tokenizer.encode_batch_fast(batch, add_special_tokens=False)))
            if count > limit + TOKENS_PER_CUT * cuts:
                raise PromptTooLong(limit)


def _batches(texts: Sequence[str]) -> list[list[str]]:
    """The texts in order, cut into batches of `PIECE` characters or fewer."""
    batches: list[list[str]] = [[]]
    size = 0
    for text in texts:
        for start in range(0, len(text), PIECE):
            piece = text[start : start + PIECE]
            if size + len(piece) > PIECE:
                batches.append([])
                size = 0
            batches[-1].append(piece)
            size += len(piece)
    return batches


def _max_chars_per_token(tokenizer: Tokenizer) -> int | None:
    """The bound for byte-level BPE, whose tokens contain every character of a text; else None."""
    normalizer = type(tokenizer.normalizer).__name__
    if normalizer not in ("NoneType", "NFC", "NFKC") or type(tokenizer.model).__name__ != "BPE":
        return None
    if b"ByteLevel" not in _state(tokenizer.pre_tokenizer) or getattr(tokenizer.model, "fuse_unk", False):
        return None
    added = tokenizer.get_added_tokens_decoder().values()
    if any(token.lstrip or token.rstrip for token in added):
        return None
    longest = max(map(len, tokenizer.get_vocab(with_added_tokens=True)), default=1)
    return longest * (1 if normalizer == "NoneType" else MAX_COMPOSED)


def _state(part: object) -> bytes:
    state = b"" if part is None else part.__getstate__()
    return state if isinstance(state, bytes) else b""
