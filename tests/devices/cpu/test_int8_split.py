"""Products of bytes in saturating words: weights at and beyond the edge of saturation.

Every way of an instruction set is forced, whatever the model of its cycles thinks of it, on weights
that are all at an end of their range, that add up to exactly the most a word holds or one more, and
at random, for inputs that are all 0 or all 255, or random.
"""

import functools

import numpy as np
import pytest
from cpu_run import run
from sweep import sweep

from trireme.devices.cpu.codegen.target import ISAS, available_isas
from trireme.devices.cpu.kernels.int8 import dot_variants as int8_ways
from trireme.devices.cpu.kernels.int8.arithmetic import BYTES, PAIRS
from trireme.devices.cpu.kernels.int8.split import MOST, split
from trireme.ir.builder import GraphBuilder
from trireme.ir.graph import Quant, TensorType
from trireme.ir.interpreter import interpret

SEED = 41
KINDS = ("least", "most", "turns", "edge", "beyond", "random", "narrow")
SHAPES = [  # (n, h, w, c), (o, kh, kw), strides, dilations, pads, groups
    ((1, 5, 7, 33), (17, 1, 1), (1, 1), (1, 1), (0, 0, 0, 0), 1),
    ((2, 3, 3, 64), (40, 1, 1), (1, 1), (1, 1), (0, 0, 0, 0), 1),
    ((1, 9, 8, 3), (8, 3, 3), (2, 2), (1, 1), (1, 1, 1, 1), 1),
    ((1, 6, 7, 16), (33, 3, 3), (1, 1), (2, 1), (2, 1, 2, 1), 1),
    ((1, 5, 5, 14), (10, 2, 3), (1, 1), (1, 2), (0, 1, 1, 1), 2),
    ((1, 1, 1, 130), (500, 1, 1), (1, 1), (1, 1), (0, 0, 0, 0), 1),
    ((1, 1, 2, 1), (1, 1, 1), (1, 1), (1, 1), (0, 0, 0, 0), 1),
]
WAYS = [
    (isa, dot.name)
    for isa in available_isas()
    if ISAS[isa].byte_pairs and not ISAS[isa].vnni
    for dot in (PAIRS, *BYTES)
]


def drawn(rng, kind, shape, least=-128, most=127):
    """Weights; those of "edge" and "beyond" add up to 128, or 129, in each pair."""
    if kind == "least":
        return np.full(shape, least)
    if kind == "most":
        return np.full(shape, most)
    if kind == "turns":
        return np.where(np.arange(np.prod(shape)).reshape(shape) % 2, least, most)
    if kind in ("edge", "beyond"):
        first = rng.integers(1, 128, shape)
        pair = np.where(np.arange(shape[-1]) % 2, MOST - np.roll(first, 1, -1), first)
        pair = pair + (np.arange(shape[-1]) % 2 if kind == "beyond" else 0)
        return np.clip(pair * rng.choice([-1, 1], (shape[0], *[1] * (len(shape) - 1))), least, most)
    if kind == "narrow":
        return np.clip(rng.normal(0, 12, shape), least, most).astype(int)
    return rng.integers(least, most + 1, shape)


def emulated(x, w, run):
    """What vpmaddubsw and wrapping additions of words make of x [taps], w [steps, taps]."""
    pairs = (x * w).reshape(-1, 2).sum(-1)
    assert (np.clip(pairs, -32768, 32767) == pairs).all(), "a pair saturates"
    words = pairs.reshape(-1, run, w.shape[-1] // 2).sum(1)
    assert (np.clip(words, -32768, 32767) == words).all(), "a word overflows"
    return words.sum()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dot", BYTES, ids=lambda dot: dot.name)
def test_parts_add_up_and_no_word_overflows(dot, kind):
    print("seed", SEED)
    rng = np.random.default_rng(SEED)
    spans = [8, 3, 5]
    for reach in (127, 255):
        w = drawn(rng, kind, (6, 16 * 4), -reach - 1 if reach == 127 else -255, reach)
        w = w.reshape(2, 3, 16, 4).astype(np.int16)
        parts = split(w, spans, dot)
        total = parts.main.astype(int) + sum(part.astype(int) for part in parts.rest)
        np.testing.assert_array_equal(total, w)
        assert parts.main.dtype == np.int8 and all(part.any() for part in parts.rest)
        if kind == "edge" and dot.run == 1 and reach == 127:
            assert not parts.rest and parts.again(2) == 0
        for row in parts.main.astype(int).reshape(6, 16, 4):
            start = 0
            for steps in spans:
                span, start = row[start : start + steps], start + steps
                whole = steps // dot.run * dot.run
                for sign in (1, -1):  # the inputs that move a word the furthest
                    worst = np.where(span * sign > 0, 255, 0)
                    emulated(worst[:whole], span[:whole], dot.run)
                    emulated(worst[whole:], span[whole:], 1)
        for part in parts.rest:
            for row in part.astype(int).reshape(6, 16, 4):
                emulated(np.where(row > 0, 255, 0), row, 1)
                emulated(np.where(row < 0, 255, 0), row, 1)


def conv_graph(rng, shape, kind, dtype):
    x, (channels, kh, kw), strides, dilations, pads, groups = shape
    info = np.iinfo(dtype)
    b = GraphBuilder("conv")
    zero = int(rng.choice([info.min, info.max, 3]))
    value = b.input("x", TensorType(x, dtype, Quant((0.02,), (zero,))))
    dims = (channels, kh, kw, x[3] // groups)
    if dtype == "int8":
        scales = tuple(rng.uniform(0.001, 0.02, channels).astype(np.float32).tolist())
        data, quant = drawn(rng, kind, dims), Quant(scales, (0,) * channels, 0)
    else:
        data = drawn(rng, kind, dims) + 128
        quant = Quant((0.01,), (int(rng.choice([0, 128, 150, 255])),))
    w = b.constant("w", data.astype(dtype), quant)
    bias = b.constant("b", rng.integers(-5000, 5000, channels).astype(np.int32))
    attrs = {
        "strides": strides,
        "pads": pads,
        "dilations": dilations,
        "groups": groups,
        "layout": "NHWC",
        "activation": "",
    }
    scale = float(rng.choice([0.05, 2.0]))
    out = Quant((scale,), (int(rng.choice([info.min, 5])),))
    return b.finish(*b.add_node("conv", [value, w, bias], attrs, quants=[out]))


@functools.cache
def cases(turn):
    """(graph, [(feeds, outputs)]) of each kind of weights with one shape, another every turn."""
    print("seed", SEED + turn)
    rng = np.random.default_rng(SEED + turn)
    made = []
    for number, kind in enumerate(KINDS):
        shape = SHAPES[(number + turn) % len(SHAPES)]
        dtype = ("int8", "uint8")[(number + turn // 2) % 2]
        graph, info = conv_graph(rng, shape, kind, dtype), np.iinfo(dtype)
        ends = [np.full(shape[0], end, dtype) for end in (info.min, info.max)]
        random = rng.integers(info.min, info.max + 1, shape[0]).astype(dtype)
        feeds = [{graph.inputs[0]: x} for x in (*ends, random)]
        made.append((graph, [(fed, next(iter(interpret(graph, fed).values()))) for fed in feeds]))
    return made


@pytest.mark.parametrize("turn", sweep(range(len(SHAPES)), always=[0, 3]))
@pytest.mark.parametrize("isa, way", WAYS)
def test_each_way_bit_for_bit(isa, way, turn, cpus, monkeypatch):
    every = int8_ways._ways
    monkeypatch.setattr(int8_ways, "_MOST_AGAIN", 100)
    monkeypatch.setattr(
        int8_ways, "_ways", lambda *args: (w for w in every(*args) if w.dot.name == way)
    )
    for number, (graph, runs) in enumerate(cases(turn)):
        device = cpus[isa, 1 + number % 2]
        (executable,) = device.compile([graph])
        (name,) = executable.kernels.values()
        assert f"q8_{way}_" in name
        for at, (feeds, want) in enumerate(runs):
            (got,), *_ = run(device, graph, feeds, (number + at) % 4 < 2, executable)
            np.testing.assert_array_equal(got, want, err_msg=f"{name}\n{graph}")
