import pytest

from engine.request import EngineRequest, SamplingParams
from engine.scheduling.sequence import TokenSequence


@pytest.mark.parametrize(("ignore", "reason"), [(False, "stop"), (True, None)])
def test_stop_ids_are_tokens_like_others_when_they_are_ignored(ignore: bool, reason: str | None) -> None:
    request = EngineRequest(
        request_id="a",
        prompt=(1,),
        max_tokens=9,
        sampling=SamplingParams(seed=0),
        stop_ids=frozenset({7}),
        ignore_eos=ignore,
    )
    assert TokenSequence(request).append(7) == reason
