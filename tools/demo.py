"""`trireme demo`: the main job on something small and real.

A digit classifier trained by tools/train_demo.py (int8 convolutions, float head) is converted and
run on its held-out images twice: where the cost model puts it, and spread by pins over the three
devices. Both must give the same digits.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import dataclass, replace
from importlib.resources import files

import numpy as np

from trireme import convert
from trireme.ir.graph import Graph
from trireme.passes.pipeline import optimise
from trireme.profiling.profile import Profile
from trireme.runtime.session import Session
from trireme.support.dtypes import Array
from trireme.tools.commands import emit
from trireme.tools.options import Progress

DEVICES = ("npu", "opencl", "cpu")
_HEAD = ("fully_connected", "gemm", "matmul")
_WIDTH = 60


@dataclass(frozen=True)
class Outcome:
    """What one run of the demo gave."""

    title: str
    accuracy: float
    digits: Array
    placement: str
    profile: Profile


def demo(options: argparse.Namespace) -> int:
    """Convert, place, run, and print accuracy, placement and timeline."""
    progress = Progress()
    folder = files("trireme.tools") / "demo"
    graph = optimise(convert((folder / "digits.onnx").read_bytes()))
    with (folder / "held_out.npz").open("rb") as file, np.load(file) as held_out:
        images, labels = held_out["images"], held_out["labels"]
    feeds = {"image": (images / 16).astype(np.float32)[:, None]}
    outcomes = []
    for title, placed in (
        ("where the cost model puts it", graph),
        ("spread over the three devices by pins", spread(graph)),
    ):
        progress(title)
        outcomes.append(run(title, placed, feeds, labels))
    progress.done()
    same = all((outcome.digits == outcomes[0].digits).all() for outcome in outcomes)
    data = {
        outcome.title: {"accuracy": outcome.accuracy, "profile": outcome.profile.to_json()}
        for outcome in outcomes
    }
    emit(options, {**data, "same_digits": same}, text(outcomes, same))
    return 0 if same else 1


def spread(graph: Graph) -> Graph:
    """Return the graph with pins: quantised work on the npu, the head on opencl, the rest cpu."""
    nodes = []
    for node in graph.nodes:
        quantised = all(graph.type(v).quant is not None for v in (node.used[0], *node.outputs))
        pin = "npu" if quantised else "opencl" if node.op in _HEAD else "cpu"
        nodes.append(replace(node, pin=pin))
    return replace(graph, nodes=tuple(nodes))


def run(title: str, graph: Graph, feeds: Mapping[str, Array], labels: Array) -> Outcome:
    """Run the held-out digits on three devices."""
    with Session(graph, devices=DEVICES) as session:
        (scores,) = session.run(feeds).values()
        digits = scores.argmax(1)
        profile = session.profile(feeds, runs=5)
        return Outcome(
            title, float((digits == labels).mean()), digits, str(session.placement), profile
        )


def text(outcomes: list[Outcome], same: bool) -> str:
    """Return the report."""
    lines = []
    for outcome in outcomes:
        lines += [
            f"== {outcome.title}",
            f"accuracy {outcome.accuracy:.2%} of {len(outcome.digits)} held-out digits",
            outcome.placement,
            timeline_text(outcome.profile),
            "",
        ]
    lines.append("both runs give the same digits" if same else "the runs DIFFER")
    return "\n".join(lines)


def timeline_text(profile: Profile) -> str:
    """Return the virtual timeline, a row a device or link, a letter a task."""
    total = profile.virtual_s or 1.0
    lines = [f"virtual time, {profile.virtual_s * 1e6:.0f} us in all:"]
    for device in dict.fromkeys(row.device for row in profile.tasks):
        cells = ["."] * _WIDTH
        for row, piece in zip(profile.tasks, profile.virtual, strict=True):
            if row.device == device:
                first = min(int(piece.start_s / total * _WIDTH), _WIDTH - 1)
                last = max(first + 1, round(piece.end_s / total * _WIDTH))
                cells[first:last] = chr(ord("A") + row.task % 26) * (last - first)
        lines.append(f"  {device:12} |{''.join(cells[:_WIDTH])}|")
    for row in profile.tasks:
        letter = chr(ord("A") + row.task % 26)
        figures = f"predicted {row.estimate_s * 1e6:.1f} us, took {row.seconds * 1e6:.1f} us"
        lines.append(f"  {letter} {row.device:12} {row.label}: {figures} ({row.clock})")
    return "\n".join(lines)
