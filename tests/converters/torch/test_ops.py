"""Each ATen op with a rule against torch on the same inputs."""

import itertools

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from torch_cases import CASES, SEED, Layer  # noqa: E402 - needs torch
from torch_complex_cases import COMPLEX  # noqa: E402 - needs torch

import trireme  # noqa: E402
from trireme.converters.torch.program import read_program  # noqa: E402
from trireme.converters.torch.source import op_of  # noqa: E402
from trireme.converters.torch.table import ATEN_COMPLEX, supported_aten  # noqa: E402
from trireme.ir.interpreter import interpret  # noqa: E402
from trireme.support.mapped import ignore_file  # noqa: E402

IDS = [f"{place}-{case[0]}" for place, case in enumerate(CASES)]
BATCHES = 24
FLOAT = dict(rtol=2e-5, atol=2e-6)


def module_and_inputs(case):
    _, function, *makers = case
    rng = np.random.default_rng(SEED)
    module = function if isinstance(function, Layer) else Layer(function)
    torch.manual_seed(SEED)
    for parameter in module.parameters():
        torch.nn.init.uniform_(parameter, -0.5, 0.5)
    return module.eval(), tuple(make(rng) for make in makers)


class Together(torch.nn.Module):
    """Modules side by side, each with inputs of its own."""

    def __init__(self, pairs):
        super().__init__()
        self.parts = torch.nn.ModuleList([module for module, _ in pairs])
        self.counts = [len(inputs) for _, inputs in pairs]

    def forward(self, *inputs):
        left = iter(inputs)
        return [
            part(*itertools.islice(left, count))
            for part, count in zip(self.parts, self.counts, strict=True)
        ]


def agrees(pairs):
    module = Together(pairs).eval()
    inputs = tuple(one for _, given in pairs for one in given)
    graph = trireme.convert(module, inputs)
    with torch.no_grad():
        wanted = torch.utils._pytree.tree_leaves([own(*given) for own, given in pairs])
    feeds = dict(zip(graph.inputs, (one.numpy() for one in inputs), strict=True))
    made = interpret(graph, feeds)
    found = [made[value] for value in graph.outputs]
    assert len(found) == len(wanted)
    for ours, theirs in zip(found, wanted, strict=True):
        assert str(ours.dtype) == str(theirs.numpy().dtype)
        assert ours.shape == tuple(theirs.shape)
        np.testing.assert_allclose(ours, theirs.numpy(), **FLOAT)


@pytest.mark.parametrize("batch", range(BATCHES))
def test_ops_agree_with_torch(batch):
    """Cases share a program, for torch takes half a second to decompose any; where the program
    fails, each is tried alone, so that the failure names its case.
    """
    print("seed", SEED)
    cases = CASES[batch::BATCHES]
    try:
        agrees([module_and_inputs(case) for case in cases])
    except Exception:
        for name, case in zip(IDS[batch::BATCHES], cases, strict=True):
            print("case", name)
            agrees([module_and_inputs(case)])
        raise


def named(cases):
    return {f"aten.{case[0]}" if "." in case[0] else f"aten.{case[0]}.default" for case in cases}


def test_every_rule_has_a_case():
    elsewhere = {"aten._local_scalar_dense.default", "aten.sym_size.int"}  # in test_programs
    elsewhere.add("aten._int_mm.default")  # in test_quantized
    rules = {name for name in supported_aten() if name.startswith("aten.")}  # or test_experts
    assert sorted(rules - named(CASES) - elsewhere) == []
    assert sorted(set(ATEN_COMPLEX) - named(COMPLEX)) == []


@pytest.mark.parametrize("case", CASES[::9], ids=IDS[::9])
def test_a_case_is_of_its_op(case):
    module, inputs = module_and_inputs(case)
    program = read_program(module, inputs, None, True, ignore_file)
    ops = {op_of(n) for n in program.exported.graph.nodes if n.op == "call_function"}
    name = case[0] if "." in case[0] else f"{case[0]}.default"
    assert f"aten.{name}" in ops
