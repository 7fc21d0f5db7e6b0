"""`admin.costs_monthly` with a plan that Postgres does not compile.

`pre`: the view has the columns that it had.
"""

import re
from pathlib import Path

from alembic import op

revision = "0020"
down_revision = "0019"
branch_labels = None
depends_on = None
oldest_code = "0011"
lost_by_downgrade = ()

VIEW = Path(__file__).parent.parent / "views" / "admin" / "costs_monthly.sql"


def upgrade() -> None:
    for statement in re.split(r";\n", VIEW.read_text(encoding="utf-8")):
        if statement.strip():
            op.execute(statement.replace(":", r"\:"))


def downgrade() -> None:
    pass
