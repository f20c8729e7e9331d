"""Products on levels for every number of rows or images: the bits of the kernels of each shape."""

import numpy as np
import pytest
from cpu_run import run
from every_shape import Case, bound, check_every_shape, fed
from hybrid_graphs import Case as Layer
from hybrid_graphs import Hybrid

import trireme.ops  # noqa: F401
from trireme.backend.registry import open_device
from trireme.devices.cpu.codegen.target import available_isas
from trireme.devices.cpu.compile.program import REFERENCE

ISAS = available_isas()


class Open(Hybrid):
    """A graph of products on levels of x [.., depth] with open rows."""

    def __init__(self, name, *shape):
        super().__init__()
        self.case = Case(name)
        self.b = self.case.builder
        self.x = self.case.input("x", *shape)

    def layer(self, levels, step, columns, depth, ends=(-127, 128), parts=1, **facts):
        """Return a layer whose weights are in a range."""
        if ends == (-127, 128) and parts == 1:
            return self.product(Layer((1, depth), (columns, depth), **facts), levels, step)
        w = self.rng.integers(*ends, (columns, depth))
        if parts > 1:
            y = self.in_parts(levels, w, parts)
        else:
            y = self.b.add("fully_connected", levels, self.b.constant("w", w.astype(np.float32)))
        return self.b.add("mul", y, self.scale(Layer((1, depth), w.shape), step))


def one_range(name, b="b", depth=40, columns=19, **facts):
    made = Open(name, b, "s", depth)
    y = made.layer(*made.unsigned(made.x), columns, depth, **facts)
    return made.case, made.b.finish(y)


def range_by_row(name, depth, columns, asymmetric, **facts):
    made = Open(name, "b", depth)
    levels = made.levels(made.x, [-1], asymmetric)
    return made.case, made.b.finish(made.layer(*levels, columns, depth, **facts))


def family(name):
    """Three products of unlike widths on the same levels, and one on their sum."""
    made = Open(name, "b", "s", 64)
    levels, step = made.unsigned(made.x)
    q, k, v = (made.layer(levels, step, n, 64, by_channel=True) for n in (48, 48, 7))
    again = made.layer(*made.unsigned(made.b.add("add", q, k)), 130, 48)
    return made.case, made.b.finish(v, again)


def images(name, x, w, asymmetric=False, **facts):
    """A convolution of any number of images, each of which has a range of its own."""
    made = Open(name, "b", *x)
    levels = made.levels(made.x, [1, 2, 3], asymmetric)
    layer = Layer((1, *x), w, asymmetric=asymmetric, **facts)
    return made.case, made.b.finish(made.product(layer, *levels))


def network(name):
    """Convolutions, depthwise ones and a classifier, as keyword spotters have them."""
    made = Open(name, "b", 11, 9, 3)
    x, axes = made.x, [1, 2, 3]
    first = Layer((), (24, 3, 3, 3), strides=(2, 2), pads=(1, 1, 1, 1))
    deep = Layer((), (24, 3, 3, 1), groups=24, pads=(1, 1, 1, 1), by_channel=True)
    for layer in (first, deep, Layer((), (40, 1, 1, 24))):
        x = made.product(layer, *made.levels(x, axes, True))
    flat = made.b.constant("to", np.array([-1, 6 * 5 * 40], np.int64))
    x = made.b.add("reshape", x, flat)
    last = Layer((), (12, 6 * 5 * 40), activation="")
    return made.case, made.b.finish(made.product(last, *made.levels(x, [-1], True)))


SAME = (1, 1, 1, 1)
CASES = {
    "conv": lambda: images("conv", (7, 5, 3), (17, 3, 3, 3), pads=SAME),
    "points": lambda: images("points", (9, 11, 13), (18, 1, 1, 13), True, by_channel=True),
    "strides": lambda: images("strides", (12, 13, 5), (20, 3, 2, 5), strides=(2, 3), pads=SAME),
    "groups": lambda: images("groups", (6, 6, 8), (12, 3, 3, 4), True, groups=2, pads=SAME),
    "depthwise": lambda: images("depthwise", (9, 11, 64), (64, 3, 3, 1), groups=64, pads=SAME),
    "many lines": lambda: images("many lines", (70, 64, 16), (5, 3, 3, 16), pads=(2, 0, 1, 3)),
    "network": lambda: network("network"),
    "rows": lambda: one_range("rows"),
    "a row": lambda: one_range("a row", columns=130, depth=7, bias=False),
    "one batch": lambda: one_range("one batch", b=1, depth=256, columns=256, activation="gelu"),
    "large": lambda: one_range("large", depth=512, columns=70, by_channel=True, activation=""),
    "uint8": lambda: one_range("uint8", ends=(-7, 249)),
    "below 0": lambda: one_range("below 0", depth=33, ends=(-255, 1), columns=16),
    "parts": lambda: one_range("parts", depth=700, parts=3, columns=21),
    "parts of uint8": lambda: one_range("parts of uint8", depth=600, parts=2, ends=(-9, 247)),
    "family": lambda: family("family"),
    "symmetric": lambda: range_by_row("symmetric", 37, 16, False, by_channel=True),
    "asymmetric": lambda: range_by_row("asymmetric", 500, 33, True, activation="relu6"),
    "narrow": lambda: range_by_row("narrow", 1, 1, True, bias=False),
}


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("name", CASES)
def test_one_compile_serves_every_number_of_rows(cpus, name, isa):
    case, graph = CASES[name]()
    device = cpus[isa, 1]
    assert not [r for node in graph.nodes if (r := device.polymorphic_reason(graph, node))]
    if not device.isa.vnni:  # there Winograd's algorithm may be faster, which rounds otherwise
        device = open_device("cpu", threads=1, isa=isa, winograd=False)
    check_every_shape(cpus, device, case, graph, isa)


@pytest.mark.parametrize("name", CASES)
def test_nodes_become_integer_kernels(cpus, name):
    case, graph = CASES[name]()
    device = cpus[ISAS[0], 2]
    (every,) = device.compile_polymorphic([graph])
    one = bound(graph, dict.fromkeys(("b", "s"), 5))
    _, kernels, _ = run(device, one, fed(one, case.rng), executable=every.at(one))
    names = [kernel for kernel in kernels.values() if kernel not in ("alias", REFERENCE)]
    plain = ("add",) if name == "family" else ()
    assert all("q8_to_f32" in n or "levels_" in n or n.startswith(plain) for n in names), names


VALUES = {
    "zeros": lambda rng, shape: np.zeros(shape),
    "ties": lambda rng, shape: rng.integers(-255, 256, shape) / 2,
    "tiny": lambda rng, shape: rng.standard_normal(shape) * 1e-38,
    "above 0": lambda rng, shape: rng.uniform(2, 5, shape),
    "infinity": lambda rng, shape: np.where(rng.random(shape) < 0.01, np.inf, 1.0),
    "nan": lambda rng, shape: np.where(rng.random(shape) < 0.01, np.nan, 1.0),
}


@pytest.mark.parametrize("name", ["rows", "symmetric", "asymmetric"])
@pytest.mark.parametrize("values", VALUES)
def test_odd_values_have_the_bits_of_a_shape_of_their_own(cpus, name, values):
    _, graph = CASES[name]()
    rng = np.random.default_rng(3)
    for isa in ISAS:
        (every,) = cpus[isa, 2].compile_polymorphic([graph])
        for rows in (1, 3, 40):
            one = bound(graph, {"b": rows, "s": 7})
            (x,) = one.inputs
            feeds = {x: VALUES[values](rng, one.type(x).dims).astype(np.float32)}
            (found,), _, _ = run(cpus[isa, 2], one, feeds, executable=every.at(one))
            (wanted,), _, _ = run(cpus[isa, 1], one, feeds)
            np.testing.assert_array_equal(found, wanted, err_msg=f"{isa} {rows} rows")
