"""What was said, made short: the transcript itself if it is short, else what the model makes of it.

A short transcript costs nothing and gets nothing wrong. A longer one is summed up by the model; if that gives
nothing, it is cut in its middle. Thoughts are left out: they led to what was said. Pure but for the dialect.
"""

from dataclasses import dataclass
from datetime import datetime

from server.compaction.transcript import cut
from server.limits.tools_and_grammars import COUNTED
from server.model_formats.interface import Prompt
from server.prompting.loaded_model import LoadedModel
from server.prompting.prompt import write_prompt
from server.protocol.responses.items import InputText, Message
from server.protocol.responses.request import CreateResponse, ReasoningOptions

KEPT_SHARE = 2
"""Kept messages have at most the context, divided by this, in tokens."""
SUMMARY_SHARE = 8
"""The same of the summary."""
MOST_SUMMARY_TOKENS = 4096
CHARACTERS_OF_TOKEN = 3
"""About; only what needs no exact count is cut by it."""
_INSTRUCTIONS = (
    "You are given the transcript of a conversation between a user and an assistant, which is about to be "
    "forgotten. Write a summary from which the assistant can go on: what the user wants, what was decided "
    "and found out, names, numbers and identifiers word for word, what the tools gave, what is still to do. "
    "Write nothing but the summary."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """What is to be said of a transcript."""

    served: LoadedModel
    tenant: str
    request: CreateResponse
    """Whose model writes it, and whose instructions it was said under."""
    transcript: str
    context: int
    """Tokens of the context that it is going to be a part of."""

    @property
    def is_short(self) -> bool:
        """The transcript can be told as it is."""
        return len(self.transcript) <= self._most_characters

    def told(self, written: str) -> str:
        """The summary, where the model has written that."""
        return cut(written.strip() or self.transcript, self._most_characters)

    def asked(self, moment: datetime | None = None) -> tuple[CreateResponse, Prompt]:
        """The request for a summary, with as much of the transcript as the model can read."""
        length = self.served.engine.model_info.context_length
        characters = length * CHARACTERS_OF_TOKEN
        while True:
            text = self._question(characters)
            request = self._request(text)
            items = [Message("", "completed", "user", [InputText(text)])]
            room = length * COUNTED  # what is too long is counted, and tried again with less
            prompt = write_prompt(self.served, self.tenant, request, items, moment, room=room)
            if len(prompt.token_ids) < length - self._tokens or characters == 0:
                return request, prompt
            characters //= 2

    def _question(self, characters: int) -> str:
        instructions = cut(self.request.instructions or "", characters // 4)
        about = f"The assistant's instructions were:\n{instructions}\n\n" if instructions else ""
        return f"{about}The transcript:\n\n{cut(self.transcript, characters)}\n\nNow write the summary."

    def _request(self, text: str) -> CreateResponse:
        return CreateResponse(
            model=self.request.model,
            instructions=_INSTRUCTIONS,
            input=text,
            store=False,
            temperature=0.0,
            max_output_tokens=self._tokens,
            reasoning=ReasoningOptions(effort="none"),
            cache_salt=self.request.cache_salt,
            priority=self.request.priority,
        )

    @property
    def _tokens(self) -> int:
        """At most half of what the whole answer may have."""
        most = max((self.request.max_output_tokens or MOST_SUMMARY_TOKENS * 2) // 2, 1)
        return min(max(self.context // SUMMARY_SHARE, 1), MOST_SUMMARY_TOKENS, most)

    @property
    def _most_characters(self) -> int:
        return self._tokens * CHARACTERS_OF_TOKEN
