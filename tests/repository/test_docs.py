"""The pages of README and docs/: every block runs or is output, every link and name is real."""

import os
import pkgutil
import re
import subprocess
import sys

import numpy as np
import pytest
from doc_blocks import KINDS, blocks, commands, is_part
from sweep import sweep
from zoo import CHECKOUT, zoo_folder

import trireme
from trireme.ir.builder import GraphBuilder
from trireme.ir.graph import TensorType
from trireme.tools.parser import make_parser

DOCS = CHECKOUT / "docs"
PAGES = [CHECKOUT / "README.md", CHECKOUT / "CONTRIBUTING.md", *sorted(DOCS.rglob("*.md"))]
PASTED = [page for page in PAGES if page == PAGES[0] or page.parent.name in ("tutorial", "how-to")]
"""Pages that run as pasted, from the first block to the last."""
X = np.ones((2, 3), np.float32)


def page_name(page):
    return page.relative_to(CHECKOUT).as_posix()


every_page = pytest.mark.parametrize("page", PAGES, ids=page_name)


@pytest.mark.parametrize(
    "page",
    sweep(
        PASTED,
        always=[
            *PASTED[::3],
            *(one for one in PASTED[1::3] + PASTED[2::3] if one.parent.name == "tutorial"),
        ],
    ),
    ids=page_name,
)
def test_a_page_runs_as_pasted(page, tmp_path):
    for library in ("torch", "ray", "skl2onnx"):
        if f"import {library}\n" in page.read_text() or f"from {library} " in page.read_text():
            pytest.importorskip(library, reason=f"{library} is not installed")
    script = CHECKOUT / "tests" / "support" / "doc_blocks.py"
    run = subprocess.run(
        [sys.executable, script, page, zoo_folder()],
        cwd=tmp_path,
        env={**os.environ, "TRIREME_CALIBRATION": str(tmp_path / "calibration.json")},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert run.returncode == 0, run.stdout[-3000:] + run.stderr[-3000:]


PRINTED = "place: 340 us\n  cpu     4\n  gpu     unused\n  npu     6\nsame\n"


@pytest.mark.parametrize(
    ("shown", "right"),
    [
        ("place: 1.2 ms\n  cpu  12\n", True),
        ("place: 1 us\n...\n  npu 6\n", True),
        ("...\nsame\n", True),
        ("  npu   6\n...\n", True),
        ("place: 340 us\n  npu 6\n", False),
        ("  npu 6\n...\n  cpu 4\n", False),
        ("place: 340 KiB\n", False),
        ("  gpu  unus\n", False),
    ],
)
def test_a_tutorial_shows_what_is_printed(shown, right):
    assert is_part(shown, PRINTED) == right


PYTHON = [
    pytest.param(block, id=f"{page_name(page)}-{number}")
    for page in PAGES
    if page not in PASTED
    for number, (kind, _, block) in enumerate(blocks(page.read_text()))
    if kind == "python"
]


def names_of_the_reader():
    """What a block of an explanation takes as given: arrays, feeds, a builder, its values."""
    b = GraphBuilder("given")
    y, z = (b.input(name, TensorType((2,), "float32")) for name in "yz")
    zeros = b.constant("zeros", np.zeros(2, np.float32))
    values = {"y": y, "z": z, "zeros": zeros, "GraphBuilder": lambda name: b}
    return {"trireme": trireme, "x": X, "w": X.T, "feeds": [{"input": X}] * 3, **values}


@pytest.mark.parametrize("block", PYTHON)
@pytest.mark.usefixtures("own_registry")
def test_blocks_run(block, tmp_path, monkeypatch):
    b = GraphBuilder("a model of the reader's")
    graph = b.finish(b.add("relu", b.input("input", TensorType(X.shape, "float32"))))
    for name in ("m.tflite", "model.tflite", "model.onnx"):
        trireme.save(graph, tmp_path / "graph.trm")
        (tmp_path / name).write_bytes((tmp_path / "graph.trm").read_bytes())
    monkeypatch.chdir(tmp_path)
    exec(compile(block, "block", "exec"), names_of_the_reader())


@every_page
def test_blocks_say_what_they_are(page):
    text = page.read_text()
    for kind, _, block in blocks(text):
        assert kind in KINDS, block
    prose = re.sub(r"^```.*?^```$", "", text, flags=re.S | re.M)
    assert not re.search(r"\n\n    \S", prose), "an indented block: fence it, and name its kind"


@every_page
def test_commands_parse(page):
    for kind, _, block in blocks(page.read_text()):
        for words in commands(block) if kind == "sh" else ():
            if words[0] == "trireme" and "--version" not in words:
                make_parser().parse_args(words[1:])


@every_page
def test_links_and_paths_lead_somewhere(page):
    text = page.read_text()
    for target in re.findall(r"\]\((?!http)([^)#]+)", text):
        assert (page.parent / target).exists(), target
    for path in re.findall(
        r"`((?:engine|devices|converters|tools|tests|schema|docs)/[\w/.-]+)`", text
    ):
        assert (CHECKOUT / path).exists(), path


@every_page
def test_anchors_are_headings(page):
    for target, anchor in re.findall(r"\]\(([^)#:]*)#([^)]+)\)", page.read_text()):
        text = (page.parent / target).read_text() if target else page.read_text()
        headings = re.findall(r"^#+ (.*)$", text, re.M)
        links = {re.sub(r"[^\w -]", "", one.lower()).replace(" ", "-") for one in headings}
        assert anchor in links, f"{target}#{anchor}"


def test_pages_named_in_the_code_are_there():
    folders = ("engine", "devices", "converters", "tools", "tests", "examples", "schema")
    files = [path for folder in folders for path in (CHECKOUT / folder).rglob("*.[pf][yb]*")]
    for file in files:
        if file.suffix in (".py", ".fbs"):
            for page in re.findall(r"(?<![\w/.])docs/[\w/-]+\.md", file.read_text()):
                assert (CHECKOUT / page).exists(), f"{file}: {page}"


def test_modules_named_in_comments_are_there():
    tops = ("engine", "devices", "converters", "tools", "tests", "examples")
    files = [path for top in tops for path in (CHECKOUT / top).rglob("*.py")]
    known = [f"/{path.relative_to(CHECKOUT).as_posix()}" for path in files]
    named = re.compile(r"(?<![\w/.*{}\"])([a-z][a-z0-9_]*(?:/[a-z0-9_]+)*\.py)\b")
    for file, name in zip(files, known, strict=True):
        for one in (
            named.findall(file.read_text()) if not name.startswith(("/tests", "/examples")) else ()
        ):
            assert any(other.endswith(f"/{one}") for other in known), f"{name}: {one}"


def test_the_index_has_every_page():
    index = (DOCS / "README.md").read_text()
    for page in DOCS.rglob("*.md"):
        name = page.relative_to(DOCS).as_posix()
        assert name == "README.md" or f"({name})" in index, name


@every_page
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
