"""Runs a scenario from outside the sandbox: makes the run folder, starts the runner there, hears its progress."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from controller.status_socket import NAME as SOCKET_NAME
from emulation.mooncake_extra import require_transport
from emulation.sandbox import Sandbox, require_machine
from emulation.stopping import Stopping
from results.writer import create_folder, open_log, write_yaml
from scenario.errors import InputError, MachineError, RunError
from scenario.models import Scenario

Progress = Callable[[dict[str, object]], None]

@dataclass(frozen=True)
class Ended:
    """How a run ended: 0 good, 130 interrupted (with what was measured in the folder, if serving had begun)."""

    exit_code: int
    wall_s: float


#: The log of the check of the machine may be in a run folder before the run is.
MACHINE_CHECK = "machine-check"
#: Replies to polls of statistics, until they are decoded.
POLLS_LOG = "openflow.log.partial"


def require_new_folder(path: Path) -> None:
    """Make the folder, or find it empty. Raises InputError, so that nothing of somebody's is written over."""
    if path.exists() and (not path.is_dir() or any(entry.name != MACHINE_CHECK for entry in path.iterdir())):
        raise InputError("--out", str(path), "must be new or an empty folder")
    try:
        create_folder(path)
    except OSError as error:
        raise InputError("--out", str(path), f"cannot be made: {error.strerror}", "choose another with --out") from None


def new_run_folder(path: Path, scenario: Scenario) -> Path:
    """Make an empty run folder with its scenario. Raises InputError when there is a run in it already."""
    require_new_folder(path)
    write_yaml(path / "scenario.yaml", scenario.model_dump(mode="json"))
    return path


def run(
    folder: Path, scenario: Scenario, budget_hops_per_s: float, progress: Progress, captured: Sequence[str] = ()
) -> Ended:
    """Run `scenario` (scale resolved) into `folder`; `captured` names interfaces to capture while serving.

    Raises RunError, InputError or MachineError.
    """
    require_machine()
    require_transport(scenario)
    new_run_folder(folder, scenario)
    began = time.monotonic()
    argv = ["-m", "emulation.runner", str(folder.resolve()), repr(budget_hops_per_s), *captured]
    try:
        code = sandboxed(argv, folder, progress)
    finally:  # a runner that was killed has left them
        for name in (SOCKET_NAME, POLLS_LOG):
            (folder / name).unlink(missing_ok=True)
    return Ended(code, time.monotonic() - began)


def interrupted(folder: Path) -> str:
    """What to say of a run that was interrupted."""
    if (folder / "meta.json").exists():
        return f"Interrupted; what was measured is in {folder}"
    return f"Interrupted before anything was measured; logs are in {folder}"


def observe_cabling(folder: Path, scenario: Scenario, progress: Progress) -> Path:
    """Bring the scenario's fabric up without traffic and write who hangs on whom into `folder`; returns that file.

    Raises RunError, MachineError or KeyboardInterrupt.
    """
    require_machine()
    new_run_folder(folder, scenario)
    if sandboxed(["-m", "emulation.cabling", str(folder.resolve())], folder, progress):
        raise KeyboardInterrupt
    return folder / "cabling.json"


def sandboxed(argv: list[str], folder: Path, progress: Progress) -> int:
    """Run Python with `argv` in a sandbox; its JSON lines go to `progress`. Returns 0 or 130, raises else.

    After Ctrl-C (`emulation.stopping`) the runner may write what it measured; finished files are whole in any case.
    """
    failure = ""
    with (
        Stopping(progress) as stopping,
        open_log(folder / "runner.log") as log,
        Sandbox(argv, stderr=log) as sandbox,
    ):
        stopping.watch(sandbox)
        assert sandbox.process.stdout is not None
        for line in sandbox.process.stdout:
            if stopping.asked and not line.endswith(b"\n"):  # it was ended while it spoke
                break
            message = json.loads(line)
            if "error" in message:
                failure = str(message["error"])
                continue
            stopping.hear(message)
            progress(message)
        if stopping.asked:
            return 130
        code = sandbox.wait(30)
    if stopping.asked or code in (0, 130):
        return 130 if stopping.asked else code
    if code > 128:
        failure = failure or f"the run was killed (signal {code - 128}); by whom is not known: out of memory?"
    text = failure or _last_lines(folder / "runner.log") or f"the runner ended with status {code}"
    if code == 2:
        raise InputError("scenario", folder.name, text)
    if code == 3:
        raise MachineError(text, "zcube doctor says what this machine has")
    raise RunError(f"{text}\n  logs are in {folder}")


def _last_lines(path: Path) -> str:
    if not path.exists():
        return "the run folder has gone"
    lines = path.read_text(errors="replace").strip().splitlines()
    return "\n".join(lines[-3:])
