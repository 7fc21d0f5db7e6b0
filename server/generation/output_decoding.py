"""Everything that a run needs to decode the tokens of one engine request. Frozen, without behaviour."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from engine.vocabulary import Vocabulary
from server.generation.token_dump import TokenDump
from server.hosted_tools.offered_tools import HostedTools
from server.model_formats.interface import Delta, OutputParser, ReasoningDelta


@dataclass(frozen=True, slots=True)
class CompactionSpec:
    """A compaction of the context at the beginning of a response."""

    seal: Callable[[str, str], str]
    """From the item's id and the model's summary: the sealed content."""
    by_model: bool
    """The first turn writes the summary. If False, there is no such turn."""
    answers: bool
    """The response continues after the compaction. If False, it ends there."""


@dataclass(frozen=True, slots=True)
class DecodingSpec:
    """How the tokens of one engine request become deltas, and what is reported with them."""

    parser: OutputParser
    stop_strings: Sequence[str] = ()
    include_stop_string: bool = False
    """The stop string that ends the output is part of it."""
    stop_token_ids: frozenset[int] = frozenset()
    """The request's own `stop_token_ids`."""
    hidden_stop_ids: frozenset[int] = frozenset()
    """Those of them that the parser does not know and that are removed from the output."""
    reports_stop_reason: bool = False
    """The final response names the stop string or token that ended it."""
    reports_cumulative_logprob: bool = False
    """The final response has the sum of its tokens' log probabilities."""
    vocabulary: Vocabulary | None = None
    """Set if log probabilities are reported."""
    tokens_as_ids: bool = False
    """vLLM's `return_tokens_as_token_ids`: log probabilities name tokens by their ids."""
    token_dump: TokenDump | None = None
    """Set if the final response repeats prompt and output as tokens."""
    streamed_prompt_ids: Sequence[int] | None = None
    """The prompt's token ids; set if token ids are streamed."""
    seal: Callable[[str, str], str] | None = None
    """From a reasoning item's id and text: its encrypted content. Set if the client asked for that."""
    summarizes_reasoning: bool = False
    """The reasoning is repeated as its own summary."""
    hosted: HostedTools = HostedTools()
    """The tools that the server runs."""
    compaction: CompactionSpec | None = None


class WithoutReasoning:
    """A parser's deltas without the reasoning, whose tokens are counted nevertheless."""

    def __init__(self, parser: OutputParser) -> None:
        self.reasoning_tokens = 0
        self._parser = parser

    def feed(self, token_ids: Sequence[int]) -> list[Delta]:
        return self._without_reasoning(self._parser.feed(token_ids))

    def close(self) -> list[Delta]:
        return self._without_reasoning(self._parser.close())

    def _without_reasoning(self, deltas: list[Delta]) -> list[Delta]:
        self.reasoning_tokens = self._parser.reasoning_tokens
        return [delta for delta in deltas if not isinstance(delta, ReasoningDelta)]


class _NullParser:
    """The parser of a run that gets no further token."""

    reasoning_tokens = 0

    def feed(self, token_ids: Sequence[int]) -> list[Delta]:  # noqa: ARG002 - the protocol's parameter
        return []

    def close(self) -> list[Delta]:
        return []


def no_decoding() -> DecodingSpec:
    """For a run that is rebuilt only to be ended."""
    return DecodingSpec(_NullParser())
