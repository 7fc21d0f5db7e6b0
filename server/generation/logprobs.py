"""Log probabilities of output tokens, kept until the text that the tokens belong to is streamed. Pure."""

from collections import deque
from collections.abc import Iterable, Sequence

from engine.request import TokenLogprobs as EngineLogprobs
from engine.vocabulary import Vocabulary
from server.protocol.responses.events import Event, Kind, delta_of
from server.protocol.responses.items import Logprob, TopLogprob

MIN_LOGPROB = -9999.0
"""Reported for tokens of probability 0, as by OpenAI: JSON has no infinity."""


class TokenLogprobs:
    """Pending log probabilities by the token's index in the output."""

    def __init__(self, vocabulary: Vocabulary, *, tokens_as_ids: bool = False) -> None:
        """With `tokens_as_ids` a token's text is `token_id:` and its id, as in vLLM; its bytes are kept."""
        self._vocabulary = vocabulary
        self._tokens_as_ids = tokens_as_ids
        self._pending: dict[int, Logprob] = {}
        self._restored: deque[Logprob] = deque()

    def add(self, first: int, token_ids: Sequence[int], logprobs: Sequence[EngineLogprobs]) -> None:
        """Adds those of the tokens from index `first` on."""
        for index, (token_id, logprob) in enumerate(zip(token_ids, logprobs, strict=True), first):
            self._pending[index] = self._to_wire(token_id, logprob)

    def restore(self, events: Iterable[Event]) -> None:
        """Takes them from logged deltas; the first text that is decoded again gets these."""
        for event in events:
            if event.kind is not Kind.WHOLE:
                self._restored += delta_of(event)[2]

    def pop(self, indices: Sequence[int]) -> list[Logprob]:
        """Returns and forgets those of the tokens at these indices."""
        logprobs: list[Logprob] = []
        for index in indices:
            logprob = self._pending.pop(index, None)
            if logprob is None and self._restored:
                logprob = self._restored.popleft()
            if logprob is not None:
                logprobs.append(logprob)
        return logprobs

    def _to_wire(self, token_id: int, logprobs: EngineLogprobs) -> Logprob:
        text, utf8 = self._text_and_bytes(token_id)
        top = [
            TopLogprob(*self._text_and_bytes(other), max(logprob, MIN_LOGPROB))
            for other, logprob in logprobs.top
        ]
        return Logprob(text, utf8, max(logprobs.chosen, MIN_LOGPROB), top)

    def _text_and_bytes(self, token_id: int) -> tuple[str, list[int]]:
        utf8 = self._vocabulary.tokens[token_id]
        text = token_id_name(token_id) if self._tokens_as_ids else utf8.decode(errors="replace")
        return text, list(utf8)


def token_id_name(token_id: int) -> str:
    """The stand-in for a token's text, as in vLLM: distinct even for tokens whose texts are equal."""
    return f"token_id:{token_id}"
