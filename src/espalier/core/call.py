"""How the verb that runs now was called, for what it records: a command, or a call in Python."""

from contextvars import ContextVar

CALL: ContextVar[str] = ContextVar("CALL", default="")
