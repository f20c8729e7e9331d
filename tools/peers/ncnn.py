"""Drive ncnn in float32, on files that its converter pnnx made of an ONNX model."""

from __future__ import annotations

import importlib.util
import shutil
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
    shutil.copy(model, source)
    package = importlib.util.find_spec("pnnx")  # importing it would import torch
    assert package is not None and package.origin is not None
    command = [str(Path(package.origin).with_name("pnnx")), source.name, "fp16=0"]
    run = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    target = source.with_name("ncnn_model.ncnn.param")
    if not target.exists():
        lines = (run.stderr + run.stdout).strip().splitlines()
        raise RuntimeError(f"pnnx wrote no file ({lines[-1] if lines else run.returncode})")
    return str(target)


def open_engine(task: dict[str, Any], feeds: dict[str, Array]) -> tuple[Call, dict[str, Any]]:
    """Return a call of an extractor; ncnn's tensors have no batch dimension."""
    import ncnn

    net = ncnn.Net()
    net.opt.num_threads = task["threads"]
    for half in ("fp16_packed", "fp16_storage", "fp16_arithmetic", "bf16_storage"):
        setattr(net.opt, f"use_{half}", False)
    if net.load_param(task["model"]) or net.load_model(task["model"][: -len("param")] + "bin"):
        raise RuntimeError("ncnn cannot load what pnnx wrote")
    if any(len(array) != 1 for array in feeds.values()):
        raise RuntimeError("ncnn has no batch dimension")
    arrays = [_plain(array[0]) for array in feeds.values()]
    inputs, outputs = net.input_names(), net.output_names()

    def call() -> dict[str, Array]:
        extractor = net.create_extractor()
        for name, array in zip(inputs, arrays, strict=True):
            extractor.input(name, ncnn.Mat(array))
        return {name: np.array(extractor.extract(name)[1]) for name in outputs}

    return call, {"version": ncnn.__version__}


def _plain(array: Array) -> Array:
    """Return an array of the kinds ncnn takes: int32 or float32."""
    kind = np.int32 if array.dtype.kind in "iu" else np.float32
    return np.ascontiguousarray(array.astype(kind))
