"""The model format of gpt-oss: OpenAI's harmony format.

What the model reads is written from items with the format's own tokens; what it writes is read by a parser
that never fails; what it may write is held to the tools and formats of the request by a grammar.
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
    """gpt-oss's model format. Thread-safe; every engine request gets a parser of its own."""

    encoding: HarmonyEncoding
    today: Callable[[], date] = _today
    """The day that the model is told."""

    @classmethod
    def load(cls, folder: Path, places: VocabularyPlaces) -> "HarmonyFormat":
        """For the model in `folder`. Raises FileNotFoundError or ValueError when it has no vocabulary."""
        return cls(HarmonyEncoding(find_vocabulary(folder, places), places.user_folder))

    def write(self, conversation: Conversation) -> Prompt:
        """Heeds the variables `builtin_tools` (browser, python) and `model_identity`. Raises PromptError."""
        if conversation.chat_template is not None:
            raise PromptError("This model's prompts are not written by a chat template.", "chat_template")
        if conversation.documents:
            raise PromptError("This model has no place for documents; put them into a message.", "documents")
        asked = read_builtin(conversation.chat_template_kwargs.get("builtin_tools", ()))
        served = {tool.namespace for tool in conversation.tools if tool.builtin}
        builtin = tuple(name for name in BUILTIN if name in asked or name in served)
        conversation = replace(conversation, tools=[tool for tool in conversation.tools if not tool.builtin])
        tokens = self._speak(PromptMessage(author="system", text=self._system(conversation, builtin)))
        instructions, items = split_instructions(conversation)
        told = developer_text(instructions, self._tools(conversation), format_section(conversation.format))
        if told:
            tokens += self._speak(PromptMessage(author="developer", text=told), conversation.max_tokens)
        for speech in prompt_messages(items, continues=conversation.continue_final_message):
            tokens += self._speak(speech, conversation.max_tokens)
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

    def _speak(self, speech: PromptMessage, limit: int | None = None) -> list[int]:
        """A message as tokens, as the format's own renderer writes it."""
        word = self.encoding.word
        tokens = [START, *word(clean(speech.author))]
        if speech.recipient:
            tokens += word(clean(f" to={speech.recipient}"))
        if speech.channel:
            tokens += (CHANNEL, *word(speech.channel))
        if speech.content_type == "json":
            tokens += (*word(" "), CONSTRAIN, *word("json"))
        elif speech.content_type:
            tokens += word(f" {speech.content_type}")
        tokens += (MESSAGE, *self.encoding.encode(speech.text, limit))
        if not speech.unfinished:
            calls = speech.author == "assistant" and speech.recipient
            tokens.append(CALL if calls else END)
        return tokens
