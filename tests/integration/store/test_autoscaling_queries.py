"""The queries by which KEDA scales the roles, run on real tables."""

from pathlib import Path

import yaml  # type: ignore[import-untyped]

from server.protocol.ids import new_uuid
from server.store.database import Database
from tests.support.builders import accept, register

AUTOSCALING = Path(__file__).parents[3] / "deploy" / "kubernetes" / "keda" / "autoscaling.yaml"
QUERIES: dict[str, str] = {
    one["metadata"]["name"]: one["spec"]["triggers"][0]["metadata"]["query"]
    for one in yaml.safe_load_all(AUTOSCALING.read_text(encoding="utf-8"))
    if one["kind"] == "ScaledObject"
}


def test_workers_are_counted_for_background_responses_and_api_replicas_for_foreground_ones(
    database: Database,
) -> None:
    me = register(database)
    for _ in range(3):
        accept(database, new_uuid(), background=True)
    for _ in range(2):
        accept(database, me)
    with database.begin() as connection:
        connection.exec_driver_sql(
            "update responses set replica_id = %s, status = 'in_progress'"
            " where id = (select id from responses where background limit 1)",
            (me,),
        )
        found = {name: connection.exec_driver_sql(query).scalar_one() for name, query in QUERIES.items()}
    assert found == {"holdfast-worker": 3, "holdfast-api": 2}
