"""What a repository finds in a folder: names, versions, and what it refuses."""

import os

import pytest

from trireme.serving.layout import find_models, is_model_name, named_models, stamp_of
from trireme.support.errors import ModelFileError


def place(folder, *paths):
    for path in paths:
        file = folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(b"model")


def versions(layout):
    return {name: sorted(found) for name, found in layout.models.items()}


def test_folders_of_versions_and_plain_files(tmp_path):
    place(tmp_path, "a/1/model.onnx", "a/12/model.tflite", "b.onnx", "c.trm", "notes.txt")
    place(tmp_path, ".hidden.onnx", ".git/1/model.onnx", "a/1/weights.bin")
    layout = find_models(tmp_path)
    assert versions(layout) == {"a": [1, 12], "b": [1], "c": [1]}
    assert layout.models["a"][12].path == tmp_path / "a/12/model.tflite"
    assert not layout.refused


@pytest.mark.parametrize("name", ["a", "A-1_b.c", "x" * 128])
def test_good_names(name):
    assert is_model_name(name)


@pytest.mark.parametrize("name", ["", "..", "a..b", "../a", "a/b", "a b", "x" * 129, "é", "a\n"])
def test_bad_names(name):
    assert not is_model_name(name)


@pytest.mark.parametrize(
    "path, place_name, reason",
    [
        ("a b.onnx", "a b.onnx", "a name has"),
        ("a..b/1/model.onnx", "a..b", "a name has"),
        ("a/v1/model.onnx", "a/v1", "whole number"),
        ("a/01/model.onnx", "a/01", "whole number"),
        ("a/0/model.onnx", "a/0", "whole number"),
        ("a/1/net.onnx", "a/1", "holds 0 of"),
    ],
)
def test_refusals_say_why(tmp_path, path, place_name, reason):
    place(tmp_path, path)
    layout = find_models(tmp_path)
    assert not layout.models
    assert reason in layout.refused[place_name]


def test_two_models_of_one_version_are_refused(tmp_path):
    place(tmp_path, "a/1/model.onnx", "a/1/model.tflite")
    assert "holds 2 of" in find_models(tmp_path).refused["a/1"]


def test_two_places_of_one_name_are_refused(tmp_path):
    place(tmp_path, "a.onnx", "a.tflite")
    layout = find_models(tmp_path)
    assert versions(layout) == {"a": [1]}
    assert layout.refused == {"a.tflite": "another place holds a model 'a' too"}


def test_links_out_of_the_folder_are_refused(tmp_path):
    outside, root = tmp_path / "outside", tmp_path / "root"
    place(outside, "1/model.onnx", "x.onnx")
    place(root, "good/1/model.onnx", "mixed/1/weights.bin", "odd/1/weights.bin")
    os.symlink(outside, root / "folder")
    os.symlink(outside / "x.onnx", root / "file.onnx")
    os.symlink(outside / "1", root / "good/2")
    os.symlink(outside / "x.onnx", root / "mixed/1/model.onnx")
    os.symlink(root / "loop.onnx", root / "loop.onnx")
    os.symlink(root / "good/1", root / "good/3")
    layout = find_models(root)
    assert versions(layout) == {"good": [1, 3]}
    out, nowhere = "a link leads out of the folder", "a link leads nowhere"
    assert layout.refused == {
        "file.onnx": out,
        "folder": out,
        "good/2": out,
        "loop.onnx": nowhere,
        "mixed/1": out,
        "odd/1": "holds 0 of model.trm, model.onnx, model.tflite, expected one",
    }


def test_a_stamp_changes_with_any_file_of_a_version(tmp_path):
    place(tmp_path, "a/1/model.onnx", "a/1/weights.bin", "b.onnx", "b.bin")
    versioned, plain = tmp_path / "a/1/model.onnx", tmp_path / "b.onnx"
    before = stamp_of(versioned), stamp_of(plain)
    (tmp_path / "a/1/weights.bin").write_bytes(b"other")
    (tmp_path / "b.bin").write_bytes(b"longer")
    assert stamp_of(versioned) != before[0]
    assert stamp_of(plain) == before[1]
    assert stamp_of(tmp_path / "gone/1/model.onnx") == ()


def test_named_places(tmp_path):
    place(tmp_path, "digits.onnx", "versions/1/model.onnx", "versions/7/model.onnx")
    layout = named_models({"d": tmp_path / "digits.onnx", "v": tmp_path / "versions"})
    assert versions(layout) == {"d": [1], "v": [1, 7]}


@pytest.mark.parametrize("places", [{"a b": "."}, {"a": "missing.onnx"}])
def test_wrong_named_places(places, tmp_path):
    with pytest.raises(ModelFileError, match="model 'a"):
        named_models({name: tmp_path / path for name, path in places.items()})


def test_a_missing_folder(tmp_path):
    with pytest.raises(ModelFileError, match="cannot be read"):
        find_models(tmp_path / "none")
