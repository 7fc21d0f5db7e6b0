"""`RecorderStats`: figures of the recorder, for the metrics and the console."""

from collections.abc import Mapping
from dataclasses import dataclass

from engine.statistics import Distribution
from server.store.database_errors import CommitFailure


@dataclass(frozen=True, slots=True)
class RecorderStats:
    """What the recorder has done and has to do."""

    commit_seconds: Distribution
    commit_failures: Mapping[CommitFailure, int]
    queued: int
    """Deliveries in the inbox."""
    suspended: int
    """Runs whose last update is written beside the others."""
    engine_paused: bool
