"""One run, from inside the sandbox: fabric up, checks, serving, and everything measured into the run folder.

Started by `emulation.launch` as `python -m emulation.runner RUN_FOLDER BUDGET [PORT...]`; the folder holds
scenario.yaml with the scale resolved, and the ports are those to capture. Progress goes to standard output, one JSON
object a line. SIGINT ends the serving, keeps what was measured and exits with 130.
"""

from __future__ import annotations

import contextlib
import gc
import json
import math
import os
import signal
import statistics
import sys
import time
import traceback
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

from emulation import fidelity, meta, ovs_counters, priority, shaping
from emulation import transfers as transfer_rows
from emulation.agents import AgentPool
from emulation.capture import Captures
from emulation.counter_check import counter_difference
from emulation.cpu import CpuClock
from emulation.faults import FaultPlayer
from emulation.iperf import IperfPlayer, iperf_streams
from emulation.linkcheck import ALL_LINKS_UP_TO_GPUS, LinkRate, Round, check_links, plan_rounds, planned_flows
from emulation.liveness import Liveness
from emulation.losses import Losses
from emulation.marks import Marks, turn_on
from emulation.mooncake import MooncakePool
from emulation.network import EmulatedNetwork
from emulation.planes import Plane, Site, plane_of
from emulation.pressure import Pressure
from emulation.sampling import SamplerProcess, rates_hz, sample_hz
from emulation.serve import ServingLoop
from emulation.stopping import WRITING, WRITTEN
from emulation.watch import ConnectionWatch
from results.parts import join
from results.reader import RunFolder
from results.schema import GPUS, PORTS, REQUESTS, TRANSFERS
from results.writer import EventLog, open_log, write_json, write_table, write_text
from scenario.errors import RunError, TestbedError
from scenario.fault_names import slow_ports
from scenario.models import Scenario
from scenario.scale import ACK_SHARE, Scale
from topologies.build import build
from traffic.background import WithBackground
from traffic.budget import Demand, demand, pairs_of
from traffic.engines import make_engine
from traffic.sources import make_source

LONE_TRANSFERS = 5
#: Linux does not pace the first ten segments of a connection (`tcp_update_skb_after_send`); adaptive striping may give
#: one of two queue pairs less than its half.
UNPACED_FRAMES, EXERCISE_S = 20, 120.0
#: How long an agent may take to answer after Ctrl-C.
AT_ONCE_S = 0.5
#: Frames per queue pair from which on a handoff is held against the max-min replay.
COMPARED_FROM_FRAMES = 10
#: Part of the packet budget that a round of the link check may use: links are judged one by one, not under stress.
LINK_CHECK_SHARE = 0.9


class Interrupted(Exception):
    """SIGINT during set-up: there is nothing to keep yet."""


def say(**message: object) -> None:
    """One line of progress."""
    print(json.dumps(message), flush=True)


class Run:
    """The steps of a run, in order; each leaves what the next one needs."""

    def __init__(
        self, folder: Path, scenario: Scenario, budget_hops_per_s: float, captured: Sequence[str] = ()
    ) -> None:
        self.folder, self.scenario, self.budget_hops_per_s = folder, scenario, budget_hops_per_s
        self.captured = captured
        self.stop_asked = False
        signal.signal(signal.SIGINT, self._on_interrupt)
        settings = scenario.scale
        if settings.rate_factor is None or settings.dilation is None:
            raise RunError("the scale is not resolved; start runs with `zcube run`")
        self.scale = Scale(settings.rate_factor, settings.dilation, settings.frame_bytes)
        self.fabric, self.source = build(scenario.fabric), make_source(scenario)
        self.engine = make_engine(scenario, self.source)
        self.demand: Demand = demand(scenario, self.fabric, self.source)
        self.pairs = pairs_of(scenario, self.source)
        self.iperf_streams = iperf_streams(scenario, self.fabric)
        self.background: list[dict[str, object]] = []
        self.queue_pairs = [qp for src, dst in self.pairs for qp in scenario.paths.queue_pairs(self.fabric, src, dst)]
        self.links_sampled = scenario.fidelity.link_check == "auto" and len(self.fabric.gpus) > ALL_LINKS_UP_TO_GPUS
        self.lone_ideal_s, self.phase = 0.0, ""
        self.events = EventLog(folder / "events.jsonl")
        self.logs: list[IO[bytes]] = []
        self.plane: Plane = plane_of(
            Site(folder, scenario, self.fabric, self.scale, self._log, self.events.write, say)
        )
        self.up = False

    def _on_interrupt(self, *_: object) -> None:
        self.stop_asked = True
        if self.phase != "serving":  # nothing has been measured that would be kept
            raise Interrupted

    def _log(self, name: str) -> IO[bytes]:
        log = open_log(self.folder / f"{name}.log")
        self.logs.append(log)
        return log

    def _step(self, phase: str) -> None:
        if self.stop_asked:
            raise Interrupted
        if self.up:
            self.plane.settle()
        self.phase = phase
        say(phase=phase)
        self.events.write({"event": phase, "t_monotonic_s": time.monotonic()})

    def clear(self) -> None:
        """Remove what is of use only while this process runs, however it ends."""
        self.plane.clear()

    def execute(self) -> int:
        """Run everything; the process's exit code."""
        self._step(self.plane.starting)
        net = self._bring_up()
        # Engine, agents and iperf3 are small and must be prompt; what is started from here on inherits it.
        switches = priority.favour(self.plane.processes.values(), priority.SWITCHES)
        self.favoured = priority.favour([os.getpid()], priority.AGENTS) and switches
        self._step("checking every link")
        rates, again = check_links(net, self.rounds, self.scenario.fidelity.link_rate_pct / 100)
        turn_on(net, self.scenario.flow_control)
        self._step("opening queue pairs")
        paths = self.scenario.paths
        mooncake = self.scenario.transport.kind == "mooncake"  # its ports are nobody's plan
        watch = ConnectionWatch(net, paths.protocol) if mooncake or not paths.planned else None
        pool_of = MooncakePool if mooncake else AgentPool
        pool = pool_of(net, self.queue_pairs, self.scale, self.scenario, self._log("agents"))
        self.ways = (
            watch.paths(self.queue_pairs, pool.flow)
            if watch
            else {qp: self.scenario.paths.path(self.fabric, qp) for qp in self.queue_pairs}
        )
        if self.scenario.transport.pacing_gbps:
            pool.exercise(UNPACED_FRAMES, EXERCISE_S)
        self._step("timing lone transfers")
        lone = self._lone_deviations(pool)
        sampler, loop, cpu_share, losses = self._serve(net, pool)
        self._keep(net, rates, again, lone, sampler, loop, cpu_share, losses)
        say(phase=WRITTEN)
        pool.close()
        self.plane.close()
        return 130 if self.stop_asked else 0

    def _bring_up(self) -> EmulatedNetwork:
        gbps_per_hop = 1e9 * self.scale.rate_factor / (8 * self.scale.frame_bytes) * ACK_SHARE
        self.rounds: list[Round] = plan_rounds(
            self.fabric,
            self.scenario.seed,
            qp_index=self.scenario.routing.queue_pairs,
            switch_hop_gbps_per_round=LINK_CHECK_SHARE * self.budget_hops_per_s / gbps_per_hop,
            sample=self.links_sampled,
        )
        planned = self.queue_pairs if self.scenario.paths.planned else []
        net = self.plane.bring_up([*planned, *planned_flows(self.rounds)])
        self.up = True
        self._step("verifying the cabling")
        self.cabling = self.plane.verify_cabling()
        self.plane.first_packets()
        return net

    def _lone_deviations(self, pool: AgentPool) -> list[float]:
        """Median handoffs, one at a time: wall time over that of their bytes with headers at line rate, less 1.
        Store-and-forward (a frame time a hop) makes it longer, the shapers' burst of two frames shorter."""
        payload = self.scale.payload_bytes(self.demand.median_transfer_bytes)
        found = []
        for number in range(LONE_TRANSFERS):
            src, dst = self.pairs[number * len(self.pairs) // LONE_TRANSFERS]
            qps = [qp for qp in self.queue_pairs if (qp.src.node, qp.dst.node) == (src, dst)]
            pacing_gbps = self.scenario.transport.pacing_gbps or math.inf
            gbps = sum(
                min(self.fabric.port(end.node, end.port).gbps, count * pacing_gbps)
                for end, count in Counter(qp.src for qp in qps).items()
            )
            ideal = self.scale.wire_bytes(payload) * 8 / self.scale.rate_bps(gbps)
            found.append(pool.transfer_alone(src, dst, payload, 20 * ideal + 5) / ideal - 1)
            self.lone_ideal_s = ideal
        return found

    def _resolved(self, model_bytes: int) -> bool:
        """Whether a handoff is long enough to be compared: one of a few frames is latency and little else."""
        frames = self.scale.resolution_frames(model_bytes, self.demand.queue_pairs_per_transfer)
        return frames >= COMPARED_FROM_FRAMES

    def _serve(
        self, net: EmulatedNetwork, pool: AgentPool
    ) -> tuple[dict[str, float], ServingLoop, float, Losses]:
        hz = rates_hz(
            self.fabric,
            self.ways.values(),
            sample_hz(self.scenario.fabric, self.scenario.telemetry, self.scale),
            self.scenario.telemetry.gpu_hz,
        )
        if self.iperf_streams:  # nobody plans their paths: every switch may send
            hz = {name: max(hz.values()) if name in self.fabric.switch_by_name else each for name, each in hz.items()}
        sampler = SamplerProcess(net, hz, self.folder / "ports.parquet", self.scale, self._log("sampler"))
        losses = Losses(net, pool.statistics())
        marks = Marks(net, pool, self.scenario.flow_control)
        captures = Captures(net, self.captured, self.folder / "pcap")
        iperf = IperfPlayer(net, self.iperf_streams, self.scale)
        self.plane.start_serving()
        shaping.slow_down(net.shapes, slow_ports(self.scenario, self.fabric))
        self._step("serving")
        start_ns = time.monotonic_ns() + 200_000_000
        iperf.start_ns = start_ns
        sampler.start(start_ns)
        gc.collect()
        gc.freeze()  # what the set-up left is not looked at again while timers are due
        cpu, pressure = CpuClock(), Pressure(list(self.plane.processes.values()))
        counts = ovs_counters.read_counts(net)
        loop = ServingLoop(self.engine, pool, self.scale, start_ns)
        if self.scenario.faults.events or self.iperf_streams:
            loop.poll_s = 0.02
        shown = time.monotonic()

        liveness = Liveness({**self.plane.processes, **pool.agents.pids, "the sampler": sampler.process.pid})
        self.faults = FaultPlayer(
            net, self.scenario.faults, self.plane.status_path, self.events.write, start_ns, self.scale.dilation
        )

        def progress(now: ServingLoop) -> None:
            nonlocal shown
            self.faults.step(pool)
            iperf.step()
            self.plane.look_after()
            if time.monotonic() - shown >= 0.5:
                shown = time.monotonic()
                sampler.check()
                liveness.check()
                say(phase="serving", done=now.first_tokens, of=self.source.count)

        loop.run(lambda: self.stop_asked, progress)
        liveness.close()
        cpu_share, self.own_cpu_share, self.waits = cpu.busy_share(), cpu.own_share(), pressure.finish()
        agents = self._statistics(pool)
        marks.finish(self.folder, at_once=self.stop_asked)
        self.background = iperf.finish()
        if isinstance(self.engine, WithBackground):
            self.background += self.engine.account()
        if self.background:
            self.events.write({"event": "background", "streams": self.background})
        self.plane.settle(at_once=self.stop_asked)
        self.faults_not_reached = self.faults.finish()
        statistics_of_sampler = sampler.finish()
        self.datapath = ovs_counters.difference(counts, ovs_counters.read_counts(net)) if counts else None
        losses.finish(agents, self._statistics(pool) if agents["cpu_s"] else agents)
        self.plane.finish_serving(self.stop_asked)
        for account in captures.finish(at_once=self.stop_asked):
            self.events.write({"event": "capture", **account})
        self.events.write({"event": "served", "interrupted": self.stop_asked, "t_monotonic_s": time.monotonic()})
        return statistics_of_sampler, loop, cpu_share, losses

    def _statistics(self, pool: AgentPool) -> Mapping[str, float]:
        """What the agents say of themselves. Somebody who pressed Ctrl-C does not wait for one that hangs."""
        if not self.stop_asked:
            return pool.statistics()
        try:
            return pool.statistics(AT_ONCE_S)
        except RunError:
            return dict.fromkeys(("retransmits", "duplicates", "cpu_s"), 0.0)

    def _keep(
        self,
        net: EmulatedNetwork,
        rates: list[LinkRate],
        again: int,
        lone: list[float],
        sampler: dict[str, float],
        loop: ServingLoop,
        cpu_share: float,
        losses: Losses,
    ) -> None:
        say(phase=WRITING)
        sent = list(loop.transfers.values())
        history = transfer_rows.PathHistory(self.fabric, self.scenario.paths, self.ways, loop.pool.failures_since)
        write_table(self.folder / "requests.parquet", REQUESTS, self.engine.requests)
        write_table(self.folder / "gpus.parquet", GPUS, self.engine.gpu_states)
        self.plane.write_tables(loop.start_ns)
        # The replay may take seconds, which somebody who pressed Ctrl-C does not wait for.
        reference = (
            {} if self.stop_asked else transfer_rows.references(self.fabric, self.scenario, self.scale, sent, self.ways)
        )
        write_table(
            self.folder / "transfers.parquet",
            TRANSFERS,
            transfer_rows.rows(self.fabric, self.scenario, self.scale, sent, reference, loop.start_ns, history),
        )
        join(self.folder / "ports.parquet", PORTS)  # last of the tables: until then its parts can be read
        measured = fidelity.Measured(
            link_deviations=[rate.deviation for rate in rates],
            links_total=2 * len(self.fabric.links),
            rounds_again=again,
            lone_deviations=lone,
            lone_ideal_s=self.lone_ideal_s,
            losses=losses,
            resolution_frames=self.demand.resolution_frames(self.scale),
            budget_used=self.demand.hops_per_s(self.scale) / self.budget_hops_per_s,
            maxmin_ratios=[
                (loop.model_s(item.done.t_ns) - item.t_submit_s) / reference[item.order.transfer_id].ideal_s
                for item in sent
                if item.done is not None and item.order.transfer_id in reference and self._resolved(item.order.bytes)
            ],
            transfers_done=sum(item.done is not None for item in sent),
            transfers_verified=loop.pool.verified - len(lone),
            complaints=loop.pool.complaints,
            sampler=sampler,
            sampler_period_ms=1e3 / sample_hz(self.scenario.fabric, self.scenario.telemetry, self.scale),
            frame_time_ms=1e3 * self.scale.frame_time_wall_s(self.scenario.fabric.gpu_gbps),
            timer_lags_s=loop.timer_lags_s,
            report_lags_s=loop.report_lags_s,
            cpu_share=cpu_share,
            fault_events=self.faults.failures_played,
            iperf_streams=len(self.iperf_streams),
            controller_restarts=self.plane.restarts,
            links_sampled=self.links_sampled,
            own_cpu_share=self.own_cpu_share,
            favoured=self.favoured,
            waits=self.waits,
            datapath=self.datapath,
            counters=None if self.stop_asked else counter_difference(self.folder, self.scale.frame_bytes),
        )
        verdict = fidelity.judge(measured, self.scenario.fidelity, self.scale)
        verdict["links"] = [
            {"node": r.end.node, "port": r.end.port, "configured_bps": r.configured_bps, "measured_bps": r.measured_bps}
            for r in rates
        ]
        verdict["lone_transfer_deviations"] = lone
        verdict["median_link_deviation_pct"] = 100 * statistics.median(rate.deviation for rate in rates)
        verdict["sampler"] = sampler
        write_json(self.folder / "fidelity.json", verdict)
        write_json(
            self.folder / "meta.json",
            {
                **meta.collect(
                    self.scenario,
                    self.scale,
                    net,
                    start_ns=loop.start_ns,
                    window_s=self.engine.window_s or self.demand.window_s,
                ),
                "interrupted": self.stop_asked,
                "source": getattr(self.source, "summary", {}),
                "cabling": self.cabling,
                "faults_not_reached": self.faults_not_reached,
                "background": self.background,
                **self.plane.meta(),
                "scheduling_favoured": self.favoured,
                "fidelity_limits_loosened": list(self.scenario.fidelity.loosened()),
            },
        )


def main(argv: list[str]) -> int:
    """Run the folder's scenario; exit codes of the command line."""
    folder = Path(argv[0])
    try:
        with contextlib.ExitStack() as left_over:
            run = Run(folder, RunFolder(folder).scenario(), float(argv[1]), argv[2:])
            left_over.callback(run.clear)
            return run.execute()
    except Interrupted:
        return 130
    except TestbedError as error:
        say(error=str(error))
        return error.exit_code
    except Exception:  # the caller shows one message; the traceback is for who mends it
        write_text(folder / "failure.txt", traceback.format_exc())
        say(error=f"{traceback.format_exc().splitlines()[-1]}\n  the traceback is in {folder / 'failure.txt'}")
        return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
