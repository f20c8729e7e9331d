"""Drive ncnn in float32, on files that its converter pnnx made of an ONNX model."""

from __future__ import annotations

import importlib.util
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Call = Callable[[], dict[str, Array]]


def convert(model: str, folder: str) -> str:
    """Return the .ncnn.param file made of an ONNX model; its weights lie beside it."""
    source = Path(folder) / "ncnn_model.onnx"
    _make_plain(model, source)
    package = importlib.util.find_spec("pnnx")  # importing it would import torch
    assert package is not None and package.origin is not None
    command = [str(Path(package.origin).with_name("pnnx")), source.name, "fp16=0"]
    run = subprocess.run(
        command, cwd=folder, stdin=subprocess.DEVNULL, capture_output=True, text=True
    )
    target = source.with_name("ncnn_model.ncnn.param")
    if not target.exists():
        lines = (run.stderr + run.stdout).strip().splitlines()
        raise RuntimeError(f"pnnx wrote no file ({lines[-1] if lines else run.returncode})")
    return str(target)


def open_engine(task: dict[str, Any], feeds: dict[str, Array]) -> tuple[Call, dict[str, Any]]:
    """Return a call of an extractor per item of the batch, which ncnn's tensors do not have."""
    import ncnn

    net = ncnn.Net()
    net.opt.num_threads = task["threads"]
    for half in ("fp16_packed", "fp16_storage", "fp16_arithmetic", "bf16_storage"):
        setattr(net.opt, f"use_{half}", False)
    rows = [line.split() for line in Path(task["model"]).read_text().splitlines()[2:]]
    unknown = sorted({row[0] for row in rows if row and ncnn.layer_to_index(row[0]) < 0})
    if unknown:
        raise RuntimeError(f"pnnx left layers that ncnn does not have: {', '.join(unknown)}")
    if net.load_param(task["model"]) or net.load_model(task["model"][: -len("param")] + "bin"):
        raise RuntimeError("ncnn cannot load what pnnx wrote")
    batch = max(len(array) for array in feeds.values())
    items = [[_plain(array[i]) for array in feeds.values()] for i in range(batch)]
    inputs, outputs = net.input_names(), net.output_names()

    def run(arrays: list[Array]) -> list[Array]:
        extractor = net.create_extractor()
        for name, array in zip(inputs, arrays, strict=True):
            extractor.input(name, ncnn.Mat(array))
        return [np.array(extractor.extract(name)[1]) for name in outputs]

    def call() -> dict[str, Array]:
        results = zip(*(run(arrays) for arrays in items), strict=True)
        return {n: np.stack(r) for n, r in zip(outputs, results, strict=True)}

    notes = ["it has no batch dimension: its images ran one by one"] if batch > 1 else []
    return call, {"version": ncnn.__version__, "notes": notes}


def _plain(array: Array) -> Array:
    """Return an array of the kinds ncnn takes: int32 or float32."""
    kind = np.int32 if array.dtype.kind in "iu" else np.float32
    return np.ascontiguousarray(array.astype(kind))


def _make_plain(model: str, target: Path) -> None:
    """Write the model without weights that are inputs or made by ConstantOfShape.

    pnnx dies of both (they are usual in files of opset 8 and before).
    """
    import onnx
    from onnx import numpy_helper

    proto: Any = onnx.load(model)
    graph = proto.graph
    weights = {tensor.name: tensor for tensor in graph.initializer}
    nodes = []
    for node in graph.node:
        if node.op_type != "ConstantOfShape" or node.input[0] not in weights:
            nodes.append(node)
            continue
        shape = numpy_helper.to_array(weights[node.input[0]])
        graph.initializer.append(numpy_helper.from_array(_filled(node, shape), node.output[0]))
    used = {name for node in nodes for name in node.input}
    made = {tensor.name for tensor in graph.initializer}
    _replace(graph.input, [value for value in graph.input if value.name not in made])
    _replace(graph.initializer, [tensor for tensor in graph.initializer if tensor.name in used])
    _replace(graph.node, nodes)
    onnx.save(proto, str(target))


def _filled(node: Any, shape: Any) -> Any:
    """Return what a ConstantOfShape node makes (Source: ONNX ConstantOfShape-9)."""
    from onnx import numpy_helper

    values = [numpy_helper.to_array(a.t) for a in node.attribute if a.name == "value"]
    value = values[0] if values else np.zeros(1, np.float32)
    return np.full(shape.tolist(), value.reshape(-1)[0], value.dtype)


def _replace(field: Any, items: list[Any]) -> None:
    kept = [type(item).FromString(item.SerializeToString()) for item in items]
    del field[:]
    field.extend(kept)
