"""Find every op that cannot be converted before converting any, and list them all at once."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import field
from typing import Any

from trireme.converters.onnx.control import CONTROL
from trireme.converters.onnx.domains import DOMAINS
from trireme.converters.onnx.file import (
    OLDEST_OPSET,
    bodies_of,
    domain_of,
    label_of,
    opsets_of,
)
from trireme.converters.onnx.functions import has_body, since, static_body
from trireme.converters.onnx.microsoft import BLOCKED
from trireme.converters.onnx.scope import MOST_DEPTH
from trireme.converters.onnx.sequences import MAKES, MAPS, READS
from trireme.converters.onnx.table import entry_of
from trireme.ir.python_op import PythonOp
from trireme.support.errors import ConvertError, ModelFileError
from trireme.support.records import dataclass

SAVE_UNBLOCKED = (
    "nchwc ops hold channels in blocks for the CPU that saved the file; save the model with "
    "ORT_ENABLE_EXTENDED instead of ORT_ENABLE_ALL"
)
_SHOWN = 3
Missing = dict[tuple[str, str], list[str]]


def refuse_unsupported(
    graph: Any,
    opsets: Mapping[str, int],
    functions: Mapping[tuple[str, str], Any],
    python_ops: Mapping[str, PythonOp],
) -> None:
    """Raise one ConvertError that lists every unsupported op with its count and first nodes."""
    missing: Missing = {}
    own = {_key_of(name) for name in python_ops}
    _Search(functions, own, missing).nodes(graph.node, opsets, "", 0)
    if not missing:
        return
    facts = []
    for (domain, op), labels in sorted(missing.items()):
        more = f" and {len(labels) - _SHOWN} more" if len(labels) > _SHOWN else ""
        name = f"{domain}.{op}" if domain else op
        facts.append(f"{name}: {len(labels)} x ({', '.join(labels[:_SHOWN])}{more})")
    domain, op = min(missing)
    fix = f'python_ops={{"{domain or "ai.onnx"}::{op}": function}} calls a Python operator instead'
    if any(domain == BLOCKED for domain, _ in missing):
        fix = SAVE_UNBLOCKED
    raise ConvertError(f"{len(missing)} ops are not supported", facts=facts, fix=fix)


def refuse_too_old(graph: Any, opsets: Mapping[str, int]) -> None:
    """Refuse a model of an opset below `OLDEST_OPSET` with an op that has changed since.

    Errors: ConvertError
    """
    version = opsets.get("", OLDEST_OPSET)
    if version >= OLDEST_OPSET:
        return
    for index, node in enumerate(graph.node):
        is_same = not bodies_of(node) and since(node.op_type, version) == since(
            node.op_type, OLDEST_OPSET
        )
        if not domain_of(node) and not is_same:
            raise ConvertError(
                f"the model is of opset {version}, expected {OLDEST_OPSET} or newer: "
                f"{label_of(node, index)} has changed since",
                fix="onnx.version_converter.convert_version(model, 13)",
            )


@dataclass
class _Search:
    """Looks for nodes that nothing converts, in bodies and functions too.

    own: domain and name of the ops that functions of the user stand for
    """

    functions: Mapping[tuple[str, str], Any]
    own: Collection[tuple[str, str]]
    missing: Missing
    seen: set[tuple[str, str, int]] = field(default_factory=set)

    def nodes(
        self, nodes: Iterable[Any], opsets: Mapping[str, int], inside: str, depth: int
    ) -> None:
        if depth > MOST_DEPTH:
            raise ModelFileError(f"bodies and functions are nested over {MOST_DEPTH} deep")
        for index, node in enumerate(nodes):
            domain, op = domain_of(node), node.op_type
            label = f"{inside}{label_of(node, index)}"
            for body in bodies_of(node):
                self.nodes(body.node, opsets, f"{label}/", depth + 1)
            version = opsets.get(domain, 1)
            function = self.functions.get((domain, op))
            if (domain, op) in self.own or (function is None and is_ours(domain, op)):
                continue
            if function is None and not has_body(op, domain, version):
                self.missing.setdefault((domain, op), []).append(label)
                continue
            function = function or static_body(op, domain, version)
            if function is not None and (domain, op, version) not in self.seen:
                self.seen.add((domain, op, version))
                inner = {**opsets, **opsets_of(function.opset_import, label)}
                self.nodes(function.node, inner, f"{label}/", depth + 1)


def python_op_of(given: Mapping[str, PythonOp], domain: str, op: str) -> PythonOp | None:
    """Return the function of the user that stands for an op, by "domain::Op"."""
    for name, operator in given.items():
        if _key_of(name) == (domain, op):
            return operator
    return None


def _key_of(name: str) -> tuple[str, str]:
    """Return the domain and the op of "domain::Op"; the default domain may be left out."""
    domain, _, op = name.rpartition("::")
    return "" if domain == "ai.onnx" else domain, op


def is_ours(domain: str, op: str) -> bool:
    """Whether a rule here converts the op, so that no function body of ONNX's is needed."""
    if domain in DOMAINS:
        return op in DOMAINS[domain]
    known = any(op in table for table in (CONTROL, MAKES, MAPS, READS))
    return not domain and (known or entry_of(op) is not None)
