"""Which responses are choices of a chat completion, and an index for the list of completions.

`pre`: may run while the release before it still serves, which stores no completion under its own id.
"""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column(
        "responses",
        sa.Column(
            "choice",
            sa.SmallInteger(),
            nullable=True,
            comment="its place in the chat completion whose choice it is; null for other responses",
        ),
    )
    op.create_index(
        "ix_responses_choice",
        "responses",
        ["tenant", sa.text("created_at desc")],
        postgresql_where=sa.text("choice = 0"),
    )


def downgrade() -> None:
    op.drop_index("ix_responses_choice", table_name="responses", postgresql_where=sa.text("choice = 0"))
    op.drop_column("responses", "choice")
