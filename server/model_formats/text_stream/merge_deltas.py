"""Merges adjacent deltas of the same type, in linear time. Pure."""

from collections.abc import Sequence

from server.model_formats.interface import CallDelta, Delta, ReasoningDelta, TextDelta


def merge_deltas(deltas: Sequence[Delta]) -> list[Delta]:
    """The deltas, with each run of text, reasoning or call deltas merged into one."""
    whole: list[Delta] = []
    run: list[TextDelta | ReasoningDelta | CallDelta] = []
    for delta in deltas:
        if not isinstance(delta, TextDelta | ReasoningDelta | CallDelta):
            whole += _merge_run(run)
            whole.append(delta)
            run = []
        elif run and type(run[-1]) is not type(delta):
            whole += _merge_run(run)
            run = [delta]
        else:
            run.append(delta)
    return whole + _merge_run(run)


def _merge_run(run: Sequence[TextDelta | ReasoningDelta | CallDelta]) -> list[Delta]:
    """A run of one type as a list of at most one delta."""
    if len(run) < 2:
        return list(run)
    text = "".join([delta.text for delta in run])
    if isinstance(run[0], TextDelta):
        indices = [index for delta in run if isinstance(delta, TextDelta) for index in delta.token_indices]
        return [TextDelta(text, tuple(indices))]
    return [type(run[0])(text)]
