"""Which weights generate a response, and which replica an idempotency key was claimed by.

`pre`: two new columns that the release before neither reads nor writes. Where they are null, a response goes
on as it did, and a key is free once no replica is as old as it.
"""

import sqlalchemy as sa
from alembic import op

revision = "0021"
down_revision = "0020"
branch_labels = None
depends_on = None
oldest_code = "0011"
lost_by_downgrade = ("responses.weights", "idempotency_keys.replica_id")


def upgrade() -> None:
    op.add_column(
        "responses", sa.Column("weights", sa.Text(), comment="digest of the weights that generate it")
    )
    op.add_column(
        "idempotency_keys", sa.Column("replica_id", sa.Uuid(), comment="the replica that claimed it")
    )


def downgrade() -> None:
    op.drop_column("idempotency_keys", "replica_id")
    op.drop_column("responses", "weights")
