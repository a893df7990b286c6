"""Reads a file that a user named: a regular one of a sane size. Whatever is wrong with it is one message."""

from __future__ import annotations

from pathlib import Path

from scenario.errors import InputError

#: Far more than the cables of 16,384 GPUs need, seen from both ends.
MAX_BYTES = 32_000_000


def read_bytes(path: Path, field: str, what: str, hint: str, max_bytes: int = MAX_BYTES) -> bytes:
    """The content of a file. `field` names it in errors, `what` says what it should be, `hint` the next step.

    Raises InputError for what is no regular file (a pipe or a device could be read for ever), for one that is larger
    than `max_bytes`, and for one that cannot be read.
    """
    try:
        if path.exists() and not path.is_file():
            raise InputError(field, str(path), "is not a regular file", hint)
        if path.exists() and path.stat().st_size > max_bytes:
            raise InputError(field, str(path), f"is larger than {max_bytes:,} bytes: not {what}", hint)
        return path.read_bytes()
    except OSError as error:
        raise InputError(field, str(path), error.strerror or "cannot be read", hint) from None


def read_text(path: Path, field: str, what: str, hint: str, max_bytes: int = MAX_BYTES) -> str:
    """`read_bytes` as UTF-8, with or without a byte-order mark. Raises InputError."""
    try:
        return read_bytes(path, field, what, hint, max_bytes).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(field, str(path), f"is not UTF-8 text (byte {error.start})", hint) from None
