"""Pictures of items, stored once for each tenant by their SHA-256, and the items that name them; a view.

`pre`: may run while the release before it still serves, which stores pictures in the items themselves. What
it stores stays there. Of an item that this release stores it shows no picture, and when it deletes such an
item, this release's retention notices later that the picture is not used any more. No table of earlier
releases changes. The downgrade removes the pictures.
"""

from pathlib import Path

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None

VIEWS = Path(__file__).parent.parent / "views"


def upgrade() -> None:
    op.create_table(
        "images",
        sa.Column("tenant", sa.Text(), nullable=False),
        sa.Column("digest", sa.LargeBinary(), nullable=False, comment="SHA-256 of data"),
        sa.Column("media_type", sa.Text(), nullable=False, comment="as its first data URL names it"),
        sa.Column("size", sa.Integer(), nullable=False, comment="bytes of data"),
        sa.Column("data", sa.LargeBinary(), nullable=False, comment="compressed already, so stored as it is"),
        _created_at(),
        sa.PrimaryKeyConstraint("tenant", "digest", name=op.f("pk_images")),
    )
    op.execute("alter table images alter column data set storage external")
    op.create_table(
        "item_images",
        sa.Column("tenant", sa.Text(), nullable=False),
        sa.Column(
            "owner", sa.Uuid(), nullable=False, comment="the response or conversation that has the item"
        ),
        sa.Column("item_id", sa.Text(), nullable=False),
        sa.Column("digest", sa.LargeBinary(), nullable=False),
        sa.Column("removed_at", sa.DateTime(timezone=True), nullable=True),
        sa.ForeignKeyConstraint(
            ["tenant", "digest"],
            ["images.tenant", "images.digest"],
            name=op.f("fk_item_images_tenant_digest"),
        ),
        sa.PrimaryKeyConstraint("tenant", "owner", "item_id", "digest", name=op.f("pk_item_images")),
    )
    op.create_index("ix_item_images_digest", "item_images", ["tenant", "digest"], unique=False)
    op.create_index(
        "ix_item_images_removed_at",
        "item_images",
        ["removed_at"],
        unique=False,
        postgresql_where=sa.text("removed_at is not null"),
    )
    op.execute(sa.text((VIEWS / "v_images.sql").read_text(encoding="utf-8")))


def _created_at() -> sa.Column[object]:
    return sa.Column(
        "created_at",
        sa.DateTime(timezone=True),
        server_default=sa.text("clock_timestamp()"),
        nullable=False,
    )


def downgrade() -> None:
    op.execute(sa.text("drop view v_images"))
    op.drop_table("item_images")
    op.drop_table("images")
