"""`python -m server` is the `holdfast` command."""

import sys

from server.process import interrupts


def main() -> int:
    """The command's exit code. After an interrupt it does not return: the process exits with 130."""
    interrupts.exit_on_interrupt()
    from server.cli.entry_point import main as run

    code = run()
    if interrupts.was_interrupted():
        interrupts.exit_interrupted()
    return code


if __name__ == "__main__":
    sys.exit(main())
