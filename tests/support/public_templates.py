"""The tables of public chat templates in docs/models.md and docs/guides.md, written by
`python -m tests.support.public_templates`.

The templates are those of llama.cpp, of vLLM and of transformers' tests, where they have been fetched. No
weights are needed: each template gets a tokenizer whose special tokens are the marks that it writes.
"""

import ast
import json
import random
import re
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

from engine.grammar.compiler import GrammarCompiler
from engine.vocabulary import read_vocabulary
from server.model_formats.chat_template.chat_template_format import ChatTemplateFormat
from server.model_formats.chat_template.template_check import contradictions
from server.model_formats.model_format import (
    CallEnd,
    CallStart,
    PromptConversation,
    PromptError,
    PromptTool,
    merge_deltas,
)
from server.model_formats.reasoning import REASONING_FORMATS
from server.model_formats.select_format import load_model_format
from server.model_formats.tool_calls.format_table import TOOL_CALL_FORMATS
from server.protocol.responses.items import (
    FunctionCall,
    FunctionCallOutput,
    InputText,
    Item,
    Message,
    OutputText,
    Reasoning,
    ReasoningText,
)
from server.protocol.responses.request import ReasoningContext
from server.protocol.responses.tools import ToolChoice
from tests.peers import sources
from tests.support.documents import between
from tests.support.server_process import REPOSITORY
from tests.support.walks import ENDS, walk

PAGE = REPOSITORY / "docs" / "models.md"
GUIDE = REPOSITORY / "docs" / "guides.md"
LLAMA = REPOSITORY / ".llama" / "source" / "llama.cpp" / "models" / "templates"
END = "<|im_end|>"
_MARK = re.compile(
    r"<[|｜][^|｜<>\n' ]{1,40}[|｜]>|<\|[a-z_]+>|<[a-z_]+\|>|\]<\]minimax\[>\["
    r"|\[/?(?:TOOL_CALLS|THINK|ARGS|CALL_ID|INST|AVAILABLE_TOOLS|TOOL_RESULTS|SYSTEM_PROMPT|TOOL_CONTENT)\]"
)
_THOUGHT = Reasoning("rs_1", "completed", [], [ReasoningText("xthoughtx")])
_USER = Message("msg_1", "completed", "user", [InputText("Say")])
_TOOLS = [
    PromptTool(
        name=name,
        description="A tool.",
        strict=True,
        parameters={
            "type": "object",
            "properties": {"city": {"type": "string", "description": "A city."}},
            "required": ["city"],
            "additionalProperties": False,
        },
    )
    for name in ("get_weather", "get_time")
]


def folder_with(template: str, where: Path, *, special: bool = True) -> Path:
    """A model folder with the template. With `special`, the marks that look like control tokens are such."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(vocab_size=260, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(["hello"], trainer)
    marks = sorted(set(_MARK.findall(template)) - {END}) if special else []
    tokenizer.add_special_tokens([AddedToken(mark, normalized=False) for mark in ["<s>", END, *marks]])
    tokenizer.save(str(where / "tokenizer.json"))
    (where / "chat_template.jinja").write_text(template)
    (where / "tokenizer_config.json").write_text(json.dumps({"bos_token": "<s>", "eos_token": END}))
    (where / "config.json").write_text(json.dumps({"model_type": "of_a_template"}))
    return where


@dataclass(frozen=True, slots=True)
class Row:
    """What is served with one template."""

    template: str
    call_format: str
    calls: str
    parallel: str
    forced: str
    reasoning: str
    effort: str
    verdict: str

    def __str__(self) -> str:
        cells = (
            f"`{self.template}`",
            self.call_format,
            self.calls,
            self.parallel,
            self.forced,
            self.reasoning,
            self.effort,
            self.verdict,
        )
        return f"| {' | '.join(cells)} |"


HEAD = (
    "| template | format | calls | parallel | forced | reasoning | effort | verdict |\n"
    "| --- | --- | --- | --- | --- | --- | --- | --- |\n"
)


def row_of(name: str, template: str, where: Path) -> Row:
    """The row of one template; `where` is an empty folder."""
    folder = folder_with(template, where)
    model_format = format_at(folder)
    unread = contradictions(model_format)
    known = model_format.call_format is not None and "calls" not in unread
    garbled = [part for part in unread if part != "calls"]
    calls = "described" if model_format.describes_tools else "yes"
    return Row(
        name,
        f"`{model_format.call_format}`" if known else "-",
        calls if known else "refused",
        _yes(known and _reads_two(model_format)),
        _yes(known and _can_force(model_format, folder)),
        f"`{model_format.reasoning_name}`" if model_format.reasoning_name else "-",
        ", ".join(model_format.effort_values) or "-",
        "not served" if garbled else "served" if known else "text only",
    )


def format_at(folder: Path) -> ChatTemplateFormat:
    end = Tokenizer.from_file(str(folder / "tokenizer.json")).token_to_id(END)
    assert end is not None
    model_format = load_model_format(folder, frozenset({end}))
    assert isinstance(model_format, ChatTemplateFormat)
    return model_format


def _yes(holds: bool) -> str:
    return "yes" if holds else "no"


def _reads_two(model_format: ChatTemplateFormat) -> bool:
    """Whether two calls of one turn, written by the template, are read as two."""
    turn: list[Item] = [
        FunctionCall(f"fc_{n}", "completed", f"call_{n}", tool.name, '{"city": "Paris"}')
        for n, tool in enumerate(_TOOLS)
    ]
    try:
        asked = model_format.write(PromptConversation(items=[_USER], tools=_TOOLS))
        whole = model_format.write(
            PromptConversation(items=[_USER, *turn], tools=_TOOLS, add_generation_prompt=False)
        )
    except PromptError:
        return False
    before = model_format.without_reasoning_marks(model_format.spell(asked.token_ids))
    _, _, written = model_format.spell(whole.token_ids).rpartition(before)
    parser = model_format.parser(asked)
    deltas = merge_deltas(parser.feed(model_format.encode(written, special=False)) + parser.close())
    names = [delta.name for delta in deltas if isinstance(delta, CallStart)]
    return names == [tool.name for tool in _TOOLS]


def _can_force(model_format: ChatTemplateFormat, folder: Path) -> bool:
    """Whether random outputs under `tool_choice: required` are whole calls with the schema's arguments."""
    prompt = model_format.write(
        PromptConversation(items=[_USER], tools=_TOOLS, tool_choice=ToolChoice(mode="required"))
    )
    vocabulary = read_vocabulary(folder, Tokenizer.from_file(str(folder / "tokenizer.json")).get_vocab_size())
    assert vocabulary is not None
    assert prompt.grammar is not None
    compiler = GrammarCompiler(vocabulary)
    marks = [form.end_tags[0] for form in REASONING_FORMATS if form.name == model_format.reasoning_name]
    calls = TOOL_CALL_FORMATS[model_format.call_format or "hermes"]
    own = [getattr(calls, name, "") for name in ("quote", "string_end")]
    texts = [*own, *calls.around, *calls.call, *getattr(calls, "argument", ()), calls.separator, calls.suffix]
    ends = [*marks, *texts, *(text.strip() for text in texts), *calls.closers, *ENDS]
    hints = [list(model_format.encode(text, special=False)) for text in ends if text]
    try:
        for seed in range(3):
            tokens = walk(compiler, prompt.grammar, random.Random(seed), hints)
            parser = model_format.parser(prompt)
            deltas = merge_deltas(parser.feed(tokens) + parser.close())
            starts = sum(isinstance(delta, CallStart) for delta in deltas)
            if not starts or starts != sum(isinstance(delta, CallEnd) for delta in deltas):
                return False
    finally:
        compiler.close()
    return True


def llama_templates() -> dict[str, str]:
    """llama.cpp's collection, by file name, where it has been fetched; harmony's has a format of its own."""
    return {path.stem: path.read_text() for path in LLAMA.glob("*.jinja") if "gpt-oss" not in path.stem}


def vllm_templates() -> dict[str, str]:
    """vLLM's templates for chats and those of its tests, by file name."""
    root = sources.vllm()
    paths = [*root.glob("examples/*.jinja"), *root.glob("rust/src/chat/tests/templates/*.jinja")]
    return {path.stem: path.read_text() for path in paths}


def transformers_templates() -> dict[str, str]:
    """The templates in transformers' tests, by the name of the test and a number."""
    templates: dict[str, str] = {}
    for path in sources.transformers().glob("tests/**/*.py"):
        for function in ast.walk(ast.parse(path.read_text())):
            if isinstance(function, ast.FunctionDef):
                texts = [node.value for node in ast.walk(function) if isinstance(node, ast.Constant)]
                own = dict.fromkeys(text for text in texts if isinstance(text, str) and _LOOP in text)
                templates |= {f"{function.name}-{number}": text for number, text in enumerate(own, 1)}
    return templates


_LOOP = "for message in messages"


def rows(templates: Mapping[str, str]) -> Iterator[Row]:
    """The rows of templates, by name."""
    for name, template in sorted(templates.items()):
        with tempfile.TemporaryDirectory() as where:
            yield row_of(name, template, Path(where))


def table(templates: Mapping[str, str]) -> str:
    """The table of templates in Markdown."""
    return HEAD + "".join(f"{row}\n" for row in rows(templates))


def reasoning_table(templates: Mapping[str, str]) -> str:
    """The templates that write reasoning, by what they write of earlier turns, in Markdown."""
    ways: dict[tuple[str, str], list[str]] = {}
    for name, template in sorted(templates.items()):
        with tempfile.TemporaryDirectory() as where:
            model_format = format_at(folder_with(template, Path(where)))
            if model_format.reasoning_name:
                ways.setdefault(_written_reasoning(model_format), []).append(f"`{name}`")
    lines = [f"| {', '.join(names)} | {' | '.join(way)} |\n" for way, names in sorted(ways.items())]
    return "| templates | of themselves | `all_turns` |\n| --- | --- | --- |\n" + "".join(lines)


def _written_reasoning(model_format: ChatTemplateFormat) -> tuple[str, str]:
    """Which turns' reasoning is written of itself, and with `all_turns`."""
    call = FunctionCall("fc_1", "completed", "call_1", "get_time", '{"city": "Paris"}')
    turn: list[Item] = [_THOUGHT, call, FunctionCallOutput("fco_1", "completed", "call_1", "Noon")]
    ends: list[Item] = [Message("msg_2", "completed", "assistant", [OutputText("Noon")]), _USER]

    def writes(items: list[Item], context: ReasoningContext = "auto") -> bool:
        conversation = PromptConversation(
            items=[_USER, *items], tools=_TOOLS, reasoning_context=context, reasoning_effort="high"
        )
        return "xthoughtx" in model_format.spell(model_format.write(conversation).token_ids)

    own = "all turns" if writes([*turn, *ends]) else "the current turn" if writes(turn) else "none"
    try:
        return own, "works" if writes([*turn, *ends], "all_turns") else "nothing"
    except PromptError:
        return own, "400"


def main() -> None:
    collections = {
        "llama.cpp's collection": llama_templates(),
        "vLLM's `examples` and the templates of its tests": vllm_templates(),
        "transformers' tests": transformers_templates(),
    }
    tables = [f"{title}:\n\n{table(templates)}" for title, templates in collections.items()]
    remembered = reasoning_table(llama_templates())
    GUIDE.write_text(between(GUIDE.read_text(), "reasoning of templates", remembered))
    PAGE.write_text(between(PAGE.read_text(), "templates", "\n".join(tables)))


if __name__ == "__main__":
    main()
