"""Whole runs with and without ECN marks, where the kernel has RED and DCTCP: the same incast on the same fabric.

In the VM of tests/vm/boot.sh: `PYTHONPATH=. .venv/bin/python tests/vm/ecn_run.py OUT`. OUT gets a run folder an arm,
with its summary; not below /mnt/out, where no sockets can be made. Ends with 0 when switches marked and senders heard
of it with ECN on, and neither with it off. That the runs are valid is not asked: an emulated processor is too slow.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from analysis.metrics import summarise
from emulation.launch import run
from results.reader import RunFolder
from results.writer import write_json
from scenario.load import load_scenario, with_changes

BUDGET_HOPS_PER_S = 2000.0


def main(out: Path) -> None:
    """Both arms."""
    marked = load_scenario(Path(__file__).with_name("ecn.yaml"))
    unmarked = with_changes(marked, {"flow_control": {"ecn": "off"}})
    for name, scenario in (("red", marked), ("off", unmarked)):
        ended = run(out / name, scenario, BUDGET_HOPS_PER_S, lambda message: print("  ", message, flush=True))
        assert ended.exit_code == 0
        folder = RunFolder(out / name)
        summary = summarise(folder)
        write_json(out / name / "summary.json", summary)
        found = {key: value for key, value in summary.items() if key.startswith(("ecn_", "fabric_backlog_peak"))}
        print(name, json.dumps(found), folder.meta().get("flow_control"), flush=True)
        for check in folder.fidelity()["checks"]:
            print("  ", check["name"], check["ok"], check["text"], flush=True)
        if name == "red":
            assert summary["ecn_marked_packets"] and summary["ecn_delivered_ce"]
            print(folder.table("ecn_flows").to_pandas().to_string())
            ports = folder.table("ecn_ports").to_pandas()
            print(ports[ports["packets"] > 0].to_string(), flush=True)
        else:
            assert "ecn_marked_packets" not in summary and not folder.has("ecn_ports.parquet")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
