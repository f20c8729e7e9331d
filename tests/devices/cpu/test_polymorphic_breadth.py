"""Kernels for every shape beside those of networks' layers: orders, triangles, scatters, edges."""

import numpy as np
import pytest
from every_shape import Case, bound, check_every_shape, check_without_elements

import trireme.ops  # noqa: F401
from trireme.backend.registry import open_device
from trireme.devices.cpu.codegen.target import available_isas
from trireme.devices.cpu.kernels.f32 import recurrent as recurrent_kernels
from trireme.passes.symbolic_shapes import symbolic_shapes

ISAS = available_isas(variants=False)


def number(c, value):
    return c.builder.constant(f"n{len(c.builder.values)}", np.asarray(value))


def running_sums(c):
    x, y = c.input("x", "b", "s", 21), c.input("y", "b", "s", dtype="int64")
    across = c.add("cum_sum", x, number(c, 1), exclusive=1)
    return [across, c.add("cum_sum", y, number(c, -1)), c.add("cum_prod", x, number(c, 2))]


def running_from_the_end(c):
    x = c.input("x", "b", "s")
    return [c.add("cum_sum", x, number(c, 1), reverse=1, exclusive=e) for e in (0, 1)]


def places_of_the_largest(c):
    x, y = c.input("x", "b", "s"), c.input("y", "b", "s", dtype="int64")
    last = c.add("arg_max", y, axis=-1, select_last_index=1, keepdims=0)
    return [c.add("arg_max", x, axis=-1), last, c.add("arg_min", x, axis=1, keepdims=0)]


def places_across(c):
    x, y = c.input("x", "b", "s", 37), c.input("y", "s", 9)
    return [c.add("arg_max", x, axis=1), c.add("arg_min", y, axis=0, keepdims=0)]


def triangles(c):
    x, y = c.input("x", "b", "s", "t"), c.input("y", "s", "t", dtype="bool")
    kept = [c.add("trilu", x, number(c, k), upper=u) for u, k in ((0, 0), (1, 2), (0, -3), (1, 0))]
    return [*kept, c.add("trilu", y, upper=1)]


def scatters(c):
    x, updates = c.input("x", "b", "s", 18), c.input("u", "t", 18)
    places = c.input("o", "t", 2, dtype="int64")
    plain = c.add("scatter_nd", x, places, updates)
    total = c.add("scatter_nd", x, places, updates, reduction="add")
    rows, items = c.input("o2", "b", "t", dtype="int64"), c.input("v", "b", "t")
    line = c.input("y", "b", "s")
    placed = c.add("scatter_elements", line, rows, items, axis=1)
    return [
        plain,
        total,
        placed,
        c.add("scatter_elements", line, rows, items, axis=1, reduction="max"),
    ]


def resized(c, mode, scales, transform="half_pixel", channels=21, dtype="float32", **attrs):
    x = c.input(f"x{len(c.builder.values)}", "b", "h", "w", channels, dtype=dtype)
    return scaled(c, x, mode, scales, transform, **attrs)


def scaled(c, x, mode, scales, transform, **attrs):
    sides = number(c, np.float32((1, *scales, 1)))
    attrs = {"mode": mode, "coordinate_transformation_mode": transform, **attrs}
    return c.add("resize", x, None, sides, **attrs)


def resizes_by_sums(c):
    twice = resized(c, "linear", (2, 2), "pytorch_half_pixel")
    return [
        scaled(c, twice, "linear", (0.5, 0.5), "pytorch_half_pixel"),
        resized(c, "linear", (2, 2), channels=37),
        resized(c, "linear", (3, 1), "align_corners"),
        resized(c, "linear", (1, 2), "asymmetric", channels=3),
        resized(c, "cubic", (2, 2), cubic_coeff_a=-0.5),
        resized(c, "cubic", (2, 2), "align_corners", exclude_outside=1),
    ]


def resizes_to_the_nearest(c):
    pick = {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
    x, sides = c.input("x", "b", 5, "s"), number(c, np.float32((1, 1, 2)))
    twice = resized(
        c, "nearest", (2, 2), "asymmetric", channels=2, nearest_mode="floor", dtype="int8"
    )
    return [
        scaled(c, twice, "nearest", (0.5, 0.5), "half_pixel_symmetric"),
        resized(c, "nearest", (2, 3), "tf_half_pixel_for_nn", nearest_mode="ceil", dtype="int64"),
        c.add("resize", x, None, sides, mode="nearest", **pick),
    ]


def resizes_of_few_pixels(c):
    """Images of sizes that are known, to sizes that are open: pooled context, learnt positions."""
    x = c.input("x", "b", "h", "w", 21)
    sides, pixels = c.add("shape", x), c.input("p", "b", 1, 1, 21)
    return [
        c.add("resize", pixels, None, None, sides, mode="linear"),
        c.add("resize", pixels, None, None, sides, mode="nearest"),
        c.add("resize", c.input("q", "b", 3, 4, 21), None, None, sides, mode="linear"),
        c.add("resize", c.input("r", "b", 3, 4, 21), None, None, sides, mode="cubic"),
        c.add("resize", c.input("s", "b", 3, 4, 21), None, None, sides, mode="nearest"),
    ]


def padded(c, x, *pads, mode="constant", value=()):
    return c.add("pad", x, number(c, np.array(pads)), *value, mode=mode)


def pads(c):
    x = c.input("x", "b", "h", "w", 9)
    low = number(c, np.float32(-np.inf))
    return [
        padded(c, x, 0, 1, 2, 0, 0, 3, 0, 0),
        padded(c, x, 0, 1, 1, 0, 0, 1, 1, 0, value=[low]),
        padded(c, c.input("y", "b", "s", dtype="int8"), 0, 1, 1, 5),
    ]


def pads_by_index(c):
    x = c.input("x", "b", "h", "w", 9)
    edges = [padded(c, x, 0, 1, 2, 0, 0, 3, 0, 0, mode=mode) for mode in ("edge", "wrap")]
    line = c.input("y", "b", "s")
    return [*edges, padded(c, line, 0, 4, 0, 3, mode="reflect")]


def recurrent(c, op, gates, *, layout=0, lengths=False, states=0, hidden=19, depth=11, **attrs):
    """A layer of one direction or two, with its outputs."""
    both = 2 if attrs.get("direction") == "bidirectional" else 1
    x = c.input(f"{op}{len(c.builder.values)}", *(("b", "s") if layout else ("s", "b")), depth)
    w, r = c.weight(both, gates * hidden, depth), c.weight(both, gates * hidden, hidden)
    inputs = [x, w, r, c.weight(both, 2 * gates * hidden)]
    inputs.append(c.input(f"len{len(c.builder.values)}", "b", dtype="int32") if lengths else None)
    shape = ("b", both, hidden) if layout else (both, "b", hidden)
    inputs += [c.input(f"first{k}{len(c.builder.values)}", *shape) for k in range(states)]
    outputs = 3 if op == "lstm" else 2
    attrs = {"hidden_size": hidden, "layout": layout, **attrs}
    return c.builder.add_node(op, inputs, attrs, outputs=outputs)


def recurrent_layers(c):
    return [
        *recurrent(c, "lstm", 4),
        *recurrent(c, "lstm", 4, direction="bidirectional", states=2, layout=1),
        *recurrent(c, "gru", 3, direction="reverse", linear_before_reset=1, lengths=True),
        *recurrent(c, "gru", 3, states=1, hidden=32),
        *recurrent(c, "rnn", 1, direction="bidirectional", hidden=40, activations=("Relu", "Relu")),
    ]


def window(c, op, x, kernel, depth=0, outputs=0, strides=(1, 1), pads=(0, 0, 0, 0), **attrs):
    """A convolution or a pool of images of which one side is open."""
    attrs = {"strides": strides, "pads": pads, "dilations": (1, 1), "layout": "NHWC", **attrs}
    if op != "conv":
        return c.add(op, x, kernel=kernel, **attrs)
    return c.add("conv", x, c.weight(outputs, *kernel, depth), c.weight(outputs), **attrs)


def open_widths(c):
    x, y = c.input("x", "b", 5, "w", 24), c.input("y", "b", 1, "w", 3)
    even = {"strides": (2, 2), "pads": (1, 1, 1, 1)}
    return [
        window(c, "conv", x, (3, 3), 24, 40, groups=1, **even),
        window(c, "conv", x, (1, 1), 24, 33, groups=1),
        window(c, "conv", x, (3, 3), 1, 24, groups=24, **even),
        window(c, "conv", y, (1, 5), 3, 16, groups=1, pads=(0, 2, 0, 2)),
        window(c, "max_pool", x, (2, 3), **even),
        window(c, "average_pool", x, (5, 1), pads=(2, 0, 2, 0)),
    ]


def open_heights(c):
    x, y = c.input("x", "b", "h", 6, 24), c.input("y", "b", "h", 1, 3)
    even = {"strides": (2, 2), "pads": (1, 1, 1, 1)}
    return [
        window(c, "conv", x, (3, 3), 12, 40, groups=2, **even),
        window(c, "conv", x, (1, 1), 24, 33, groups=1, strides=(2, 1)),
        window(c, "conv", x, (5, 5), 1, 24, groups=24, pads=(2, 2, 2, 2)),
        window(c, "conv", y, (3, 1), 3, 16, groups=1, pads=(1, 0, 1, 0)),
        window(c, "max_pool", x, (3, 2), **even),
    ]


def lines(c):
    """Images of one axis, as sounds are."""
    x, wave = c.input("x", "b", "t", 24), c.input("y", "b", "t", 1)
    attrs = {"strides": (2,), "dilations": (1,)}
    return [
        window(c, "conv", wave, (10,), 1, 16, groups=1, pads=(5, 5), **attrs),
        window(c, "conv", x, (3,), 24, 40, groups=1, pads=(1, 1), **attrs),
        window(c, "conv", x, (5,), 1, 24, groups=24, pads=(2, 2), **attrs),
        window(c, "conv", x, (1,), 24, 33, groups=1, pads=(0, 0), strides=(1,), dilations=(1,)),
        window(c, "max_pool", x, (3,), pads=(1, 1), **attrs),
    ]


def transposed(c, x, kernel, depth, outputs, strides, pads, more=(0, 0), groups=1, **attrs):
    sizes = {"strides": strides, "pads": pads, "output_padding": more, "dilations": (1, 1)}
    attrs = {**sizes, "groups": groups, "layout": "NHWC", **attrs}
    weight = c.weight(depth, *kernel, outputs // groups)
    return c.add("conv_transpose", x, weight, c.weight(outputs), **attrs)


def transposed_convolutions(c):
    x, line = c.input("x", "b", "h", "w", 12), c.input("y", "b", 1, "w", 8)
    return [
        transposed(c, x, (2, 2), 12, 20, (2, 2), (0, 0, 0, 0), activation="relu"),
        transposed(c, x, (4, 4), 12, 7, (2, 2), (1, 1, 1, 1)),
        transposed(c, x, (3, 3), 12, 9, (2, 2), (1, 1, 1, 1), (1, 1)),
        transposed(c, x, (2, 3), 12, 8, (3, 2), (0, 0, 0, 1), groups=4),
        transposed(c, x, (3, 3), 12, 5, (1, 1), (1, 1, 1, 1), dilations=(1, 1)),
        transposed(c, line, (1, 4), 8, 3, (1, 3), (0, 0, 0, 1)),
    ]


CASES = {
    f.__name__: f
    for f in (
        running_sums,
        running_from_the_end,
        places_of_the_largest,
        places_across,
        triangles,
        scatters,
        resizes_by_sums,
        resizes_to_the_nearest,
        resizes_of_few_pixels,
        pads,
        pads_by_index,
        recurrent_layers,
        open_widths,
        open_heights,
        lines,
        transposed_convolutions,
    )
}


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("name", CASES)
def test_one_compile_serves_every_shape(cpus, name, isa):
    case = Case(name)
    graph = symbolic_shapes(case.builder.finish(*CASES[name](case))).graph
    device = open_device("cpu", threads=1, isa=isa, winograd=False)
    reasons = [device.polymorphic_reason(graph, node) for node in graph.nodes]
    assert not any(reasons), reasons
    check_every_shape(cpus, device, case, graph, isa)


@pytest.mark.parametrize("name", CASES)
def test_one_compile_serves_shapes_without_elements(cpus, name):
    case = Case(name)
    graph = symbolic_shapes(case.builder.finish(*CASES[name](case))).graph
    check_without_elements(cpus, case, graph, ISAS[0])


@pytest.mark.parametrize("name", ["lstm", "gru"])
def test_kernels_of_a_long_sequence_hand_states_on(cpus, monkeypatch, name):
    monkeypatch.setattr(recurrent_kernels, "LONGEST_S", 1e-9)
    case = Case(f"long {name}")
    made = recurrent(case, name, 4 if name == "lstm" else 3, states=1, direction="bidirectional")
    graph = case.builder.finish(*made)
    (every,) = cpus[ISAS[0], 1].compile_polymorphic([graph])
    steps = [len(every.at(bound(graph, {"s": s, "b": 2})).codes) for s in (3, 8, 70)]
    assert steps == [9, 9, 9]
    check_every_shape(cpus, cpus[ISAS[0], 1], case, graph, ISAS[0])


@pytest.mark.parametrize("steps", [1, 3, 9])
@pytest.mark.parametrize("longest_s", [1e-9, 1e-2])
def test_recurrent_layers_of_known_steps(cpus, monkeypatch, steps, longest_s):
    monkeypatch.setattr(recurrent_kernels, "LONGEST_S", longest_s)
    case = Case(f"{steps} steps")
    x, w, r = case.input("x", steps, "b", 5), case.weight(1, 27, 5), case.weight(1, 27, 9)
    made = case.builder.add_node("gru", [x, w, r], {"hidden_size": 9}, outputs=2)
    graph = symbolic_shapes(case.builder.finish(*made)).graph
    check_every_shape(cpus, cpus[ISAS[0], 1], case, graph, ISAS[0])
