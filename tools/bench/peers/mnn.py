"""Drive MNN's CPU backend in high precision (float32), on a file its converter made."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Call = Callable[[], dict[str, Array]]


def convert(model: str, folder: str) -> str:
    """Return the .mnn file made of a model.

    The extension module is called, not the `mnnconvert` program or MNN.tools: those install a
    package with pip when they start. It leaves a file in the working folder.
    """
    import _tools

    kind = {".onnx": "ONNX", ".tflite": "TFLITE"}[Path(model).suffix.lower()]
    target = str(Path(folder).resolve() / (Path(model).name + ".mnn"))
    source = str(Path(model).resolve())
    arguments = ["-f", kind, "--modelFile", source, "--MNNModel", target, "--bizCode", "bench"]
    with contextlib.chdir(folder):
        _tools.mnnconvert(["mnnconvert", *arguments])
    if not os.path.exists(target):
        raise RuntimeError("MNN's converter wrote no file")
    return target


def open_engine(task: dict[str, Any], feeds: dict[str, Array]) -> tuple[Call, dict[str, Any]]:
    """Return a call of Module.forward, inputs written in, outputs copied out."""
    import MNN
    import MNN.expr
    import MNN.nn

    config = {"backend": "CPU", "numThread": task["threads"], "precision": "high"}
    manager = MNN.nn.create_runtime_manager((config,))
    net = MNN.nn.load_module_from_file(task["model"], [], [], runtime_manager=manager)
    info = net.get_info()
    if any(array.dtype == np.int8 for array in feeds.values()):
        raise RuntimeError("its Python API takes no int8 arrays")
    values, arrays = [], []
    for position, value in enumerate(info["inputs"]):
        name = info["inputNames"][position]
        array = feeds.get(name, list(feeds.values())[position])
        values.append(MNN.expr.placeholder(list(array.shape), value.data_format, value.dtype))
        arrays.append(array.astype(_dtypes(MNN.expr).get(value.dtype, np.float32)))
    names = info["outputNames"]

    def call() -> dict[str, Array]:
        for value, array in zip(values, arrays, strict=True):
            value.write(array)
        outputs = net.forward(values)
        return {n: np.array(o.read()) for n, o in zip(names, outputs, strict=True)}

    return call, {"version": MNN.version()}


def _dtypes(expr: Any) -> dict[Any, Any]:
    return {expr.float: np.float32, expr.int: np.int32, expr.uint8: np.uint8}
