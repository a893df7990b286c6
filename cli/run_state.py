"""Why no controller answers in a folder: what the folder is, and how far its run has come."""

from __future__ import annotations

import json
import pwd
import time
from pathlib import Path

from emulation.launch import MACHINE_CHECK
from results.reader import RunFolder
from scenario.errors import TestbedError

#: Folders of arms that an answer lists.
_LISTED = 6


def why_no_controller(folder: Path, socket: Path, error: Exception, command: str) -> tuple[str, str]:
    """(what is the matter, what to do) when asking at `socket` in `folder` failed with `error`; `command` is the one
    that asked, up to the folder."""
    if isinstance(error, PermissionError):
        owner = _owner(socket) or _owner(folder) or "root"
        return f"its controller answers {owner} only", f"ask as {owner}: sudo {command} {folder}"
    if not folder.exists():
        return "there is no such folder", "it is the --out of `zcube run`, or one arm's folder of a comparison"
    if not folder.is_dir():
        return "is not a folder", "give the run's folder"
    if (folder / "meta.json").exists():
        return (
            "this run has ended, and its controller with it",
            "rules.json, events.jsonl (repairs, takeovers) and controller.log in the folder say what it did",
        )
    if not (folder / "scenario.yaml").exists():
        return _not_a_run(folder, command)
    try:
        plane = RunFolder(folder).scenario().fabric.switch
    except TestbedError as problem:
        hint = f"if nothing runs any more, the run has failed: see {folder}/runner.log"
        return f"its scenario cannot be read: {problem}", hint
    if plane == "linux":
        return (
            "this run has no controller: fabric.switch is linux, and the kernel forwards by static routes",
            "routes.json in the folder has them; probes and repairs need fabric.switch: ovs",
        )
    if isinstance(error, TimeoutError):
        return "its controller is there and does not answer", f"the machine may be full; or see {folder}/controller.log"
    if isinstance(error, ConnectionRefusedError):
        return (
            "nobody listens at its socket: the run was killed, or its controller has just ended",
            "try again in a second",
        )
    last = _last_event(folder)
    if last is None:
        return "its fabric is being brought up, or the run has failed", f"wait some seconds; or see {folder}/runner.log"
    return (
        f"no controller listens; the last step in events.jsonl is {last}",
        f"if nothing runs any more, the run has failed: see {folder}/runner.log and controller.log",
    )


def _not_a_run(folder: Path, command: str) -> tuple[str, str]:
    arms = sorted({found.parent for depth in ("*", "*/*") for found in folder.glob(f"{depth}/scenario.yaml")})
    if arms:
        live = [arm for arm in arms if not (arm / "meta.json").exists()]
        names = ", ".join(map(str, arms[:_LISTED])) + (", ..." if len(arms) > _LISTED else "")
        hint = f"try: {command} {live[0]}" if live else "all of them have ended"
        return f"holds several runs, each with a controller of its own: {names}", hint
    if (folder / MACHINE_CHECK).exists():
        return "its run has not begun: the machine is being checked", "try again in some seconds"
    return "is not a run folder: it has no scenario.yaml", "it is the --out of `zcube run`"


def _last_event(folder: Path) -> str | None:
    path = folder / "events.jsonl"
    try:
        lines = path.read_text().splitlines()
        event = json.loads(lines[-1])
        return f"{event['event']!r}, {time.time() - path.stat().st_mtime:.0f} s ago"
    except (OSError, ValueError, IndexError, KeyError):
        return None


def _owner(path: Path) -> str | None:
    """Whose it is; None where that cannot be seen."""
    try:
        return pwd.getpwuid(path.stat().st_uid).pw_name
    except (OSError, KeyError):
        return None
