"""The process that one engine runs in while `trireme bench` measures it.

Run as a script, not imported, so that a peer's process holds nothing of trireme but the file that
times calls (engine/support/timing.py), which imports the standard library alone. Standard input
brings lines of JSON: a task first, then commands. Each is answered by one line of JSON on what was
standard output; whatever an engine prints goes to standard error. Between commands the process
sleeps in a read. It ends when its input does.

    {"do": "convert", "folder"}   -> {"model", "seconds"}
    {"do": "load", "feeds"}       -> {"import_s", "load_s", "first_s", "moments",
                                      "cpu_s", memory...}
    {"do": "facts"}               -> {"facts"}
    {"do": "settle", "seconds"}   -> {"steady"}             when calls had become steady
    {"do": "save", "to"}          -> {}                     outputs of the last run, an .npz file
    {"do": "turn", "seconds"}     -> {"times_ns": [...]}    calls one after another, each timed
    {"do": "memory"}              -> {"rss_bytes", "peak_bytes"}
    any                           -> {"error": "..."}       and the process ends
"""

from __future__ import annotations

import ctypes
import importlib
import importlib.util
import itertools
import json
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from typing import Any

Reply = dict[str, Any]
LEAST_CALLS = 3
STEADY = 1.25
"""A call is steady that takes at most so many times the median of the later half of calls."""


class Worker:
    """One engine; each method answers one command."""

    def __init__(self, task: Reply) -> None:
        self.task = task
        self.call: Callable[[], dict[str, Any]] = dict
        self.outputs: dict[str, Any] = {}
        self.facts_of: Any = {}
        if task.get("cpus"):
            os.sched_setaffinity(0, task["cpus"])
        self.adapter: Any = _load_file("bench_engine", task["file"])
        self.timing: Any = _load_file("bench_timing", task["timing"])

    def convert(self, folder: str) -> Reply:
        """Make the file that the engine reads of the model."""
        start = time.perf_counter()
        model = self.adapter.convert(self.task["model"], folder)
        return {"model": model, "seconds": time.perf_counter() - start}

    def load(self, feeds: str) -> Reply:
        """Import the engine, load the model and run it once; times add up from the import on."""
        import numpy as np

        with np.load(feeds, allow_pickle=False) as stored:
            arrays = {name: stored[str(i)] for i, name in enumerate(stored["names"].tolist())}
        start = time.monotonic()
        importlib.import_module(self.task["module"])
        imported, before = time.monotonic(), memory()
        self.call, self.facts_of = self.adapter.open_engine(self.task, arrays)
        loaded = time.monotonic()
        self.outputs = self.call()
        first, cpu_s = time.monotonic(), time.process_time()
        return {
            "import_s": imported - start,
            "load_s": loaded - imported,
            "first_s": first - imported,
            "moments": {"inputs": start, "imported": imported, "ready": loaded, "first": first},
            "cpu_s": cpu_s,
            "imported_bytes": before["rss_bytes"],
            **memory(),
        }

    def facts(self) -> Reply:
        """Tell what the adapter says of the engine, which may take a while to find out."""
        return {"facts": self.facts_of() if callable(self.facts_of) else self.facts_of}

    def save(self, to: str) -> Reply:
        """Store the outputs under their positions, and their names in order."""
        import numpy as np

        arrays = {f"{i}": np.asarray(a) for i, a in enumerate(self.outputs.values())}
        np.savez(to, allow_pickle=False, names=np.array(list(self.outputs), np.str_), **arrays)
        return {}

    def turn(self, seconds: float) -> Reply:
        """Call for a moment, at least a few times."""
        repeat = self.timing.RepeatLimits(seconds, least=LEAST_CALLS)
        times = self.timing.time_calls(self.call, repeat)
        return {"times_ns": [round(one * 1e9) for one in times]}

    def settle(self, seconds: float) -> Reply:
        """Call for a moment, and tell when the first steady call was over (`STEADY`)."""
        ends = [time.monotonic()]
        while ends[-1] < ends[0] + seconds or len(ends) <= LEAST_CALLS:
            self.call()
            ends.append(time.monotonic())
        took = [end - start for start, end in itertools.pairwise(ends)]
        later = sorted(took[len(took) // 2 :])
        limit = STEADY * later[len(later) // 2]
        first = next(number for number, one in enumerate(took) if one <= limit)
        return {"steady": ends[first + 1]}

    def memory(self) -> Reply:
        """Tell the memory now, and the most so far."""
        return memory()


def memory() -> Reply:
    """Return this process's resident memory, now and at its highest, in bytes (Linux)."""
    names = {"VmRSS:": "rss_bytes", "VmHWM:": "peak_bytes"}
    found = dict.fromkeys(names.values(), 0)
    with open("/proc/self/status") as status:
        for row in (line.split() for line in status):
            if row and row[0] in names:
                found[names[row[0]]] = int(row[1]) * 1024
    return found


def _load_file(name: str, path: str) -> Any:
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None, path
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _sentence(error: BaseException) -> str:
    """Return what went wrong in a line, and the cause that an extension module hides behind it.

    Of several lines it is the first that is not a heading (OpenVINO's "Exception from file:84:").
    """
    kind = "" if type(error) is RuntimeError else f"{type(error).__name__}: "
    lines = [" ".join(line.split()) for line in str(error).splitlines() if line.strip()]
    told = [line for line in lines if not line.endswith(":")] or lines or ["failed"]
    return kind + told[0] + (f" ({_sentence(error.__cause__)})" if error.__cause__ else "")


def _die_with_parent() -> None:
    """Let the kernel end this process with its parent, even amid a long load."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # 1 is PR_SET_PDEATHSIG


def main() -> int:
    """Answer commands until standard input ends."""
    _die_with_parent()
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    try:
        worker = Worker(json.loads(sys.stdin.readline()))
        for line in sys.stdin:
            command = json.loads(line)
            answer = getattr(worker, command.pop("do"))(**command)
            print(json.dumps(answer), file=replies, flush=True)
    except Exception as error:
        traceback.print_exc()
        print(json.dumps({"error": _sentence(error)}), file=replies, flush=True)
        return 1
    return 0


if __name__ == "__main__":
    sys.stdout.flush()
    os._exit(main())
