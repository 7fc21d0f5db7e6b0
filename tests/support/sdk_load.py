"""`Load`: clients of the official SDK that never retry, each of which asks again and again in its own way.

Every request ends as it must, or `finish` fails. What was said is kept, for comparison with a calm run.
"""

import random
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from time import monotonic
from typing import Any

from openai import OpenAI

from tests.support.server_process import MODEL

PATIENCE_S = 60.0
THINK_S = 0.1
"""Between two requests of a client."""
SEEN = 6
"""Events after which a client hangs up and comes back, or cancels."""

Body = dict[str, Any]


@dataclass(frozen=True)
class Answer:
    """What a request was answered. A cancelled one is the beginning of `text`."""

    body: Body
    text: str
    cancelled: bool = False


class Load:
    """Clients of one address, each in a thread."""

    def __init__(self, url: str, *, each: int, seed: int = 0, more: Sequence["Kind"] = ()) -> None:
        """`each` clients of every kind, of which a test may have `more`."""
        self._url = url
        self._choose = random.Random(seed)
        self._stopping = threading.Event()
        self._lock = threading.Lock()
        self._answers: list[Answer] = []
        self.counts: Counter[str] = Counter()
        """Requests that have ended, by kind."""
        self.turns: list[tuple[str, float, float]] = []
        """Each client's turns: the kind, and when it began and ended in monotonic seconds."""
        kinds = (stream, wait, resume, cancel, converse, connect, *more)
        self._pool = ThreadPoolExecutor(each * len(kinds))
        self.running = [self._pool.submit(self._repeat, kind) for kind in kinds for _ in range(each)]

    @property
    def failed(self) -> Future[None] | None:
        """A client that has failed."""
        return next((one for one in self.running if one.done() and one.exception() is not None), None)

    def check(self) -> None:
        """Raises what made a client fail."""
        if self.failed is not None:
            self.failed.result()

    def finish(self) -> list[Answer]:
        """Ends after the requests that are under way; raises what made a client fail."""
        self._stopping.set()
        for future in self.running:
            future.result(2 * PATIENCE_S)
        self._pool.shutdown()
        return self._answers

    def stop(self) -> None:
        self._stopping.set()
        self._pool.shutdown()

    def _repeat(self, kind: "Kind") -> None:
        with self._lock:
            choose = random.Random(self._choose.random())
        with OpenAI(base_url=f"{self._url}/v1", api_key="none", max_retries=0, timeout=PATIENCE_S) as client:
            while not self._stopping.is_set():
                began = monotonic()
                answers = kind(client, choose)
                with self._lock:
                    self.turns.append((kind.__name__, began, monotonic()))
                    self._answers += answers
                    self.counts[kind.__name__] += len(answers)
                self._stopping.wait(choose.random() * THINK_S)


Kind = Callable[[OpenAI, random.Random], list[Answer]]


def ask(choose: random.Random) -> Body:
    return {"model": MODEL, "input": f"Go on, {choose.randrange(10**9)}.", "temperature": 0}


def stream(client: OpenAI, choose: random.Random) -> list[Answer]:
    """A foreground response, streamed."""
    body = ask(choose)
    return [Answer(body, completed(open_stream(client, body)))]


def wait(client: OpenAI, choose: random.Random) -> list[Answer]:
    """A foreground response in one piece."""
    body = ask(choose)
    response = client.responses.create(**body)
    assert response.status == "completed", response
    return [Answer(body, response.output_text)]


def resume(client: OpenAI, choose: random.Random) -> list[Answer]:
    """A background response whose stream is left after some events and read on, wherever that is answered."""
    body = ask(choose) | {"background": True}
    with open_stream(client, body) as events:
        seen = [next(events) for _ in range(SEEN)]
    rest = client.responses.retrieve(
        seen[0].response.id, stream=True, starting_after=seen[-1].sequence_number
    )
    return [Answer(body, completed([*seen, *rest]))]


def cancel(client: OpenAI, choose: random.Random) -> list[Answer]:
    """A background response that is cancelled after some events, beside its open stream."""
    body = ask(choose) | {"background": True}
    with open_stream(client, body) as events:
        seen = [next(events) for _ in range(SEEN)]
        cancelled = client.responses.cancel(seen[0].response.id)
        assert cancelled.status == "cancelled", cancelled
        seen += events
    assert [event.sequence_number for event in seen] == list(range(len(seen)))
    kept = client.responses.retrieve(cancelled.id)
    assert kept.status == "cancelled", kept
    assert kept.output_text == text_of(seen)
    return [Answer(body, kept.output_text, cancelled=True)]


def converse(client: OpenAI, choose: random.Random) -> list[Answer]:
    """Three responses, each after the one before."""
    answers, previous = list[Answer](), None
    for _ in range(3):
        body = ask(choose) | {"previous_response_id": previous, "max_output_tokens": 16}
        response = client.responses.create(**body)
        assert response.status == "incomplete", response
        answers.append(Answer(body, response.output_text))
        previous = response.id
    return answers


def connect(client: OpenAI, choose: random.Random) -> list[Answer]:
    """Short responses, each on a connection of its own, one right after the other."""
    answers = list[Answer]()
    for _ in range(10):
        body = ask(choose) | {"max_output_tokens": 1}
        response = client.responses.create(**body, extra_headers={"connection": "close"})
        assert response.status == "incomplete", response
        answers.append(Answer(body, response.output_text))
    return answers


def open_stream(client: OpenAI, body: Body) -> Any:
    """A stream of the SDK, whose events are read as they are, whatever their types."""
    return client.responses.create(**body, stream=True)


def completed(events: Iterable[Any]) -> str:
    """The text of a whole stream, which must end as completed and agree with its last event."""
    seen = list(events)
    assert [event.sequence_number for event in seen] == list(range(len(seen)))
    assert seen[-1].type == "response.completed", seen[-1]
    text = text_of(seen)
    assert text == seen[-1].response.output_text
    return text


def text_of(events: Iterable[Any]) -> str:
    return "".join(event.delta for event in events if event.type == "response.output_text.delta")
