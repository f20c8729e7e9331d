"""Cases of plans and orders: random graphs on random devices, in a child process."""

from __future__ import annotations

import functools
import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from plan_verifier import check_plan
from random_graphs import random_feeds, random_graph

from lab.stress.children import Attempt
from trireme.backend.device import Device
from trireme.backend.registry import open_device
from trireme.cost.calibration import Calibration
from trireme.cost.model import CostModel
from trireme.ir.graph import Graph
from trireme.ir.interpreter import run_reference
from trireme.model_file.cache import optimised
from trireme.placement.objective import Objective
from trireme.placement.options import PLAIN, PlacementOptions
from trireme.placement.place import place
from trireme.plan.plan import Plan, Task, make_plan
from trireme.plan.subgraphs import Execution, Subgraphs
from trireme.runtime.program.options import AS_GIVEN, ExecutionOptions
from trireme.runtime.session.session import Session
from trireme.support.dtypes import Array
from trireme.support.errors import DeviceError, PlanError

SUBGRAPHS: tuple[Subgraphs, ...] = ("merged", "split")
EXECUTIONS: tuple[Execution, ...] = ("sunk", "interactive")
TIMED: tuple[Objective, ...] = ("makespan", "serial", "throughput")
"""Objectives that need no description of powers."""
ORDERS = 4
"""Orders that a case of `orders` runs, besides the parallel and the serial one."""


@functools.cache
def devices() -> Mapping[str, Device]:
    """Return every device that this machine has, open; the cpu with two threads."""
    opened = {}
    for name, options in (("cpu", {"threads": 2}), ("opencl", {}), ("npu", {})):
        try:
            opened[name] = open_device(name, **options)
        except DeviceError:
            continue
    return opened


def some_devices(rng: random.Random) -> dict[str, Device]:
    """Return the cpu and a random choice of the others."""
    return {name: one for name, one in devices().items() if name == "cpu" or rng.random() < 0.7}


def pinned_at_random(graph: Graph, opened: Mapping[str, Device], rng: random.Random) -> Graph:
    """Return the graph with some nodes pinned to random devices that take them."""
    share, nodes = rng.choice((0.0, 0.3, 1.0)), []
    for node in graph.nodes:
        able = [n for n, d in opened.items() if d.unsupported_reason(graph, node) is None]
        pins = able and rng.random() < share
        nodes.append(replace(node, pin=rng.choice(able)) if pins else node)
    return replace(graph, nodes=tuple(nodes))


def grown(rng: random.Random, most: int) -> Graph:
    """Return a random graph of up to `most` nodes."""
    return random_graph(rng.randrange(1 << 31), rng.randint(1, most), quantised=rng.random() < 0.5)


def plans(seed: int, models: Sequence[Path], subject: str) -> Attempt:
    """Return what makes a plan and has it verified."""
    read = functools.cache(lambda path: optimised(str(path), None, None, (), None))

    def attempt(number: int) -> str:
        rng = random.Random(f"plans {seed} {number}")
        is_model = models and number % 2
        graph = read(models[number // 2 % len(models)]) if is_model else grown(rng, 60)
        opened = some_devices(rng)
        graph = pinned_at_random(graph, opened, rng)
        asked = replace(PLAIN, objective=rng.choice(TIMED))
        how = rng.choice(SUBGRAPHS), rng.choice(EXECUTIONS)
        plan = make_plan(place(graph, CostModel(opened, Calibration()), asked), *how)
        return verified(plan, f"{graph.name} on {', '.join(opened)}, {asked.objective}, {how}")

    return attempt


def verified(plan: Plan, what: str) -> str:
    """Return how the verification of a plan and of its bodies ends."""
    try:
        for one in (plan, *plan.bodies.values()):
            check_plan(one)
    except PlanError as error:
        return f"wrong {what}: {error}"
    return "proved"


def orders(seed: int, models: Sequence[Path], subject: str) -> Attempt:
    """Return what runs a random graph in random orders that its plan allows."""

    def attempt(number: int) -> str:
        rng = random.Random(f"orders {seed} {number}")
        graph, opened = grown(rng, 25), some_devices(rng)
        feeds = random_feeds(graph, number)
        how = replace(AS_GIVEN, subgraphs=rng.choice(SUBGRAPHS), execution=rng.choice(EXECUTIONS))
        pinned = pinned_at_random(graph, opened, rng)
        return _in_orders(pinned, opened, feeds, how, rng)

    return attempt


def _in_orders(
    graph: Graph,
    opened: Mapping[str, Device],
    feeds: Mapping[str, Array],
    how: ExecutionOptions,
    rng: random.Random,
) -> str:
    with Session(
        graph,
        devices=list(opened.values()),
        execution_options=how,
        calibration=Calibration(),
        placement_options=PlacementOptions(objective="serial"),
    ) as session:
        ended = verified(session.plan, graph.name)
        first = session.run(feeds)
        session.runs.mode = "serial"
        others = {"serial": session.run(feeds)}
        for _ in range(ORDERS):
            order = any_order(session.plan.tasks, rng)
            others[str(order)] = session.run_in_order(feeds, order)
    for what, outputs in others.items():
        for name, array in first.items():
            if array.tobytes() != outputs[name].tobytes():
                return f"wrong {name} of {graph.name} has other bits in order {what}"
    wanted = run_reference(graph, feeds)
    for value in graph.output_values():
        if value.type.quant and wanted[value.name].tobytes() != first[value.name].tobytes():
            return f"wrong {value.name} of {graph.name} is not the reference's"
    return "equal" if ended == "proved" else ended


def any_order(tasks: Sequence[Task], rng: random.Random) -> list[int]:
    """Return a random order of the tasks that their waits allow."""
    done: list[int] = []
    left = set(range(len(tasks)))
    while left:
        ready = [index for index in sorted(left) if left.isdisjoint(tasks[index].waits)]
        done.append(rng.choice(ready))
        left.discard(done[-1])
    return done
