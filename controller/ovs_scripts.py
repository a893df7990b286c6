"""The switches of a fabric as bash scripts for Open vSwitch: bridges, port numbers, groups and flow entries.

For whoever runs the fabric without our controller: containerlab, or plain Open vSwitch. The rules are those of
`controller.rules`, so paths are the testbed's. Nothing of the fabric reaches a shell unquoted: words go through
`shlex.quote`, entries through a here-document that the shell does not expand.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable

from controller.ruleset import Action, Group, Output, Rule, RuleSet, SelectGroup, SetEthDst
from topologies.fabric import End, Fabric

PROTOCOL_NAMES = {6: "tcp", 17: "udp"}
HEAD = "#!/usr/bin/env bash\nset -euo pipefail\n"
#: OpenFlow 1.0 stays on beside 1.3: older containerlab asks bridges in 1.0 whether they exist.
PROTOCOLS = "OpenFlow10,OpenFlow13"


def bridges_script(fabric: Fabric) -> str:
    """Makes a bridge for each switch, with its DPID, and without a controller: nothing passes before its rules."""
    lines = [
        "# Makes the bridges. Run it before `containerlab deploy`. A bridge that exists is an error: it may be in use."
    ]
    for switch in fabric.switches:
        lines.append(
            _command(
                *("ovs-vsctl", "--timeout=20", "add-br", switch.name, "--", "set", "bridge", switch.name),
                *("fail_mode=secure", f"protocols={PROTOCOLS}", f"other-config:datapath-id={switch.dpid:016x}"),
            )
        )
    return HEAD + "\n".join(lines) + "\n"


def remove_script(fabric: Fabric) -> str:
    """Removes the bridges."""
    lines = ["# Removes the bridges. Run it after `containerlab destroy`."]
    lines += [_command("ovs-vsctl", "--timeout=20", "--if-exists", "del-br", switch.name) for switch in fabric.switches]
    return HEAD + "\n".join(lines) + "\n"


def all_rules_script(fabric: Fabric) -> str:
    """Runs every switch's script, wherever it is called from."""
    lines = ["# Numbers the ports and installs the rules of every switch. Run it after `containerlab deploy`."]
    lines.append('here=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd)')
    lines += [f'bash "$here"/rules/{shlex.quote(switch.name + ".sh")}' for switch in fabric.switches]
    return HEAD + "\n".join(lines) + "\n"


def rules_script(fabric: Fabric, ruleset: RuleSet, switch: str, interface: Callable[[Fabric, End], str]) -> str:
    """Gives the ports of one switch their numbers, then replaces its groups and flow entries.

    Ports get theirs in one transaction, since a number is free only once its holder has given it up, and are waited
    for: entries name ports by number. `interface` is the name of a port on the machine.
    """
    ports = {port.number: interface(fabric, End(switch, port.number)) for port in fabric.switch_by_name[switch].ports}
    numbering = ["ovs-vsctl", "--timeout=20"]
    for number, name in ports.items():
        numbering += ["--", "set", "interface", name, f"ofport_request={number}"]
    lines = [
        f"# Port numbers, then groups, then {len(ruleset.rules[switch])} flow entries of one switch.",
        _command(*numbering),
    ]
    lines += [
        _command("ovs-vsctl", "--timeout=20", "wait-until", "interface", name, f"ofport={number}")
        for number, name in ports.items()
    ]
    ofctl = ("ovs-ofctl", "--protocols=OpenFlow13")
    lines += [_command(*ofctl, "del-flows", switch), _command(*ofctl, "del-groups", switch)]
    if groups := ruleset.groups[switch]:
        lines += _fed(_command(*ofctl, "add-groups", switch, "-"), [_group(group) for group in groups])
    entries = [_flow(rule, ruleset.cookie(rule)) for rule in ruleset.rules[switch]]
    lines += _fed(_command(*ofctl, "add-flows", switch, "-"), entries)
    return HEAD + "\n".join(lines) + "\n"


def _command(*words: str) -> str:
    return shlex.join(words)


def _fed(command: str, entries: list[str]) -> list[str]:
    return [f"{command} <<'ENTRIES'", *entries, "ENTRIES"]


def _group(group: SelectGroup) -> str:
    buckets = ",".join(f"bucket=weight:1,actions=output:{port}" for port in group.ports)
    return f"group_id={group.group_id},type=select,{buckets}"


def _flow(rule: Rule, cookie: int) -> str:
    """One entry in the syntax of ovs-ofctl(8)."""
    match = rule.match
    fields = [f"cookie={cookie:#x}", f"priority={rule.priority}"]
    fields.append(PROTOCOL_NAMES[match.ip_proto] if match.ip_proto is not None else "ip")
    fields.append(f"nw_dst={match.ipv4_dst}/{match.ipv4_dst_mask}")
    if match.ipv4_src is not None:
        fields.append(f"nw_src={match.ipv4_src}")
    if match.tp_src is not None:
        fields.append(f"tp_src={match.tp_src}")
    if match.tp_dst is not None:
        fields.append(f"tp_dst={match.tp_dst}")
    actions = ",".join(_action(action) for action in rule.actions) or "drop"
    return ",".join(fields) + f",actions={actions}"


def _action(action: Action) -> str:
    match action:
        case SetEthDst(mac):
            return f"mod_dl_dst:{mac}"
        case Output(port):
            return f"output:{port}"
        case Group(group_id):
            return f"group:{group_id}"
