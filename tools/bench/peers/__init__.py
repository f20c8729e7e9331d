"""The other runtimes that trireme is compared with: what they read, and how they are driven.

A peer is a line in PEERS and a file beside this one, which `tools/bench/worker.py` loads by its
path into a process without trireme, so that neither trireme's memory nor its import is charged to
the peer. Such a file imports no trireme and offers

    open_engine(task, feeds) -> (call, facts)   # call() -> outputs by name, all as new arrays
    convert(model, folder) -> path              # only where the peer needs a file of its own

The task holds "model" (a path), "threads" and "cache" (a folder that a second process finds again);
facts are what the reader should know (the version, settings), or a function that returns them,
which is called when all is timed. What is timed is what a Python caller
pays: numpy arrays in, numpy arrays out.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from trireme.support.dtypes import Array
from trireme.support.errors import ConvertError
from trireme.support.installing import install_command

OURS = "trireme"


@dataclass(frozen=True)
class Peer:
    """A runtime to compare with.

    module, package: what is imported before a model is loaded, and what is installed from PyPI
    reads: suffixes of the model files that it runs, directly or through its converter
    converts: whether it runs a file of its own, which its adapter's `convert` makes
    converter: a further package that its converter is in; "" for none
    batches: whether its tensors have a batch; if not, it gets the file of one item
    caches: whether a process leaves files that a later one finds
    limits: environment that keeps it to an instruction set, by the set's name
    """

    name: str
    module: str
    package: str
    reads: tuple[str, ...]
    converts: bool = False
    converter: str = ""
    batches: bool = True
    caches: bool = False
    limits: Mapping[str, Mapping[str, str]] = field(default_factory=dict)

    @property
    def file(self) -> Path:
        """The file that drives it."""
        return Path(__file__).with_name(f"{self.name}.py")

    def absent_reason(self) -> str:
        """Return why it cannot be used on this machine, or ""."""
        if importlib.util.find_spec(self.module.split(".")[0]) is None:
            return f"not installed ({install_command(self.package)})"
        if self.converter and importlib.util.find_spec(self.converter) is None:
            return f"its converter is not installed ({install_command(self.converter)})"
        return ""

    def refusal(self, model: str) -> str:
        """Return why it cannot run a model file of this kind, or ""."""
        suffix = Path(model).suffix.lower()
        return "" if suffix in self.reads else f"{self.name} cannot run {suffix} files"


_ONEDNN = {"avx2": {"ONEDNN_MAX_CPU_ISA": "AVX2"}, "generic": {"ONEDNN_MAX_CPU_ISA": "SSE41"}}
PEERS = {
    peer.name: peer
    for peer in (
        Peer("onnxruntime", "onnxruntime", "onnxruntime", (".onnx",)),
        Peer(
            "openvino",
            "openvino",
            "openvino",
            (".onnx", ".tflite"),
            caches=True,
            limits=_ONEDNN,
        ),
        Peer("litert", "ai_edge_litert.interpreter", "ai-edge-litert", (".tflite",)),
        Peer("mnn", "MNN.nn", "MNN", (".onnx", ".tflite"), converts=True),
        Peer("ncnn", "ncnn", "ncnn", (".onnx",), converts=True, converter="pnnx", batches=False),
    )
}
OURSELVES = Peer(
    OURS, "trireme.runtime.session.session", "trireme", (".onnx", ".tflite", ".trm"), caches=True
)
_VERIFIERS = {".onnx": "onnxruntime", ".tflite": "litert"}


def peer_of(model: str) -> str:
    """Return the name of the runtime that answers for a model file.

    Errors: ConvertError, if the file is of a kind no peer reads, or the peer is not installed
    """
    suffix = Path(model).suffix.lower()
    if suffix not in _VERIFIERS:
        raise ConvertError(
            f"{model} cannot be verified: no other runtime reads {suffix or 'it'}",
            fix="verify the .onnx or .tflite file it was converted from",
        )
    peer = PEERS[_VERIFIERS[suffix]]
    if peer.absent_reason():
        raise ConvertError(f"{peer.name} is not installed", fix=install_command(peer.package))
    return peer.name


def run_peer(model: str, feeds: Mapping[str, Array]) -> dict[str, Array]:
    """Return the outputs of the peer, by the model's own names, or by order where names differ.

    LiteRT answers with its reference kernels, whose integer arithmetic is the definition.
    """
    from trireme.tools.bench.peers import litert, onnxruntime

    task = {"model": str(model), "threads": 1, "reference": True}
    opener = onnxruntime.open_engine if model.endswith(".onnx") else litert.open_engine
    call, _ = opener(task, dict(feeds))
    return call()
