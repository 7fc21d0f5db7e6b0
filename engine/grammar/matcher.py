"""llguidance's tokenizer and matchers: a Lark source is a matcher at its beginning, or refused."""

import re
from collections.abc import Collection, Sequence
from typing import Any

MAX_STATES = 100_000
"""llguidance's limit of lexer states, up to 2 kB each. A request that needs more by itself fails."""
UNCOMPILED = "The grammar cannot be compiled: "
_LISTING = re.compile(r"\n *\d+ \| ")
"""Begins the compiler's listing of the source, which is not the caller's."""
_PLACE = re.compile(r"(?:at )?\d{1,7}\(\d{1,7}\): |failed to compile JSON schema: ")


class BadGrammar(ValueError):
    """The grammar is invalid or takes too much work; `str()` is a sentence for the caller."""


def make_tokenizer(tokens: Sequence[bytes], special: Collection[int]) -> Any:
    """Llguidance's tokenizer of a vocabulary; holds the GIL, about 1 s for 200,000 tokens."""
    import llguidance  # a part that only requests with grammars need

    return llguidance.LLTokenizer(_Tokens(tokens, special))  # type: ignore[arg-type]


def make_matcher(tokenizer: Any, source: str) -> Any:
    """A matcher at the beginning of the grammar. Raises `BadGrammar`, and errors of the library."""
    import llguidance

    limits = llguidance.LLParserLimits(max_lexer_states=MAX_STATES, verbose_errors=False)
    matcher = llguidance.LLMatcher(tokenizer, source, log_level=0, limits=limits)
    if matcher.is_error():
        raise BadGrammar(f"{UNCOMPILED}{_cause(matcher.get_error())}.")
    return matcher


def check_first_mask(matcher: Any) -> None:
    """Raises `BadGrammar` if no token fits the beginning of the grammar."""
    first = matcher.deep_copy()  # so that `matcher` stays at the start
    mask = first.compute_bitmask()
    if first.is_error() or not any(mask):
        raise BadGrammar("Nothing that the model can write would fit the grammar.")


def _cause(error: str) -> str:
    """The compiler's sentence about an error, without positions in the source that the server has written."""
    cause = _PLACE.sub("", _LISTING.split(error, 1)[0])
    _, of_pattern, reason = cause.partition("regex parse error:")
    return f"a pattern is not valid: {reason.rpartition('error: ')[2]}" if of_pattern else cause


class _Tokens:
    """A vocabulary as llguidance's tokenizer wrapper."""

    is_tokenizer_wrapper = True
    bos_token_id = None

    def __init__(self, tokens: Sequence[bytes], special: Collection[int]) -> None:
        # The end is an extra id after the last: stop ids are per request.
        self.eos_token_id = len(tokens)
        # Not empty: an empty special token would be a prefix of all others.
        self.tokens = [*tokens, b"<the end>"]
        self.special_token_ids = sorted({*special, self.eos_token_id})

    def __call__(self, _text: bytes) -> list[int]:
        """Not used: see `structured_output_to_lark.HEADER`."""
        return []
