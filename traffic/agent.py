"""A traffic agent: keeps the queue pairs of the GPUs of one or several servers open and moves handoffs over them.

Started as `python -I -S agent.py [CONTROL:NAMESPACE ...]`, a pair of inherited descriptors for each GPU: a Unix
SEQPACKET socket, on which the GPU takes orders and gives reports, one JSON object a packet, and the GPU's network
namespace, in which its sockets are made. Without arguments it serves one GPU: standard input is its control socket, and
its namespace is the process's own. When a control socket closes, the process ends. Standard library only, with the
modules that this one imports.

Orders
    {"op": "open", "kind": "tcp", "listen": [ip], "port": n, "cc": name, "window_bytes": w, "chunk_bytes": c,
     "frame_bytes": f, "pacing_bytes_per_s": p}                      the transport may want more: see its `order_open`
    {"op": "connect", "port": n, "qps": [[qp, src_ip, src_port, dst_ip, dst_gpu, turn], ...]}
    {"op": "send", "id": t, "bytes": b, "lanes": [[qp, ...], ...]}
    {"op": "stats"}        {"op": "drop", "id": t}        {"op": "marks", "start": row}
    {"op": "cut_in", "peers": [[ip, port, turn], ...]}               to the receiver of queue pairs whose path is gone
    {"op": "cut", "qps": [[qp, offset, [other qp, ...]], ...]}       then to their sender
Reports
    {"ev": "open"}
    {"ev": "connected", "n": n, "qps": [qp, ...], "turns": [turn, ...], "failed": [[qp, turn, text], ...]}
    {"ev": "error", "text": ...}  {"ev": "lost", "qp": q, "text": ...}
    {"ev": "done", "id": t, "t_ns": last byte, "parts": [[peer_ip, peer_port, bytes, t_ns], ...]}   from the receiver
    {"ev": "corrupt", "id": t, "peer": [ip, port], "offset": o, "text": ...}     bytes that are not what was sent
    {"ev": "marks", "qps": [[qp, segments delivered, of them with a congestion mark], ...], "of": rows}
    {"ev": "stats", ...}   {"ev": "offsets", "offsets": [[ip, port, offset], ...]}   {"ev": "moved", "bytes": n}

Time stamps are CLOCK_MONOTONIC, which all processes of the machine share.
"""

import json
import os
import resource
import select
import socket
import sys
from collections.abc import Callable, Mapping

if __name__ == "__main__":  # -I leaves the project's folder out of the path
    sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

from traffic.agent_loop import Loop, Namespace
from traffic.agent_tcp import TcpEndpoint
from traffic.agent_udp import UdpEndpoint
from traffic.chunks import HEADER, greeting, header
from traffic.endpoint import Endpoint

__all__ = ["HEADER", "KINDS", "greeting", "header", "main"]

#: Transport -> what carries queue pairs.
KINDS: dict[str, type[Endpoint]] = {"tcp": TcpEndpoint, "udp": UdpEndpoint}


class Orders:
    """Takes the orders of one GPU from its control socket. The order `open` chooses the transport."""

    def __init__(
        self,
        loop: Loop,
        control: socket.socket,
        namespace: Namespace,
        kinds: Mapping[str, Callable[[Loop, socket.socket, Namespace], object]] = KINDS,
    ) -> None:
        self.loop, self.control, self.namespace, self.kinds = loop, control, namespace, kinds
        self.endpoint: object = None
        control.setblocking(False)
        loop.watch(control.fileno(), select.EPOLLIN, self.take)

    def take(self, _: int) -> None:
        """Read and obey one order."""
        try:
            data = self.control.recv(1 << 20)
        except BlockingIOError:
            return
        except ConnectionResetError:  # the runner is gone, and did not read our last report
            data = b""
        if not data:
            self.loop.stop()
            return
        order = json.loads(data)
        name = order.pop("op")
        if name == "open":
            self.endpoint = self.kinds[order.pop("kind", "tcp")](self.loop, self.control, self.namespace)
        getattr(self.endpoint, "order_" + name)(**order)


def main(arguments: list[str]) -> None:
    """Serve the GPUs of the arguments until the runner is gone."""
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    loop = Loop()
    pairs = [tuple(map(int, text.split(":"))) for text in arguments]
    served = [Orders(loop, socket.socket(fileno=fd), Namespace(namespace)) for fd, namespace in pairs]
    if not served:
        served = [Orders(loop, socket.socket(fileno=os.dup(0)), Namespace(None))]
    loop.run()


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except KeyboardInterrupt:
        sys.exit(130)
