"""An engine thread that returns after it was declared dead."""

import threading

import pytest

from engine.request import Failed, FinishReason
from engine.scheduling.sequence import TokenSequence
from tests.support.engines import PATIENCE, make_prompt, make_request, start_scripted_with_thread


def test_a_host_that_hung_after_a_step_says_nothing_more_when_it_comes_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    dead, released, append = threading.Event(), threading.Event(), TokenSequence.append

    def hang(sequence: TokenSequence, token_id: int) -> FinishReason | None:
        assert released.wait(PATIENCE)
        return append(sequence, token_id)

    monkeypatch.setattr(TokenSequence, "append", hang)
    bench, thread = start_scripted_with_thread(on_dead=lambda _why: dead.set(), hang_seconds=0.2)
    engine = bench.engine
    engine.submit(make_request("a", make_prompt(20)))
    assert dead.wait(PATIENCE)
    assert isinstance(bench.listener.outcome("a").last, Failed)
    told = sum(map(len, bench.listener.batches))
    released.set()
    thread.join(PATIENCE)
    assert not thread.is_alive()
    assert sum(map(len, bench.listener.batches)) == told
    assert not engine.stats().alive
    engine.close(drain=False)
