"""Model folders of every family, small enough to be made in a test: a tokenizer and a chat template.

The templates in `templates/` are written here, from what each family's format is documented to be. The
tokenizer has all bytes, some longer pieces that cross the borders between text and markup, and the
family's added tokens, special or not as its own tokenizer has them.
"""

import atexit
import functools
import json
import re
import tempfile
from collections import Counter
from pathlib import Path

import pytest
from _pytest.mark.structures import ParameterSet
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

from server.model_formats.chat_template.chat_template_format import ChatTemplateFormat
from server.model_formats.model_format import (
    CallDelta,
    CallEnd,
    CallStart,
    Delta,
    PromptTool,
    ReasoningDelta,
    TextDelta,
    merge_deltas,
)
from server.model_formats.select_format import load_model_format
from server.model_formats.tool_calls.format_table import TOOL_CALL_FORMATS
from tests.support.family_formats import FAMILIES, Family

TEMPLATES = Path(__file__).parent / "templates"
WEATHER = PromptTool(
    name="get_weather",
    description="The weather in a city.",
    parameters={
        "type": "object",
        "properties": {
            "city": {"type": "string"},
            "days": {"type": "integer"},
            "units": {"type": "string", "enum": ["C", "F"]},
        },
        "required": ["city"],
        "additionalProperties": False,
    },
)
CLOCK = PromptTool(name="get_time", description="", parameters={"type": "object", "properties": {}})
PATCH = PromptTool(name="patch", kind="custom", description="Changes files.")
TOOLS = (WEATHER, CLOCK, PATCH)


CALLERS = [name for name, family in FAMILIES.items() if family.call]
THINKERS = [name for name, family in FAMILIES.items() if family.open and family.call]


def _grammar_callers() -> list[ParameterSet]:
    writers: Counter[object] = Counter()
    parameters = []
    for name in CALLERS:
        writer = TOOL_CALL_FORMATS[name].call_grammar
        writers[writer] += 1
        parameters.append(pytest.param(name, marks=[pytest.mark.faults] * (writers[writer] > 2)))
    return parameters


GRAMMAR_CALLERS = _grammar_callers()
"""All families for tests of grammars: of those whose calls share the code of a grammar, two in the suite."""


@functools.cache
def folder_of(name: str) -> Path:
    """The family's model folder; there are no weights in it."""
    family = FAMILIES[name]
    directory = tempfile.TemporaryDirectory(prefix=f"holdfast-{name}-")
    atexit.register(directory.cleanup)
    folder = Path(directory.name)
    tokenizer_of(family).save(str(folder / "tokenizer.json"))
    (folder / "chat_template.jinja").write_text((TEMPLATES / f"{name}.jinja").read_text())
    named = {"bos_token": family.special.split()[0], "eos_token": family.eos}
    (folder / "tokenizer_config.json").write_text(
        json.dumps(named | {"tokenizer_class": "TokenizersBackend"})
    )
    return folder


def tokenizer_of(family: Family) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=500,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        max_token_length=6,
        show_progress=False,
    )
    marks = re.compile("|".join(map(re.escape, sorted(family.added, key=len, reverse=True))))
    samples = [part for text in (family.call, family.two, family.patch) for part in marks.split(text)]
    tokenizer.train_from_iterator(
        [*samples, "the weather in Paris is good and the sum of two is four"], trainer
    )
    tokenizer.add_special_tokens([AddedToken(text, normalized=False) for text in family.special.split()])
    tokenizer.add_tokens([AddedToken(text, normalized=False, special=False) for text in family.plain.split()])
    return tokenizer


@functools.cache
def format_of(name: str) -> ChatTemplateFormat:
    family = FAMILIES[name]
    stop = tokenizer_at(name).token_to_id(family.eos)
    assert stop is not None
    model_format = load_model_format(folder_of(name), frozenset({stop}))
    assert isinstance(model_format, ChatTemplateFormat)
    return model_format


def templated(source: str, family: str = "hermes") -> ChatTemplateFormat:
    """A model format with a family's tokenizer and this template."""
    with tempfile.TemporaryDirectory(prefix="holdfast-template-") as directory:
        for name in ("tokenizer.json", "tokenizer_config.json"):
            Path(directory, name).write_bytes((folder_of(family) / name).read_bytes())
        Path(directory, "chat_template.jinja").write_text(source)
        model_format = load_model_format(Path(directory), frozenset())
    assert isinstance(model_format, ChatTemplateFormat)
    return model_format


@functools.cache
def tokenizer_at(name: str) -> Tokenizer:
    return Tokenizer.from_file(str(folder_of(name) / "tokenizer.json"))


def ids_of(name: str, text: str) -> list[int]:
    ids: list[int] = tokenizer_at(name).encode(text, add_special_tokens=False).ids
    return ids


def shown(deltas: list[Delta]) -> list[str]:
    """Deltas in a word each, neighbours joined."""
    words = []
    for delta in merge_deltas(deltas):
        match delta:
            case TextDelta(text):
                words.append(f"text {text}")
            case ReasoningDelta(text):
                words.append(f"thought {text}")
            case CallStart(name, call_id, kind):
                words.append(" ".join(part for part in (kind, name, call_id) if part))
            case CallDelta(text):
                words.append(text)
            case CallEnd():
                words.append("end")
    return words
