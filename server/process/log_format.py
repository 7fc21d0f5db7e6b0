"""Log format: one line per record, with unprintable characters escaped (prevents log injection).

Text of callers, models and tool servers reaches the log. A line feed in it could forge a log line, and a
terminal would interpret escape sequences.
"""

import logging
import sys


class OneLineFormatter(logging.Formatter):
    """Escapes unprintable characters; the lines of a traceback follow, indented."""

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
    """Writes records from `level` on to standard error in this format."""
    logging.getLogger("httpx").setLevel("WARNING")  # logs every exchange with its full URL
    logging.getLogger("mcp").setLevel("CRITICAL")  # logs what servers send; our log has the failures
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(OneLineFormatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logging.basicConfig(level=level.upper(), handlers=[handler])
