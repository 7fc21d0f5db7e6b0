"""What a run must know of one engine request to read its tokens. Frozen, without behaviour."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from engine.vocabulary import Vocabulary
from server.generation.token_dump import TokenDump
from server.hosted_tools.tool_specs import HostedTools
from server.model_formats.interface import Delta, OutputParser, ReasoningDelta


@dataclass(frozen=True, slots=True)
class CompactionSpec:
    """How a response begins with a compaction of its context."""

    seal: Callable[[str, str], str]
    """From the item's id and what the model has written: the sealed content."""
    by_model: bool
    """The first turn writes it; else there is no such turn."""
    answers: bool
    """Else the response is over after it."""


@dataclass(frozen=True, slots=True)
class DecodingSpec:
    """How the tokens of one answer are read."""

    parser: OutputParser
    stops: Sequence[str] = ()
    tells_stop: bool = False
    """The stop string that ends the answer is a part of it."""
    stop_token_ids: frozenset[int] = frozenset()
    """Tokens of the request's that end the answer."""
    silent_stop_ids: frozenset[int] = frozenset()
    """Those of them that the parser does not know, and that are no part of the answer."""
    tells_stop_reason: bool = False
    """The final response says which stop string or token has ended it."""
    ranked: bool = False
    """It says how likely the whole answer was."""
    vocabulary: Vocabulary | None = None
    """There if each token's probability is to be told."""
    names_ids: bool = False
    """Those tokens are named by their ids."""
    raw: TokenDump | None = None
    """There if what the model was given and gave is to be told as tokens."""
    tokens_of: Sequence[int] | None = None
    """There, as the prompt's tokens, if tokens are to be told as they come."""
    seal: Callable[[str, str], str] | None = None
    """There if reasoning is to be told sealed, too: from its item's id and its text."""
    summarizes: bool = False
    """The reasoning is told as its own summary, too."""
    hosted: HostedTools = HostedTools()
    """The tools that the server runs."""
    condensing: CompactionSpec | None = None


class WithoutReasoning:
    """A parser's deltas without the reasoning, which is counted all the same."""

    def __init__(self, parser: OutputParser) -> None:
        self.reasoning_tokens = 0
        self._parser = parser

    def feed(self, token_ids: Sequence[int]) -> list[Delta]:
        return self._rest(self._parser.feed(token_ids))

    def close(self) -> list[Delta]:
        return self._rest(self._parser.close())

    def _rest(self, deltas: list[Delta]) -> list[Delta]:
        self.reasoning_tokens = self._parser.reasoning_tokens
        return [delta for delta in deltas if not isinstance(delta, ReasoningDelta)]


class _NoTokens:
    """The parser of a run that reads no further token."""

    reasoning_tokens = 0

    def feed(self, token_ids: Sequence[int]) -> list[Delta]:  # noqa: ARG002 - a parser's
        return []

    def close(self) -> list[Delta]:
        return []


def nothing_to_read() -> DecodingSpec:
    """For a run that is only to be ended."""
    return DecodingSpec(_NoTokens())
