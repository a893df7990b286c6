"""Columns of the run folder's tables. Times are model seconds from the run's start unless named `_wall_s`.

`SCHEMA_VERSION` rises when a column changes its meaning or goes away; new columns do not raise it.
"""

from __future__ import annotations

import pyarrow as pa

SCHEMA_VERSION = 1

#: The instants of a request, in order. A stage's duration is the next instant minus this one.
STAGES = (
    "arrival",
    "prefill_waiting",
    "prefill_forward",
    "decode_alloc",
    "kv_transfer",
    "decode_waiting",
    "decode_first_step",
    "first_token",
    "finished",
)

REQUESTS = pa.schema(
    [
        ("request_id", pa.int64()),
        ("session_id", pa.int64()),
        ("tenant", pa.string()),
        ("turn", pa.int32()),
        ("phase", pa.string()),  # warmup | measured | cooldown
        ("warmup", pa.bool_()),  # True for every row that is not measured
        ("status", pa.string()),  # ok | timeout | cancelled | failed | unfinished
        ("input_tokens", pa.int32()),
        ("cached_tokens", pa.int32()),
        ("output_tokens", pa.int32()),
        ("batch", pa.int64()),
        ("prefill_instance", pa.string()),
        ("decode_instance", pa.string()),
        ("prefill_gpu", pa.string()),
        ("decode_gpu", pa.string()),
        ("candidates", pa.string()),  # JSON: {"prefill": {name: score}, "decode": {name: score}}
        ("slo_ttft_ms", pa.float64()),
        ("slo_tpot_ms", pa.float64()),
        ("local", pa.bool_()),  # the handoff stayed inside a server, over NVLink
        ("handoff_attempts", pa.int32()),  # 1: it succeeded at once
        ("held_tokens", pa.int32()),  # delta: of the prompt, that the decode target had already
        ("recomputed_tokens", pa.int64()),  # prefilled again after a failed handoff
        ("kv_bytes_sent", pa.int64()),  # model bytes handed to the network for it, repeats included
        # Of these, for nothing: cancelled, or arrived before the request was given up or its prompt computed again.
        ("kv_bytes_wasted", pa.int64()),
        ("operation", pa.string()),  # without serving a row is a message; null where requests are served
        ("ranks", pa.int32()),  # GPUs that take part in it
        ("message_bytes", pa.int64()),  # its size S as nccl-tests define it
        ("bus_factor", pa.float64()),  # bus bandwidth = S / time * this
        *[(f"t_{stage}_s", pa.float64()) for stage in STAGES],
        # When it was over: t_finished_s, or the instant at which it timed out, was cancelled or failed; null where it
        # was not over (unfinished).
        ("t_ended_s", pa.float64()),
    ]
)

TRANSFERS = pa.schema(
    [
        ("transfer_id", pa.int64()),
        ("request_id", pa.int64()),
        ("src_gpu", pa.string()),
        ("src_port", pa.int32()),
        ("dst_gpu", pa.string()),
        ("dst_port", pa.int32()),
        ("qp", pa.int32()),
        ("path", pa.list_(pa.string())),  # link ids, source to destination
        ("bytes", pa.int64()),  # model bytes this queue pair carried
        ("wire_bytes_raw", pa.int64()),  # emulated bytes with headers
        ("t_submit_s", pa.float64()),
        ("t_done_s", pa.float64()),  # last byte at the receiver; NaN when it did not finish
        ("ideal_s", pa.float64()),  # duration in the max-min replay of the actual transfers
        ("isolated_s", pa.float64()),  # duration of the whole handoff alone on the fabric
        ("attempt", pa.int32()),
        (
            "kind",
            pa.string(),
        ),  # kv (a handoff or part of one) | prefix (a remote prefix read) | ep | flow | background
        ("piece", pa.int32()),  # of the handoff: what left together
        ("status", pa.string()),  # ok | unfinished
    ]
)

PORTS = pa.schema(
    [
        ("t_s", pa.float64()),
        ("t_wall_s", pa.float64()),
        ("node", pa.string()),
        ("port", pa.int32()),
        ("tx_bytes_raw", pa.int64()),
        ("tx_packets", pa.int64()),
        ("drops", pa.int64()),
        ("backlog_bytes", pa.float64()),  # model bytes
        ("backlog_bytes_raw", pa.int64()),
        ("backlog_packets", pa.int32()),
    ]
)

#: Stretches in which a node's ports had no sample (`emulation.sampling_gaps`).
GAPS = pa.schema(
    [
        ("node", pa.string()),
        ("t_s", pa.float64()),  # of the last sample before; the end of the gap is t_s + length_s
        ("t_wall_s", pa.float64()),
        ("length_s", pa.float64()),
        ("length_wall_s", pa.float64()),
        ("period_wall_s", pa.float64()),  # that was due
        ("unseen_wall_s", pa.float64()),  # how much of it counts as unseen: the check sampler_gap_pct adds it by node
    ]
)

_RATES = ("bps_raw", "gbps", "packets_per_wall_s")  # emulated bit/s; model Gb/s, headers included
_OF_TIME = [
    ("t_s", pa.float64()),  # when the reply arrived at the controller; the first poll is just before 0
    ("t_wall_s", pa.float64()),
    ("node", pa.string()),
]

#: OpenFlow port counters: cumulative, whole Ethernet frames, both directions as the switch sees them. Rates are
#: differences to the port's row before over the switch's own elapsed time; null in its first row and after a reset.
OF_PORTS = pa.schema(
    [
        *_OF_TIME,
        ("port", pa.int32()),  # (node, port) as in ports.parquet
        ("link", pa.string()),  # cable id, as in fabric.json and transfers.path
        ("peer", pa.string()),  # node and port at the other end of the cable
        ("peer_port", pa.int32()),
        ("duration_s", pa.float64()),  # since the port was added: the switch's own clock
        *[
            (f"{way}_{what}", pa.int64())
            for way in ("rx", "tx")
            for what in ("bytes_raw", "packets", "drops", "errors")
        ],
        *[(f"{way}_{rate}", pa.float64()) for way in ("rx", "tx") for rate in _RATES],
    ]
)

#: One row a rule and poll; where there are thousands of rules, not every poll asks for all.
OF_FLOWS = pa.schema(
    [
        *_OF_TIME,
        ("kind", pa.string()),  # host | planned | prefix | fallback | drop | repair | other, as in rules.json
        ("priority", pa.int32()),
        ("match", pa.string()),  # name=value of rules.json, joined by commas
        ("src_gpu", pa.string()),  # where the match is one address; null else
        ("src_port", pa.int32()),
        ("dst_gpu", pa.string()),
        ("dst_port", pa.int32()),
        ("group_id", pa.int64()),  # of_groups.group_id where the rule leads to a group (fallback, repair); null else
        ("duration_s", pa.float64()),  # since the rule was installed
        ("bytes_raw", pa.int64()),
        ("packets", pa.int64()),
        *[(rate, pa.float64()) for rate in _RATES],
    ]
)

#: One row a bucket and poll.
OF_GROUPS = pa.schema(
    [
        *_OF_TIME,
        ("group_id", pa.int64()),
        ("bucket", pa.int32()),  # from 0
        ("port", pa.int32()),  # the bucket's output
        ("link", pa.string()),
        ("duration_s", pa.float64()),  # since the group was made
        ("group_bytes_raw", pa.int64()),  # of the whole group, the same in each of its rows
        ("group_packets", pa.int64()),
        ("bytes_raw", pa.int64()),
        ("packets", pa.int64()),
        *[(rate, pa.float64()) for rate in _RATES],
    ]
)

GPUS = pa.schema([("gpu", pa.string()), ("t_s", pa.float64()), ("state", pa.string())])

#: What each switch port did with packets while serving, where flow_control.ecn is red: the RED's counters, grown.
ECN_PORTS = pa.schema(
    [
        ("node", pa.string()),
        ("port", pa.int32()),
        ("packets", pa.int64()),  # sent
        ("marked", pa.int64()),  # sent on with a congestion mark; again at each port that would have marked
        ("early", pa.int64()),  # dropped by RED: none, since what cannot be marked is queued
        ("pdrop", pa.int64()),  # dropped by a full queue
        ("other", pa.int64()),
    ]
)

#: What came back to each queue pair while serving: TCP's analogue of CNPs.
ECN_FLOWS = pa.schema(
    [
        ("src_gpu", pa.string()),
        ("src_port", pa.int32()),
        ("dst_gpu", pa.string()),
        ("dst_port", pa.int32()),
        ("qp", pa.int32()),
        ("delivered", pa.int64()),  # segments acknowledged (tcpi_delivered)
        ("delivered_ce", pa.int64()),  # of them, with the echo of a mark (tcpi_delivered_ce)
    ]
)

#: File name in the run folder -> schema.
TABLES: dict[str, pa.Schema] = {
    "requests": REQUESTS,
    "transfers": TRANSFERS,
    "ports": PORTS,
    "gaps": GAPS,
    "gpus": GPUS,
    "of_ports": OF_PORTS,
    "of_flows": OF_FLOWS,
    "of_groups": OF_GROUPS,
    "ecn_ports": ECN_PORTS,
    "ecn_flows": ECN_FLOWS,
}
