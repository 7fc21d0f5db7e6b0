"""Engines for tests: a listener that can be waited for, requests, tiny random models, sabotage.

torch is imported only by what needs it, so that tests of the scripted engine do without.
"""

import atexit
import functools
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from dataclasses import fields as dc_fields
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from engine.config import EngineConfig
from engine.core.local_engine import LocalEngine, load
from engine.request import (
    EngineRequest,
    Failed,
    Finished,
    OnEngineDeath,
    Outbound,
    RequestRefused,
    SamplingParams,
    TokenLogprobs,
    Tokens,
)
from engine.scheduling.scheduler import SchedulerOutput
from engine.scripted_engine import Script, ScriptedConfig, ScriptedEngine

if TYPE_CHECKING:
    from engine.attention.selection import AttentionChoice

PATIENCE = 60.0
"""Seconds after which a test gives up waiting for what must come; never a time that a test needs."""

VOCABULARY = 97
"""Token ids of all models here."""
_ASKED = count()


@dataclass(frozen=True)
class Outcome:
    """All that was said of one request."""

    tokens: list[int]
    last: Finished | Failed
    deliveries: int
    """In how many deliveries the request was mentioned."""


class Listener:
    """Takes an engine's deliveries; checks that no request is mentioned after its end."""

    def __init__(self) -> None:
        self.batches: list[list[Outbound]] = []
        self.when_told: Callable[[Outbound], None] = lambda _message: None
        """Called on the engine thread with each message."""
        self.broken: Exception | None = None
        """Raised by each delivery, after it was noted."""
        self._news = threading.Condition()
        self._open = threading.Event()
        self._open.set()

    def __call__(self, messages: Sequence[Outbound], /) -> None:
        with self._news:
            self.batches.append(list(messages))
            self._news.notify_all()
        assert self._open.wait(PATIENCE)
        for message in messages:
            self.when_told(message)
        if self.broken is not None:
            raise self.broken

    @contextmanager
    def held(self) -> Iterator[None]:
        """The engine thread stays in its next delivery until the block is left."""
        self._open.clear()
        try:
            yield
        finally:
            self._open.set()

    def wait(self, condition: Callable[[], bool]) -> None:
        with self._news:
            assert self._news.wait_for(condition, PATIENCE), f"only came: {self.batches[-3:]}"

    def of(self, request_id: str) -> list[Outbound]:
        """What was said of the request so far."""
        return [m for batch in list(self.batches) for m in batch if m.request_id == request_id]

    def outcome(self, request_id: str) -> Outcome:
        """Waits for the request's end."""
        self.wait(lambda: any(isinstance(m, Finished | Failed) for m in self.of(request_id)))
        told = self.of(request_id)
        *before, last = told
        assert isinstance(last, Finished | Failed), f"{request_id} was told of after its end"
        tokens: list[int] = []
        for message in before:
            assert not isinstance(message, Finished | Failed), f"{request_id} ended twice"
            tokens += message.token_ids if isinstance(message, Tokens) else ()
        mentions = sum(any(m.request_id == request_id for m in batch) for batch in list(self.batches))
        return Outcome(tokens, last, mentions)


@dataclass
class Bench:
    """An engine and its listener."""

    engine: LocalEngine
    listener: Listener

    @property
    def executor(self) -> Any:
        """The runner that computes the engine's steps, to break one or to look at its buffers."""
        return self.engine._executor

    @property
    def network(self) -> Any:
        """The runner's torch module."""
        return self.executor._network

    def run(self, *requests: EngineRequest) -> list[Outcome]:
        """Submits the requests together, so that they share their steps, and waits for all."""
        first, *rest = requests
        with self.listener.held():
            self.engine.submit(first)
            for request in rest:
                self.engine.submit(request)
        return [self.listener.outcome(request.request_id) for request in requests]

    def say(self, *requests: EngineRequest) -> list[tuple[list[int], list[TokenLogprobs]]]:
        """As `run`: the tokens of each request, and what was told of each token."""
        outcomes = self.run(*requests)
        said = []
        for request, outcome in zip(requests, outcomes, strict=True):
            told = [m for m in self.listener.of(request.request_id) if isinstance(m, Tokens)]
            said.append((outcome.tokens, [entry for message in told for entry in message.logprobs or ()]))
        return said

    def fail_steps(self, error: BaseException, *, times: int = 1) -> None:
        """The next steps raise the error instead of computing."""
        executor = self.executor
        compute = executor.begin
        left = times

        def sabotaged(plan: SchedulerOutput) -> Any:
            nonlocal left
            left -= 1
            if left >= 0:
                raise error
            return compute(plan)

        executor.begin = sabotaged


def make_request(
    request_id: str, prompt: Sequence[int], max_tokens: int = 16, **fields: Any
) -> EngineRequest:
    """A greedy request, unless `temperature` or other fields of `SamplingParams` are given."""
    sampling = {
        field.name: fields.pop(field.name) for field in dc_fields(SamplingParams) if field.name in fields
    }
    return EngineRequest(
        request_id=request_id,
        prompt=tuple(prompt),
        max_tokens=max_tokens,
        sampling=SamplingParams(**{"seed": 0, "temperature": 0.0, **sampling}),
        **fields,
    )


def make_prompt(length: int, salt: int = 0) -> list[int]:
    """Ids that are no pattern; different for each salt."""
    return [(i * i * 31 + i * 7 + salt * 53 + salt * i) % (VOCABULARY - 1) + 1 for i in range(length)]


def start_scripted(
    *,
    scripts: Callable[[EngineRequest], Script | None] = lambda _request: None,
    on_dead: OnEngineDeath = lambda _why: None,
    **settings: Any,
) -> Bench:
    """The scripted engine; its stop id is 0."""
    defaults: dict[str, Any] = {
        "vocabulary": tuple(range(1, VOCABULARY)),
        "stop_id": 0,
        "vocab_size": VOCABULARY,
        "context_length": 256,
        "script": Script(length=200),
    }
    listener = Listener()
    config = ScriptedConfig(**{**defaults, **settings})
    return Bench(ScriptedEngine(config, listener, scripts, on_dead), listener)


def start_scripted_with_thread(**settings: Any) -> tuple[Bench, threading.Thread]:
    """The scripted engine and the thread that computes its steps."""
    before = set(threading.enumerate())
    bench = start_scripted(**settings)
    (thread,) = (new for new in set(threading.enumerate()) - before if new.name == "holdfast-engine")
    return bench, thread


def is_closed(bench: Bench) -> bool:
    """Whether the engine takes no request any more; one that still does gets a short one."""
    try:
        bench.engine.submit(make_request(f"asked {next(_ASKED)}", make_prompt(2), 1))
    except RequestRefused as refused:
        return refused.reason == "closed"
    return False


def attend_with(monkeypatch: pytest.MonkeyPatch, choice: "AttentionChoice") -> None:
    """Has engines that are started from now on attend in this way, whatever their device has."""
    monkeypatch.setattr("engine.runner.load_runner.choose_attention", lambda *_args, **_settings: choice)


def forget_tokens_in_flight(monkeypatch: pytest.MonkeyPatch) -> None:
    """Has a step that begins before the last one's tokens are read compute without them."""
    monkeypatch.setattr("engine.runner.model_runner.ModelRunner._fill_in_device_tokens", lambda *_args: None)


def pipeline_unless_forbidden(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a GPU, whatever the device."""
    monkeypatch.setattr("engine.runner.model_runner.is_pipelined", lambda _config, _device: True)


def start_model(model: Path, **settings: Any) -> Bench:
    """The engine on a model, on one CPU thread in float32.

    Without prompt lookup, whose drafts depend on how quick the machine is: steps and preemptions are counted.
    """
    defaults: dict[str, Any] = {"device": "cpu", "dtype": "float32", "torch_threads": 1, "kv_blocks": 256}
    defaults["prompt_lookup"] = "off"
    listener = Listener()
    return Bench(load(EngineConfig(model=model, **{**defaults, **settings}), listener), listener)


@functools.cache
def tiny_model() -> Path:
    """A small Qwen3 with random weights."""
    return save_random_model("Qwen3Config", num_hidden_layers=2)


@functools.cache
def wider_tiny_model() -> Path:
    """The same with wider heads: vLLM's attention on a CPU has none of 8."""
    return save_random_model("Qwen3Config", num_hidden_layers=2, head_dim=32)


def save_random_model(config_name: str, **settings: Any) -> Path:
    """Writes a model with random weights and gives its directory, which goes with the process.

    The embeddings are not tied and the weights are large: otherwise a small random model repeats one
    token for ever, and tests that compare tokens would pass whatever the engine did.
    """
    import torch
    import transformers

    torch.set_num_threads(1)
    torch.manual_seed(7)
    config = getattr(transformers, config_name)(
        **{
            "vocab_size": VOCABULARY,
            "hidden_size": 32,
            "intermediate_size": 48,
            "num_hidden_layers": 3,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "head_dim": 8,
            "max_position_embeddings": 256,
            "initializer_range": 0.2,
            "tie_word_embeddings": False,
            "bos_token_id": None,
            "eos_token_id": None,
            "pad_token_id": None,
            **settings,
        }
    )
    model: Any = transformers.AutoModelForCausalLM.from_config(  # type: ignore[no-untyped-call]
        config, dtype=torch.float32
    )
    directory = tempfile.TemporaryDirectory(prefix="holdfast-model-")
    atexit.register(directory.cleanup)
    model.save_pretrained(directory.name)
    return Path(directory.name)
