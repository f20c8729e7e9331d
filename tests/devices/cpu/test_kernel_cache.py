"""Kernels by recipe: equal recipes mean equal IR and the other way round, all that decides about
code is in its key, and what is in the cache is loaded without LLVM.
"""

import re
import shutil
import struct
import subprocess
import sys
import textwrap
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from cpu_objects import objects
from cpu_run import node_graph, sample_graph
from sweep import sweep
from zoo import zoo_path

import trireme.devices.cpu.compile.table  # noqa: F401
import trireme.ops  # noqa: F401
from trireme.backend.registry import open_device
from trireme.devices.cpu.codegen import emit
from trireme.devices.cpu.codegen import kernel_cache as recipes
from trireme.devices.cpu.codegen.kernel_cache import (
    KernelCache,
    code_of,
    encoded,
    form_of,
    sources_digest,
)
from trireme.devices.cpu.codegen.link import Linked, lay_out
from trireme.devices.cpu.codegen.target import (
    ISAS,
    available_isas,
    choose_isa,
    cpu_features,
    host_cpu,
)
from trireme.devices.cpu.compile.program import build
from trireme.devices.cpu.kernels.f32 import products
from trireme.ir.builder import GraphBuilder
from trireme.ir.graph import Quant, TensorType
from trireme.ir.op import all_ops
from trireme.model_file.cache import optimised
from trireme.support.errors import CompileError, InternalError, TriremeError

SEED = 20261122
MODELS = [
    "kws_dscnn_f32",
    "resnet8_cifar10_f32",
    "ad01_fp32",
    "vww_96_float",
    "deeplabv3_f32",
    "mobilenet_v1_0.25_224_f32",
    "kws_dscnn_int8",
    "vww_96_int8",
    "ad01_int8",
    "tf2_mobilenet_v2_1.0_224_ptq",
]


class Watched(KernelCache):
    """Makes every kernel anew and notes what its recipe and its IR were."""

    def __init__(self, isa):
        super().__init__(isa)
        self.texts, self.digests = {}, {}

    def kernel(self, make, *args, **named):
        made = make(self.isa, *args, **named)
        text = (made if not isinstance(made, tuple) else made[0]).text
        known = super().kernel(make, *args, **named)
        code, *rest = known if isinstance(known, tuple) else (known,)
        assert rest == (list(made[1:]) if isinstance(made, tuple) else [])
        recipe = (make, args, named)
        assert self.texts.setdefault(code.digest, text) == text, f"another IR: {recipe}"
        assert code.text == text
        first = self.digests.setdefault((make, text), (code.digest, recipe))
        assert first[0] == code.digest, f"the same IR: {recipe} and {first[1]}"
        return known


def sample_graphs():
    """The samples of all ops, their constants as constants."""
    rng = np.random.default_rng(SEED)
    print("seed", SEED)
    for op in all_ops():
        for sample in op.samples(rng):
            try:
                yield sample_graph(op, sample)[0]
            except TriremeError:
                continue  # a sample that only the reference takes


def lowered(graph, isa, threads, known):
    types = [value.type for value in graph.values.values()]
    if all(type.is_static and type.dtype != "string" for type in types):
        build(graph, isa, threads, recipes=known)


@pytest.mark.parametrize(
    "isa", sweep(["avx512", "avx2", "generic", "neon"], always=["avx512", "neon"])
)
def test_equal_recipes_are_equal_code(isa):
    known = Watched(ISAS[isa])
    for graph in sample_graphs():
        lowered(graph, ISAS[isa], 2, known)
    assert len(known.texts) > 100


@pytest.mark.parametrize(
    "model", sweep(MODELS, always=["kws_dscnn_f32", "resnet8_cifar10_f32", "vww_96_int8"])
)
def test_equal_recipes_are_equal_code_in_models(model):
    isa = choose_isa("auto")
    graph = optimised(zoo_path(f"{model}.tflite"), folder=None)
    known = Watched(isa)
    for threads in (1, 2, 1):
        lowered(graph, isa, threads, known)
    assert known.texts


def products_of_bytes(large):
    """A product of bytes; so many of its weights are too large for a word of 16 bits."""
    b = GraphBuilder("products")
    x = b.input("x", TensorType((3, 64), "int8", Quant((0.02,), (0,))))
    w = np.ones((48, 64), np.int8)
    w[np.arange(large), 4 * np.arange(large)] = 127  # two of a pair add up to more than 128
    w[np.arange(large), 4 * np.arange(large) + 1] = 127
    weights = b.constant("w", w, Quant((0.01,), (0,)))
    out = Quant((0.5,), (0,))
    attrs = {"activation": ""}
    return b.finish(*b.add_node("fully_connected", [x, weights], attrs, quants=[out]))


def test_code_does_not_depend_on_how_many_steps_are_repeated():
    known = Watched(ISAS["avx2"])
    for large in (1, 2, 3):
        lowered(products_of_bytes(large), ISAS["avx2"], 1, known)
    (text,) = known.texts.values()
    assert "bytes" in text


@dataclass(frozen=True)
class One:
    x: object


@dataclass(frozen=True)
class Other:
    x: object


def test_arguments_have_one_text_each():
    values = [
        0,
        1,
        True,
        False,
        None,
        0.0,
        -0.0,
        1.0,
        float("inf"),
        float("nan"),
        "",
        "1",
        (),
        (1,),
        ((1,), 2),
        (1, (2,)),
        ("1 2",),
        ("1", "2"),
        (1, 2),
        One(1),
        Other(1),
        One((1, 2)),
        np.float32(1),
        np.int64(1),
        form_of(np.zeros((2, 3), np.int8)),
        form_of(np.ones((3, 2), np.int8)),
        form_of(np.zeros((2, 3), np.int32)),
        np.broadcast_to(np.int8(7), (2, 3)),
        form_of(np.zeros((0, 3), np.int8)),
        np.nextafter(1.0, 2.0),
    ]
    texts = [encoded(value) for value in values]
    assert len({*texts}) == len(values)
    assert texts == [encoded(value) for value in values]
    for bad in (np.arange(3), [1], lambda: 1, {1}, object()):
        with pytest.raises(InternalError, match="recipe"):
            encoded(bad)
        with pytest.raises(InternalError, match="recipe"):
            encoded((1, One(bad)))


def test_changed_sources_make_other_keys(tmp_path):
    folder = tmp_path / "cpu"
    shutil.copytree(Path(recipes.__file__).parents[1], folder)
    before = sources_digest(folder)
    assert before == sources_digest()
    for change in ("kernels/f32/gemm.py", "kernels/f32/winograd/kernel.py", "new.py"):
        with (folder / change).open("a") as file:
            file.write("\n")
        sources_digest.cache_clear()
        after = sources_digest(folder)
        assert after != before, change
        before = after
    sources_digest.cache_clear()


def test_the_key_has_the_text_of_all_source_that_makers_import():
    device, *rooms = recipes._SOURCES
    assert all(folder.is_dir() for folder in rooms)
    hashed = {"devices", *(folder.name for folder in rooms)}
    for file in [*device.glob("kernels/**/*.py"), *device.glob("codegen/**/*.py")]:
        imported = set(re.findall(r"from trireme\.(?:placement\.)?(\w+)", file.read_text()))
        assert imported <= hashed, file


@pytest.mark.parametrize("what", ["sources_digest", "llvm_identity", "machine_identity"])
def test_what_is_in_the_key(tmp_path, monkeypatch, what):
    """Code from other sources, another LLVM or another CPU is not taken from the cache."""
    rng = np.random.default_rng(SEED)
    graph, _ = node_graph("relu", [rng.standard_normal((3, 5)).astype(np.float32)], {})

    def made():
        before = {*tmp_path.iterdir()}
        device = open_device("cpu", threads=1, cache_dir=tmp_path)
        device.compile([graph])
        device.close()
        return len({*tmp_path.iterdir()} - before)

    assert made() > 0
    assert made() == 0
    monkeypatch.setattr(recipes, what, lambda *_: "another")
    is_for_any = what == "machine_identity" and choose_isa("auto").cpu  # one code for all CPUs
    assert (made() == 0) if is_for_any else (made() > 0)


def test_a_warm_load_needs_no_llvm(tmp_path):
    """A second process links from the cache: LLVM stays unloaded, and no IR is written."""
    code = textwrap.dedent(
        f"""
        import sys
        import numpy as np
        from trireme.devices.cpu.codegen import ir
        from trireme.runtime.program.options import ExecutionOptions
        from trireme.runtime.session.session import Session
        made = []
        plain = ir.Function.__init__
        def counted(self, name, *rest):
            made.append(name)
            plain(self, name, *rest)
        ir.Function.__init__ = counted
        from pathlib import Path
        folder = Path({str(tmp_path)!r})
        with Session(
            {str(zoo_path("vww_96_float.tflite"))!r}, threads=2,
            execution_options=ExecutionOptions(
                model_cache=folder / "graphs",
                device_options={{"cpu": {{"cache_dir": folder / "objects"}}}},
            ),
        ) as session:
            feeds = {{v.name: np.ones(v.type.dims, np.float32) for v in session.inputs}}
            out = next(iter(session.run(feeds).values()))
        print("llvmlite" in sys.modules, len(made), out.tobytes().hex())
        """
    )
    runs = [
        subprocess.run(
            [sys.executable, "-c", code], check=True, capture_output=True, text=True
        ).stdout.split()
        for _ in range(2)
    ]
    assert runs[0][0] == "True" and int(runs[0][1]) > 5
    if sys.platform == "linux" and ISAS["avx2"].arch == choose_isa("auto").arch:
        assert runs[1][:2] == ["False", "0"]
    assert runs[0][2] == runs[1][2]


def test_weights_are_packed_once_and_the_compiler_gives_its_memory_back(tmp_path, monkeypatch):
    """Both work at the same time, so the order is open."""
    rng = np.random.default_rng(SEED)
    arrays = [rng.standard_normal(shape).astype(np.float32) for shape in ((3, 5), (7, 5))]
    graph, _ = node_graph("fully_connected", arrays, {"activation": ""}, constants=(1,))
    told = []
    given_back, plain = emit.give_back, products.pack_panels
    monkeypatch.setattr(emit, "give_back", lambda n: (told.append("compiled"), given_back(n)))
    monkeypatch.setattr(products, "pack_panels", lambda *a: (told.append("packed"), plain(*a))[1])
    device = open_device("cpu", threads=1, cache_dir=tmp_path)
    device._native.load()
    told.clear()
    device.compile([graph])
    device.close()
    assert sorted(told) == ["compiled", "packed"]


def test_llvm_works_on_when_its_memory_was_given_back():
    isa = choose_isa("auto")
    code = code_of("none", "define void @none(ptr %a, i64 %c, ptr %l) #0 { ret void }")
    before = objects(isa, [code], 1)
    emit.give_back(kernels=1000)
    assert objects(isa, [code], 1) == before


def test_features_are_those_that_llvm_finds():
    names = {need for isa in ISAS.values() for need in isa.needs} - {"neon"}
    found = {name for name in names if f"+{name}" in host_cpu()[1].split(",")}
    assert names & cpu_features() == found
    assert available_isas()


def test_damaged_object_code_is_refused():
    if choose_isa("auto").arch != "x86" or sys.platform != "linux":
        pytest.skip("objects are linked by LLVM here")
    text = textwrap.dedent(
        """
        declare void @no_such_function_anywhere()
        define void @calls(ptr %args, i64 %chunk, ptr %local) #0 {
          call void @no_such_function_anywhere()
          ret void
        }
        """
    )
    isa = choose_isa("auto")
    (data,) = objects(isa, [code_of("calls", text)], 1)
    with pytest.raises(CompileError, match="no_such_function_anywhere"):
        Linked(lay_out([data]))
    with pytest.raises(CompileError, match="damaged"):
        lay_out([data[:40] + struct.pack("<Q", len(data)) + data[48:]])
    sections = struct.unpack_from("<Q", data, 40)[0]
    count = struct.unpack_from("<H", data, 60)[0]
    for k in range(count):
        at = sections + 64 * k
        if struct.unpack_from("<I", data, at + 4)[0] == 4:  # relocations
            where = struct.unpack_from("<Q", data, at + 24)[0] + 8
            odd = data[:where] + struct.pack("<I", 99) + data[where + 4 :]
            with pytest.raises(CompileError, match="type 99|no_such"):
                Linked(lay_out([odd]))
