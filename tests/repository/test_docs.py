"""Every block of Python in README and docs/ runs as it is printed."""

import pkgutil
import re

import numpy as np
import pytest
from zoo import CHECKOUT

import trireme
from trireme.ir.builder import GraphBuilder
from trireme.ir.graph import TensorType

PAGES = [CHECKOUT / "README.md", *sorted((CHECKOUT / "docs").rglob("*.md"))]
BLOCKS = [
    pytest.param(block, id=f"{page.stem}-{number}")
    for page in PAGES
    for number, block in enumerate(re.findall(r"```python\n(.*?)```", page.read_text(), re.S))
]
X = np.ones((2, 3), np.float32)


def names_of_the_reader():
    """What a block takes as given: arrays, feeds, a builder, values of its graph."""
    b = GraphBuilder("given")
    y, z = (b.input(name, TensorType((2,), "float32")) for name in "yz")
    zeros = b.constant("zeros", np.zeros(2, np.float32))
    values = {"y": y, "z": z, "zeros": zeros, "GraphBuilder": lambda name: b}
    return {"trireme": trireme, "x": X, "w": X.T, "feeds": [{"input": X}] * 3, **values}


@pytest.mark.parametrize("block", BLOCKS)
def test_blocks_run(block, tmp_path, monkeypatch):
    b = GraphBuilder("a model of the reader's")
    graph = b.finish(b.add("relu", b.input("input", TensorType(X.shape, "float32"))))
    for name in ("m.tflite", "model.tflite", "model.onnx"):
        trireme.save(graph, tmp_path / "graph.trm")
        (tmp_path / name).write_bytes((tmp_path / "graph.trm").read_bytes())
    monkeypatch.chdir(tmp_path)
    exec(compile(block, "block", "exec"), names_of_the_reader())


def test_there_are_blocks():
    assert len(BLOCKS) >= 6


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_links_and_paths_lead_somewhere(page):
    text = page.read_text()
    for target in re.findall(r"\]\((?!http)([^)#]+)", text):
        assert (page.parent / target).exists(), target
    for path in re.findall(
        r"`((?:engine|devices|converters|tools|tests|schema|docs)/[\w/.-]+)`", text
    ):
        assert (CHECKOUT / path).exists(), path


def test_pages_named_in_the_code_are_there():
    folders = ("engine", "devices", "converters", "tools", "tests", "examples", "schema")
    files = [path for folder in folders for path in (CHECKOUT / folder).rglob("*.[pf][yb]*")]
    for file in files:
        if file.suffix in (".py", ".fbs"):
            for page in re.findall(r"(?<![\w/.])docs/[\w/-]+\.md", file.read_text()):
                assert (CHECKOUT / page).exists(), f"{file}: {page}"


def test_the_index_has_every_page():
    index = (CHECKOUT / "docs" / "README.md").read_text()
    for page in (CHECKOUT / "docs").rglob("*.md"):
        name = page.relative_to(CHECKOUT / "docs").as_posix()
        assert name == "README.md" or f"({name})" in index, name


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_names_of_the_package_are_there(page):
    for name in re.findall(r"`(trireme(?:\.\w+)+)", page.read_text()):
        assert resolved(name), name


def resolved(name):
    """Whether a dotted name is a module, or what a module has."""
    try:
        pkgutil.resolve_name(name)
    except (ImportError, AttributeError):
        return False
    return True
