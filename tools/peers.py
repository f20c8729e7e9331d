"""Run a model on a runtime that nobody here wrote: ONNX Runtime or LiteRT, when installed."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from trireme.dtypes import Array
from trireme.errors import ConvertError


def peer_of(model: str) -> str:
    """Return the name of the runtime that answers for a model file.

    Errors: ConvertError, if the file is of a kind no peer reads, or the peer is not installed
    """
    peers = {".onnx": ("onnxruntime", "onnxruntime"), ".tflite": ("LiteRT", "ai_edge_litert")}
    suffix = Path(model).suffix.lower()
    if suffix not in peers:
        raise ConvertError(
            f"{model} cannot be verified: no other runtime reads {suffix or 'it'}",
            fix="verify the .onnx or .tflite file it was converted from",
        )
    name, module = peers[suffix]
    if importlib.util.find_spec(module) is None:
        package = module.replace("_", "-")
        raise ConvertError(f"{name} is not installed", fix=f"pip install {package}")
    return name


def run_peer(model: str, feeds: Mapping[str, Array]) -> dict[str, Array]:
    """Return the outputs of the peer, by the model's own names, or by order where names differ."""
    return _onnxruntime(model, feeds) if model.endswith(".onnx") else _litert(model, feeds)


def _onnxruntime(model: str, feeds: Mapping[str, Array]) -> dict[str, Array]:
    import onnxruntime

    onnxruntime.set_default_logger_severity(3)
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(names, dict(feeds)), strict=True))


def _litert(model: str, feeds: Mapping[str, Array]) -> dict[str, Array]:
    """Run on LiteRT's reference kernels, whose integer arithmetic is the definition."""
    from ai_edge_litert.interpreter import Interpreter, OpResolverType

    interpreter: Any = Interpreter(
        model_path=str(model), experimental_op_resolver_type=OpResolverType.BUILTIN_REF
    )
    interpreter.allocate_tensors()
    arrays = list(feeds.values())
    for position, detail in enumerate(interpreter.get_input_details()):
        array = feeds.get(detail["name"], arrays[position])
        interpreter.set_tensor(detail["index"], array)
    interpreter.invoke()
    return {
        detail["name"]: interpreter.get_tensor(detail["index"])
        for detail in interpreter.get_output_details()
    }


def timed_peer(model: str, feeds: Mapping[str, Array], threads: int) -> Callable[[], Any]:
    """Return a call that runs the peer's default kernels once, inputs copied in, outputs out."""
    if model.endswith(".onnx"):
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        options.log_severity_level = 3
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
        return lambda: session.run(None, dict(feeds))
    from ai_edge_litert.interpreter import Interpreter

    interpreter: Any = Interpreter(model_path=model, num_threads=threads)
    interpreter.allocate_tensors()
    inputs, outputs = interpreter.get_input_details(), interpreter.get_output_details()
    arrays = [
        feeds.get(detail["name"], array)
        for detail, array in zip(inputs, feeds.values(), strict=True)
    ]

    def run() -> list[Array]:
        for detail, array in zip(inputs, arrays, strict=True):
            interpreter.set_tensor(detail["index"], array)
        interpreter.invoke()
        return [interpreter.get_tensor(detail["index"]) for detail in outputs]

    return run
