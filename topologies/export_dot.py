"""A fabric as a Graphviz graph (https://graphviz.org/doc/info/lang.html): servers as clusters, GPUs at the bottom.

Every edge statement runs from the cable's end a to its end b, so that `a_port` and `b_port` stay with their nodes.
Cables between switches that both carry GPUs (ZCube's odd and even) do not push a tier up: `constraint=false`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from topologies.fabric import Fabric, Gpu
from topologies.graph_attributes import graph_attributes, link_attributes, node_attributes


def dot(fabric: Fabric) -> str:
    """The graph in the DOT language; `graph_attributes` lists what nodes and edges carry."""
    return "\n".join(_lines(fabric)) + "\n"


def _lines(fabric: Fabric) -> Iterator[str]:
    yield f"graph {_quoted(fabric.kind)} {{"
    yield f"  graph {_attributes({**graph_attributes(fabric), 'rankdir': 'BT', 'ranksep': 2})}"
    yield f"  node {_attributes({'shape': 'box', 'fontname': 'Helvetica'})}"
    servers: dict[str, list[Gpu]] = {}
    for gpu in fabric.gpus:
        servers.setdefault(gpu.server, []).append(gpu)
    for server, gpus in servers.items():
        yield f"  subgraph {_quoted('cluster_' + server)} {{"
        yield f"    graph {_attributes({'label': server})}"
        for gpu in gpus:
            yield f"    {_quoted(gpu.name)} {_attributes(node_attributes(gpu))}"
        yield "  }"
    for switch in fabric.switches:
        yield f"  {_quoted(switch.name)} {_attributes(node_attributes(switch))}"
    with_gpus = {end.node for end in fabric.attachment.values()}
    for link in fabric.links:
        beside = {"constraint": "false"} if {link.a.node, link.b.node} <= with_gpus else {}
        said = _attributes({**link_attributes(link), **beside})
        yield f"  {_quoted(link.a.node)} -- {_quoted(link.b.node)} {said}"
    yield "}"


def _attributes(values: Mapping[str, str | int | float]) -> str:
    return "[" + ", ".join(f"{name}={_quoted(value)}" for name, value in values.items()) + "];"


def _quoted(value: str | int | float) -> str:
    """A DOT string: in one, the quote is all that is escaped, and a backslash stands for itself."""
    text = repr(value).removesuffix(".0") if isinstance(value, float) else str(value)
    return '"' + text.replace('"', '\\"') + '"'
