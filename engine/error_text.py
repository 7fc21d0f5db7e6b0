"""Error messages as one bounded line, for logs and refusals. Pure; any thread."""


def one_line(text: str, limit: int = 300) -> str:
    """The text without line breaks, cut to `limit` characters."""
    return " ".join(text.split())[:limit]


def describe(error: BaseException, limit: int = 300) -> str:
    """Type and message of the error in one line, cut to `limit` characters."""
    return one_line(f"{type(error).__name__}: {error}", limit)
