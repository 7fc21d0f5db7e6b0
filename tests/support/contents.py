"""How much an object holds: a bound on what is kept is held by it without a name of anything inside."""

import asyncio
import gc
import threading
from collections import deque
from types import BuiltinFunctionType, CodeType, FrameType, FunctionType, MethodType, ModuleType

_ELSEWHERE = (
    type, ModuleType, FunctionType, BuiltinFunctionType, MethodType, CodeType, FrameType,
    threading.Thread, asyncio.AbstractEventLoop, str, bytes, int, float,
)  # fmt: skip
"""Not a part of the object that refers to it."""


def entries(thing: object) -> int:
    """The number of entries of all containers that the object has, directly or through objects of its own."""
    counted, seen, left = 0, dict[int, object](), [thing]
    while left:
        part = left.pop()
        if id(part) in seen or isinstance(part, _ELSEWHERE):
            continue
        seen[id(part)] = part  # and keeps it, so that no other object gets its id
        if isinstance(part, dict | list | set | frozenset | deque):
            counted += len(part)
            left += gc.get_referents(part)
        elif hasattr(part, "__dict__"):
            fields = vars(part)
            seen[id(fields)] = fields
            left += [*fields.values(), *(each for each in gc.get_referents(part) if each is not fields)]
        else:
            left += gc.get_referents(part)
    return counted
