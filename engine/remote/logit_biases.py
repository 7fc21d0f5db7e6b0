"""`logit_biases` of a call: its request's own, and penalties of output that the server takes for prompt."""

from collections import Counter
from collections.abc import Sequence

from engine.request import SamplingParams

MAX_BIAS = 100.0

Biases = tuple[tuple[int, float], ...]
"""(token id, bias) pairs, ids ascending."""


def logit_biases(sampling: SamplingParams, earlier: Sequence[int], most: int | None) -> Biases:
    """The biases of a call that continues `earlier` output, which its server takes for prompt.

    A token of it that comes again in this call has its presence penalty twice. Of more than `most` biases the
    smallest penalties are left out, and then the request's own with the highest ids.
    """
    biases = dict(sampling.logit_bias)
    if sampling.presence_penalty or sampling.frequency_penalty:
        for token_id, count in Counter(earlier).items():
            penalty = sampling.presence_penalty + sampling.frequency_penalty * count
            biases[token_id] = max(-MAX_BIAS, min(MAX_BIAS, biases.get(token_id, 0.0) - penalty))
    own = {token_id for token_id, _ in sampling.logit_bias}
    by_weight = sorted(
        biases.items(),
        key=lambda pair: (pair[0] not in own, 0.0 if pair[0] in own else -abs(pair[1]), pair[0]),
    )
    return tuple(sorted(by_weight[:most]))
