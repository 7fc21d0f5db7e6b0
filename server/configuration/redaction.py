"""Settings as they may be shown: without the secrets in them. Pure."""

import re
from urllib.parse import urlsplit


def without_secrets(tool_servers: str) -> str:
    """Hides user names, paths and queries of URLs, in which tokens are, and programs with their arguments."""
    shown = re.sub(r"://[^/@,]*@", "://***@", tool_servers)
    return re.sub(r"(://[^/?#,]*|=stdio:)[^,]+", r"\1***", shown)


def without_password(url: str) -> str:
    """Hides it before the host, and among the parameters, where libpq takes it too."""
    password = urlsplit(url).password
    shown = url if password is None else url.replace(f":{password}@", ":***@", 1)
    return re.sub(r"(?<=password=)[^&]*", "***", shown)
