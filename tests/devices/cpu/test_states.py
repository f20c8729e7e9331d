"""States in memory of the cpu: random graphs against the interpreter, and what the host keeps."""

import random

import numpy as np
import pytest

from trireme import ExecutionOptions, Session
from trireme.ir.builder import GraphBuilder
from trireme.ir.graph import TensorType
from trireme.ir.interpreter import interpret
from trireme.placement.explain import explain
from trireme.runtime.program.options import AS_GIVEN

SHAPE = (3, 4)
TYPE = TensorType(SHAPE, "float32")
WAYS = {
    "serial": dict(mode="serial"),
    "parallel": dict(mode="parallel"),
    "split": dict(execution_options=ExecutionOptions(subgraphs="split")),
    "interactive": dict(execution_options=ExecutionOptions(execution="interactive")),
    "dynamic": dict(execution_options=ExecutionOptions(schedule="dynamic")),
    "two": dict(devices=["cpu#1", "cpu#2"]),
    "npu": dict(devices=["npu", "cpu"]),
}


def random_graph(seed, is_tame):
    """Return a graph that reads and writes states; is_tame: each state is read, then written once.

    A state may get another's value as it was, and what is read may be looked at in another shape.
    """
    rng = random.Random(seed)
    b = GraphBuilder("states")
    names = [f"s{k}" for k in range(rng.randint(1, 4))]
    initial = {
        name: b.constant(f"{name}0", np.full(SHAPE, k + 1, np.float32))
        for k, name in enumerate(names)
    }
    known = [b.input("x", TYPE)]
    todo = [(name, kind) for name in names for kind in ("read", "write")]
    if is_tame:
        rng.shuffle(names)
        todo = [(name, "read") for name in names] + [(name, "write") for name in names]
    else:
        todo = [rng.choice(todo) for _ in range(rng.randint(2, 10))]
    for name, kind in todo:
        for _ in range(rng.randint(0, 2)):
            known.append(mixed(b, rng, known))
        if kind == "read":
            known.append(b.add("variable", initial[name], state=name))
        else:
            made = b.add("assign", rng.choice(known), state=name)
            known += [made] * rng.randint(0, 1)
    outputs = dict.fromkeys([mixed(b, rng, known), *rng.sample(known[1:], min(2, len(known) - 1))])
    return b.finish(*outputs)


def mixed(b, rng, known):
    kind = rng.choice(["add", "mul", "tanh", "flip", "matmul", "window", "reverse"])
    one, two = rng.choice(known), rng.choice(known)
    if kind in ("add", "mul"):
        return b.add("tanh", b.add(kind, one, two))
    if kind == "tanh":
        return b.add("tanh", one)
    if kind == "window":
        return window(b, one, two)
    if kind == "reverse":
        return b.add("reverse", one, axes=(0,))
    turned = b.add("reshape", one, b.constant("turned", np.array(SHAPE[::-1])))
    if kind == "matmul":
        return b.add("tanh", b.add("matmul", b.add("matmul", one, turned), two))
    return b.add("reshape", turned, b.constant("back", np.array(SHAPE)))


def window(b, one, two):
    """Return the last rows of two values."""
    rows = b.add("concat", one, two, axis=0)
    ends = [b.constant(f"{name} of {rows}", np.array([k])) for name, k in (("from", 2), ("to", 5))]
    return b.add("slice", rows, *ends, b.constant(f"axis of {rows}", np.array([0])))


def agrees(graph, seed, **options):
    """Run a graph four times in a session and on the interpreter, and set its states midway."""
    rng, states = np.random.default_rng(seed), {}
    with Session(graph, **{"devices": ["cpu"], **options}) as session:
        for k in range(4):
            x = rng.standard_normal(SHAPE).astype(np.float32)
            wanted = interpret(graph, {graph.inputs[0]: x}, states=states)
            made = session.run({"x": x})
            for value in graph.outputs:
                name = graph.values[value].name
                np.testing.assert_allclose(made[name], wanted[value], rtol=1e-5, atol=1e-5)
            for name, array in states.items():
                np.testing.assert_allclose(session.states[name], array, rtol=1e-5, atol=1e-5)
            if k == 1:
                for name in states:
                    states[name] = rng.standard_normal(SHAPE).astype(np.float32)
                session.set_state(states)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("is_tame", [True, False], ids=["tame", "any"])
def test_random_states_agree_with_the_interpreter(way, is_tame):
    for seed in range(6):
        print("seed", seed)
        agrees(random_graph(seed, is_tame), seed, **WAYS[way])


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("is_tame", [True, False], ids=["tame", "any"])
def test_many_random_states_agree_with_the_interpreter(way, is_tame):
    for seed in range(1000, 1060):
        print("seed", seed)
        agrees(random_graph(seed, is_tame), seed, **WAYS[way])


def test_streams_keep_the_order_of_states():
    for seed in range(8):
        print("seed", seed)
        graph, states = random_graph(seed, True), {}
        rng = np.random.default_rng(seed)
        feeds = [rng.standard_normal(SHAPE).astype(np.float32) for _ in range(6)]
        wanted = [interpret(graph, {graph.inputs[0]: x}, states=states) for x in feeds]
        for execution in ("sunk", "interactive"):
            how = ExecutionOptions(execution=execution)
            fed = [{"x": x} for x in feeds]
            with (
                Session(graph, devices=["cpu"], execution_options=how) as session,
                session.stream(fed, depth=3) as stream,
            ):
                for made, want in zip(stream, wanted, strict=True):
                    for value in graph.outputs:
                        array = made[graph.values[value].name]
                        np.testing.assert_allclose(array, want[value], rtol=1e-5, atol=1e-5)


def test_tame_states_need_no_host():
    for seed in range(20):
        print("seed", seed)
        with Session(random_graph(seed, True), devices=["cpu"]) as session:
            assert list(session.devices) == ["cpu"]
            assert len(session.plan.tasks) == 1


def swap():
    """Two states that change places: each is assigned what the other was."""
    b = GraphBuilder("swap")
    x = b.input("x", TYPE)
    one, two = (
        b.add("variable", b.constant(f"{n}0", np.full(SHAPE, n, np.float32)), state=f"s{n}")
        for n in (1, 2)
    )
    b.add("assign", two, state="s1")
    b.add("assign", one, state="s2")
    return b.finish(b.add("add", x, b.add("sub", one, two)))


def test_states_may_change_places():
    with Session(swap(), devices=["cpu"]) as session:
        assert len(session.plan.tasks) == 1
        zero = np.zeros(SHAPE, np.float32)
        runs = [next(iter(session.run({"x": zero}).values()))[0, 0] for _ in range(4)]
        assert runs == [-1, 1, -1, 1]


def kernels_of(graph):
    """Return the kernel of each node, by op."""
    with Session(graph, devices=["cpu"]) as session:
        (executable,) = session.program.executables
        return {node.op: executable.kernels[node.id] for node in session.graph.nodes}


def window_graph(is_looked_at):
    b = GraphBuilder("window")
    x = b.input("x", TYPE)
    old = b.add("variable", b.constant("zero", np.zeros(SHAPE, np.float32)), state="s")
    last = window(b, old, x)
    b.add("assign", last, state="s")
    return b.finish(b.add("tanh", last if is_looked_at else old, names=["y"]))


@pytest.mark.parametrize("is_looked_at", [False, True])
def test_what_is_moved_only_to_become_a_state_is_copied_once(is_looked_at):
    kernels = kernels_of(window_graph(is_looked_at))
    assert (kernels["slice"] == kernels["assign"]) is not is_looked_at
    agrees(window_graph(is_looked_at), 0)


@pytest.mark.parametrize("seen_as", ["it is", "transposed"])
def test_states_may_change_places_reversed(seen_as):
    """What is moved lies in a state, which the other assign writes."""
    b, shapes = GraphBuilder("swap"), {"s1": (1, 12), "s2": (12, 1)}
    read = {}
    for name, shape in shapes.items():
        start = np.arange(12, dtype=np.float32).reshape(shape) + len(read)
        read[name] = b.add("variable", b.constant(f"{name} 0", start), state=name)
    if seen_as == "transposed":  # a view, as one of the axes has size 1
        seen = {name: b.add("transpose", value, perm=(1, 0)) for name, value in read.items()}
        moved = {name: b.add("reverse", value, axes=(0, 1)) for name, value in seen.items()}
    else:
        moved = {
            name: b.add("transpose", b.add("reverse", value, axes=(0, 1)), perm=(1, 0))
            for name, value in read.items()
        }
    b.add("assign", moved["s2"], state="s1")
    b.add("assign", moved["s1"], state="s2")
    x = b.input("x", TensorType((1, 1), "float32"))
    graph, states = b.finish(b.add("add", x, read["s1"], names=["y"])), {}
    feed = np.zeros((1, 1), np.float32)
    with Session(graph, devices=["cpu"], execution_options=AS_GIVEN) as session:
        assert len(session.plan.tasks) == 1
        for _ in range(3):
            (want,) = interpret(graph, {graph.inputs[0]: feed}, states=states).values()
            np.testing.assert_array_equal(session.run({"x": feed})["y"], want)


def test_a_read_without_a_later_write_takes_no_copy():
    b = GraphBuilder("read")
    x = b.input("x", TYPE)
    old = b.add("variable", b.constant("zero", np.zeros(SHAPE, np.float32)), state="s")
    new = b.add("tanh", b.add("add", old, x), names=["y"])
    b.add("assign", new, state="s")
    with Session(b.finish(new), devices=["cpu"]) as session:
        (executable,) = session.program.executables
        kernels = [executable.kernels[node.id] for node in session.graph.nodes]
        assert kernels[0] == "state"
        assert "copy" in kernels[-1] or "assign" in kernels[-1]


def test_explain_tells_the_order_of_effects():
    with Session(swap(), devices=["cpu"]) as session:
        text = str(explain(session.placement))
        assert "    waits for variable " in text
        assert " on cpu: it reads state 's1' before this node writes it" in text
        (after,) = explain(session.placement).to_json()["nodes"][2]["after"]
        assert after["why"] == "it reads state 's1' before this node writes it"


def why_on_host(graph):
    with Session(graph, devices=["cpu"]) as session:
        assert "host" in session.devices
        return str(explain(session.placement))


def test_what_the_host_keeps_has_a_reason():
    b = GraphBuilder("again")
    x = b.input("x", TYPE)
    zero = b.constant("zero", np.zeros(SHAPE, np.float32))
    b.add("assign", x, state="s")
    reason = "state 's' is read or written again after a write"
    assert reason in why_on_host(b.finish(b.add("tanh", b.add("variable", zero, state="s"))))
    b = GraphBuilder("computed")
    x = b.input("x", TYPE)
    read = b.add("variable", b.add("tanh", x), state="s")
    assert "no constant says how state 's' begins" in why_on_host(b.finish(b.add("add", read, x)))
