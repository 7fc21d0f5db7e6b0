"""Neighbouring deltas of a kind as one, in linear time. Pure."""

from collections.abc import Sequence

from server.model_formats.interface import CallDelta, Delta, ReasoningDelta, TextDelta


def joined(deltas: Sequence[Delta]) -> list[Delta]:
    """The same, with what neighbours of a kind say in one delta."""
    whole: list[Delta] = []
    run: list[TextDelta | ReasoningDelta | CallDelta] = []
    for delta in deltas:
        if not isinstance(delta, TextDelta | ReasoningDelta | CallDelta):
            whole += _one(run)
            whole.append(delta)
            run = []
        elif run and type(run[-1]) is not type(delta):
            whole += _one(run)
            run = [delta]
        else:
            run.append(delta)
    return whole + _one(run)


def _one(run: Sequence[TextDelta | ReasoningDelta | CallDelta]) -> list[Delta]:
    """A run of one kind as one delta, or as none."""
    if len(run) < 2:
        return list(run)
    text = "".join([delta.text for delta in run])
    if isinstance(run[0], TextDelta):
        places = [place for delta in run if isinstance(delta, TextDelta) for place in delta.tokens]
        return [TextDelta(text, tuple(places))]
    return [type(run[0])(text)]
