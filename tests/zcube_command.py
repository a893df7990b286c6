"""The command `zcube` as tests call it: in this process, or in one of its own where the process is what is tested."""

from __future__ import annotations

import contextlib
import io
import os
import signal
import subprocess
import sys
from unittest import mock

import pytest
from tests_root import REPOSITORY

ENVIRONMENT = {"COLUMNS": "120", "PYTHONDONTWRITEBYTECODE": "1"}

Result = subprocess.CompletedProcess[str]


def zcube(*arguments: str) -> Result:
    """What the command's entry point printed and how it ended, without the seconds in which a new process loads it."""
    from cli.main import main

    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    printed, said = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8") for _ in range(2))
    code: object = 0
    with (
        contextlib.redirect_stdout(printed),
        contextlib.redirect_stderr(said),
        contextlib.chdir(REPOSITORY),
        mock.patch.object(sys, "argv", ["zcube", *arguments]),
        mock.patch.dict(os.environ, ENVIRONMENT),
    ):
        try:
            main()
        except SystemExit as ended:
            code = ended.code or 0
        finally:
            for number, handler in handlers.items():
                signal.signal(number, handler)
    assert isinstance(code, int), code
    texts = []
    for stream in (printed, said):
        stream.flush()
        texts.append(stream.buffer.getvalue().decode())  # type: ignore[attr-defined]
    return subprocess.CompletedProcess(["zcube", *arguments], code, *texts)


def zcube_process(*arguments: str, user: int | None = None, timeout_s: float = 60) -> Result:
    """The same in a process of its own, also as another user."""
    if user is not None:  # skips, saying so, where another user cannot even enter the repository
        try:
            subprocess.run([sys.executable, "-c", ""], user=user, check=False)
        except PermissionError:
            pytest.skip("the repository cannot be entered by another user here")
    return subprocess.run(
        [sys.executable, "-m", "cli.main", *arguments],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=timeout_s,
        user=user,
        env={**os.environ, **ENVIRONMENT},
        check=False,
    )


def one_message(result: Result, code: int, *parts: str) -> None:
    """It ended with `code` and said one thing, which has all of `parts` in it."""
    said = " ".join(result.stderr.split())
    assert result.returncode == code, (result.returncode, result.stderr)
    assert "Traceback" not in result.stderr + result.stdout
    for part in parts:
        assert part in said, said
