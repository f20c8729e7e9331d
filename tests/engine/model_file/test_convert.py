"""What `trireme.convert` does around the converters: find the right one, and name the file."""

import os

import numpy as np
import pytest
import tflite_builder as tfl
from model_builder import Model, f32

from trireme.model_file import dumps
from trireme.model_file.convert import convert
from trireme.support.errors import ConvertError, ModelFileError


def test_the_bytes_say_what_a_file_is(tmp_path):
    m = Model(x=f32(2))
    files = {
        "trm": dumps(m.finish(m.op("relu", m.x))),
        "tflite": tfl.one_op("RELU", [tfl.T((2,))], [tfl.T((2,))]),
    }
    for data in files.values():
        path = tmp_path / "model.bin"
        path.write_bytes(data)
        for source in (data, path, str(path)):
            assert [node.op for node in convert(source).nodes] == ["relu"]


@pytest.mark.parametrize("suffix", ["trm", "tflite", "onnx"])
def test_a_damaged_file_is_named(tmp_path, suffix):
    path = tmp_path / f"odd.{suffix}"
    for data in (b"", b"hello", os.urandom(64), np.zeros(99).tobytes()):
        path.write_bytes(data)
        with pytest.raises(ModelFileError, match=rf"odd\.{suffix}: "):
            convert(path)


def test_an_unsupported_model_is_named(tmp_path):
    path = tmp_path / "odd.tflite"
    path.write_bytes(tfl.one_op("CUSTOM", [tfl.T((2,))], [tfl.T((2,))]))
    with pytest.raises(ConvertError, match=r"odd\.tflite: "):
        convert(path)


def test_what_is_no_file_is_refused(tmp_path):
    os.mkfifo(tmp_path / "pipe.onnx")
    (tmp_path / "text.txt").write_text("hello")
    for name, text in {
        "pipe.onnx": "not a regular file",
        ".": "not a regular file",
        "none.onnx": "No such file",
        "text.txt": "of no known kind",
    }.items():
        with pytest.raises(ModelFileError, match=text):
            convert(tmp_path / name)
