"""End users, kinds, chains and attempts as columns of responses and of the usage ledger.

`pre`: may run while the release before it still serves, which leaves the columns empty. Adding them takes an
exclusive lock on the two tables for as long as the catalog's change takes.
"""

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None
lost_by_downgrade = (
    "responses.end_user",
    "responses.kind",
    "responses.root_id",
    "responses.turn",
    "usage_ledger.end_user",
    "usage_ledger.kind",
    "usage_ledger.background",
    "usage_ledger.attempt",
)


def upgrade() -> None:
    for column in (
        sa.Column("end_user", sa.Text(), comment="user, else safety_identifier, of its request"),
        sa.Column("kind", sa.Text(), comment="response, chat or completion: the API that made it"),
        sa.Column("root_id", sa.Uuid(), comment="the first response of its chain of previous responses"),
        sa.Column("turn", sa.Integer(), comment="its place in that chain, the first at 1"),
    ):
        op.add_column("responses", column)
    for column in (
        sa.Column("end_user", sa.Text(), comment="user, else safety_identifier, of its request"),
        sa.Column("kind", sa.Text(), comment="response, chat or completion: the API that made it"),
        sa.Column("background", sa.Boolean()),
        sa.Column("attempt", sa.Integer(), comment="how many replicas ran it"),
    ):
        op.add_column("usage_ledger", column)


def downgrade() -> None:
    for name in ("attempt", "background", "kind", "end_user"):
        op.drop_column("usage_ledger", name)
    for name in ("turn", "root_id", "kind", "end_user"):
        op.drop_column("responses", name)
