"""What a Chrome trace must be for ui.perfetto.dev and chrome://tracing to show all of it.

Source: the Trace Event Format
"""

import json
from collections import defaultdict

KEYS = {
    "X": {"name", "cat", "pid", "tid", "ts", "dur", "args"},
    "M": {"name", "pid", "tid", "args"},
    "C": {"name", "pid", "tid", "ts", "args"},
    "s": {"name", "cat", "pid", "tid", "ts", "id"},
    "f": {"name", "cat", "pid", "tid", "ts", "id", "bp"},
}
METADATA = {
    "process_name": "name",
    "process_sort_index": "sort_index",
    "thread_name": "name",
    "thread_sort_index": "sort_index",
}


def check_trace(trace):
    """Assert that a trace is legal JSON, has every key, nests, and that each arrow has two ends."""
    trace = json.loads(json.dumps(trace, allow_nan=False))
    events = trace["traceEvents"]
    assert trace["displayTimeUnit"] in ("ms", "ns") and trace["otherData"]["schema_version"]
    for event in events:
        assert {"ph", *KEYS[event["ph"]]} <= set(event), event
        assert type(event["pid"]) is int and type(event["tid"]) is int, event
        assert event["ph"] == "M" or event["ts"] >= 0, event
        assert event.get("dur", 0) >= 0, event
    for event in (e for e in events if e["ph"] == "M"):
        assert METADATA[event["name"]] in event["args"], event
    for event in (e for e in events if e["ph"] == "C"):
        assert event["args"] and all(type(v) is int and v >= 0 for v in event["args"].values())
    rows = slices_by_row(events)
    named = {(e["pid"], e["tid"]) for e in events if e["name"] == "thread_name"}
    assert set(rows) <= named, "a row has no name"
    for row in rows.values():
        _check_nesting(row)
    _check_arrows(events, rows)
    return events


def slices_by_row(events):
    """Return the slices of each (process, thread)."""
    rows = defaultdict(list)
    for event in events:
        if event["ph"] == "X":
            rows[event["pid"], event["tid"]].append(event)
    return rows


def _nanoseconds(event):
    start = round(event["ts"] * 1e3)
    return start, start + round(event["dur"] * 1e3)


def _check_nesting(row):
    """Slices of a row lie inside one another or apart, and an inner one comes after its outer."""
    open_ends = []
    for event in sorted(row, key=lambda e: (_nanoseconds(e)[0], -_nanoseconds(e)[1])):
        start, end = _nanoseconds(event)
        while open_ends and open_ends[-1] <= start:
            open_ends.pop()
        assert not open_ends or end <= open_ends[-1], f"{event} overlaps its neighbour"
        open_ends.append(end)


def _check_arrows(events, rows):
    """An arrow begins once and ends once, later, each time inside a slice of its row."""
    ends = defaultdict(list)
    for event in events:
        if event["ph"] in "sf":
            ends[event["pid"], event["cat"], event["id"]].append(event)
    for pair in ends.values():
        assert [event["ph"] for event in pair] == ["s", "f"]
        assert pair[0]["ts"] <= pair[1]["ts"]
        for event in pair:
            at = round(event["ts"] * 1e3)
            mine = map(_nanoseconds, rows[event["pid"], event["tid"]])
            assert any(start <= at < max(end, start + 1) for start, end in mine), event
