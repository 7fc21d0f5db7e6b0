"""`PromptLookup`: drafts of a request's next tokens, from where its last ones occurred before.

Engine thread; pure. Text that repeats its prompt or itself (edited code, quotes, copied data) is drafted by
looking up its last tokens: n-grams are indexed as tokens come, in constant time each, and a place that was
found is followed while it goes on as the output does.
"""

from collections.abc import Collection, Sequence

LONG, SHORT = 4, 2
"""Lengths of the n-grams that are looked up, the longer one first."""

BORDER = -1
"""No token: stands between a caller's prediction and the prompt."""

FIRST_GUESSES = (0.3, 0.5, 0.7, 0.85, 0.95)
"""Estimates, before anything is known, of how often the next token is as drafted: after a match of less than
4 tokens, 8, 16, 32, and of more."""

MEMORY = 1 / 16
"""Weight of the last token in an estimate."""


class PromptLookup:
    """Follows one request's tokens; `draft` says which might come next, `probability` how likely they do."""

    def __init__(self, prompt: Sequence[int], prediction: Sequence[int] = ()) -> None:
        """`prediction` is the caller's guess of the output, which is at its beginning."""
        self._tokens = [*prediction, BORDER, *prompt] if prediction else list(prompt)
        self._prediction = len(prediction)
        self._offset = len(self._tokens) - len(prompt)
        self._places: tuple[dict[tuple[int, ...], int], dict[tuple[int, ...], int]] = ({}, {})
        """By n-gram, long ones and short ones: the index after the last time it came."""
        for places, size in zip(self._places, (LONG, SHORT), strict=True):
            grams = zip(*(self._tokens[begin:-1] for begin in range(size)), strict=False)
            places.update(zip(grams, range(size, len(self._tokens)), strict=False))
        self._estimates = list(FIRST_GUESSES)
        self._matched = 0
        """How many of the last tokens are those before `_next`."""
        self._next: int | None = None
        """Index of the token that is expected next; None if nothing is."""
        self.accepted = 0
        """Output tokens that came where the prediction had them."""
        if prediction:
            self._next, self._matched = 0, LONG
        else:
            self._look_up()

    @property
    def has_draft(self) -> bool:
        return self._next is not None

    def advance(self, tokens: Sequence[int]) -> None:
        """`tokens` is prompt and output so far."""
        for token in tokens[len(self._tokens) - self._offset :]:
            self.append(token)

    def draft(self, count: int, without: Collection[int] = ()) -> list[int]:
        """At most `count` tokens that may come next; ends before one of `without`."""
        if self._next is None:
            return []
        drafted = self._tokens[self._next : self._next + count]
        for token in drafted:  # grows meanwhile: what ends here repeats itself
            if len(drafted) < count:
                drafted.append(token)
        ends = [place for place, token in enumerate(drafted) if token == BORDER or token in without]
        return drafted[: ends[0]] if ends else drafted

    def probability(self, place: int) -> float:
        """Estimate that the drafted token at `place` comes, if those before it do."""
        return self._estimates[_kind(self._matched + place)]

    def append(self, token: int) -> None:
        if self._next is not None:
            came, kind = self._tokens[self._next] == token, _kind(self._matched)
            self._estimates[kind] += MEMORY * (came - self._estimates[kind])
            self.accepted += came and self._next < self._prediction
            self._next, self._matched = (self._next + 1, self._matched + 1) if came else (None, 0)
        self._index()
        self._tokens.append(token)
        if self._next is None:
            self._look_up()

    def _index(self) -> None:
        """Notes where the n-grams at the end go on: with the token that comes now."""
        end = len(self._tokens)
        for places, size in zip(self._places, (LONG, SHORT), strict=True):
            if end >= size:
                places[tuple(self._tokens[end - size :])] = end

    def _look_up(self) -> None:
        for places, size in zip(self._places, (LONG, SHORT), strict=True):
            place = places.get(tuple(self._tokens[-size:]))
            if place is not None:
                self._next, self._matched = place, size
                return


def _kind(matched: int) -> int:
    return min(max(matched.bit_length() - 2, 0), len(FIRST_GUESSES) - 1)
