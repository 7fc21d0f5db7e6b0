"""`python -m server` is the `holdfast` command."""

import sys

from server.cli import main

sys.exit(main())
