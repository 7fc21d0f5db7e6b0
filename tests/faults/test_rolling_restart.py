"""F42: a deployment behind a balancer is restarted process by process; no client sees it or retries."""

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from threading import Event

import pytest

from tests.fix_server import StartServer
from tests.fix_tally import Tally
from tests.support.attached import HTTP, uncut
from tests.support.balancer import Balancer
from tests.support.engine_process import EngineServerProcess
from tests.support.eventually import eventually
from tests.support.rounds import faults_only
from tests.support.sdk_load import Answer, Load
from tests.support.server_process import MODEL, ServerProcess, run_command

PATIENCE_S = 60.0
TOKENS = 80
STEP_S = 0.05
"""So that an answer takes four seconds: on a busy machine, too, a cancellation finds it running."""
DELAY_S = 3.0
"""Between SIGTERM and the first refusal: the balancer asks four times a second, if the machine lets it."""
BETWEEN_S = 1.0
"""Of load between two restarts."""


SLOW_PROBE_S = 5.0
SLOW_DELAY_S = 8.0
"""Between SIGTERM and the first refusal, where a balancer asks only every `SLOW_PROBE_S`."""


@dataclass
class Deployment:
    """Api replicas behind a balancer, workers, and engines that all of these find by a file."""

    apis: list[ServerProcess]
    workers: list[ServerProcess]
    engines: list[EngineServerProcess]
    urls: Path
    balancer: Balancer
    load: Load

    def restart_api(self, api: ServerProcess) -> None:
        """Its clients are moved by their connections' ends; it ends when its last answer has.

        Who has seen that it is not ready, and who has not, both are answered.
        """
        api.ask_to_end()
        eventually(lambda: HTTP.get(f"{api.url}/health/ready").status_code == 503, within=DELAY_S)
        body = {"model": MODEL, "input": "Hello", "max_output_tokens": 1}
        late = HTTP.post(f"{api.api}/responses", json=body)
        assert late.status_code == 200, late.text
        assert api.wait() == 0
        api.start()
        eventually(lambda: api.port in self.balancer.ready, within=PATIENCE_S)

    def restart_worker(self, worker: ServerProcess) -> None:
        worker.ask_to_end()
        assert worker.wait() == 0
        worker.start()

    def restart_engine(self, engine: EngineServerProcess, *, drained: bool) -> None:
        """It is taken out of the file, then stopped: when its calls have ended, or with calls running."""
        self.write_urls(without=engine)
        if drained:
            requests = -1
            while (now := engine.state()["requests"]) != requests or engine.running:
                requests = now
                self.go_on(BETWEEN_S)
        else:
            eventually(lambda: engine.running, within=PATIENCE_S)
        engine.ask_to_end()
        engine.start()
        self.write_urls()
        eventually(lambda: engine.state()["requests"] > 0, within=PATIENCE_S)

    def write_urls(self, without: EngineServerProcess | None = None) -> None:
        self.urls.write_text("".join(f"{engine.url}\n" for engine in self.engines if engine is not without))

    def go_on(self, seconds: float) -> None:
        """The load goes on for a while; raises what made a client fail."""
        Event().wait(seconds)
        self.load.check()


@pytest.fixture
def engines() -> Iterator[list[EngineServerProcess]]:
    with ExitStack() as stack:
        processes = [EngineServerProcess(length=TOKENS, step_seconds=STEP_S) for _ in range(2)]
        for process in processes:
            stack.callback(process.stop)
            process.start()
        yield processes


def check(answers: list[Answer], server: ServerProcess) -> int:
    """Each is what the model says to its request when nothing happens; how many characters were compared."""
    expected = uncut(server, [answer.body for answer in answers])
    for answer, text in zip(answers, expected, strict=True):
        assert text.startswith(answer.text) if answer.cancelled else text == answer.text, answer
    return sum(len(answer.text) for answer in answers)


@pytest.mark.parametrize(
    ("apis", "workers", "restarted", "each"), faults_only((2, 2, (1, 1, 1), 2), (3, 2, (3, 2, 2), 4))
)
def test_a_rolling_restart_of_a_whole_deployment_is_seen_by_no_client(
    start_server: StartServer,
    engines: list[EngineServerProcess],
    database_url: str,
    tmp_path: Path,
    apis: int,
    workers: int,
    restarted: tuple[int, int, int],
    each: int,
    tally: Tally,
) -> None:
    urls = tmp_path / "engines"
    urls.write_text("".join(f"{engine.url}\n" for engine in engines))
    settings = {"engine": "vllm", "engine_url": f"file:{urls}", "allowed_hosts": "127.0.0.1"}
    serving = [start_server(role="api", shutdown_delay_seconds=DELAY_S, **settings) for _ in range(apis)]
    working = [start_server(role="worker", **settings) for _ in range(workers)]
    with Balancer([api.port for api in serving]) as balancer:
        eventually(lambda: len(balancer.ready) == apis, within=PATIENCE_S)
        load = Load(balancer.url, each=each)
        deployment = Deployment(serving, working, engines, urls, balancer, load)
        try:
            deployment.go_on(BETWEEN_S)
            restart_all(deployment, restarted)
            answers = load.finish()
        finally:
            load.stop()
        assert balancer.refused == 0
        assert all(balancer.carried.values())
    audited = run_command("audit", database_url=database_url)
    assert (audited.returncode, audited.stdout) == (0, ""), audited.stderr
    assert not [server.said() for server in serving + working if "Traceback" in server.said()]
    for engine in engines:
        engine.set(step_seconds=0.0)
    tally["F42", "characters compared across rolling restarts"] += check(answers, serving[0])
    tally["F42", "processes restarted under load"] += sum(restarted)
    for kind, count in load.counts.items():
        assert count > sum(restarted), kind
        tally["F42", f"requests that saw nothing of it: {kind}"] += count


def restart_all(deployment: Deployment, restarted: tuple[int, int, int]) -> None:
    """The first ones of each kind, one after the other."""
    apis, workers, engines = restarted
    for api in deployment.apis[:apis]:
        deployment.restart_api(api)
        deployment.go_on(BETWEEN_S)
    for worker in deployment.workers[:workers]:
        deployment.restart_worker(worker)
        deployment.go_on(BETWEEN_S)
    for number, engine in enumerate(deployment.engines[:engines]):
        deployment.restart_engine(engine, drained=number % 2 == 1)
        deployment.go_on(BETWEEN_S)


@pytest.mark.faults
def test_balancer_that_asks_every_five_seconds_refuses_nobody_over_two_restarts(
    start_server: StartServer, database_url: str, tally: Tally
) -> None:
    settings = {"scripted_tokens": TOKENS, "scripted_step_seconds": STEP_S, "allowed_hosts": "127.0.0.1"}
    serving = [start_server(shutdown_delay_seconds=SLOW_DELAY_S, **settings) for _ in range(2)]
    with Balancer([server.port for server in serving], probe_seconds=SLOW_PROBE_S) as balancer:
        eventually(lambda: len(balancer.ready) == len(serving), within=PATIENCE_S)
        load = Load(balancer.url, each=2)
        try:
            for server in serving:
                restart_beside(server, balancer)
                load.check()
            load.finish()
        finally:
            load.stop()
        assert balancer.refused == 0
    audited = run_command("audit", database_url=database_url)
    assert (audited.returncode, audited.stdout) == (0, ""), audited.stderr
    for kind, count in load.counts.items():
        tally["F42", f"requests beside slow probes: {kind}"] += count


def restart_beside(server: ServerProcess, balancer: Balancer) -> None:
    """The balancer has taken it out before it is gone, and takes it in again."""
    server.ask_to_end()
    assert server.wait() == 0
    assert server.port not in balancer.ready
    server.start()
    eventually(lambda: server.port in balancer.ready, within=PATIENCE_S)
