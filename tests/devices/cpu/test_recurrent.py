"""rnn, gru and lstm on the cpu device: directions, lengths, states, layouts, activations, cuts."""

from dataclasses import replace

import numpy as np
import pytest
from cpu_run import agree, node_graph, run

import trireme.ops  # noqa: F401
from trireme.devices.cpu.codegen.target import available_isas
from trireme.devices.cpu.kernels.f32 import recurrent
from trireme.ops.recurrent_cells import KINDS
from trireme.support.errors import RunError

SEED = 12
by_isa = pytest.mark.parametrize("isa", available_isas(variants=False))

CASES = {  # op, (steps, batch, inputs, hidden), direction, attrs, what else is given
    "one": ("lstm", (3, 1, 4, 16), "forward", {}, ""),
    "odd": ("lstm", (4, 2, 3, 21), "bidirectional", {}, "bias lengths states"),
    "wide": ("lstm", (3, 1, 9, 70), "reverse", {}, "bias states"),
    "many": ("lstm", (2, 7, 5, 33), "forward", {"layout": 1}, "bias lengths states"),
    "peepholes": ("lstm", (3, 2, 4, 18), "forward", {"input_forget": 1}, "bias peepholes"),
    "clipped": ("lstm", (3, 2, 4, 8), "forward", {"clip": 0.4}, "bias peepholes states"),
    "gru": ("gru", (4, 3, 5, 19), "bidirectional", {}, "bias lengths states"),
    "gru, linear": (
        "gru",
        (4, 3, 5, 19),
        "bidirectional",
        {"linear_before_reset": 1},
        "bias lengths states",
    ),
    "gru, batch first": (
        "gru",
        (3, 1, 6, 40),
        "reverse",
        {"linear_before_reset": 1, "layout": 1},
        "bias",
    ),
    "rnn": ("rnn", (5, 4, 3, 35), "bidirectional", {}, "bias lengths states"),
    "rnn, wide": ("rnn", (3, 1, 8, 200), "forward", {"layout": 1}, "bias states"),
    "softsign": ("rnn", (3, 2, 4, 5), "forward", {"activations": ("Softsign",)}, "bias"),
    "numbers": (
        "gru",
        (3, 2, 4, 9),
        "forward",
        {
            "activations": ("HardSigmoid", "ScaledTanh"),
            "activation_alpha": (0.3, 0.7),
            "activation_beta": (0.4, 1.2),
        },
        "bias",
    ),
    "relus": (
        "lstm",
        (3, 2, 4, 9),
        "forward",
        {
            "activations": ("Affine", "LeakyRelu", "ThresholdedRelu"),
            "activation_alpha": (0.5, 0.1, 0.2),
            "activation_beta": (0.3,),
        },
        "bias",
    ),
    "one relu": ("rnn", (3, 2, 4, 5), "forward", {"activations": ("Relu",)}, ""),
}


def inputs_of(rng, op, sizes, direction, layout, given):
    steps, batch, depth, hidden = sizes
    count, kind = 1 + (direction == "bidirectional"), KINDS[op]

    def draw(*shape):
        return (rng.standard_normal(shape) / 2).astype(np.float32)

    x = draw(batch, steps, depth) if layout else draw(steps, batch, depth)
    state = (batch, count, hidden) if layout else (count, batch, hidden)
    inputs = [x, draw(count, kind.gates * hidden, depth), draw(count, kind.gates * hidden, hidden)]
    inputs += [None] * (5 if op == "lstm" else 3)
    if "bias" in given:
        inputs[3] = draw(count, 2 * kind.gates * hidden)
    if "lengths" in given:
        inputs[4] = rng.integers(0, steps + 1, batch).astype(np.int32)
        inputs[4][0] = steps
    if "states" in given:
        inputs[5 : 5 + kind.states] = [draw(*state) for _ in range(kind.states)]
    if "peepholes" in given:
        inputs[7] = draw(count, 3 * hidden)
    while inputs[-1] is None:
        inputs.pop()
    return inputs


def graph_of(rng, name, outputs=None):
    op, sizes, direction, attrs, given = CASES[name]
    inputs = inputs_of(rng, op, sizes, direction, attrs.get("layout", 0), given)
    attrs = {"direction": direction, "hidden_size": sizes[3], **attrs}
    outputs = outputs or 1 + KINDS[op].states
    return node_graph(op, inputs, attrs, {1, 2, 3, 7}, outputs=outputs)


@by_isa
@pytest.mark.parametrize("name", CASES)
def test_recurrent(cpus, name, isa):
    print("seed", SEED)
    agree(cpus, isa, *graph_of(np.random.default_rng(SEED), name))


@pytest.mark.parametrize("name", ["odd", "many", "gru, linear", "rnn"])
@pytest.mark.parametrize("outputs", [1, 2])
def test_a_long_run_is_cut_into_kernels_that_hand_states_on(cpus, monkeypatch, name, outputs):
    monkeypatch.setattr(recurrent, "LONGEST_S", 1e-9)
    agree(cpus, available_isas()[0], *graph_of(np.random.default_rng(SEED), name, outputs))


def test_not_a_number_stays_in_its_sequence(cpus):
    graph, feeds = graph_of(np.random.default_rng(SEED), "many")
    x = feeds[graph.inputs[0]]
    x[1, 0, 0], x[2, 1, 3], x[3, 0, 1] = np.nan, np.inf, -np.inf
    agree(cpus, available_isas()[0], graph, feeds)


@pytest.mark.parametrize("bad", [-1, 5, 1 << 30])
def test_a_length_outside_the_steps_is_an_error(cpus, bad):
    graph, feeds = graph_of(np.random.default_rng(SEED), "odd")
    lengths = next(i for i in graph.inputs if feeds[i].dtype == np.int32)
    feeds[lengths] = np.array([2, bad], np.int32)
    with pytest.raises(RunError, match=f"length is {bad}, expected 0 to 4"):
        run(cpus[available_isas()[0], 1], graph, feeds)


def test_directions_with_different_activations_run_on_the_reference(cpus):
    graph, feeds = graph_of(np.random.default_rng(SEED), "rnn")
    node = graph.nodes[0]
    attrs = {**node.attrs, "activations": ("Tanh", "Relu")}
    graph = replace(graph, nodes=(replace(node, attrs=attrs),))
    agree(cpus, available_isas()[0], graph, feeds, native=False)
