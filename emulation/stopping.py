"""Ctrl-C while something runs in a sandbox: the first asks for an orderly end, the ones after it do no harm."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any

from emulation.sandbox import Sandbox

#: After Ctrl-C the runner has this long to come to writing what it measured; then the sandbox ends.
GRACE_S = 2.2
#: Writing is not cut short by a further Ctrl-C, unless it takes longer than this.
WRITING_S = 15.0
#: When everything is written, closing down is the kernel's business.
CLOSING_S = 0.5
#: Phases of the runner that matter here.
WRITING, WRITTEN = "writing results", "results are written"

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Stopping:
    """Handles Ctrl-C (and SIGTERM) for one sandbox, from before it starts until it is gone: a context manager, used in
    the main thread or without effect.

    `tell` takes messages for the user, as a runner's progress does.
    """

    def __init__(self, tell: Callable[[dict[str, object]], None]) -> None:
        self._sandbox: Sandbox | None = None
        self._tell = tell
        self._asked_s: float | None = None
        self._phase = ""
        self._before: dict[int, Any] = {}

    @property
    def asked(self) -> bool:
        """Whether somebody asked for the end."""
        return self._asked_s is not None

    def watch(self, sandbox: Sandbox) -> None:
        """This is the sandbox; an end that was asked for already is passed on."""
        self._sandbox = sandbox
        if self.asked:
            self._ask()

    def hear(self, message: dict[str, object]) -> None:
        """Take a message of the runner: its phase decides how long it may still take."""
        phase = str(message.get("phase", self._phase))
        if phase == self._phase:
            return
        self._phase = phase
        if self.asked:
            self._allow()

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        now_s = time.monotonic()
        if self._asked_s is None:
            self._asked_s = now_s
            self._ask()
        elif now_s - self._asked_s > WRITING_S:
            self._end()
        else:
            left_s = WRITING_S - (now_s - self._asked_s)
            self._tell({"note": f"writing results; Ctrl-C is ignored for {left_s:.0f} s more, so that they are kept"})

    def _ask(self) -> None:
        if self._sandbox is not None:
            self._sandbox.interrupt()
            self._allow()

    def _allow(self) -> None:
        limit_s = {WRITING: 0.0, WRITTEN: CLOSING_S}.get(self._phase, GRACE_S)  # 0: no limit
        signal.setitimer(signal.ITIMER_REAL, limit_s)

    def _end(self, *_: object) -> None:
        if self._sandbox is not None:
            self._sandbox.end()

    def __enter__(self) -> Stopping:
        if threading.current_thread() is threading.main_thread():
            self._before[signal.SIGALRM] = signal.signal(signal.SIGALRM, self._end)
            for number in _SIGNALS:
                self._before[number] = signal.signal(number, self._on_signal)
        return self

    def __exit__(self, _: type[BaseException] | None, __: BaseException | None, ___: TracebackType | None) -> None:
        if self._before:
            signal.setitimer(signal.ITIMER_REAL, 0)
        for number, handler in self._before.items():
            signal.signal(number, handler)
