"""A thread that does what is asked of it in order, so that nobody waits for the kernel or a busy switch."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import Generic, TypeVar

from scenario.errors import RunError

Job = TypeVar("Job")


class Worker(Generic[Job]):
    """Calls `do` for each job in a thread of its own. `do` raises RunError for what cannot be done: the jobs after it
    are done all the same, and the first such error is raised where the next job is asked for, or at the end."""

    def __init__(self, name: str, do: Callable[[Job], None]) -> None:
        self._name, self._do = name, do
        self._asked: queue.SimpleQueue[tuple[Job] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._failed: RunError | None = None

    def ask(self, job: Job) -> None:
        """Ask for it; what was asked before is done before. Raises RunError when a job before failed."""
        self._check()
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name=self._name, daemon=True)
            self._thread.start()
        self._asked.put((job,))

    def finish(self) -> None:
        """Wait until all is done. Raises RunError when a job failed."""
        self.join()
        self._check()

    def join(self) -> None:
        """Wait until all is done."""
        if self._thread is not None:
            self._asked.put(None)
            self._thread.join()
            self._thread = None

    def _check(self) -> None:
        if self._failed is not None:
            raise self._failed

    def _work(self) -> None:
        while (asked := self._asked.get()) is not None:
            try:
                self._do(asked[0])
            except RunError as error:
                self._failed = self._failed or error
