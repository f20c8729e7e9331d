"""Quantised add and sub, bit for bit with the reference: all pairs of bytes, and odd sizes."""

import functools

import numpy as np
import pytest
from sweep import sweep

from trireme.devices.cpu.codegen.target import ISAS, available_isas
from trireme.ir.builder import GraphBuilder
from trireme.ir.graph import Quant, TensorType
from trireme.ir.interpreter import interpret

SEED = 31
SHAPES = [(256, 256), (1, 7, 11, 19), (64,), (63,), (129,), (3, 1)]


def sum_graph(rng, shape):
    """An add or sub of any scales; now and then of scales whose sums lie on ties."""
    b = GraphBuilder("sum")
    op, values = str(rng.choice(["add", "add", "sub"])), []
    dtype = str(rng.choice(["int8", "uint8"]))
    info = np.iinfo(dtype)
    scales = rng.choice([0.5, 0.25, 1.0], 3) if rng.random() < 0.3 else rng.uniform(0.01, 0.2, 3)
    zeros = rng.integers(info.min, info.max + 1, 3)
    quants = [Quant((float(np.float32(s)),), (int(z),)) for s, z in zip(scales, zeros, strict=True)]
    for name, quant in zip("ab", quants, strict=False):
        values.append(b.input(name, TensorType(shape, dtype, quant)))
    attrs = {"activation": str(rng.choice(["", "relu", "relu6"]))}
    return b.finish(*b.add_node(op, values, attrs, quants=quants[2:])), dtype


def feeds_of(rng, shape, dtype):
    count = int(np.prod(shape))
    if count == 65_536:
        pairs = np.arange(count)
        return [(pairs >> s).astype(np.uint8).view(dtype).reshape(shape) for s in (8, 0)]
    return [rng.integers(0, 256, shape).astype(np.uint8).view(dtype) for _ in range(2)]


@functools.cache
def cases(part):
    """(graph, feeds, sums) at every shape, at all pairs of bytes four times."""
    print("seed", SEED + part)
    rng, made = np.random.default_rng(SEED + part), []
    for shape in SHAPES + [(256, 256)] * 3:
        graph, dtype = sum_graph(rng, shape)
        feeds = feeds_of(rng, shape, dtype)
        (want,) = interpret(graph, dict(zip(graph.inputs, feeds, strict=True))).values()
        made.append((graph, feeds, want))
    return made


@pytest.mark.parametrize("part", sweep(range(4), always=[0]))
@pytest.mark.parametrize("isa", available_isas())
def test_sums(cpus, isa, part):
    fitted = 0
    for graph, feeds, want in cases(part):
        for threads in (1, 2):
            (executable,) = cpus[isa, threads].compile([graph])
            (name,) = executable.kernels.values()
            got = launch(cpus[isa, threads], executable, feeds, want)
            np.testing.assert_array_equal(got, want, err_msg=f"{name}\n{graph}")
        fitted += "fit" in name
    print(f"{fitted} of {len(cases(part))} in float32")
    assert fitted >= 3 if ISAS[isa].fused else fitted == 0


def launch(device, executable, feeds, want):
    buffers = [device.alloc(array.nbytes) for array in (*feeds, want)]
    for buffer, array in zip(buffers, feeds, strict=False):
        device.write(buffer, array)
    executable.bind(buffers, device.alloc(max(executable.scratch_bytes, 1))).launch().wait()
    got = np.empty(want.shape, want.dtype)
    device.read(buffers[-1], got)
    return got
