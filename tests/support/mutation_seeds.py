"""Sound files of each format, small ones, for tests to damage."""

import pytest
import zoo
from lab.stress import onnx_seeds as onnx
from lab.stress import seeds
from lab.stress import tflite_seeds as tflite

from trireme.converters.tflite.walk import convert as convert_tflite
from trireme.model_file import dumps

GROWN = 60
"""Random graphs that are damaged, of a few nodes each."""
SMALL = 120_000
"""Bytes of the largest file of the zoo that is damaged: larger ones are mostly weights."""


def trm_seeds() -> list[bytes]:
    return seeds.trm_seeds() + [dumps(convert_tflite(data)) for data in zoo_files("*.tflite")]


def tflite_seeds() -> list[bytes]:
    return tflite.operator_seeds() + zoo_files("*.tflite")


def zoo_files(pattern: str) -> list[bytes]:
    paths = sorted(zoo.zoo_folder().glob(pattern))
    return [path.read_bytes() for path in paths if path.stat().st_size < SMALL]


def grown_onnx() -> list[bytes]:
    """Random graphs of every family of ops."""
    pytest.importorskip("onnxruntime")
    from lab.fuzz.grow import grow

    return [grow(seed, least=1, most=4).model.SerializeToString() for seed in range(GROWN)]


def grown_tflite() -> list[bytes]:
    """Random models of LiteRT's operators."""
    from lab.fuzz.tflite_graphs import grow_tflite

    return [grow_tflite(seed, least=1, most=3).content for seed in range(GROWN)]


SEEDS = {
    "trm": trm_seeds,
    "tflite": lambda: tflite_seeds() + tflite.control_seeds(),
    "onnx": lambda: onnx.operator_seeds() + onnx.control_seeds(),
}
"""Files to read, by format."""
RUN_SEEDS = {
    "trm": trm_seeds,
    "tflite": lambda: SEEDS["tflite"]() + grown_tflite(),
    "onnx": lambda: SEEDS["onnx"]() + grown_onnx(),
}
"""Files to run."""
