"""A fabric as GraphML (http://graphml.graphdrawing.org/), for networkx, Gephi, yEd and igraph.

`networkx.read_graphml(FILE, force_multigraph=True)` gives the fabric as an undirected multigraph: one edge a cable,
keyed by its id. Written here rather than by networkx, which takes ten times as long for 16,384 GPUs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from xml.sax.saxutils import escape, quoteattr

from topologies.fabric import Fabric
from topologies.graph_attributes import Attributes, graph_attributes, link_attributes, node_attributes

TYPES = {str: "string", int: "long", float: "double"}


def graphml(fabric: Fabric) -> str:
    """The document. An undirected edge does not keep its ends apart, so `a` and `b` name them beside `a_port` and
    `b_port`."""
    nodes = {node.name: node_attributes(node) for node in fabric.nodes}
    edges = [{**link_attributes(link), "a": link.a.node, "b": link.b.node} for link in fabric.links]
    whole = graph_attributes(fabric)
    lines = ['<?xml version="1.0" encoding="UTF-8"?>', '<graphml xmlns="http://graphml.graphdrawing.org/xmlns">']
    for what, owners in (("graph", [whole]), ("node", nodes.values()), ("edge", edges)):
        lines += _keys(what, owners)
    lines.append(f'<graph id={quoteattr(fabric.kind)} edgedefault="undirected">')
    lines += _data("graph", whole)
    for name, said in nodes.items():
        lines += [f"<node id={quoteattr(name)}>", *_data("node", said), "</node>"]
    for link, said in zip(fabric.links, edges, strict=True):
        ends = f"source={quoteattr(link.a.node)} target={quoteattr(link.b.node)}"
        lines += [f"<edge id={quoteattr(link.id)} {ends}>", *_data("edge", said), "</edge>"]
    return "\n".join([*lines, "</graph>", "</graphml>"]) + "\n"


def _keys(what: str, owners: Iterable[Attributes]) -> Iterator[str]:
    """Declarations of all attributes that some owner has; numbers of both sorts under one name are doubles."""
    types: dict[str, set[str]] = {}
    for said in owners:
        for name, value in said.items():
            types.setdefault(name, set()).add(TYPES[type(value)])
    for name, found in types.items():
        kind = found.pop() if len(found) == 1 else "double"
        yield f'<key id="{what}-{name}" for="{what}" attr.name={quoteattr(name)} attr.type="{kind}"/>'


def _data(what: str, said: Attributes) -> Iterator[str]:
    for name, value in said.items():
        yield f'<data key="{what}-{name}">{escape(str(value))}</data>'
