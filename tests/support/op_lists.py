"""Where the code outside engine/ops keeps lists of op names: what `test_op_lists.py` holds small.

A list is a set, list, tuple, dict or split string with two or more names of ops as its elements or
keys. Two things are no list, but the algebra of the ops they name: a comparison with two names, and
the line of a rewrite in a pass, `(["add", "sub"], rule)`.
"""

import ast
import functools
import pathlib
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import trireme.ops  # noqa: F401 - fills the registry
from trireme.ir.op import all_ops

TOPS = ("engine", "devices", "converters", "tools")
OWN = "engine/ops/"
REWRITES = "engine/passes/"


TABLES = {
    "converters/": "what the operators of a format become",
    "devices/cpu/kernels/": "kernels, and what they are made of",
    "devices/opencl/kernels/": "kernels, and what they are made of",
    "devices/npu/compiler/lower_": "how ops become commands",
    "devices/npu/compiler/constraints.py": "what the machine asks of the ops it has",
    "devices/npu/simulator/": "what the machine's functions compute",
    "devices/npu/stream/commands.py": "the machine's functions",
    "engine/calibration/nets.py": "networks, layer by layer",
    "engine/quantiser/scheme.py": "what a scheme of integers takes",
    "engine/quantiser/weights.py": "how the weights of ops become smaller",
}
"""Where lists of op names are tables: a module or the start of its path, and of what."""

RULES = {
    (
        "devices/opencl/gpu_prices.py",
        "layer_normalization rms_normalization softmax log_softmax max_pool average_pool",
    ): "measured starts of families of kernels",
    ("engine/ir/contents.py", "mul add sub div min max"): "arithmetic on dimensions",
    (
        "engine/ir/contents.py",
        "reduce_prod reduce_sum reduce_min reduce_max",
    ): "reductions of dimensions",
    ("engine/passes/algebra.py", "add sub mul div pow neg"): "the arithmetic of a polynomial",
    ("engine/passes/axes.py", "gather pad resize slice"): "one function renumbers one op",
    ("engine/passes/integer_ops.py", "add sub mul"): "the arithmetic that a number may be part of",
    ("engine/passes/integer_ops.py", "div gemm"): "ops that become another op on integers",
    ("engine/passes/linear.py", "conv conv_transpose fully_connected"): "what `Linear` computes",
    (
        "engine/placement/shards/rules.py",
        "average_pool conv flatten fully_connected gather gemm lp_pool matmul max_pool pad "
        "reshape resize slice squeeze transpose unsqueeze",
    ): "one function cuts one op",
    (
        "engine/quantiser/repairs/equalise.py",
        "max_pool average_pool relu",
    ): "factors of channels pass through them",
    (
        "engine/quantiser/repairs/smooth.py",
        "layer_normalization rms_normalization",
    ): "factors of channels fold into their constants",
}
"""Lists that are the algebra of the ops they name."""

NOT_OPS = {
    ("devices/cpu/compile/table.py", "conv_transpose resize top_k"): "modules",
    ("engine/ir/polynomials.py", "min max"): "functions in the text of a dimension",
    ("engine/quantiser/repairs/equalise.py", "relu relu6"): "fused activations",
}
"""Lists of other things that have the names of ops."""


class OpList(NamedTuple):
    """A list in a module: the path, the line, and the names of ops in it, in order."""

    path: str
    line: int
    names: str


@functools.cache
def op_lists(checkout: pathlib.Path) -> tuple[OpList, ...]:
    """Return the lists of op names of every module outside engine/ops."""
    return tuple(_op_lists(checkout))


def _op_lists(checkout: pathlib.Path) -> Iterator[OpList]:
    ops = {op.name for op in all_ops()}
    for top in TOPS:
        for path in sorted((checkout / top).rglob("*.py")):
            where = path.relative_to(checkout).as_posix()
            if not where.startswith(OWN):
                for line, names in lists_in(path.read_text(), ops, where.startswith(REWRITES)):
                    yield OpList(where, line, " ".join(names))


def outside_tables(checkout: pathlib.Path) -> list[OpList]:
    """Return the lists that are in no table."""
    return [one for one in op_lists(checkout) if not one.path.startswith(tuple(TABLES))]


def lists_in(source: str, ops: set[str], is_pass: bool = False) -> Iterator[tuple[int, list[str]]]:
    """Yield (line, names of ops) of every list in a module."""
    nodes = list(ast.walk(ast.parse(source)))
    algebra = {id(one) for node in nodes for one in _compared(node)}
    if is_pass:
        algebra |= {id(one) for node in nodes for one in _roots(node)}
    for node in nodes:
        found = [word for word in _words(node) if word in ops]
        if len(found) > 1 and id(node) not in algebra and isinstance(node, ast.expr):
            yield node.lineno, found


def _words(node: ast.AST) -> list[str]:
    """The strings that are elements of a literal, or the words of a string that is split."""
    if isinstance(node, ast.Set | ast.List | ast.Tuple):
        return _strings(node.elts)
    if isinstance(node, ast.Dict):
        return _strings(node.keys)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        texts = _strings([node.func.value]) if node.func.attr == "split" else []
        return " ".join(texts).split()
    return []


def _strings(nodes: Iterable[ast.expr | None]) -> list[str]:
    constants = [node.value for node in nodes if isinstance(node, ast.Constant)]
    return [value for value in constants if isinstance(value, str)]


def _compared(node: ast.AST) -> list[ast.expr]:
    """The two names that a comparison looks for its left side among."""
    if not isinstance(node, ast.Compare) or not isinstance(node.ops[0], ast.In | ast.NotIn):
        return []
    return [side for side in node.comparators if len(_words(side)) == 2]


def _roots(node: ast.AST) -> list[ast.expr]:
    """The ops of the root in a line (ops, rule) of a rewrite."""
    if not isinstance(node, ast.Tuple) or len(node.elts) != 2:
        return []
    ops, rule = node.elts
    return [ops] if isinstance(ops, ast.List) and isinstance(rule, ast.Name) else []
