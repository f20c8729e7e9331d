"""Sound model files to damage, small ones."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from op_samples import op_samples, sample_graph
from random_graphs import random_graph
from zoo import zoo_folder

from lab.stress import onnx_seeds, tflite_seeds
from trireme.converters.onnx.write.walk import export as as_onnx
from trireme.converters.tflite.walk import convert as convert_tflite
from trireme.converters.tflite.write.walk import export as as_tflite
from trireme.ir.builder import GraphBuilder
from trireme.ir.graph import Graph, Quant, TensorType
from trireme.model_file import dumps
from trireme.support.errors import TriremeError

GRAPHS = 6
"""Random graphs among the seeds, every other one quantised."""
FUZZED = 60
"""Files of each fuzzer, of a few nodes each."""
SMALL = 120_000
"""Bytes of the largest file of the zoo that is damaged: larger ones are mostly weights."""


def grown() -> list[Graph]:
    """Return random graphs, and a graph of one node for each sample of an op."""
    graphs = [random_graph(seed, 8, quantised=seed % 2 == 1) for seed in range(GRAPHS)]
    samples = [(op, sample) for op, sample, _ in op_samples() if op.name != "python"]
    return graphs + [sample_graph(op, sample)[0] for op, sample in samples]  # a file has no code


def trm_seeds() -> list[bytes]:
    """Return .trm files with every kind of field."""
    b = GraphBuilder("types")
    b.symbols["rows"] = (1, 9)
    x = b.input("x", TensorType(("rows", 4), "int8", Quant((0.5, 1, 2, 3), (0, 0, 0, 0), 1)))
    names = b.constant("names", np.array(["a", "ünï", ""], object))
    flags = b.constant("flags", np.array([True, False]))
    typed = b.finish(b.add("identity", x, pin="cpu"), names, flags)
    return [dumps(graph) for graph in [typed, *grown()]]


def written(export: Callable[[Graph], bytes]) -> list[bytes]:
    """Return the files of the graphs that have a form in another format."""
    files = []
    for graph in grown():
        try:
            files.append(export(graph))
        except TriremeError:
            continue
    return files


SEEDS: dict[str, Callable[[], list[bytes]]] = {
    "trm": trm_seeds,
    "onnx": lambda: onnx_seeds.operator_seeds() + onnx_seeds.control_seeds() + written(as_onnx),
    "tflite": lambda: (
        tflite_seeds.operator_seeds() + tflite_seeds.control_seeds() + written(as_tflite)
    ),
}
"""Files by format that need no other program: a case of a seed is the same on every machine."""


def zoo_files(pattern: str) -> list[bytes]:
    """Return the small files of the zoo, where there is one."""
    paths = sorted(zoo_folder().glob(pattern))
    return [path.read_bytes() for path in paths if path.stat().st_size < SMALL]


def fuzzed_onnx() -> list[bytes]:
    """Return random graphs of every family of ops; ONNX Runtime makes them."""
    from lab.fuzz.grow import grow

    return [grow(seed, least=1, most=4).content for seed in range(FUZZED)]


def fuzzed_tflite() -> list[bytes]:
    """Return random models of LiteRT's operators."""
    from lab.fuzz.tflite_graphs import grow_tflite

    return [grow_tflite(seed, least=1, most=3).content for seed in range(FUZZED)]


MORE_SEEDS: dict[str, Callable[[], list[bytes]]] = {
    "trm": lambda: [dumps(convert_tflite(data)) for data in zoo_files("*.tflite")],
    "onnx": fuzzed_onnx,
    "tflite": lambda: zoo_files("*.tflite") + fuzzed_tflite(),
}
"""Further files by format: of the zoo and of the fuzzers."""
