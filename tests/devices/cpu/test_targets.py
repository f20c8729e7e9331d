"""Kernels for instruction sets that this machine lacks: at least their code can be made."""

import llvmlite.binding as llvm
import numpy as np
import pytest
from cpu_objects import objects

import trireme.ops  # noqa: F401
from trireme.devices.cpu.codegen.emit import machine_for, module_text, optimised
from trireme.devices.cpu.codegen.target import ISAS, choose_isa
from trireme.devices.cpu.compile.program import build
from trireme.devices.cpu.kernels.lowering import native_reason
from trireme.devices.cpu.runtime import native as runtime
from trireme.ir.builder import GraphBuilder
from trireme.ir.graph import TensorType
from trireme.runtime.program.options import ExecutionOptions
from trireme.runtime.session.session import Session

TARGETS = {
    "neon": ("aarch64-unknown-linux-gnu", ""),
    "avx512": ("x86_64-unknown-linux-gnu", "znver4"),
}


def small_network():
    rng = np.random.default_rng(0)

    def constant(*shape):
        return builder.constant("w", rng.standard_normal(shape).astype(np.float32))

    def conv(x, weights, groups):
        return builder.add(
            "conv",
            x,
            weights,
            strides=(1, 1),
            pads=(1, 1, 1, 1),
            dilations=(1, 1),
            groups=groups,
            layout="NHWC",
            activation="hard_swish",
        )

    builder = GraphBuilder("small")
    x = builder.input("x", TensorType((1, 9, 9, 3), "float32"))
    y = conv(x, constant(70, 3, 3, 3), 1)
    y = conv(y, constant(70, 3, 3, 1), 70)
    y = conv(y, constant(130, 3, 3, 70), 1)
    y = builder.add("gelu", builder.add("tanh", y))
    y = builder.add("transpose", y, perm=(0, 3, 1, 2))
    y = builder.add("softmax", y, axis=-1)
    axes = builder.constant("axes", np.array([2, 3], np.int64))
    return builder.finish(builder.add("reduce_mean", y, axes))


def test_numbers_are_kept_in_registers():
    """LLVM's passes run: without them values are right and kernels many times slower."""
    isa = choose_isa("auto")
    codes = {code.symbol: module_text(isa, code) for code in build(small_network(), isa, 2).codes}
    text = min((text for text in codes.values() if "alloca" in text), key=len)
    assert "alloca" not in str(optimised(text, machine_for(isa)))


@pytest.mark.parametrize("name", TARGETS)
def test_code_for_another_cpu(name):
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    triple, cpu = TARGETS[name]
    isa = ISAS[name]
    graph = small_network()
    assert all(native_reason(graph, node) is None for node in graph.nodes)
    machine = llvm.Target.from_triple(triple).create_target_machine(cpu=cpu, opt=2)
    for code in {code.symbol: code for code in build(graph, isa, 2).codes}.values():
        module = llvm.parse_assembly(module_text(isa, code), llvm.create_context())
        module.verify()
        assert code.name in machine.emit_assembly(module)


def test_threads_make_the_same_objects():
    isa = choose_isa("auto")
    codes = list({code.symbol: code for code in build(small_network(), isa, 2).codes}.values())
    one, three = (objects(isa, codes, threads) for threads in (1, 3))
    assert one == three and all(one)


def test_loading_tells_how_far_it_is(tmp_path):
    told = []
    options = {"cpu": {"cache_dir": tmp_path}}
    for _ in range(2):
        with Session(
            small_network(),
            execution_options=ExecutionOptions(device_options=options),
            progress=lambda *step: told.append(step),
        ):
            pass
    compiled = [step for step in told if step[2]]
    assert compiled == [("compiling kernels", k + 1, len(compiled)) for k in range(len(compiled))]
    assert ("placing nodes", 0, 0) in told and len(compiled) > 3


@pytest.mark.skipif(not runtime.has_futex(), reason="workers sleep in Python on this system")
def test_the_runtime_sleeps_in_the_kernel_or_in_python():
    assert "@syscall(i64 " in runtime.runtime_ir(True, 0)
    assert "call i64 (i64, ...) @syscall" not in runtime.runtime_ir(False, 0)
