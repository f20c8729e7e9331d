"""Kernels are compiled beside lowering; errors on either side end the threads and lose nothing."""

import os
import subprocess
import sys
import textwrap
import threading

import numpy as np
import pytest
from cpu_objects import objects
from cpu_run import node_graph

from trireme.backend.registry import open_device
from trireme.devices.cpu import device as device_module
from trireme.devices.cpu.codegen import emit, llvm_calls
from trireme.devices.cpu.codegen.ahead import CompileAhead
from trireme.devices.cpu.codegen.kernel_cache import code_of
from trireme.devices.cpu.codegen.target import choose_isa
from trireme.support.errors import CompileError

SEED = 5
_ARGUMENTS = "(ptr %a, i64 %c, ptr %l) #0"


def _graph():
    rng = np.random.default_rng(SEED)
    arrays = [rng.standard_normal(shape).astype(np.float32) for shape in ((3, 5), (7, 5))]
    return node_graph("fully_connected", arrays, {"activation": ""}, constants=(1,))[0]


def _compiler_threads():
    return [one.name for one in threading.enumerate() if one.name.startswith("trireme-compile")]


@pytest.fixture
def device(tmp_path):
    opened = open_device("cpu", threads=1, cache_dir=tmp_path)
    yield opened
    opened.close()


def test_kernels_begin_to_compile_when_their_group_is_lowered(device, monkeypatch):
    told = []
    begin, begin_all = CompileAhead.begin, CompileAhead.begin_all

    def begun(ahead, code):
        told.append(code.name)
        begin(ahead, code)

    def begun_all(ahead, codes):
        told.append([code.name for code in codes if not ahead.has(code)])
        begin_all(ahead, codes)

    monkeypatch.setattr(CompileAhead, "begin", begun)
    monkeypatch.setattr(CompileAhead, "begin_all", begun_all)
    device.compile([_graph()])
    assert told[0] == "runtime" and len([one for one in told if isinstance(one, str)]) > 1
    assert [one for one in told if not isinstance(one, str)] == [[], []]


def test_a_lowering_that_fails_ends_the_threads_and_can_be_repeated(device, monkeypatch):
    build = device_module.build

    def fails(*args, **named):
        build(*args, **named)
        raise ZeroDivisionError

    with monkeypatch.context() as patched:
        patched.setattr(device_module, "build", fails)
        with pytest.raises(ZeroDivisionError):
            device.compile([_graph()])
    assert not _compiler_threads()
    assert len(device.compile([_graph()])) == 1
    assert not _compiler_threads()


def test_a_device_compiles_nothing_before_it_is_asked(tmp_path, monkeypatch):
    def fails(*_):
        raise AssertionError("compiled")

    monkeypatch.setattr(emit, "maker", fails)
    open_device("cpu", threads=2, cache_dir=tmp_path).close()


def test_native_functions_are_compiled_when_one_is_called_first(device):
    assert device._native.run is device._native.run
    with pytest.raises(AttributeError, match="walk"):
        _ = device._native.walk


@pytest.mark.parametrize("is_past", [True, False])
def test_llvm_refuses_a_kernel_in_a_sentence(is_past, monkeypatch):
    if not is_past:
        monkeypatch.setattr(emit, "past_the_lock", lambda: None)
    for body in ("{ ret i64 0 }", "{ br label %nowhere }", "{", "{ %x = add i64 %x, 1 ret void }"):
        code = code_of("bad", f"define void @bad{_ARGUMENTS} {body}")
        with pytest.raises(CompileError, match="LLVM refused a kernel"):
            objects(choose_isa("auto"), [code], 1)


def test_code_is_the_same_past_the_lock_and_within_it(monkeypatch):
    isa = choose_isa("auto")
    body = "{ %x = load float, ptr %a %y = fadd float %x, %x store float %y, ptr %a ret void }"
    codes = [code_of(f"k{n}", f"define void @k{n}{_ARGUMENTS} {body}") for n in range(3)]
    assert llvm_calls.past_the_lock() is not None
    past = objects(isa, codes, 2)
    monkeypatch.setattr(emit, "past_the_lock", lambda: None)
    assert objects(isa, codes, 2) == past


def test_a_program_of_known_shapes_imports_no_kernels_of_open_shapes(tmp_path):
    """In a process of its own: other tests import them."""
    code = """
        import sys
        import numpy as np
        import trireme, trireme.ops
        from trireme.ir.builder import GraphBuilder
        from trireme.ir.graph import TensorType
        builder = GraphBuilder("one")
        x = builder.input("x", TensorType((4, 5), "float32"))
        trireme.save(builder.finish(builder.add("relu", x)), sys.argv[1])
        with trireme.Session(sys.argv[1]) as session:
            session.run({"x": np.ones((4, 5), np.float32)})
        for name in ("devices.cpu.compile.open_sizes", "ir.quantization.report"):
            print(f"trireme.{name}" in sys.modules)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), str(tmp_path / "relu.trm")],
        env={**os.environ, "XDG_CACHE_HOME": str(tmp_path)},
        check=True,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.stdout.split() == ["False", "False"]
