"""Any op at once: every op of the registry on every device, or a sentence; compiled once."""

import itertools
import threading

import numpy as np
import pytest
from op_samples import assert_close, interpreted, op_samples, outputs_of
from sweep import sweep
from toy_device import ToyDevice

from trireme.ir.builder import GraphBuilder
from trireme.ir.graph import Quant, TensorType
from trireme.ir.op import all_ops
from trireme.runtime.eager import eager
from trireme.support.dtypes import dtype_name
from trireme.support.errors import DeviceError, GraphError, PlacementError, ShapeError

FIRST = {}
for _op, _sample, _name in op_samples():
    FIRST.setdefault((_op.name, bool(_sample.quants)), (_op, _sample))
LOOSE = {"cpu": 0.0, "host": 0.0, "opencl": 1e-5, "npu": 0.0}


@pytest.fixture(scope="module")
def run():
    context = eager.Eager({"cpu": {"threads": 1}})
    yield context
    context.close()


def call(run, op, sample, device):
    quants = dict(enumerate(sample.quants))
    operands = [
        None if array is None else eager.tensor(array, quants.get(position))
        for position, array in enumerate(sample.inputs)
    ]
    made = run(
        op.name,
        *operands,
        device=device,
        outputs=outputs_of(op, sample),
        quants=sample.out_quants,
        **sample.attrs,
    )
    return made if isinstance(made, tuple) else (made,)


def _always(key, device):
    """Every op but on OpenCL, which builds a program for each: a sixth there."""
    return device != "opencl" or sorted(FIRST).index(key) % 6 == 0


@pytest.mark.parametrize(
    "key, device",
    sweep(itertools.product(sorted(FIRST), ["host", "cpu", "opencl", "npu"]), _always),
    ids=lambda one: one if isinstance(one, str) else f"{one[0]}{'-int' * one[1]}",
)
def test_every_op(run, key, device):
    op, sample = FIRST[key]
    name = op.name
    run.states.clear()
    try:
        made = call(run, op, sample, device)
    except PlacementError as error:
        assert device != "host" and str(error).startswith(f"{device} cannot run {name}: ")
        return
    except DeviceError as error:
        pytest.skip(str(error))
    graph, wanted = interpreted(op, sample)
    for found, want, value in zip(made, wanted, graph.outputs, strict=True):
        assert found.device == device and found.type.quant == graph.type(value).quant
        assert found.type.dtype == dtype_name(want.dtype)
        if op.random:
            continue
        assert_close(found.data, want, max(op.rtol, LOOSE[device]), f"{name} on {device}")


def test_the_second_call_of_a_kind_only_runs(run):
    x = np.linspace(-1, 1, 12, dtype=np.float32).reshape(3, 4)
    first = run("relu", x)
    count = run.compiled
    second = run("relu", x + 1)
    assert run.compiled == count
    np.testing.assert_array_equal(first.data, np.maximum(x, 0))
    np.testing.assert_array_equal(second.data, np.maximum(x + 1, 0))
    run("relu", x.astype(np.float16))
    assert run.compiled == count + 1


def test_shapes_and_weights_are_compiled_in(run):
    x = np.arange(12, dtype=np.float32).reshape(3, 4)
    assert run("reshape", x, [2, 6]).data.shape == (2, 6)
    assert run("reshape", x, [4, 3]).data.shape == (4, 3)
    assert run("reshape", x, [2, -1]).data.shape == (2, 6)


def test_attributes_that_differ_by_a_sign_are_compiled_apart(run):
    x = np.array([-1], np.float32)
    plus, minus = (run("leaky_relu", x, alpha=alpha).numpy() for alpha in (0.0, -0.0))
    assert np.signbit(plus) and not np.signbit(minus)


def test_values_print():
    y = eager.add([1.0, 2.0], 1.5)
    assert "float32[2] on cpu" in repr(y) and "2.5" in repr(y)
    big = eager.relu(np.zeros((100, 100), np.float32), device="host")
    assert "float32[100,100] on host" in repr(big) and "mean 0" in repr(big)
    assert np.asarray(y).tolist() == [2.5, 3.5] and y.numpy() is y.data


def test_results_go_on_as_inputs():
    x = np.linspace(-2, 2, 8, dtype=np.float32)
    y = eager.sub(eager.tanh(x), eager.relu(x), device="host")
    np.testing.assert_allclose(y.data, np.tanh(x) - np.maximum(x, 0), atol=1e-6)
    one, two = eager.split(x, [3, 5], axis=0)
    assert one.data.shape == (3,) and two.data.shape == (5,)


def test_quantised_values_keep_their_type(run):
    quant = Quant((0.5,), (3,))
    x = eager.tensor(np.arange(-4, 4, dtype=np.int8), quant)
    y = run("relu", x, quants=[quant], device="host")
    assert y.type == TensorType((8,), "int8", quant) and y.data.min() == 3


def test_states_last(run):
    run.states.clear()
    zero = np.zeros(3, np.float32)
    run("assign", zero + 4, state="s", device="host")
    assert run("variable", zero, state="s", device="host").data.tolist() == [4, 4, 4]


def test_control_flow_on_the_host():
    b = GraphBuilder("body")
    body = b.finish(b.add("relu", b.input("v", TensorType((2,), "float32"))))
    x = np.array([-1, 1], np.float32)
    y = eager.run(
        "if", np.array(True), x, then_branch=body, else_branch=body, device="host", outputs=1
    )
    assert y.data.tolist() == [0, 1]


def test_errors_are_sentences(run):
    x = np.zeros((2, 3), np.float32)
    with pytest.raises(PlacementError, match="cpu cannot run non_zero: .* is dynamic"):
        run("non_zero", x)
    with pytest.raises(ShapeError, match="matmul"):
        run("matmul", x, x)
    with pytest.raises(GraphError, match="unknown op"):
        run("no_such_op", x)
    with pytest.raises(GraphError, match="unknown attribute"):
        run("relu", x, slope=1)
    with pytest.raises(DeviceError, match="unknown device 'tpu'"):
        run("relu", x, device="tpu")
    with pytest.raises(AttributeError, match="has no op 'no_such_op'"):
        eager.no_such_op  # noqa: B018


def test_an_open_device_can_be_given(run):
    toy = ToyDevice("gpu")
    y = run("tanh", np.ones(3, np.float32), device=toy)
    assert y.device == "gpu" and toy.launches == 1 and not toy.closed


def test_every_op_is_a_function_of_the_module():
    for op in all_ops():
        assert getattr(eager, op.name).args == (op.name,)


def test_threads_may_share_a_context(run):
    x = np.arange(6, dtype=np.float32)
    wrong = []

    def work(k):
        for _ in range(30):
            if not np.array_equal(run("add", x, np.float32(k)).data, x + k):
                wrong.append(k)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_only_so_many_calls_are_kept(monkeypatch):
    monkeypatch.setattr(eager, "MOST_KEPT", 4)
    context = eager.Eager()
    for n in range(1, 9):
        context("relu", np.zeros(n, np.float32), device=(toy := ToyDevice("gpu")))
    assert toy.launches == 1 and context.compiled == 8 and len(context._calls) == 4


def test_its_names_are_the_ops():
    assert {"softmax", "conv", "tensor", "Eager"} <= set(dir(eager)) and "np" not in dir(eager)
    assert all(callable(getattr(eager, name)) for name in dir(eager))
