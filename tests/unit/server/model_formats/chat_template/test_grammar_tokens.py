"""Where a server takes <tool_call> for special, grammars name it by id, and no text can spell it."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import pytest
from tokenizers import Tokenizer

from engine.grammar.compiler import GrammarCompiler
from engine.request import StructuredOutput
from engine.vocabulary import Vocabulary, read_vocabulary
from server.configuration.shipped_files import demo_model_folder
from server.model_formats.model_format import PromptConversation, PromptTool
from server.model_formats.select_format import load_model_format
from server.protocol.responses.items import InputText, Message
from server.protocol.responses.tools import ToolChoice

USER = Message("1", "completed", "user", [InputText("hi")])
CITY = {
    "type": "object",
    "properties": {"city": {"type": "string"}},
    "required": ["city"],
    "additionalProperties": False,
}
WEATHER = PromptTool(name="get_weather", strict=True, parameters=CITY)
CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Oslo"}}\n</tool_call>'
END = 1273


@pytest.fixture(scope="module")
def vocabulary() -> Vocabulary:
    vocabulary = read_vocabulary(demo_model_folder(), 1280)
    assert vocabulary is not None
    assert vocabulary.markup
    return vocabulary


@pytest.fixture(scope="module")
def compiler(vocabulary: Vocabulary) -> Iterator[GrammarCompiler]:
    """As a server's."""
    made = GrammarCompiler(replace(vocabulary, special=vocabulary.special | vocabulary.markup))
    yield made
    made.close()


def grammar_of(vocabulary: Vocabulary, mode: str) -> StructuredOutput:
    model_format = load_model_format(
        demo_model_folder(), frozenset({END}), grammar_token_ids=vocabulary.markup
    )
    choice = ToolChoice(mode=mode)  # type: ignore[arg-type]
    prompt = model_format.write(PromptConversation(items=[USER], tools=[WEATHER], tool_choice=choice))
    assert prompt.grammar is not None
    return prompt.grammar


def tokens_of(text: str, vocabulary: Vocabulary, *, spelled: bool) -> list[int]:
    """`spelled`: no token stands for markup."""
    tokenizer: Tokenizer = Tokenizer.from_file(str(demo_model_folder() / "tokenizer.json"))
    if not spelled:
        return list(tokenizer.encode(text, add_special_tokens=False).ids)
    return [vocabulary.tokens.index(letter.encode()) for letter in text]


def accepts(compiler: GrammarCompiler, grammar: StructuredOutput, token_ids: Sequence[int]) -> bool:
    """Whether all of the tokens may come, and the output may end after them."""
    matcher = compiler.compiled(grammar).begin()
    return matcher.validate_tokens(list(token_ids)) == len(token_ids) and bool(
        matcher.consume_tokens(list(token_ids)) and matcher.is_accepting()
    )


@pytest.mark.parametrize("mode", ["auto", "required"])
def test_a_call_is_written_with_the_tokens_of_its_markup(
    compiler: GrammarCompiler, vocabulary: Vocabulary, mode: str
) -> None:
    grammar = grammar_of(vocabulary, mode)
    assert accepts(compiler, grammar, tokens_of(CALL, vocabulary, spelled=False))
    assert not accepts(compiler, grammar, tokens_of(CALL, vocabulary, spelled=True))


def test_text_may_not_spell_what_would_be_read_as_a_call(
    compiler: GrammarCompiler, vocabulary: Vocabulary
) -> None:
    grammar = grammar_of(vocabulary, "auto")
    assert accepts(compiler, grammar, tokens_of("hello", vocabulary, spelled=True))
    assert not accepts(compiler, grammar, tokens_of("a<tool_call>b", vocabulary, spelled=True))
    both = tokens_of("hello ", vocabulary, spelled=True) + tokens_of(CALL, vocabulary, spelled=False)
    assert accepts(compiler, grammar, both)
