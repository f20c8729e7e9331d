"""`trireme demo`: the main job on something small and real.

A digit classifier trained by tools/train_demo.py (int8 convolutions, float head) is converted and
run on its held-out images twice: where the cost model puts it, and spread by pins over the three
devices. Both must give the same digits. A device that cannot be opened is left out, and named.
"""

from __future__ import annotations

import argparse
import shutil
import textwrap
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np

from trireme import convert
from trireme.ir.graph import Graph
from trireme.ir.op import get_op
from trireme.passes.pipeline import optimise
from trireme.profiling.profile import Profile
from trireme.profiling.rows import TaskRow
from trireme.runtime.session.session import Session
from trireme.support.dtypes import Array
from trireme.support.showing import clipped
from trireme.support.units import time_text
from trireme.tools.commands import fault_lines, faults_of
from trireme.tools.options import Argument, argument
from trireme.tools.output import emit
from trireme.tools.progress import Progress

DEVICES = ("npu", "opencl", "cpu")
ARGUMENTS: tuple[Argument, ...] = (
    argument(
        "--write",
        metavar="DIR",
        help="write digits.onnx, images.npy and labels.npy to this folder, and run nothing",
    ),
)
_LEAST_WIDTH, _MOST_WIDTH = 60, 90
_FOLDER = files("trireme.tools") / "demo"


@dataclass(frozen=True)
class Outcome:
    """The result of one run of the demo.

    faults: a sentence for each device that was left out
    """

    title: str
    accuracy: float
    digits: Array
    profile: Profile
    faults: Sequence[str]
    faults_json: Mapping[str, Any]


def demo(options: argparse.Namespace) -> int:
    """Convert, place, run, and print accuracy, placement and timeline."""
    images, labels = held_out()
    if options.write is not None:
        rows = write(Path(options.write), images, labels)
        emit(options, {"files": list(rows)}, "\n".join(f"{p}: {what}" for p, what in rows.items()))
        return 0
    progress = Progress()
    graph = optimise(convert((_FOLDER / "digits.onnx").read_bytes()))
    outcomes = []
    for title, placed in (
        ("Placed by the cost model", graph),
        ("Spread over the devices by pins", spread(graph)),
    ):
        progress(title)
        outcomes.append(run(title, placed, {"image": images}, labels))
    progress.done()
    same = all((outcome.digits == outcomes[0].digits).all() for outcome in outcomes)
    data = {
        outcome.title: {
            "accuracy": outcome.accuracy,
            "profile": outcome.profile.to_json(),
            **outcome.faults_json,
        }
        for outcome in outcomes
    }
    width = min(max(shutil.get_terminal_size().columns, _LEAST_WIDTH), _MOST_WIDTH)
    emit(options, {**data, "same_digits": same}, text(outcomes, same, width))
    return 0 if same else 1


def held_out() -> tuple[Array, Array]:
    """Return the held-out images, float32[360,1,8,8] in 0..1, and their digits."""
    with (_FOLDER / "held_out.npz").open("rb") as file, np.load(file) as arrays:
        return (arrays["images"] / 16).astype(np.float32)[:, None], arrays["labels"]


def write(folder: Path, images: Array, labels: Array) -> dict[str, str]:
    """Write the model, the images and their digits into a folder; return what each file holds."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "digits.onnx").write_bytes((_FOLDER / "digits.onnx").read_bytes())
    np.save(folder / "images.npy", images)
    np.save(folder / "labels.npy", labels)
    return {
        str(folder / "digits.onnx"): "the model; its input is 'image', its output 'digit'",
        str(folder / "images.npy"): f"{len(images)} images, float32{list(images.shape)}",
        str(folder / "labels.npy"): f"their digits, {labels.dtype}{list(labels.shape)}",
    }


def spread(graph: Graph) -> Graph:
    """Return the graph with pins: quantised work on the npu, the head on opencl, the rest cpu."""
    nodes = []
    for node in graph.nodes:
        quantised = all(graph.type(v).quant is not None for v in (node.used[0], *node.outputs))
        pin = "npu" if quantised else "opencl" if get_op(node.op).family == "matmul" else "cpu"
        nodes.append(replace(node, pin=pin))
    return replace(graph, nodes=tuple(nodes))


def run(title: str, graph: Graph, feeds: Mapping[str, Array], labels: Array) -> Outcome:
    """Run the held-out digits on the three devices, or on those that can be opened."""
    with Session(graph, devices=DEVICES, fallback=True) as session:
        (scores,) = session.run(feeds).values()
        digits = scores.argmax(1)
        profile = session.profile(feeds, runs=5)
        accuracy = float((digits == labels).mean())
        return Outcome(title, accuracy, digits, profile, fault_lines(session), faults_of(session))


def text(outcomes: list[Outcome], same: bool, width: int) -> str:
    """Return the report, `width` columns wide."""
    digits = len(outcomes[0].digits)
    intro = (
        f"One run classifies {digits} handwritten digits with a small network: int8 convolutions, "
        "then a float head. Times are of one run."
    )
    lines = [*textwrap.wrap(intro, width), ""]
    for fault in dict.fromkeys(fault for outcome in outcomes for fault in outcome.faults):
        lines += [part for row in fault.splitlines() for part in textwrap.wrap(row, width)] + [""]
    for outcome in outcomes:
        right = f"{round(outcome.accuracy * digits)} of {digits} digits are right"
        lines += [
            *textwrap.wrap(f"== {outcome.title}: {right} ({outcome.accuracy:.1%})", width),
            *timeline(outcome.profile, width),
            *task_table(outcome.profile, width),
            "",
        ]
    lines.append("Both runs give the same digits." if same else "The runs DIFFER.")
    lines += textwrap.wrap("The same model for the other commands: trireme demo --write DIR", width)
    return "\n".join(lines)


def timeline(profile: Profile, width: int) -> Iterator[str]:
    """Yield the timeline of a run in virtual time: a row a device or link, a letter a task."""
    total = profile.virtual_s or 1.0
    names = list(dict.fromkeys(row.device for row in profile.tasks))
    margin = max(map(len, names))
    cells = width - margin - 5
    for device in names:
        row = [" "] * cells
        for task, piece in zip(profile.tasks, profile.virtual, strict=True):
            if task.device == device:
                first = min(int(piece.start_s / total * cells), cells - 1)
                last = min(max(first + 1, round(piece.end_s / total * cells)), cells)
                row[first:last] = _letter(task) * (last - first)
        yield f"  {device:{margin}} |{''.join(row)}|"
    yield f"  {'':{margin}} 0{time_text(profile.virtual_s):>{cells}}"


def task_table(profile: Profile, width: int) -> Iterator[str]:
    """Yield a row a task, predicted beside measured, and a remark where they differ."""
    margin = max(len(row.device) for row in profile.tasks)
    room = width - margin - 28
    yield f"    {'task':{room}} {'device':{margin}} {'predicted':>9} {'measured':>9}"
    simulated = False
    for row in profile.tasks:
        mark = " *" if row.clock == "virtual" else ""
        simulated |= bool(mark)
        name = clipped(_ops(profile, row), room)
        times = f"{time_text(row.estimate_s):>9} {time_text(row.seconds):>9}"
        yield f"  {_letter(row)} {name:{room}} {row.device:{margin}} {times}{mark}"
    times = f"{time_text(profile.predicted_s):>9} {time_text(profile.virtual_s):>9}"
    yield f"    {'the run':{room}} {'':{margin}} {times}"
    if simulated:
        yield "    * simulated: what the described NPU would take"
    reported = [one for one in profile.prediction_errors if one.is_reported]
    if reported:
        most = max(reported, key=lambda one: abs(one.measured_s - one.predicted_s))
        times = f"{time_text(most.measured_s)}, predicted {time_text(most.predicted_s)}"
        yield from textwrap.wrap(
            f"{most.what} took {times}: {most.remedy}",
            width,
            initial_indent="    ",
            subsequent_indent="    ",
            break_on_hyphens=False,
        )


def _letter(row: TaskRow) -> str:
    return chr(ord("A") + row.task % 26)


def _ops(profile: Profile, row: TaskRow) -> str:
    """Return the ops of a task, each with how often it is there; a copy's own label."""
    ops = Counter(op for node in profile.nodes if node.task == row.task for op in node.ops)
    named = (op if count == 1 else f"{count} {op}" for op, count in ops.items())
    return ", ".join(named) or row.label
