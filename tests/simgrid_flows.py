"""Completion times of flows in SimGrid, set to plain max-min fairness: what our own networks are checked against.

Run by the system's Python, for which Debian has SimGrid (package python3-simgrid); standard library besides. A
platform and its flows come as JSON on stdin, times go as JSON to stdout:

    {"links": {"a": 10.0}, "flows": [{"links": ["a"], "bytes": 100, "start_s": 0.5}]}
    {"version": "3.32.0", "done_s": [10.5], "cpu_s": 0.0002}

Links carry bytes per second in one direction; `bytes` is a whole number, 1 or more. `cpu_s` is the processor time of
the simulation without what comes before it: this interpreter, the platform and the reading of the flows.

SimGrid's models of TCP are turned off: no latency, no share of the bandwidth lost to headers, no preference for short
round trips (weight-S), no window (TCP-gamma), no traffic of acknowledgements (crosstraffic). What is left is how links
are shared. With model CM02 and no latency the other options change nothing; they say what is meant. With SimGrid's
default, LV08, durations are up to half as long again. Option names are those of SimGrid 3.32
(https://simgrid.org/doc/v3.32/Configuring_SimGrid.html).
"""

import json
import sys
import time

from simgrid import Actor, Comm, Engine, LinkInRoute, NetZone, simgrid_version, this_actor

#: With the default precisions (1e-5 of a link, 1e-9 s) durations of some 20 microseconds were wrong by 1e-4.
PLAIN_MAX_MIN = {
    "network/model": "CM02",
    "network/bandwidth-factor": "1",
    "network/latency-factor": "1",
    "network/weight-S": "0",
    "network/TCP-gamma": "0",
    "network/crosstraffic": "0",
    "maxmin/precision": "1e-9",
    "surf/precision": "1e-12",
}


def hosts_by_route(links, routes):
    """Route -> (from, to). One zone in which each pair of hosts has a route of its own, by hosts as few as will do: a
    table of hosts squared is behind it. A host stands for the first or last link of routes; where two routes have both
    in common, further hosts do.
    """
    zone = NetZone.create_full_zone("zone")
    cables = {name: LinkInRoute(zone.create_link(name, rate).seal()) for name, rate in links.items()}
    hosts, taken, found = {}, set(), {}

    def host(name):
        if name not in hosts:
            hosts[name] = zone.create_host(name, 1.0)
        return hosts[name]

    for route in routes:
        if route in found:
            continue
        copy = 0
        while (route[0], route[-1], copy) in taken:
            copy += 1
        taken.add((route[0], route[-1], copy))
        found[route] = host(f"from {route[0]} {copy}"), host(f"to {route[-1]} {copy}")
        zone.add_route(
            found[route][0].netpoint, found[route][1].netpoint, None, None, [cables[name] for name in route], False
        )
    zone.seal()
    return found


def main():
    asked = json.load(sys.stdin)
    options = [f"--cfg={name}:{value}" for name, value in PLAIN_MAX_MIN.items()]
    engine = Engine(["simgrid_flows", "--log=root.thres:error", *options])
    routes = [tuple(flow["links"]) for flow in asked["flows"]]
    ways = hosts_by_route(asked["links"], routes)
    order = sorted(range(len(routes)), key=lambda n: asked["flows"][n]["start_s"])
    to_start = [(n, asked["flows"][n]["start_s"], *ways[routes[n]], asked["flows"][n]["bytes"]) for n in order]
    sent = {}

    def sender():
        """All flows from one actor: an actor is a thread, and to change threads would cost more than the sharing."""
        now_s = 0.0
        for number, start_s, src, dst, size in to_start:
            if start_s > now_s:
                this_actor.sleep_until(start_s)
                now_s = start_s
            sent[number] = Comm.sendto_async(src, dst, size)
        Comm.wait_all(list(sent.values()))

    Actor.create("sender", next(iter(ways.values()))[0], sender)
    began = time.process_time()
    engine.run()
    cpu_s = time.process_time() - began
    done_s = [sent[n].finish_time for n in range(len(routes))]
    json.dump({"version": simgrid_version, "done_s": done_s, "cpu_s": cpu_s}, sys.stdout)


if __name__ == "__main__":
    main()
