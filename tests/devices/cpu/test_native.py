"""Trained models run on native kernels alone: no op of theirs is left to the numpy reference."""

from contextlib import closing
from pathlib import Path

import onnx.backend.test
import pytest
from zoo import zoo_folder, zoo_path

from trireme.backend.registry import open_device
from trireme.model_file.cache import optimised

ZOO = sorted(path.stem for path in zoo_folder().glob("*.tflite"))
LIGHT = Path(onnx.backend.test.__file__).parent / "data/light"


def on_the_reference(path):
    """Return the ops of a model that the cpu device has no native kernel for."""
    graph = optimised(path, folder=None)
    with closing(open_device("cpu", threads=1)) as device:
        notes = {node.op: device.kernel_note(graph, node) for node in graph.nodes}
    return {op: note for op, note in notes.items() if note}


@pytest.mark.parametrize("model", ZOO)
def test_zoo(model):
    assert not on_the_reference(zoo_path(f"{model}.tflite"))


@pytest.mark.slow
@pytest.mark.parametrize("path", sorted(LIGHT.glob("*.onnx")), ids=lambda path: path.stem)
def test_light_models(path):
    assert not on_the_reference(path)
