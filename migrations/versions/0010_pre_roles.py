"""The role of a replica, by which others see whether anybody generates background responses.

`pre`: may run while the release before it still serves, whose replicas do everything: the default is theirs.
"""

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column(
        "replicas",
        sa.Column(
            "role",
            sa.Text(),
            server_default="all",
            nullable=False,
            comment="all; api: generates no background responses; worker: serves no requests",
        ),
    )
    op.create_check_constraint(op.f("ck_replicas_role"), "replicas", "role in ('all', 'api', 'worker')")


def downgrade() -> None:
    op.drop_column("replicas", "role")
