# pyright: basic, reportMissingImports=false
"""What `xprof` makes of one folder of traces, as JSON: `python xprof_tables.py FOLDER PROGRAM ...`.

Ops by their self time, what programs and allocators hold at their peaks, and what is in flight. It
writes files of its own beside the traces.
"""

import json
import sys
from pathlib import Path

from xprof.cli.tools.analyze_async_overlap_tool import analyze_async_overlap
from xprof.convert.raw_to_tool_data import xspace_to_tool_data, xspace_to_tool_names


def asked(paths, tool, **options):
    found, _ = xspace_to_tool_data(paths, tool, {"use_saved_result": False, **options})
    return json.loads(found) if found else {}


def rows(table):
    keys = [column["id"] for column in table["cols"]]
    return [
        {k: c and c.get("v") for k, c in zip(keys, row["c"], strict=True)} for row in table["rows"]
    ]


def memory(path, programs):
    found = asked([path], "memory_profile").get("memoryProfilePerAllocator", {})
    viewed = {name: asked([path], "memory_viewer", module_name=name) for name in programs}
    return {
        "programs": {name: one["totalBufferAllocationMib"] for name, one in viewed.items()},
        "allocators": {owner: one["profileSummary"]["peakStats"] for owner, one in found.items()},
    }


def main(folder, *programs):
    paths = sorted(str(path) for path in Path(folder).glob("*.xplane.pb"))
    xspace_to_tool_names(paths)  # which also takes the programs out of a trace
    roofline = asked(paths, "roofline_model")
    ops = asked(paths, "hlo_stats")
    return {
        "ops": rows(ops) if ops else [],
        "roofline": [row for row in rows(roofline[0]) if row["step"] == "Total"] if ops else [],
        "flights": json.loads(analyze_async_overlap(folder)).get("by_op", {}),
        "steps": [table["p"] for table in asked(paths, "input_pipeline_analyzer") if "p" in table],
        "memory": [memory(path, programs) for path in paths],
    }


if __name__ == "__main__":
    print(json.dumps(main(*sys.argv[1:])))
