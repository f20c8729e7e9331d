"""dynamic_range_lstm on the cpu device: kernels of fixed and of open sizes, and the reference."""

import numpy as np
import pytest
from cpu_run import run
from every_shape import Case, bound

import trireme.ops  # noqa: F401
from trireme.devices.cpu.codegen.target import available_isas
from trireme.ir.interpreter import interpret

SEED = 20261130
ISAS = available_isas(variants=False)
CASES = {  # units, dtype of the weights, columns of scales, zero point, reverse
    "bytes": (48, "int8", 1, 0, False),
    "a scale for each column": (16, "int8", 64, 3, True),
    "beyond bytes": (80, "uint8", 320, 7, True),
}


def layer(name, units=None, batch=1):
    """The layer in a graph of open steps."""
    size, dtype, columns, zero, reverse = CASES[name]
    size = units or size
    rng = np.random.default_rng(SEED)
    info = np.iinfo(dtype)
    case = Case(name)
    gates = case.input("gates", "s", batch, 4 * size)
    h, c = (case.input(state, batch, size) for state in "hc")
    constants = (
        rng.integers(info.min, info.max + 1, (size, 4 * size)).astype(dtype),
        rng.uniform(0.0005, 0.002, columns).astype(np.float32),
        np.full(columns, zero, dtype),
    )
    r, scale, zeros = (case.builder.constant(f"k{k}", data) for k, data in enumerate(constants))
    operands = [gates, r, scale, zeros, h, c]
    attrs = {"reverse": reverse}
    made = case.builder.add_node("dynamic_range_lstm", operands, attrs, outputs=3)
    return case.builder.finish(*made)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("name", CASES)
def test_every_number_of_steps_is_as_the_reference(cpus, name, isa):
    device = cpus[isa, 1]
    graph = layer(name)
    assert not [r for node in graph.nodes if (r := device.polymorphic_reason(graph, node))]
    (every,) = device.compile_polymorphic([graph])
    rng = np.random.default_rng(SEED)
    for steps in (1, 2, 9, 40):
        one = bound(graph, {"s": steps})
        feeds = {
            value: rng.standard_normal(one.type(value).dims).astype(np.float32)
            for value in one.inputs
        }
        wanted = list(interpret(one, feeds).values())
        fixed, _, _ = run(device, one, feeds)
        found, _, _ = run(device, one, feeds, executable=every.at(one))
        for array, own, right in zip(found, fixed, wanted, strict=True):
            np.testing.assert_array_equal(array, own, err_msg=f"{steps} steps")
            np.testing.assert_allclose(array, right, rtol=1e-5, atol=2e-6, err_msg=f"{steps} steps")


def test_a_range_of_zero_has_levels_of_zero(cpus):
    graph = layer("bytes")
    one = bound(graph, {"s": 3})
    feeds = {value: np.zeros(one.type(value).dims, np.float32) for value in one.inputs}
    for found in run(cpus[ISAS[0], 1], one, feeds)[0]:
        np.testing.assert_array_equal(found, 0)


@pytest.mark.parametrize("how", [{"units": 24}, {"batch": 2}], ids=str)
def test_other_layers_run_on_the_reference_and_say_why(cpus, how):
    graph = layer("bytes", **how)
    one = bound(graph, {"s": 3})
    assert "native kernels for" in cpus[ISAS[0], 1].kernel_note(one, one.nodes[0])
