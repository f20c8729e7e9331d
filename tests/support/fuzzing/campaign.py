"""Many seeds, one after another: counts, and what fails made small and written down."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from forced import pinned_at_random

from fuzzing.check import WAYS, Failure, allowed, check, run_way
from fuzzing.grow import grow
from fuzzing.grower import Grown
from fuzzing.oracle import answer
from fuzzing.peer import Refused
from fuzzing.shrink import as_text, shrink
from trireme.convert import convert
from trireme.errors import TriremeError
from trireme.model_cache import optimised
from trireme.model_file import dumps, loads
from trireme.opening import open_device
from trireme.placing.objective import Objective

CONTROL = ("If", "Loop", "Scan")
QUICK: Objective = "serial"
"""The objective over several devices: annealing tasks for the makespan takes longer than the run,
even where every node is pinned.
"""
Runner = Callable[[Grown, Any], tuple[str, list[Failure]]]


@dataclass
class Report:
    """What many seeds came to."""

    counts: Counter[str] = field(default_factory=Counter)
    failed: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        counted = ", ".join(f"{n} {kind}" for kind, n in self.counts.most_common())
        return "\n".join([*self.failed, counted])


def on_devices(devices: Sequence[Any]) -> Runner:
    """Return what runs a graph on those devices, and on host where it has control flow.

    A path is loaded twice, with an empty cache and a full one; one graph of three from bytes first.
    Where there are several devices, the objective is QUICK.
    """

    def run(grown: Grown, wanted: Any) -> tuple[str, list[Failure]]:
        ways = WAYS[grown.seed % 3 > 0 :]
        flows = any(node.op_type in CONTROL for node in grown.model.graph.node)
        content = grown.model.SerializeToString()
        if not flows:
            return check(content, grown.feeds, wanted, devices, ways)
        used = [*devices, "host"]
        return check(content, grown.feeds, wanted, used, ways, objective=QUICK)

    return run


def on_random_devices(devices: Mapping[str, Any]) -> Runner:
    """Return what runs a graph from bytes, every node pinned to a random device that takes it."""

    def run(grown: Grown, wanted: Any) -> tuple[str, list[Failure]]:
        def pinned() -> Any:
            graph = optimised(grown.model.SerializeToString())
            able = {**devices, "host": open_device("host")}
            return pinned_at_random(graph, able, len(grown.model.graph.node))

        try:
            graph = pinned()
        except TriremeError as error:
            kind = allowed(error)
            return kind, [] if kind else [Failure("pinned", "refused", str(error))]
        used = [*devices.values(), "host"]
        return run_way("pinned", graph, grown.feeds, wanted, used, objective=QUICK)

    return run


def otherwise(devices: Sequence[Any]) -> Runner:
    """Return what runs a graph unoptimised, from a .trm file, node by node and in one order."""

    def run(grown: Grown, wanted: Any) -> tuple[str, list[Failure]]:
        content = grown.model.SerializeToString()
        try:
            graph = convert(content)
        except TriremeError as error:
            return (allowed(error), []) if allowed(error) else ("", [_refusal(error)])
        ways: dict[str, tuple[Any, dict[str, Any]]] = {
            "unoptimised": (graph, {"passes": ()}),
            "stored": (loads(dumps(graph)), {}),
            "node by node": (graph, {"execution": "interactive"}),
            "in one order": (graph, {"mode": "serial"}),
        }
        used = [*devices, "host"]
        for way, (source, options) in ways.items():
            options["objective"] = QUICK
            found = run_way(way, source, grown.feeds, wanted, used, **options)
            if found != ("", []):
                return found
        return "", []

    return run


def _refusal(error: TriremeError) -> Failure:
    return Failure("converted", "refused", str(error))


def outcome(grown: Grown, seed: int, run: Runner) -> tuple[str, list[Failure]]:
    """Return "equal", the kind of an allowed error, "refused by the peer", or how it failed."""
    try:
        wanted = answer(grown, seed)
    except Refused:
        return "refused by the peer", []
    kind, failures = run(grown, wanted)
    return (failures[0].kind if failures else kind or "equal"), failures


def campaign(seeds: Iterable[int], run: Runner, folder: Path | None = None) -> Report:
    """Return the report of some seeds; a failing graph is made small, written and printed."""
    report = Report()
    for seed in seeds:
        grown = grow(seed)
        kind, failures = outcome(grown, seed, run)
        report.counts[kind] += 1
        if failures:
            report.failed.append(failure_text(grown, seed, run, kind, failures[0], folder))
    return report


def failure_text(
    grown: Grown, seed: int, run: Runner, kind: str, failure: Failure, folder: Path | None
) -> str:
    """Return a failing seed as text, its graph made small; written to `folder` for replay."""
    small = shrink(grown, lambda part: outcome(part, seed, run)[0] == kind)
    again = outcome(small, seed, run)[1]
    failure = again[0] if again else failure
    text = f"seed {seed}: {kind} from {failure.way}: {failure.text}\n{as_text(small)}\n"
    if folder is not None:
        place = folder / f"seed_{seed}"
        place.mkdir(parents=True, exist_ok=True)
        onnx.save(small.model, place / "model.onnx")
        np.savez(place / "feeds.npz", **small.feeds)
        (place / "failure.txt").write_text(text)
    return text
