"""Errors that a person can act on. Each names the field, the value, what is allowed and the next step."""

from __future__ import annotations

#: Characters of a value that an error shows: a path is shown whole, a page that was pasted is not.
LONGEST_VALUE = 200


def cut(text: str) -> str:
    """The text, or its start and three dots where it is longer than LONGEST_VALUE."""
    return text if len(text) <= LONGEST_VALUE else text[: LONGEST_VALUE - 3] + "..."


class TestbedError(Exception):
    """Base of every error that is shown as one message without a traceback; `exit_code` is the process status."""

    exit_code = 1
    __test__ = False  # not a pytest class, in spite of its name


class InputError(TestbedError):
    """Bad input or usage: exit code 2."""

    exit_code = 2

    def __init__(self, field: str, value: object, allowed: str, hint: str = "") -> None:
        self.field, self.value, self.allowed, self.hint = field, value, allowed, hint
        text = f"{cut(field)} = {cut(repr(value))}: {allowed}"
        super().__init__(f"{text}\n  {hint}" if hint else text)


class MachineError(TestbedError):
    """The machine lacks something (root, a kernel feature, a package): exit code 3."""

    exit_code = 3

    def __init__(self, missing: str, remedy: str) -> None:
        self.missing, self.remedy = missing, remedy
        super().__init__(f"{missing}\n  {remedy}")


class RunError(TestbedError):
    """A run started and failed: exit code 1."""
