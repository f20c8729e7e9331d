"""Run whole ONNX models on the interpreter and on ONNX Runtime, and compare."""

import pathlib

import numpy as np
import onnx
import onnxruntime

import trireme.ops  # noqa: F401  (fills the registry)
from trireme.converters.onnx import convert
from trireme.ir.interpreter import run_reference

DATA = pathlib.Path(onnx.__file__).parent / "backend" / "test" / "data"
LIGHT = DATA / "light"


def lively(path: pathlib.Path, rng: np.random.Generator) -> bytes:
    """A light model with random weights of its own where it has ConstantOfShape."""
    model = onnx.load(path)
    shapes = {w.name: onnx.numpy_helper.to_array(w) for w in model.graph.initializer}
    variances = {node.input[4] for node in model.graph.node if node.op_type == "BatchNormalization"}
    kept = []
    for node in model.graph.node:
        if node.op_type != "ConstantOfShape":
            kept.append(node)
            continue
        dims, name = [int(dim) for dim in shapes[node.input[0]]], node.output[0]
        fan = max(int(np.prod(dims[1:])), 1)
        data = rng.standard_normal(dims) * (2 / fan) ** 0.5
        if name in variances:
            data = rng.uniform(0.5, 1.5, dims)
        elif len(dims) == 1:
            data = rng.uniform(-0.5, 1.5, dims)
        model.graph.initializer.append(onnx.numpy_helper.from_array(data.astype("float32"), name))
    del model.graph.node[:]
    model.graph.node.extend(kept)
    return model.SerializeToString()


def assert_agrees(source: bytes | pathlib.Path, rng: np.random.Generator, limit=1e-4) -> None:
    """Compare every output with ONNX Runtime's, relative to the output's largest value."""
    graph = convert(source)
    feeds = {}
    for value in graph.input_values():
        draw = rng.integers(0, 1000, value.type.dims)
        if value.dtype.startswith("float"):
            draw = rng.standard_normal(value.type.dims)
        feeds[value.name] = draw.astype(value.dtype)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 3
    data = source if isinstance(source, bytes) else str(source)
    session = onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])
    wanted = session.run(None, feeds)
    found = run_reference(graph, feeds)
    assert list(found) == [output.name for output in session.get_outputs()]
    for name, right in zip(found, wanted, strict=True):
        assert found[name].shape == right.shape and found[name].dtype == right.dtype
        apart = np.abs(found[name].astype(np.float64) - right).max() / np.abs(right).max()
        assert apart <= limit, f"{name}: {apart:.2e} of the largest value apart"


def assert_reproduces(folder: pathlib.Path) -> None:
    """Run a stored model on its stored inputs and compare with its stored outputs."""
    path = folder / "model.onnx"
    names = [value.name for value in onnx.load(path).graph.input]
    graph = convert(path)
    for data in sorted(folder.glob("test_data_set_*")):
        inputs, wanted = (
            [
                onnx.numpy_helper.to_array(onnx.load_tensor(data / f"{kind}_{i}.pb"))
                for i in range(len(list(data.glob(f"{kind}_*.pb"))))
            ]
            for kind in ("input", "output")
        )
        found = run_reference(graph, dict(zip(names, inputs, strict=False)))
        for name, right in zip(found, wanted, strict=True):
            assert found[name].shape == right.shape and found[name].dtype == right.dtype
            np.testing.assert_allclose(found[name], right, rtol=1e-3, atol=1e-5)
