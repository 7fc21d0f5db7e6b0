"""`python -m tests.support.listed_modules serve …`: a server that prints at its end what it has imported."""

import sys

from server.process import interrupts


def main() -> int:
    interrupts.exit_on_interrupt()
    from server.__main__ import main as run

    code = run()
    print("imported:", *sorted(name for name in sys.modules if "." not in name), flush=True)  # noqa: T201
    return code


if __name__ == "__main__":
    sys.exit(main())
