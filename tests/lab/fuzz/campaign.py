"""Many seeds, one after another: counts, and what fails made small and written down."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from lab.fuzz import tflite_graphs
from lab.fuzz.check import WAYS, Failure, allowed, check, run_way
from lab.fuzz.grower import Grown
from lab.fuzz.oracle import Answer, answer, grown_and_answered
from lab.fuzz.peer import Refused
from lab.fuzz.shrink import as_text, part_of, shrink
from lab.fuzz.tflite_graphs import litert_answer, part_of_tflite, tflite_and_answered
from lab.fuzz.worker import Crashed, Worker
from trireme.model_file import dumps, loads
from trireme.model_file.convert import convert
from trireme.placement.objective import Objective
from trireme.placement.options import PlacementOptions
from trireme.runtime.program.options import AS_GIVEN, ExecutionOptions
from trireme.support.errors import TriremeError

CONTROL = ("If", "Loop", "Scan")
QUICK: Objective = "serial"
"""The objective over several devices: annealing tasks for the makespan takes longer than the run,
even where every node is pinned.
"""
REFUSED, CRASHED = "refused by the peer", "peer crashed"
Runner = Callable[[Any, Any], tuple[str, list[Failure]]]


@dataclass(frozen=True)
class Family:
    """Random graphs of a file format; the first two functions run in the peer's process.

    grown_and_answered: (seed, kind) -> the graph and what each output must be
    answer: (graph, seed) -> what each output must be
    part_of: (graph, some of its parts) -> their graph
    """

    name: str
    grown_and_answered: Callable[[int, str], tuple[Any, dict[str, Answer]]]
    answer: Callable[[Any, int], dict[str, Answer]]
    part_of: Callable[[Any, Sequence[Any]], Any]
    as_text: Callable[[Any], str]


ONNX = Family("onnx", grown_and_answered, answer, part_of, as_text)
TFLITE = Family("tflite", tflite_and_answered, litert_answer, part_of_tflite, tflite_graphs.as_text)


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
        if not flows:
            return check(grown.content, grown.feeds, wanted, devices, ways)
        used = [*devices, "host"]
        return check(grown.content, grown.feeds, wanted, used, ways, objective=QUICK)

    return run


def in_every_way(devices: Sequence[Any]) -> Runner:
    """Return what loads a graph in every way and runs it on those devices."""
    return lambda grown, wanted: check(grown.content, grown.feeds, wanted, devices)


def otherwise(devices: Sequence[Any]) -> Runner:
    """Return what runs a graph unoptimised, from a .trm file, node by node and in one order."""

    def run(grown: Grown, wanted: Any) -> tuple[str, list[Failure]]:
        try:
            graph = convert(grown.content)
        except TriremeError as error:
            return (allowed(error), []) if allowed(error) else ("", [_refusal(error)])
        ways: dict[str, tuple[Any, dict[str, Any]]] = {
            "unoptimised": (graph, {"execution_options": AS_GIVEN}),
            "stored": (loads(dumps(graph)), {}),
            "node by node": (
                graph,
                {"execution_options": ExecutionOptions(execution="interactive")},
            ),
            "in one order": (graph, {"mode": "serial"}),
        }
        used = [*devices, "host"]
        for way, (source, options) in ways.items():
            options["placement_options"] = PlacementOptions(objective=QUICK)
            found = run_way(way, source, grown.feeds, wanted, used, **options)
            if found != ("", []):
                return found
        return "", []

    return run


def with_open_shapes(devices: Sequence[Any]) -> Runner:
    """Return what runs a graph whose inputs have open shapes, and again with a dynamic schedule.

    Each dimension of an input becomes a symbol of its own, or one symbol for equal sizes, or stays
    a number, as the seed has it.
    """

    def run(grown: Grown, wanted: Any) -> tuple[str, list[Failure]]:
        model = onnx.ModelProto.FromString(grown.content)
        open_inputs(model, random.Random(grown.seed))
        content = model.SerializeToString()
        dynamic = ExecutionOptions(schedule="dynamic")
        for way, options in (("open", {}), ("dynamic", {"execution_options": dynamic})):
            found = run_way(way, content, grown.feeds, wanted, devices, **options)
            if found != ("", []):
                return found
        return "", []

    return run


def open_inputs(model: Any, rng: random.Random) -> None:
    """Make dimensions of a model's inputs symbols, in place."""
    for value in model.graph.input:
        for axis, dim in enumerate(value.type.tensor_type.shape.dim):
            kind = rng.choice(["own", "shared", "number", "own"])
            if kind != "number" and dim.HasField("dim_value"):
                name = f"n{dim.dim_value}" if kind == "shared" else f"{value.name}_{axis}"
                dim.dim_param = name
    del model.graph.value_info[:]
    for value in model.graph.output:
        value.type.tensor_type.ClearField("shape")


def _refusal(error: TriremeError) -> Failure:
    return Failure("converted", "refused", str(error))


def outcome(
    family: Family, grown: Any, seed: int, run: Runner, peer: Worker
) -> tuple[str, list[Failure]]:
    """Return "equal", the kind of an allowed error, what the peer ended in, or how it failed."""
    try:
        wanted = peer(family.answer, grown, seed)
    except Refused:
        return REFUSED, []
    except Crashed:
        return CRASHED, []
    return judged(grown, wanted, run)


def judged(grown: Any, wanted: Mapping[str, Answer], run: Runner) -> tuple[str, list[Failure]]:
    """Return "equal", the kind of an allowed error, or how it failed."""
    kind, failures = run(grown, wanted)
    return (failures[0].kind if failures else kind or "equal"), failures


def campaign(
    seeds: Iterable[int],
    run: Runner,
    peer: Worker,
    folder: Path | None = None,
    kinds: Sequence[str] = ("any",),
    family: Family = ONNX,
) -> Report:
    """Return the report of some seeds; a failing graph is made small, written and printed.

    peer: the process of the other runtime; a seed at which that ends is counted, no more
    kinds: of graphs (grow.KINDS), which take turns with the seeds
    """
    report = Report()
    for seed in seeds:
        try:
            grown, wanted = peer(family.grown_and_answered, seed, kinds[seed % len(kinds)])
        except (Refused, Crashed) as error:
            report.counts[REFUSED if isinstance(error, Refused) else CRASHED] += 1
            continue
        kind, failures = judged(grown, wanted, run)
        report.counts[kind] += 1
        if failures:
            small, failure = made_small(family, grown, seed, run, peer, failures[0])
            report.failed.append(failure_text(family, small, seed, failure, folder))
    return report


def made_small(
    family: Family, grown: Any, seed: int, run: Runner, peer: Worker, failure: Failure
) -> tuple[Any, Failure]:
    """Return a part of a failing graph that fails alike, and how it does."""

    def outcome_of(parts: Sequence[Any]) -> tuple[str, list[Failure]]:
        return outcome(family, family.part_of(grown, parts), seed, run, peer)

    parts = shrink(grown.parts, lambda rest: outcome_of(rest)[0] == failure.kind)
    if len(parts) == len(grown.parts):
        return grown, failure
    return family.part_of(grown, parts), [*outcome_of(parts)[1], failure][0]


def failure_text(
    family: Family, small: Any, seed: int, failure: Failure, folder: Path | None
) -> str:
    """Return a failing graph as text; it is written to `folder` for replay."""
    head = f"seed {seed}: {failure.kind} from {failure.way}: {failure.text}"
    text = f"{head}\n{family.as_text(small)}\n"
    if folder is not None:
        place = folder / f"{family.name}_{seed}"
        place.mkdir(parents=True, exist_ok=True)
        (place / f"model.{family.name}").write_bytes(small.content)
        np.savez(place / "feeds.npz", **small.feeds)
        (place / "failure.txt").write_text(text)
    return text
