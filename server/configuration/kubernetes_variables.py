"""Recognises the variables that Kubernetes sets in every pod for a Service whose name begins with `holdfast`.

They have the prefix of this server's settings without being settings:
https://kubernetes.io/docs/concepts/services-networking/service/#environment-variables
"""

import re

_LINK = re.compile(
    r"HOLDFAST_(?:[A-Z0-9_]+_)?"
    r"(?:SERVICE_HOST|SERVICE_PORT(?:_[A-Z0-9_]+)?|PORT_[0-9]{1,5}_(?:TCP|UDP|SCTP)(?:_(?:PROTO|PORT|ADDR))?)"
)
_PORT = re.compile(r"HOLDFAST_(?:[A-Z0-9_]+_)?PORT")
_PLACE = re.compile(r"(?:tcp|udp|sctp)://")


def is_service_link(variable: str, value: str) -> bool:
    """Whether Kubernetes set the variable. `HOLDFAST_PORT` is recognised by its value, `tcp://10.0.0.1:8000`."""
    return bool(_LINK.fullmatch(variable) or (_PORT.fullmatch(variable) and _PLACE.match(value)))
