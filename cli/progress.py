"""Live progress of a run on standard error: a line that moves on a terminal, one line a phase elsewhere."""

from __future__ import annotations

import time
from types import TracebackType

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from cli.app import err


class RunProgress:
    """Shows the messages of a runner; `label` names the arm. A `phase` lasts until the next, a `note` is one line."""

    def __init__(self, label: str) -> None:
        self._label = label
        self._phase = ""
        self._began = time.monotonic()
        self._live = err.is_terminal
        self._bar = Progress(
            TextColumn("[bold]{task.description}"),
            BarColumn(bar_width=30),
            MofNCompleteColumn(),
            TextColumn("{task.fields[phase]}"),
            TimeElapsedColumn(),
            console=err,
            transient=True,
        )
        self._task: TaskID = self._bar.add_task(label, total=None, phase="")

    def __call__(self, message: dict[str, object]) -> None:
        """Take one message of the runner."""
        if "note" in message:  # something that happened; the phase goes on
            self._line(str(message["note"]))
            return
        phase = str(message.get("phase", ""))
        done, of = message.get("done"), message.get("of")
        if self._live:
            completed = done if isinstance(done, int) else None
            self._bar.update(self._task, completed=completed, total=of, phase=phase)  # type: ignore[arg-type]
        elif phase and phase != self._phase:
            wall = f" in {message['wall_s']} s" if "wall_s" in message else ""
            self._line(f"{phase}{wall}")
        self._phase = phase or self._phase

    def _line(self, text: str) -> None:
        err.print(f"{time.monotonic() - self._began:6.1f} s  {self._label}: {text}", highlight=False)

    def __enter__(self) -> RunProgress:
        if self._live:
            self._bar.start()
        return self

    def __exit__(self, _: type[BaseException] | None, __: BaseException | None, ___: TracebackType | None) -> None:
        if self._live:
            self._bar.stop()
