"""How log records are written: one line each, which no text in them can break or imitate.

Texts of callers, models and tool servers reach the log. A line feed in one would begin a line that looks like
the server's own, and an escape sequence would be carried out by the terminal that shows the log.
"""

import logging
import sys


class OneLineFormatter(logging.Formatter):
    """Escapes what is not printable; a traceback follows its line, each of its own lines indented."""

    def format(self, record: logging.LogRecord) -> str:
        """The record's line, and the traceback's."""
        record.message = escape_unprintable(record.getMessage())
        if self.usesTime():
            record.asctime = self.formatTime(record, self.datefmt)
        lines = [self.formatMessage(record)]
        details = [self.formatException(record.exc_info)] if record.exc_info else []
        if record.stack_info:
            details.append(self.formatStack(record.stack_info))
        lines += ["  " + escape_unprintable(line) for text in details for line in text.split("\n")]
        return "\n".join(lines)


def escape_unprintable(text: str) -> str:
    """The text with control, format and separator characters, and lone surrogates, as Python's escapes."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def configure_logging(level: str) -> None:
    """Has everything from `level` on written to standard error in this format."""
    logging.getLogger("httpx").setLevel("WARNING")  # it tells every exchange, with its whole address
    logging.getLogger("mcp").setLevel("CRITICAL")  # it tells what servers send; our own log says what failed
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(OneLineFormatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logging.basicConfig(level=level.upper(), handlers=[handler])
