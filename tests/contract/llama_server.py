"""The engine contract on llama-server, and the promises that it cannot keep, each with its reason."""

import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from engine.remote.fleet import RemoteConfig
from engine.remote.llama_protocol import LlamaProtocol
from engine.remote.remote_engine import RemoteEngine
from engine.remote.vocabulary_files import read_model_folder
from engine.request import OnEngineDeath
from tests.support.engines import Bench, Listener
from tests.support.llama_server import EXECUTABLE, start_llama_server

NAME = "llama-server"
IS_BUILT = EXECUTABLE.is_file()

LIMITS = ("max_running", "max_waiting", "max_per_key")

STEPS = "the server's steps are neither seen nor broken from here"
MEMORY = "the server's memory is not ours to limit or to count"
SEED = "the server's generator begins anew in each call: a seeded output goes on as another, legal one"
SALT = "the server shares cached prompts between all requests"
ROUNDING = "sums are rounded otherwise in a larger batch, so that a sampled token may be another"
PROMPT_LOGPROBS = "the server returns no logprobs of prompts"
BATCHES = "tokens are delivered as they come over the network, any number at a time"

EXCEPTIONS = {
    "test_a_cancelled_request_ends_with_the_next_delivery": BATCHES,
    "test_cancel_of_an_unknown_or_ended_request_does_nothing": BATCHES,
    "test_close_cancels_the_accepted_requests_when_it_does_not_drain": BATCHES,
    "test_close_ends_a_drain_that_is_under_way_when_it_does_not_drain": BATCHES,
    "test_a_step_is_one_delivery_when_several_requests_run": STEPS,
    "test_only_the_requests_of_a_step_fail_when_it_raises": STEPS,
    "test_every_request_is_told_at_once_when_the_engine_dies": STEPS,
    "test_a_request_that_cannot_be_handled_fails_alone": STEPS,
    "test_the_newest_requests_wait_and_all_are_whole_when_memory_runs_out": MEMORY,
    "test_only_the_request_that_does_not_fit_alone_fails_when_memory_runs_out": MEMORY,
    "test_a_request_is_refused_when_the_cache_could_never_hold_it": MEMORY,
    "test_stats_tell_what_runs_and_what_waits": MEMORY,
    "test_several_answers_to_one_prompt_cost_one_prefill": MEMORY,
    "test_an_urgent_request_goes_first_and_the_others_lose_nothing": "the server has no priorities",
    "test_a_seeded_request_continues_when_it_is_cut_at_any_token": SEED,
    "test_a_request_goes_on_as_it_would_have_when_it_is_cut_at_any_token": SEED,
    "test_a_constrained_request_continues_when_it_is_cut_at_any_token": SEED,
    "test_a_request_without_a_grammar_has_the_same_tokens_beside_one_with": ROUNDING,
    "test_a_second_turn_takes_nothing_from_the_cache_of_another_salt": SALT,
    "test_every_prompt_token_but_the_first_is_told_of_before_the_output": PROMPT_LOGPROBS,
    "test_earlier_output_is_no_prompt_to_tell_of": PROMPT_LOGPROBS,
}
"""Why a test of the contract does not hold, by its name."""


class RemoteBench(Bench):
    """An engine with a server of its own, which ends with the engine."""

    engine: Any


def start(model: Callable[[], Path]) -> Callable[..., Bench]:
    """A function like `start_model`; settings of memory are the server's, and have no effect here."""

    def start_one(*, on_dead: OnEngineDeath = lambda _why: None, **settings: Any) -> Bench:
        folder = read_model_folder(model())
        server = start_llama_server(model())
        listener = Listener()
        limits = {key: settings[key] for key in LIMITS if key in settings}
        engine: Any = RemoteEngine(
            RemoteConfig(urls=server.url, **limits),
            LlamaProtocol(folder.model_info.vocab_size),
            folder,
            listener,
            on_dead,
        )
        close = engine.close

        def close_both(*, drain: bool) -> None:
            close(drain=drain)
            if threading.current_thread().name != "holdfast-engine":
                server.stop()

        engine.close = close_both
        try:
            engine.start()
        except BaseException:
            server.stop()
            raise
        return RemoteBench(engine, listener)

    return start_one


def mark_exceptions(
    items: Sequence[pytest.Item], engine: str = NAME, exceptions: Mapping[str, str] = EXCEPTIONS
) -> None:
    """Skips tests of `exceptions` where they run on that engine."""
    for item in items:
        name, _, parameters = item.name.partition("[")
        if engine in parameters and name in exceptions:
            item.add_marker(pytest.mark.skip(reason=exceptions[name]))
