"""A controller that dies while a run is serving: another takes over, and forwarding stays as it is meanwhile.

The switches keep their rules without a controller (fail mode secure), so nothing that is served is lost, unless a cable
fails in the gap: the new controller learns of it from the ports that the switches describe, and repairs it then.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from emulation.adopted import Adopted
from emulation.control import Controller, first_error
from emulation.netns import Batch
from emulation.openflow_polls import Polls
from emulation.ovs import NamespacedOvs
from scenario.errors import RunError

#: A controller that dies more often than this has a cause that another start does not mend.
MAX_RESTARTS = 3
#: How long a new controller may take until all switches have confirmed their rules to it: half a second for one that
#: stood by; one that starts anew needs two on a quiet machine, ten on one that is busy with something else.
TAKEOVER_WITHIN_S = 30.0
#: How often its status file is read meanwhile.
_LOOK_EVERY_S = 0.05


def replace_controller(controller: Controller, switches: Sequence[NamespacedOvs]) -> None:
    """Start another and let all switches connect to it; waits until they have been told. Raises RunError."""
    controller.restart()
    while not controller.listening:
        if controller.process.poll() is not None:
            raise RunError("the new controller ended before it listened; controller.log says why")
        time.sleep(0.01)
    NamespacedOvs.connect(switches, controller.target).finish()


@dataclass(frozen=True)
class Restart:
    """One takeover, as meta.json keeps it. Times in wall seconds; `t_ended_monotonic_s` is when the end was noticed."""

    exit_status: int | None  # None: of a controller that stood by, whose parent was the one before
    t_ended_monotonic_s: float
    quiet_s: float
    rules_kept: int
    rules_sent: int
    stood_by: bool


@dataclass
class ControllerKeeper:
    """Keeps a controller running. `log` takes events for events.jsonl, `say` a line of progress. While `discovering` a
    new controller asks for the cabling as well."""

    controller: Controller
    switches: Sequence[NamespacedOvs]
    polls: Polls | None = None  # those that have been started: a new controller goes on with them
    log: Callable[[dict[str, object]], None] = lambda _: None
    say: Callable[[str], None] = lambda _: None
    restarts: list[Restart] = field(default_factory=list)
    discovering: bool = False
    _ended_s: float | None = None  # of the controller before, while the new one has not taken over
    _exit_status: int | None = 0
    _stood_by: bool = False
    _started: int = 0
    _told: Batch | None = None
    _looked_s: float = 0.0

    def step(self) -> None:
        """Look after it; to be called often, and returns at once. Raises RunError when it cannot be kept running."""
        exit_status = self.controller.process.poll()
        if exit_status is not None:
            self._replace(None if exit_status == Adopted.UNKNOWN else exit_status)
        elif self._ended_s is not None and time.monotonic() - self._looked_s >= _LOOK_EVERY_S:
            self._looked_s = time.monotonic()
            if self._told is None and self.controller.listening:
                self._told = NamespacedOvs.connect(self.switches, self.controller.target)
            self._look(self._ended_s)

    def start_polls(self, polls: Polls) -> None:
        """Start them with a controller that is there, and look after them from then on. Raises RunError."""
        self.finish()
        try:
            polls.start()
        except RunError:
            if self.controller.process.poll() is None:
                raise
            self.finish()
            polls.start()
        self.polls = polls

    @property
    def quiet(self) -> bool:
        """Whether the switches have no controller now."""
        return self._ended_s is not None

    def finish(self, at_once: bool = False) -> None:
        """Wait for a takeover that has begun, unless `at_once`: what comes next talks to the controller.

        Raises RunError.
        """
        self.step()
        while self.quiet and not at_once:
            time.sleep(_LOOK_EVERY_S)
            self.step()

    def _replace(self, exit_status: int | None) -> None:
        now = time.monotonic()
        if self._ended_s is None:  # else it died before it had taken over: the switches are alone since the first
            self._ended_s = now
        self._exit_status = exit_status
        self.log({"event": "controller ended", "exit_status": exit_status, "t_monotonic_s": now})
        if self._started == MAX_RESTARTS:
            raise RunError(
                f"the controller ended {MAX_RESTARTS + 1} times, the last time"
                f"{'' if exit_status is None else f' with status {exit_status}'}; controller.log may say why"
            )
        self._started += 1
        self.say("the controller ended: a new one takes over")
        if self._told is not None:  # else it might name the old target last
            with contextlib.suppress(RuntimeError):
                self._told.finish()
            self._told = None
        self._stood_by = self.controller.restart(discover=self.discovering)
        if self.polls is not None:
            self.polls.resume(self._ended_s)

    def _look(self, ended_s: float) -> None:
        status = self.controller.status()
        now = time.monotonic()
        if status["state"] == "failed":
            raise RunError(f"the controller that takes over reports a failure: {first_error(status)}")
        if status["state"] != "confirmed":
            if now - ended_s > TAKEOVER_WITHIN_S:
                raise RunError(
                    f"a new controller could not take over within {TAKEOVER_WITHIN_S:.0f} s of the end of the one"
                    f" before ({status.get('confirmed', 0)} of {len(self.switches)} switches have confirmed their"
                    " rules); see controller.log"
                )
            return
        switches = status["switches"]
        assert isinstance(switches, dict)
        kept, sent = (sum(found[f"rules_{what}"] for found in switches.values()) for what in ("kept", "sent"))
        restart = Restart(self._exit_status, ended_s, round(now - ended_s, 3), kept, sent, self._stood_by)
        self.restarts.append(restart)
        self._ended_s = None
        if self._told is not None:
            self._told.finish()
        self.log(
            {
                "event": "controller took over",
                "quiet_s": restart.quiet_s,
                "rules_kept": kept,
                "rules_sent": sent,
                "stood_by": self._stood_by,
                "t_monotonic_s": now,
            }
        )
        anew = "; it asks for the cabling anew" if self.discovering else ""
        took = f"the new controller has taken over after {restart.quiet_s:.1f} s"
        self.say(f"{took}: {kept} rules kept, {sent} sent{anew}")
