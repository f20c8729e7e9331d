"""Linear resizes against ONNX Runtime: every coordinate mode, one to three axes, antialias.

Where both taps are one pixel, the answer is that pixel bit for bit, on every device: one unit
less makes another tie of whatever chooses between equal values.
"""

import numpy as np
import onnxruntime
import pytest
from forced import pinned_where_supported
from onnx import TensorProto, helper

from trireme.ir.interpreter import run_reference
from trireme.model_file.convert import convert
from trireme.passes.pipeline import optimise
from trireme.runtime.program.options import AS_GIVEN
from trireme.runtime.session.session import Session

SEED = 70482
MODES = (
    "half_pixel",
    "half_pixel_symmetric",
    "pytorch_half_pixel",
    "align_corners",
    "asymmetric",
    "tf_half_pixel_for_nn",
)


def resize(shape, sizes, mode, antialias=0, scales=None):
    """Return a model of one linear Resize to sizes, or by scales."""
    name, type, values = ("s", TensorProto.INT64, sizes)
    if scales is not None:
        name, type, values = ("c", TensorProto.FLOAT, scales)
    inputs = ["x", "", name] if scales is not None else ["x", "", "", name]
    node = helper.make_node(
        "Resize",
        inputs,
        ["y"],
        mode="linear",
        coordinate_transformation_mode=mode,
        antialias=antialias,
    )
    ends = [
        helper.make_tensor_value_info("x", TensorProto.FLOAT, shape),
        helper.make_tensor_value_info("y", TensorProto.FLOAT, None),
    ]
    table = helper.make_tensor(name, type, [len(values)], values)
    graph = helper.make_graph([node], "resize", ends[:1], ends[1:], [table])
    imports = [helper.make_opsetid("", 19)]
    return helper.make_model(graph, opset_imports=imports, ir_version=9).SerializeToString()


def answers(model, x, devices):
    """Return the result of the reference and of each device."""
    graph = convert(model)
    found = {"reference": run_reference(graph, {"x": x})["y"]}
    for name, device in devices.items():
        pinned = pinned_where_supported(optimise(graph), device)
        chosen = list({device, devices["cpu"]})
        with Session(pinned, devices=chosen, execution_options=AS_GIVEN) as session:
            found[name] = session.run({"x": x})["y"]
    return found


def peer(model, x):
    return onnxruntime.InferenceSession(model).run(None, {"x": x})[0]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    ("shape", "sizes"),
    [
        ((2, 3, 1), (2, 3, 7)),
        ((2, 3, 1, 1), (2, 3, 6, 4)),
        ((1, 5, 1, 1), (1, 5, 1, 9)),
        ((1, 2, 1, 1, 1), (1, 2, 3, 4, 5)),
    ],
    ids=str,
)
def test_an_image_of_one_pixel_is_repeated(devices, mode, shape, sizes):
    print("seed", SEED)
    rng = np.random.default_rng(SEED)
    x = rng.uniform(-2, 2, shape).astype(np.float32)
    x.flat[0] = np.inf
    for antialias in (0, 1):
        model = resize(shape, sizes, mode, antialias)
        wanted = np.broadcast_to(x, sizes)
        if x.ndim == 4:  # its sequences and volumes are one unit off
            np.testing.assert_array_equal(peer(model, x), wanted)
        for name, y in answers(model, x, devices).items():
            np.testing.assert_array_equal(y, wanted, err_msg=f"{name} antialias={antialias}")


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("times", [2, 3, 5])
def test_beyond_the_border_is_the_border(devices, mode, times):
    print("seed", SEED)
    rng = np.random.default_rng(SEED)
    x = rng.uniform(-2, 2, (1, 2, 3, 4)).astype(np.float32)
    model = resize(x.shape, None, mode, scales=[1, 1, 1, times])
    wanted = peer(model, x)
    edges = wanted == x[..., :1], wanted == x[..., -1:]
    assert sum(edge.all(axis=(0, 1, 2)).sum() for edge in edges) >= 2
    for name, y in answers(model, x, devices).items():
        for edge, border in zip(edges, (x[..., :1], x[..., -1:]), strict=True):
            np.testing.assert_array_equal(np.where(edge, y, border), border + 0 * y, err_msg=name)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("rank", [1, 2, 3])
def test_random_sizes_equal_onnx_runtime(devices, mode, rank):
    seed = SEED + 10 * rank + MODES.index(mode)
    print("seed", seed)
    rng = np.random.default_rng(seed)
    for _ in range(6):
        shape = (2, 3, *(int(size) for size in rng.choice([1, 2, 3, 5, 8], rank)))
        antialias = int(rng.integers(2))
        sizes, scales = (*shape[:2], *(int(size) for size in rng.integers(1, 12, rank))), None
        if rng.integers(2):
            scales = [1.0, 1.0, *rng.choice([1, 1.5, 2, 2.6, 4, 7], rank).tolist()]
        model = resize(shape, sizes, mode, antialias, scales)
        x = rng.uniform(-2, 2, shape).astype(np.float32)
        wanted = peer(model, x)
        for name, y in answers(model, x, devices).items():
            what = f"{name} {shape} to {sizes} or by {scales}, antialias={antialias}"
            np.testing.assert_allclose(y, wanted, rtol=1e-5, atol=1e-5, err_msg=what)
