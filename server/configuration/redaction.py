"""Redaction of secrets in settings, for logs. Pure."""

import re
from urllib.parse import urlsplit


def without_secrets(tool_servers: str) -> str:
    """Hides user names, paths and queries of URLs, which may hold tokens, and commands with arguments."""
    shown = re.sub(r"://[^/@,]*@", "://***@", tool_servers)
    return re.sub(r"(://[^/?#,]*|=stdio:)[^,]+", r"\1***", shown)


def without_password(url: str) -> str:
    """Hides the password before the host and in the query, where libpq accepts it, too."""
    password = urlsplit(url).password
    shown = url if password is None else url.replace(f":{password}@", ":***@", 1)
    return re.sub(r"(?<=password=)[^&]*", "***", shown)
