"""What a simulated replica has around it: a loop, an engine that gives a known answer, clients."""

import asyncio
import functools
import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from uuid import UUID

from engine.request import (
    CheckedRequest,
    EngineRequest,
    Failed,
    Finished,
    ModelInfo,
    Outbound,
    RequestRefused,
    Tokens,
    TokenUsage,
)
from engine.stats_snapshot import Stats
from server.delivery.frames import FramePage
from server.delivery.hub import Channel
from server.delivery.stored_responses import StreamReader
from tests.support.builders import BREAK_PARSER, HALF, THINK
from tests.support.memory import Memory

if TYPE_CHECKING:
    from tests.support.simulated_replica import Replica

CAPABILITIES = ModelInfo(
    vocab_size=2**31, context_length=4096, stop_ids=frozenset(), temperature=1.0, top_p=1.0
)


@functools.lru_cache(maxsize=64)
def answer_of(response: UUID) -> tuple[int, ...]:
    """What the engine says of a response, whoever asks it."""
    dice = random.Random(response.int)
    thought = [THINK + ord("t")] * dice.choice((0, 0, 1, 3))
    said = [dice.choice((ord("a"), ord("b"), HALF)) for _ in range(dice.randint(1, 9))]
    return (*thought, *said, *[BREAK_PARSER] * (dice.random() < 0.04))


class SimulatedLoop:
    """What a hub needs of a loop; `turn` does what was asked for."""

    def __init__(self, memory: Memory) -> None:
        self._memory = memory
        self._asked: deque[Callable[[], object]] = deque()
        self._timers: list[Timer] = []

    def is_closed(self) -> bool:
        return False

    def call_soon_threadsafe(self, act: Callable[..., object], *arguments: object) -> None:
        self._asked.append(lambda: act(*arguments))

    def call_later(self, seconds: float, act: Callable[[], object]) -> "Timer":
        timer = Timer(self._memory.seconds + seconds, act)
        self._timers.append(timer)
        return timer

    def turn(self) -> None:
        due = [timer for timer in self._timers if timer.at <= self._memory.seconds]
        self._timers = [timer for timer in self._timers if timer not in due]
        while self._asked:
            self._asked.popleft()()
        for timer in due:
            if not timer.cancelled:
                timer.act()


@dataclass(eq=False)
class Timer:
    at: float
    act: Callable[[], object]
    cancelled: bool = False

    def cancel(self) -> None:
        self.cancelled = True


class PlayedEngine:
    """Gives `answer_of` every engine request's response, so many tokens at a time as the dice say."""

    def __init__(self, dice: random.Random, deliver: Callable[[list[Outbound]], None]) -> None:
        self.model_info = CAPABILITIES
        self.engine_requests: dict[str, tuple[EngineRequest, int]] = {}
        """With how many tokens each has got."""
        self.cancelled: set[str] = set()
        self.most = 4
        self._dice = dice
        self._deliver = deliver

    def check(self, engine_request: EngineRequest) -> CheckedRequest:
        return CheckedRequest(engine_request)

    def set_paused(self, held: bool) -> None: ...

    def submit(self, engine_request: EngineRequest | CheckedRequest) -> None:
        if isinstance(engine_request, CheckedRequest):
            engine_request = engine_request.request
        if len(self.engine_requests) >= self.most:
            raise RequestRefused("overloaded", "No room.")
        assert engine_request.request_id not in self.engine_requests, "a response is generated twice at once"
        self.engine_requests[engine_request.request_id] = (engine_request, 0)

    def cancel(self, engine_request_id: str, _reason: str = "cancelled") -> None:
        if engine_request_id in self.engine_requests:
            self.cancelled.add(engine_request_id)

    def stats(self) -> Stats:
        return Stats(running=0, waiting=0, kv_blocks_used=0, kv_blocks_total=1, steps=0, tokens=0, alive=True)

    def step(self) -> None:
        told: list[Outbound] = []
        for engine_request_id, (engine_request, before) in list(self.engine_requests.items()):
            answer = answer_of(UUID(hex=engine_request_id))[
                engine_request.output_offset : engine_request.output_offset + engine_request.max_tokens
            ]
            more = answer[before : before + self._dice.randint(0, 2)]
            cancelled = engine_request_id in self.cancelled
            given = before if cancelled else before + len(more)
            if given > before:
                told.append(Tokens(engine_request_id, tuple(more)))
                self.engine_requests[engine_request_id] = (engine_request, given)
            if cancelled or given == len(answer):
                self._forget(engine_request_id)
                usage = TokenUsage(len(engine_request.prompt), 0, given)
                told.append(Finished(engine_request_id, "cancelled" if cancelled else "stop", usage))
        if told:
            self._deliver(told)

    def fail(self) -> None:
        """The engine dies, and comes back."""
        told: list[Outbound] = []
        for engine_request_id, (engine_request, given) in list(self.engine_requests.items()):
            self._forget(engine_request_id)
            told.append(
                Failed(
                    engine_request_id,
                    "engine_dead",
                    "It died.",
                    TokenUsage(len(engine_request.prompt), 0, given),
                )
            )
        if told:
            self._deliver(told)

    def _forget(self, engine_request_id: str) -> None:
        del self.engine_requests[engine_request_id]
        self.cancelled.discard(engine_request_id)


@dataclass
class Client:
    """One who made a response and reads it, here or there."""

    response: UUID
    stored: bool
    replica: "Replica | None"
    channel: Channel | None
    reader: StreamReader
    begun: FramePage | None = None
    frames: list[bytes] = field(default_factory=list)
    waker: asyncio.Event | None = None
    done: bool = False

    def take(self) -> None:
        """What `EventStream` does when it is woken."""
        if self.done:
            return
        if self.begun is not None:
            begun, self.begun = self.begun, None
            self.frames += begun.frames
            self.done = begun.ended
            return
        frames = None if self.channel is None else self.channel.after(len(self.frames))
        if frames is not None and self.channel is not None:
            self.frames += frames
            self.done = self.channel.ended
        else:
            found = self.reader.read(len(self.frames))
            self.frames += found.frames
            self.done = found.ended

    def leave(self) -> None:
        if self.channel is not None and self.waker is not None:
            self.channel.leave(self.waker)
        self.replica = self.channel = self.waker = self.begun = None
