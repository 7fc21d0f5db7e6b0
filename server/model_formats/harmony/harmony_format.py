"""gpt-oss's model format, OpenAI's harmony: prompt encoding, output parser and output grammar.

Items are encoded with the format's control tokens; the parser accepts any output; a grammar enforces the
request's tools and output format.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime
from pathlib import Path

from server.model_formats.harmony.encoding import HarmonyEncoding, clean
from server.model_formats.harmony.message_dump import read_messages
from server.model_formats.harmony.output_grammar import make_grammar
from server.model_formats.harmony.output_parser import HarmonyParser
from server.model_formats.harmony.prompt_messages import (
    PromptMessage,
    developer_text,
    format_section,
    prompt_messages,
    split_instructions,
    system_text,
)
from server.model_formats.harmony.tools import BUILTIN, read_builtin, tools_by_namespace
from server.model_formats.harmony.vocabulary import (
    CALL,
    CHANNEL,
    CONSTRAIN,
    END,
    MESSAGE,
    START,
    STOPS,
    VocabularyPlaces,
    find_vocabulary,
)
from server.model_formats.interface import (
    Conversation,
    Messages,
    Prompt,
    PromptError,
    PromptTooLong,
    ReasoningMarks,
)


def _today() -> date:
    return datetime.now(UTC).date()


@dataclass(frozen=True, slots=True)
class HarmonyFormat:
    """An `interface.ModelFormat` for gpt-oss."""

    encoding: HarmonyEncoding
    today: Callable[[], date] = _today
    """The current date in the system message."""

    @classmethod
    def load(cls, folder: Path, places: VocabularyPlaces) -> "HarmonyFormat":
        """The format for `folder`. Raises FileNotFoundError or ValueError without a vocabulary."""
        return cls(HarmonyEncoding(find_vocabulary(folder, places), places.user_folder))

    def write(self, conversation: Conversation) -> Prompt:
        """The prompt; see `ModelFormat.write`. Reads chat_template_kwargs `builtin_tools` (browser, python)
        and `model_identity`.
        """
        if conversation.chat_template is not None:
            raise PromptError("This model's prompts are not written by a chat template.", "chat_template")
        if conversation.documents:
            raise PromptError("This model has no place for documents; put them into a message.", "documents")
        requested = read_builtin(conversation.chat_template_kwargs.get("builtin_tools", ()))
        declared = {tool.namespace for tool in conversation.tools if tool.builtin}
        builtin = tuple(name for name in BUILTIN if name in requested or name in declared)
        conversation = replace(conversation, tools=[tool for tool in conversation.tools if not tool.builtin])
        tokens = self._encode_message(
            PromptMessage(author="system", text=self._system(conversation, builtin))
        )
        instructions, items = split_instructions(conversation)
        developer = developer_text(
            instructions, self._tools(conversation), format_section(conversation.format)
        )
        if developer:
            tokens += self._encode_message(
                PromptMessage(author="developer", text=developer), conversation.max_tokens
            )
        for message in prompt_messages(items, continues=conversation.continue_final_message):
            tokens += self._encode_message(message, conversation.max_tokens)
            if conversation.max_tokens is not None and len(tokens) > conversation.max_tokens:
                raise PromptTooLong(conversation.max_tokens)
        if conversation.add_generation_prompt and not conversation.continue_final_message:
            tokens += (START, *self.encoding.word("assistant"))
        return Prompt(
            token_ids=tuple(tokens),
            stop_ids=STOPS,
            grammar=make_grammar(conversation, builtin),
            tools=conversation.tools,
            must_call=conversation.tool_choice.mode == "required",
        )

    def encode(
        self,
        text: str,
        *,
        special: bool,  # noqa: ARG002 - nothing is put around texts
        limit: int | None = None,
    ) -> tuple[int, ...]:
        return tuple(self.encoding.encode_with_control(text, limit))

    @property
    def max_chars_per_token(self) -> int | None:
        return self.encoding.max_bytes_per_token

    @property
    def reasoning_marks(self) -> ReasoningMarks:
        return ReasoningMarks((CHANNEL, *self.encoding.word("analysis"), MESSAGE), (END,))

    def messages(self, token_ids: Sequence[int]) -> Messages:
        return read_messages(token_ids, self.encoding.tokens)

    def parser(self, prompt: Prompt) -> HarmonyParser:
        return HarmonyParser(self.encoding.tokens, prompt)

    def _system(self, conversation: Conversation, builtin: tuple[str, ...]) -> str:
        section = self.encoding.builtin_section(builtin) if builtin else ""
        today = conversation.created_at.date() if conversation.created_at else self.today()
        return system_text(conversation, today, section)

    def _tools(self, conversation: Conversation) -> str:
        groups = tools_by_namespace(conversation.tools)
        return self.encoding.tools_section(groups) if groups else ""

    def _encode_message(self, message: PromptMessage, limit: int | None = None) -> list[int]:
        """A message's tokens, equal to openai-harmony's rendering."""
        word = self.encoding.word
        tokens = [START, *word(clean(message.author))]
        if message.recipient:
            tokens += word(clean(f" to={message.recipient}"))
        if message.channel:
            tokens += (CHANNEL, *word(message.channel))
        if message.content_type == "json":
            tokens += (*word(" "), CONSTRAIN, *word("json"))
        elif message.content_type:
            tokens += word(f" {message.content_type}")
        tokens += (MESSAGE, *self.encoding.encode(message.text, limit))
        if not message.unfinished:
            calls = message.author == "assistant" and message.recipient
            tokens.append(CALL if calls else END)
        return tokens
