"""Views of the console that operators have saved.

`pre`: a new table, which the release before does not look at.
"""

import sqlalchemy as sa
from alembic import op

revision = "0019"
down_revision = "0017"
branch_labels = None
depends_on = None
oldest_code = "0011"
lost_by_downgrade = ("saved_views",)


def upgrade() -> None:
    op.create_table(
        "saved_views",
        sa.Column(
            "id",
            sa.Uuid(),
            server_default=sa.text("gen_random_uuid()"),
            nullable=False,
            comment="names it in the console's addresses",
        ),
        sa.Column("page", sa.Text(), nullable=False, comment="history or sql"),
        sa.Column("name", sa.Text(), nullable=False, comment="what operators call it"),
        sa.Column(
            "content",
            sa.Text(),
            nullable=False,
            comment="the query of the history's address, or the text of an SQL query",
        ),
        sa.Column("created_by", sa.Text(), nullable=False, comment="the actor, as the audit trail names it"),
        sa.Column(
            "created_at",
            sa.DateTime(timezone=True),
            server_default=sa.text("clock_timestamp()"),
            nullable=False,
            comment="when it was saved",
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_saved_views")),
        sa.UniqueConstraint("page", "name", name=op.f("uq_saved_views_page_name")),
        sa.CheckConstraint("page in ('history', 'sql')", name=op.f("ck_saved_views_page")),
        comment="filters of the history and SQL queries that operators have saved in the console",
    )


def downgrade() -> None:
    op.drop_table("saved_views")
