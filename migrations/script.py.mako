"""${message}

Revises: ${down_revision | comma,n}
"""

import sqlalchemy as sa
from alembic import op
${imports if imports else ""}
revision = ${repr(up_revision)}
down_revision = ${repr(down_revision)}
branch_labels = None
depends_on = None
oldest_code = ""  # the last revision of the release before, for a migration that may run beside it
lost_by_downgrade = ()  # tables, and columns as table.column, with what the downgrade deletes


def upgrade() -> None:
    ${upgrades if upgrades else "pass"}


def downgrade() -> None:
    ${downgrades if downgrades else "pass"}
