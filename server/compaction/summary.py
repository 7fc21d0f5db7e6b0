"""The summary in a compaction: the transcript itself if it is short, else the model's summary of it.

A short transcript costs no tokens and has no mistakes. If the model's summary of a longer one is empty, the
transcript is shortened in its middle. Reasoning is left out: its results are in the
model messages.
"""

from dataclasses import dataclass
from datetime import datetime

from server.compaction.transcript import shorten
from server.model_formats.interface import Prompt
from server.prompting.loaded_model import LoadedModel
from server.prompting.prompt import write_prompt
from server.prompting.prompt_limits import MAX_COUNTED_CONTEXTS
from server.protocol.responses.items import InputText, Message
from server.protocol.responses.request import CreateResponse, ReasoningOptions

RETAINED_SHARE = 2
"""Retained messages have at most 1/2 of the context's tokens."""
SUMMARY_SHARE = 8
"""A summary has at most 1/8 of the context's tokens."""
MAX_SUMMARY_TOKENS = 4096
CHARACTERS_PER_TOKEN = 3
"""An estimate, for texts that are shortened without being tokenized."""
_INSTRUCTIONS = (
    "You are given the transcript of a conversation between a user and an assistant, which is about to be "
    "forgotten. Write a summary from which the assistant can go on: what the user wants, what was decided "
    "and found out, names, numbers and identifiers word for word, what the tools gave, what is still to do. "
    "Write nothing but the summary."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """A transcript that a compaction replaces by its summary."""

    served: LoadedModel
    tenant: str
    request: CreateResponse
    """Names the model that writes the summary, and has the conversation's instructions."""
    transcript: str
    context: int
    """Tokens that the compacted context may have."""

    @property
    def is_short(self) -> bool:
        """Whether the transcript is its own summary, so that the model need not write one."""
        return len(self.transcript) <= self._max_characters

    def text(self, written: str) -> str:
        """The summary: the model's, `written`, or the shortened transcript if that is empty."""
        return shorten(written.strip() or self.transcript, self._max_characters)

    def make_request(self, moment: datetime | None = None) -> tuple[CreateResponse, Prompt]:
        """The request for a summary and its prompt, with as much of the transcript as the model can read."""
        length = self.served.model_info.context_length
        characters = length * CHARACTERS_PER_TOKEN
        while True:
            text = self._prompt_text(characters)
            request = self._request(text)
            items = [Message("", "completed", "user", [InputText(text)])]
            limit = length * MAX_COUNTED_CONTEXTS  # a prompt that is too long is counted and halved
            prompt = write_prompt(self.served, self.tenant, request, (), items, moment, max_tokens=limit)
            if len(prompt.token_ids) < length - self._max_tokens or characters == 0:
                return request, prompt
            characters //= 2

    def _prompt_text(self, characters: int) -> str:
        instructions = shorten(self.request.instructions or "", characters // 4)
        about = f"The assistant's instructions were:\n{instructions}\n\n" if instructions else ""
        return f"{about}The transcript:\n\n{shorten(self.transcript, characters)}\n\nNow write the summary."

    def _request(self, text: str) -> CreateResponse:
        return CreateResponse(
            model=self.request.model,
            instructions=_INSTRUCTIONS,
            input=text,
            store=False,
            temperature=0.0,
            max_output_tokens=self._max_tokens,
            reasoning=ReasoningOptions(effort="none"),
            cache_salt=self.request.cache_salt,
            priority=self.request.priority,
        )

    @property
    def _max_tokens(self) -> int:
        """At most half of the request's max_output_tokens, which the answer needs, too."""
        half = max((self.request.max_output_tokens or MAX_SUMMARY_TOKENS * 2) // 2, 1)
        return min(max(self.context // SUMMARY_SHARE, 1), MAX_SUMMARY_TOKENS, half)

    @property
    def _max_characters(self) -> int:
        return self._max_tokens * CHARACTERS_PER_TOKEN
