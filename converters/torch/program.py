"""From a module, an ExportedProgram or a .pt2 file to a program of few ATen ops."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils import _pytree

from trireme.converters.torch.archive import load_archive, quiet
from trireme.support.errors import ConvertError
from trireme.support.mapped import OnOpen

KEPT = (
    "_upsample_bicubic2d_aa.vec",
    "_upsample_bilinear2d_aa.vec",
    "_upsample_nearest_exact1d.vec",
    "_upsample_nearest_exact2d.vec",
    "_upsample_nearest_exact3d.vec",
    "celu",
    "einsum",
    "elu",
    "grid_sampler_2d",
    "group_norm",
    "gru.input",
    "hardsigmoid",
    "hardswish",
    "instance_norm",
    "layer_norm",
    "linear",
    "log_softmax.int",
    "lstm.input",
    "matmul",
    "mish",
    "pixel_shuffle",
    "pixel_unshuffle",
    "prelu",
    "rms_norm",
    "scaled_dot_product_attention",
    "selu",
    "silu",
    "softmax.int",
    "softplus",
    "square",
    "tril",
    "triu",
    "upsample_bicubic2d.vec",
    "upsample_bilinear2d.vec",
    "upsample_linear1d.vec",
    "upsample_nearest1d.vec",
    "upsample_nearest2d.vec",
    "upsample_nearest3d.vec",
    "upsample_trilinear3d.vec",
)
"""ATen ops that are not decomposed: an op of ours has their whole meaning.

Attention has a second reason: torch's decomposition of it fails on views of GPT-2.
"""


@dataclass(frozen=True)
class DecomposedProgram:
    """A decomposed program.

    names: of symbols, by the symbols that torch.export made up
    is_own: whether nobody else has the program's weights, so that they need no copy
    """

    exported: Any
    name: str
    is_own: bool
    names: Mapping[str, str] = field(default_factory=dict)


def read_program(
    source: Any, example_inputs: Any, dynamic_shapes: Any, use_mmap: bool, on_open: OnOpen
) -> DecomposedProgram:
    """Return the decomposed program of a module, an ExportedProgram, a .pt2 file or its bytes."""
    if isinstance(source, torch.nn.Module):
        if example_inputs is None:
            raise ConvertError(
                f"module {type(source).__name__} is exported by a run, which needs example inputs",
                fix="trireme.convert(module, example_inputs=(x,))",
            )
        args, named = _arguments(example_inputs)
        exported = _export(source, args, named, dynamic_shapes)
        names = _symbol_names(exported, source, args, named, dynamic_shapes)
        return DecomposedProgram(_decomposed(exported), type(source).__name__, False, names)
    if example_inputs is not None or dynamic_shapes is not None:
        raise ConvertError("example_inputs and dynamic_shapes are for modules, not for files")
    if isinstance(source, torch.export.ExportedProgram):
        return DecomposedProgram(_decomposed(source), "torch", False)
    name = "torch" if isinstance(source, bytes) else Path(source).stem
    loaded = load_archive(source, use_mmap, on_open)
    return DecomposedProgram(_decomposed(loaded, _GIVE_MODULE), name, True)


_GIVE_MODULE = (
    "give the module, not its file: "
    "trireme.convert(module, example_inputs=(x,), dynamic_shapes=...)"
)
"""The fix where torch cannot decompose a program that it loaded, as one with sizes of 3*n."""


def _arguments(examples: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    if isinstance(examples, Mapping):
        return (), {name: _tensor(one) for name, one in examples.items()}
    given = examples if isinstance(examples, (tuple, list)) else (examples,)
    return tuple(map(_tensor, given)), {}


def _tensor(example: Any) -> Any:
    """Return an array of numpy as a tensor, which is what a module reads."""
    if isinstance(example, np.ndarray):
        return torch.from_numpy(np.array(example))
    return example


def _export(
    module: Any, args: tuple[Any, ...], named: Mapping[str, Any], dynamic_shapes: Any
) -> Any:
    with _in_evaluation(module), torch.no_grad(), quiet():
        try:
            return torch.export.export(module, args, dict(named), dynamic_shapes=dynamic_shapes)
        except Exception as error:  # torch raises errors of many kinds
            raise _torch_error(f"torch.export cannot export {type(module).__name__}", error) from (
                error
            )


def _decomposed(exported: Any, fix: str = "") -> Any:
    table = torch.export.default_decompositions()
    for name in KEPT:
        packet, _, overload = name.partition(".")
        op = getattr(getattr(torch.ops.aten, packet), overload or "default")
        rule = table.pop(op, None)
        if name == "lstm.input":
            table[op] = _only_with_projections(rule)
    with torch.no_grad(), quiet():
        try:
            decomposed = exported.run_decompositions(table)
        except Exception as error:
            raise _torch_error("torch cannot decompose the program", error, fix) from error
    _drop_checks(decomposed.graph)
    return decomposed


def _only_with_projections(unroll: Any) -> Any:
    """Return a decomposition of lstm that unrolls layers with projections and keeps all others."""

    def rule(x: Any, hx: Any, params: Any, biases: bool, layers: int, *rest: Any) -> Any:
        _, _, both_ways, _ = rest
        plain = (4 if biases else 2) * layers * (2 if both_ways else 1)
        if len(params) == plain:
            return NotImplemented
        return unroll(x, hx, params, biases, layers, *rest)

    return rule


def _drop_checks(graph: Any) -> None:
    """Leave out ops that only check, and have their tokens go past them."""
    for node in list(graph.nodes):
        is_ordered = str(node.target) == "with_effects"
        if is_ordered and str(node.args[1]) in _CHECKS:
            for user in list(node.users):
                user.replace_all_uses_with(node.args[0])
                graph.erase_node(user)
            graph.erase_node(node)


_CHECKS = ("aten._linalg_check_errors.default",)


def _torch_error(what: str, error: Exception, fix: str = "") -> ConvertError:
    lines = [line for line in str(error).splitlines() if line.strip()]
    first = lines[0] if lines else type(error).__name__
    facts = [line.strip() for line in lines[1:_MOST_LINES]]
    return ConvertError(f"{what}: {first}", facts=facts, fix=fix)


_MOST_LINES = 12
"""The most lines of an error of torch's in ours."""


@contextmanager
def _in_evaluation(module: Any) -> Iterator[None]:
    """Put the module and its parts into evaluation mode, and give each its own mode back."""
    modes = {part: part.training for part in module.modules()}
    module.eval()
    try:
        yield
    finally:
        for part, mode in modes.items():
            part.training = mode


def _symbol_names(
    exported: Any, module: Any, args: tuple[Any, ...], named: Mapping[str, Any], dynamic: Any
) -> dict[str, str]:
    """Return the names of Dims by the symbols that torch.export uses in their place."""
    if dynamic is None:
        return {}
    bound = inspect.signature(module.forward).bind(*args, **named).arguments
    specs: list[Any] = []
    if isinstance(dynamic, Mapping):
        for name, value in bound.items():
            specs += _leaf_specs(value, dynamic.get(name))
    else:
        for value, spec in zip(bound.values(), dynamic, strict=False):
            specs += _leaf_specs(value, spec)
    users = [
        node.meta.get("val")
        for node in exported.graph.nodes
        if node.op == "placeholder" and node.name in exported.graph_signature.user_inputs
    ]
    names: dict[str, str] = {}
    for value, spec in zip(users, specs, strict=False):
        dims = dict(spec) if isinstance(spec, Mapping) else dict(enumerate(spec or ()))
        for axis, dim in dims.items():
            size = value.shape[axis] if isinstance(value, torch.Tensor) else 0
            own = getattr(dim, "__name__", "") if isinstance(dim, torch.export.Dim) else ""
            if isinstance(size, torch.SymInt) and size.node.expr.is_Symbol and own:
                names.setdefault(str(size.node.expr), own)
    return names


def _leaf_specs(value: Any, spec: Any) -> list[Any]:
    """Return the part of a specification of dynamic shapes for each leaf of an argument."""
    leaves = _pytree.tree_leaves(value)
    if isinstance(value, torch.Tensor) or spec is None:
        return [spec] * len(leaves)
    if isinstance(value, Mapping) and isinstance(spec, Mapping):
        return [leaf for key in value for leaf in _leaf_specs(value[key], spec.get(key))]
    if isinstance(value, (tuple, list)) and isinstance(spec, (tuple, list)):
        pairs = zip(value, spec, strict=False)
        return [leaf for part, own in pairs for leaf in _leaf_specs(part, own)]
    flat = _pytree.tree_leaves(spec, is_leaf=lambda part: isinstance(part, Mapping))
    return flat if len(flat) == len(leaves) else [None] * len(leaves)
