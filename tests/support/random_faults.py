"""Faults of a fleet on one Postgres, drawn at random, one after the other; each is over before the next."""

import random
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from threading import Event

import psycopg

from tests.fix_cluster import Cluster
from tests.fix_proxy import Proxy
from tests.support.server_process import ServerProcess

CUT = """
    select pg_terminate_backend(pid) from pg_stat_activity
    where datname = current_database() and pid <> pg_backend_pid()
"""
LOCK = "select id from responses where status = 'in_progress' order by random() limit 3 for update"


class RandomFaults:
    """The servers reach the database, whose own address is `database_url`, through the proxy."""

    def __init__(
        self,
        servers: Sequence[ServerProcess],
        cluster: Cluster,
        database_url: str,
        proxy: Proxy,
        choose: random.Random,
    ) -> None:
        self.counts: Counter[str] = Counter()
        self._servers, self._cluster, self._proxy = servers, cluster, proxy
        self._database_url = database_url
        self._choose = choose
        self._faults: dict[str, tuple[int, Callable[[], None]]] = {
            "Postgres killed": (4, self._postgres_dies),
            "immediate stops of Postgres": (2, self._postgres_stops),
            "power cuts": (3, self._power_is_cut),
            "replicas killed": (5, self._replica_dies),
            "replicas asked to end": (2, self._replica_leaves),
            "row locks held": (3, self._rows_are_locked),
            "times all connections were cut": (3, self._connections_are_cut),
            "network delays": (2, self._network_is_slow),
            "network silences": (2, self._network_is_silent),
            "network resets": (2, self._network_resets),
        }

    def next(self) -> None:
        """Waits a little, does one fault, and starts replicas that have ended by themselves."""
        self._wait(0.2, 4.0)
        names = list(self._faults)
        name = self._choose.choices(names, [self._faults[name][0] for name in names])[0]
        self._faults[name][1]()
        self.counts[name] += 1
        self.revive()

    def revive(self) -> None:
        """Starts what has ended by itself, as a supervisor does."""
        for server in self._servers:
            if server.has_ended:
                self.counts[f"replicas that ended by themselves, exit {server.wait()}"] += 1
                server.start()

    def _wait(self, least: float, most: float) -> None:
        Event().wait(self._choose.uniform(least, most))

    def _postgres_dies(self) -> None:
        doomed = self._choose.choice(self._servers) if self._choose.random() < 0.3 else None
        if doomed is not None and not doomed.has_ended:
            self._cluster.crash(doomed.pid)
            doomed.wait()
            self.counts["replicas killed with Postgres"] += 1
        else:
            doomed = None
            self._cluster.crash()
        self._wait(0.0, 3.0)
        self._cluster.start()
        if doomed is not None:
            doomed.start()

    def _postgres_stops(self) -> None:
        self._cluster.stop("immediate")
        self._wait(0.0, 3.0)
        self._cluster.start()

    def _power_is_cut(self) -> None:
        running = [server for server in self._servers if not server.has_ended]
        self._cluster.crash(*(server.pid for server in running))
        for server in running:
            server.wait()
        self._cluster.start()
        for server in running:
            server.start()

    def _replica_dies(self) -> None:
        server = self._choose.choice(self._servers)
        if not server.has_ended:
            server.kill()
            self._wait(0.0, 3.0)
            server.start()

    def _replica_leaves(self) -> None:
        server = self._choose.choice(self._servers)
        if not server.has_ended:
            server.ask_to_end()
            server.wait()
            server.start()

    def _rows_are_locked(self) -> None:
        with suppress(psycopg.OperationalError), psycopg.connect(self._database_url) as connection:
            connection.execute(LOCK)
            self._wait(0.5, 3.0)

    def _connections_are_cut(self) -> None:
        with psycopg.connect(self._database_url, autocommit=True) as connection:
            connection.execute(CUT)

    def _network_is_slow(self) -> None:
        self._proxy.delay(self._choose.uniform(0.02, 0.2))
        self._wait(0.5, 3.0)
        self._proxy.delay(0.0)

    def _network_is_silent(self) -> None:
        with self._proxy.deaf():
            self._wait(0.5, 3.0)

    def _network_resets(self) -> None:
        self._proxy.reset()
