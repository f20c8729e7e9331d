"""The textbook's worked figure: nine kernels on CPU, GPU, NPU and Python in five subgraphs."""

import importlib.util
import random

import numpy as np
import pytest
from opencl import need_opencl
from plan_verifier import check_plan
from toy_graphs import any_order
from zoo import CHECKOUT

SEED = 14
SCRIPT = CHECKOUT / "examples" / "heterogeneous_graph.py"
CPU, GPU, PYTHON, NPU = (1, 2, 5, 9), (3, 4), (6,), (7, 8)


@pytest.fixture(scope="module")
def example():
    need_opencl()
    spec = importlib.util.spec_from_file_location("heterogeneous_graph", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def x(example):
    shape = (example.SIZE, example.SIZE)
    return np.random.default_rng(SEED).standard_normal(shape).astype(np.float32)


def by_numpy(graph, x):
    """Return what the kernels compute, by numpy in float32 and, on the NPU, from float16."""
    first, second = (value.data for value in graph.values.values() if value.is_constant)
    k5 = np.maximum(x, 0) @ first + 1 / (1 + np.exp(-np.tanh(x)))
    k6 = k5[np.argsort(k5.sum(axis=1), kind="stable")]
    k7 = k6.astype(np.float16).astype(np.float32) @ second.astype(np.float16).astype(np.float32)
    k8 = np.exp(np.maximum(k7, 0) - np.maximum(k7, 0).max(axis=1, keepdims=True))
    return k8 / k8.sum(axis=1, keepdims=True)


def kernel_tasks(plan):
    """The task of each kernel, by its number."""
    names = {node.id: plan.graph.values[node.outputs[0]].name for node in plan.graph.nodes}
    return {
        int(names[node.id].removeprefix("Kernel_")): task
        for task in plan.tasks
        for node in task.nodes
        if not task.is_copy
    }


def needs(plan, task):
    """The indices of the tasks that must end before a task starts."""
    found = set(task.waits)
    for index in task.waits:
        found |= needs(plan, plan.tasks[index])
    return found


def reads(graph, node):
    """The ids of the nodes whose data reaches a node; memory is no matter here."""
    makers = [maker for value in node.used if (maker := graph.producer(value)) is not None]
    return {maker.id for maker in makers}.union(*(reads(graph, maker) for maker in makers))


def test_the_graph_is_cut_into_five_subgraphs(example):
    with example.opened(example.nine_kernels(), "merged", "parallel", "sunk") as session:
        cut = dict(enumerate(example.partition(session), 1))
        tasks = kernel_tasks(session.plan)
    assert cut == {
        1: ("cpu", ["Kernel_1 on cpu", "Kernel_2 on cpu"]),
        2: ("opencl", ["Kernel_3 on opencl", "Kernel_4 on opencl"]),
        3: ("cpu", ["Kernel_5 on cpu", "Kernel_6 on host"]),
        4: ("npu", ["Kernel_7 on npu", "Kernel_8 on npu"]),
        5: ("cpu", ["Kernel_9 on cpu"]),
    }
    assert {number: task.device for number, task in tasks.items()} == {
        **dict.fromkeys(CPU, "cpu"),
        **dict.fromkeys(GPU, "opencl"),
        **dict.fromkeys(PYTHON, "host"),
        **dict.fromkeys(NPU, "npu"),
    }


def test_every_way_to_run_it_gives_the_same_bits(example, x):
    graph, rng = example.nine_kernels(), random.Random(SEED)
    print("seed", SEED)
    made = set()
    for way in example.MODES:
        with example.opened(graph, *way) as session:
            check_plan(session.plan)
            order = any_order(session.plan.tasks, rng)
            for outputs in (session.run({"x": x}), session.run_in_order({"x": x}, order)):
                made.add(outputs["Kernel_9"].tobytes())
    assert len(example.MODES) == 8 and len(made) == 1
    found = np.frombuffer(made.pop(), np.float32).reshape(x.shape)
    np.testing.assert_allclose(found, by_numpy(graph, x), atol=2e-3)


def test_interactive_execution_issues_kernel_by_kernel(example):
    with example.opened(example.nine_kernels(), "merged", "parallel", "interactive") as session:
        plan = session.plan
    tasks = kernel_tasks(plan)
    assert all(len(task.nodes) == 1 for task in plan.tasks)
    before = {number: needs(plan, task) for number, task in tasks.items()}
    index = {number: task.index for number, task in tasks.items()}
    assert index[1] not in before[2] and index[2] not in before[1], "they may run at once"
    made = {number: reads(plan.graph, task.nodes[0]) for number, task in tasks.items()}
    assert tasks[3].nodes[0].id not in made[4] and tasks[4].nodes[0].id not in made[3]
    for last, first in ((3, 1), (4, 2), (5, 3), (5, 4), (6, 5), (7, 6), (8, 7), (9, 8)):
        assert index[first] in before[last], f"Kernel_{last} waits for Kernel_{first}"


def test_a_sunk_subgraph_is_one_task(example):
    with example.opened(example.nine_kernels(), "merged", "parallel", "sunk") as session:
        tasks = kernel_tasks(session.plan)
    assert tasks[7] is tasks[8] and tasks[7].device == "npu"
    assert tasks[1] is tasks[2] and tasks[3] is tasks[4]
    assert tasks[5] is not tasks[6], "the cpu's kernels are compiled, the Python kernel is called"


@pytest.mark.parametrize("execution", ["interactive", "sunk"])
def test_values_cross_between_subgraphs_by_copies(example, execution):
    """Merged, a copy starts when its value is there; split, right before the subgraph."""
    crossings = ["host>opencl", "host>opencl", "opencl>host", "opencl>host", "host>npu", "npu>host"]
    graph = example.nine_kernels()
    for subgraphs in ("merged", "split"):
        with example.opened(graph, subgraphs, "serial", execution) as session:
            tasks = session.plan.tasks
        copies = [task.device for task in tasks if task.is_copy]
        assert [ends.replace("cpu", "host") for ends in copies] == crossings
    order = [task.subgraph for task in tasks]  # of split: one subgraph after another
    assert order == sorted(order)
    for task in tasks:
        if task.is_copy:
            follow = tasks[task.index + 1 :]
            assert next(t for t in follow if not t.is_copy).subgraph == task.subgraph


def test_the_python_kernel_is_timed_as_any(example, x):
    with example.opened(example.nine_kernels(), "merged", "parallel", "sunk") as session:
        rows = session.profile({"x": x}, runs=3).nodes
    (row,) = [row for row in rows if row.device == "host"]
    assert row.kernel == "python function kernel_6" and row.seconds > 0
    assert {row.device for row in rows} == {"cpu", "opencl", "npu", "host"}
