"""Generated kernels as readable text: LLVM IR or machine code, with the nodes they run.

Called by `CpuExecutable.listings`, which `Session.kernels`, --dump-ir and --dump-asm end in.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from trireme.devices.cpu.codegen.jit import Jit
from trireme.devices.cpu.codegen.kernel_cache import Code
from trireme.devices.cpu.kernels.lowering import Step
from trireme.ir.graph import Graph, Node
from trireme.support.errors import RunError

_FORMS = {"ir": (".ll", ";"), "asm": (".s", "#")}
"""The suffix of files and the mark of a comment, by form."""


def listings(graph: Graph, steps: Iterable[Step], jit: Jit, form: str) -> dict[str, str]:
    """Return each kernel's text by file name: the kernel's name, a hash of its IR, a suffix.

    form: "ir" for the LLVM IR as it was generated, "asm" for the machine code
    Errors: RunError, for another form
    """
    if form not in _FORMS:
        raise RunError(f"code has no form {form!r}", facts=[f"known: {', '.join(_FORMS)}"])
    from trireme.devices.cpu.codegen.emit import module_text  # loads LLVM

    suffix, comment = _FORMS[form]
    users: dict[str, tuple[Code, list[Step]]] = {}
    for step in steps:
        users.setdefault(step.code.symbol, (step.code, []))[1].append(step)
    return {
        f"{symbol}{suffix}": "".join(f"{comment} {line}\n" for line in _header(graph, code, found))
        + (module_text(jit.isa, code) if form == "ir" else jit.assembly(code))
        for symbol, (code, found) in users.items()
    }


def _header(graph: Graph, code: Code, steps: Sequence[Step]) -> list[str]:
    """Say what the kernel is called, in how many chunks, and for which nodes."""
    lines = [f"{code.name}: void (ptr operands, i64 chunk, ptr thread's memory)"]
    for step in steps:
        where = f"{step.chunks} chunks" if step.chunks > 1 else "1 chunk"
        local = f", {step.local_bytes} bytes a thread" if step.local_bytes else ""
        lines.append(f"step of {where}{local}")
        lines += [f"  {_node_text(graph, graph.node(node))}" for node in step.nodes]
    return lines


def _node_text(graph: Graph, node: Node) -> str:
    inputs = ", ".join("-" if i is None else str(graph.type(i)) for i in node.inputs)
    outputs = ", ".join(str(graph.type(i)) for i in node.outputs)
    return f"{node.label}: {inputs} -> {outputs}"
