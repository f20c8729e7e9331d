"""Launches that are hidden: what a device starts by itself behind its own tasks costs no launch, in
a run's prediction, in its plan and below every bound."""

import itertools
from dataclasses import replace

import pytest
from placement_cases import random_problem
from placing import place_plain
from toy_device import ToyDevice

from trireme.cost.calibration import Calibration, DeviceCalibration, load_calibration
from trireme.cost.model import CostModel
from trireme.ir.builder import GraphBuilder
from trireme.ir.graph import TensorType
from trireme.placement.bounds import Forest, LoadBound, critical_s, makespan_bound
from trireme.placement.makespan import follows, makespan_s
from trireme.placement.move_cost import MoveEvaluator
from trireme.placement.objective import Scorer
from trireme.placement.problem import Problem
from trireme.placement.stages import rules
from trireme.placement.virtual_time import end_s, timeline
from trireme.plan.plan import make_plan

LAUNCH_S, ISSUE_S = 50e-6, 6e-6


def chained(problem, device=1, issue_s=ISSUE_S):
    issue = tuple(issue_s if d == device else None for d in problem.devices)
    return Problem(
        replace(problem.machine, issue_s=issue),
        problem.seconds,
        problem.inputs,
        problem.after,
        problem.outputs,
        problem.nbytes,
    )


def test_a_task_behind_its_own_device_takes_itself_or_its_issue():
    problem = chained(random_problem("chain", 0, 1, 2))
    machine = replace(problem.machine, launch_s=(0.0, LAUNCH_S))
    inputs = [[(9, -1)], [(0, 0)], [(1, 1)]]
    problem = Problem(
        machine,
        [[1, 2e-6], [1, 20e-6], [1, 1e-6]],
        inputs,
        [[], [], []],
        [(2, 2)],
        {0: 4, 1: 4, 2: 4, 9: 4},
    )
    there = problem.copy_s(9, 0, problem.space[1]) + problem.copy_s(2, problem.space[1], 0)
    one = makespan_s(problem, (1, 1, 1), [(1, [0, 1, 2])])
    assert one == pytest.approx(there + LAUNCH_S + 23e-6)
    three = makespan_s(problem, (1, 1, 1), [(1, [0]), (1, [1]), (1, [2])])
    assert three == pytest.approx(there + LAUNCH_S + 2e-6 + 20e-6 + ISSUE_S)
    assert not follows(problem, (1, 1, 1), 1, [0]), "what the caller gives, the host must start"
    assert follows(problem, (1, 1, 1), 1, [1, 2])
    assert not follows(problem, (1, 0, 1), 1, [2]), "what comes from another device as well"


@pytest.mark.parametrize("seed", range(12))
def test_bounds_hold_for_every_assignment(seed):
    problem = chained(random_problem(("layered", "series-parallel")[seed % 2], seed, 6, 2))
    able = itertools.product(*problem.able)
    scores = {
        (assigned, n): makespan_s(problem, assigned, tasks)
        for assigned in able
        for n, tasks in enumerate(rules(problem, assigned))
    }
    best = min(scores.values())
    load = LoadBound(Forest(problem))
    assert max(critical_s(problem), load.seconds) <= best * (1 + 1e-9)
    assert makespan_bound(problem, best, load)[0] <= best * (1 + 1e-9)


@pytest.mark.parametrize("seed", range(4))
def test_the_solver_proves_no_more_than_there_is(seed):
    pytest.importorskip("ortools")
    from trireme.placement.prove import prove_assignment

    problem = chained(random_problem("layered", seed, 5, 2))
    scores = {
        assigned: min(makespan_s(problem, assigned, tasks) for tasks in rules(problem, assigned))
        for assigned in itertools.product(*problem.able)
    }
    start = min(scores, key=lambda one: sum(one))
    proof = prove_assignment(Scorer(problem, "makespan"), start, None, 10.0)
    assert proof.bound <= min(scores.values()) * (1 + 1e-9)


def devices():
    return {"cpu": ToyDevice("cpu", flops=1e8), "gpu": ToyDevice("gpu", launch_s=LAUNCH_S)}


def measured(issue_s):
    cpu = DeviceCalibration("cpu", "toy cpu", 1e-6)
    return Calibration.of_devices(
        cpu, DeviceCalibration("gpu", "toy gpu", LAUNCH_S, issue_s=issue_s)
    )


def graph(pins):
    b = GraphBuilder("pinned")
    x = b.input("x", TensorType((64, 64), "float32"))
    for pin in pins:
        x = b.add("relu", x, pin=pin)
    return b.finish(x)


@pytest.mark.parametrize("execution", ["sunk", "interactive"])
def test_the_plan_hides_what_the_prediction_hides(execution):
    placement = place_plain(
        graph(["gpu", "gpu", "cpu", "gpu", "gpu"]), CostModel(devices(), measured(2e-6))
    )
    plan = make_plan(placement, execution=execution)
    choices = placement.choices
    mine = [task for task in plan.tasks if task.device == "gpu"]
    launches = [
        task.estimate_s - sum(choices[n.id].estimates["gpu"].seconds for n in task.nodes)
        for task in mine
    ]
    full = [seconds > 0.9 * LAUNCH_S for seconds in launches]
    assert full == ([True, False] * 2 if execution == "interactive" else [True, True])
    if execution == "sunk":
        slices = timeline(plan.tasks, [t.estimate_s for t in plan.tasks])
        assert end_s(slices) == pytest.approx(placement.makespan_s, rel=1e-9)


@pytest.mark.parametrize("seed", range(6))
def test_a_pin_changes_the_prediction_by_what_was_stated(seed):
    pins = [None if (seed >> k) & 1 else "gpu" for k in range(3)]
    source, costs = graph(["cpu", *pins, "gpu"]), CostModel(devices(), measured(2e-6))
    placement = place_plain(source, costs)
    again = MoveEvaluator(placement)
    for position, node in enumerate(source.nodes):
        for device, name in enumerate(again.names):
            if node.pin is None and name != placement.choices[node.id].device:
                stated = again.moved({position: device}).value
                pinned = place_plain(source, costs, pins={node.id: name}, fixed=placement)
                assert pinned.makespan_s == pytest.approx(stated, rel=1e-12)


def test_the_file_keeps_what_a_launch_behind_another_takes(tmp_path):
    path = tmp_path / "c.json"
    measured(3e-6).save(path)
    assert load_calibration(path) == measured(3e-6)
    assert CostModel(devices(), measured(3e-6)).issue_s() == {"gpu": 3e-6}
    assert CostModel(devices(), measured(None)).issue_s() == {}
