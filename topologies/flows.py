"""From addresses and ports on the wire back to the queue pair: the inverse of `paths.five_tuple`."""

from __future__ import annotations

from topologies.fabric import Fabric
from topologies.paths import QP_SERVER_PORT, FiveTuple, QueuePair, source_port


def queue_pair_of(fabric: Fabric, flow: FiveTuple, queue_pairs: int = 16) -> QueuePair | None:
    """The queue pair with this 5-tuple, of indices below `queue_pairs`; None for a flow that is nobody's plan."""
    src, dst = fabric.gpu_port_by_ip.get(flow.src_ip), fabric.gpu_port_by_ip.get(flow.dst_ip)
    if src is None or dst is None or flow.dst_port != QP_SERVER_PORT:
        return None
    for index in range(queue_pairs):
        candidate = QueuePair(src, dst, index)
        if source_port(candidate, len(fabric.gpus)) == flow.src_port:
            return candidate
    return None
