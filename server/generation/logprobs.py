"""The probabilities of an answer's tokens, kept until the text is told that they belong to. Pure."""

from collections import deque
from collections.abc import Iterable, Sequence

from engine.request import TokenLogprobs as EngineLogprobs
from engine.vocabulary import Vocabulary
from server.protocol.responses.events import Event, Kind, delta_of
from server.protocol.responses.items import Logprob, TopLogprob

LEAST = -9999.0
"""What is said for a token that cannot come: JSON has no infinity."""


class TokenLogprobs:
    """By a token's place in the output."""

    def __init__(self, vocabulary: Vocabulary, *, names_ids: bool = False) -> None:
        """With `names_ids` a token is called `token_id:` and its id, as in vLLM; its bytes stay its own."""
        self._vocabulary = vocabulary
        self._names_ids = names_ids
        self._waiting: dict[int, Logprob] = {}
        self._remembered: deque[Logprob] = deque()

    def take(self, first: int, token_ids: Sequence[int], given: Sequence[EngineLogprobs]) -> None:
        """Notes those of tokens from place `first` on."""
        for place, (token_id, told) in enumerate(zip(token_ids, given, strict=True), first):
            self._waiting[place] = self._written(token_id, told)

    def remember(self, told: Iterable[Event]) -> None:
        """Takes over what a log has told: the first text that is read again gets these."""
        for event in told:
            if event.kind is not Kind.WHOLE:
                self._remembered += delta_of(event)[2]

    def of(self, places: Sequence[int]) -> list[Logprob]:
        """Those of the tokens at these places, each told once."""
        found: list[Logprob] = []
        for place in places:
            logprob = self._waiting.pop(place, None)
            if logprob is None and self._remembered:
                logprob = self._remembered.popleft()
            if logprob is not None:
                found.append(logprob)
        return found

    def _written(self, token_id: int, told: EngineLogprobs) -> Logprob:
        token, spelled = self._spelled(token_id)
        top = [TopLogprob(*self._spelled(other), max(logprob, LEAST)) for other, logprob in told.top]
        return Logprob(token, spelled, max(told.chosen, LEAST), top)

    def _spelled(self, token_id: int) -> tuple[str, list[int]]:
        spelled = self._vocabulary.tokens[token_id]
        name = name_of(token_id) if self._names_ids else spelled.decode(errors="replace")
        return name, list(spelled)


def name_of(token_id: int) -> str:
    """A token in place of its text, for clients that cannot tell tokens by their texts."""
    return f"token_id:{token_id}"
