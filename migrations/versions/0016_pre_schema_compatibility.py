"""Which releases may serve on which revision, and the revision of each replica's release.

`pre`: may run while the release before still serves, which leaves the column empty. Adding it takes an
exclusive lock on `replicas` for as long as the catalog's change takes.
"""

import sqlalchemy as sa
from alembic import op

revision = "0016"
down_revision = "0015"
branch_labels = None
depends_on = None
oldest_code = "0011"
lost_by_downgrade = ()


def upgrade() -> None:
    op.create_table(
        "schema_compatibility",
        sa.Column("revision", sa.Text(), nullable=False, comment="of the migration"),
        sa.Column(
            "oldest_code",
            sa.Text(),
            nullable=False,
            comment="the last revision that the oldest release knows that may serve on this one",
        ),
        sa.Column("release", sa.Text(), nullable=False, comment="the release that applied it"),
        sa.Column(
            "applied_at",
            sa.DateTime(timezone=True),
            server_default=sa.text("clock_timestamp()"),
            nullable=False,
            comment="when it was applied",
        ),
        sa.PrimaryKeyConstraint("revision", name=op.f("pk_schema_compatibility")),
        comment="a row for each migration that has run, from the one on that made this table",
    )
    op.add_column(
        "replicas", sa.Column("revision", sa.Text(), comment="the schema's revision that its release needs")
    )


def downgrade() -> None:
    op.drop_column("replicas", "revision")
    op.drop_table("schema_compatibility")
