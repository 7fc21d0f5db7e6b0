"""That requests need an API key, for good, once there was one: keys may be erased, this stays.

`pre`: a new table, which the release before does not look at. A key that it makes counts while its row
is there.
"""

import sqlalchemy as sa
from alembic import op

revision = "0023"
down_revision = "0022"
branch_labels = None
depends_on = None
oldest_code = "0011"
lost_by_downgrade = ("key_requirement",)


def upgrade() -> None:
    op.create_table(
        "key_requirement",
        sa.Column("name", sa.Text(), nullable=False, comment="always this"),
        sa.Column(
            "since",
            sa.DateTime(timezone=True),
            server_default=sa.text("clock_timestamp()"),
            nullable=False,
            comment="when the first key was made, or an issuer was first set",
        ),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_key_requirement")),
        comment="one row once requests need a key; nothing removes it",
    )
    op.execute(
        "insert into key_requirement (name, since) "
        "select 'shared', min(created_at) from api_keys having count(*) > 0"
    )


def downgrade() -> None:
    op.drop_table("key_requirement")
