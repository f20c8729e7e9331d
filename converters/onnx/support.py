"""Find every op that cannot be converted before converting any, and list them all at once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from trireme.converters.onnx.control import CONTROL
from trireme.converters.onnx.file import bodies_of, domain_of, label_of, opsets_of
from trireme.converters.onnx.functions import has_body, static_body
from trireme.converters.onnx.microsoft import BLOCKED, MICROSOFT, MICROSOFT_TABLE
from trireme.converters.onnx.scope import MOST_DEPTH
from trireme.converters.onnx.sequences import MAKES, READS
from trireme.converters.onnx.table import entry_of
from trireme.support.errors import ConvertError, ModelFileError

SAVE_UNBLOCKED = (
    "nchwc ops hold channels in blocks for the CPU that saved the file; save the model with "
    "ORT_ENABLE_EXTENDED instead of ORT_ENABLE_ALL"
)
_SHOWN = 3
Missing = dict[tuple[str, str], list[str]]


def refuse_unsupported(
    graph: Any, opsets: Mapping[str, int], functions: Mapping[tuple[str, str], Any]
) -> None:
    """Raise one ConvertError that lists every unsupported op with its count and first nodes."""
    missing: Missing = {}
    _search(graph.node, opsets, functions, missing, set(), "", 0)
    if not missing:
        return
    facts = []
    for (domain, op), labels in sorted(missing.items()):
        more = f" and {len(labels) - _SHOWN} more" if len(labels) > _SHOWN else ""
        name = f"{domain}.{op}" if domain else op
        facts.append(f"{name}: {len(labels)} x ({', '.join(labels[:_SHOWN])}{more})")
    blocked = any(domain == BLOCKED for domain, _ in missing)
    raise ConvertError(
        f"{len(missing)} ops are not supported", facts=facts, fix=SAVE_UNBLOCKED if blocked else ""
    )


def _search(
    nodes: Iterable[Any],
    opsets: Mapping[str, int],
    functions: Mapping[tuple[str, str], Any],
    missing: Missing,
    seen: set[tuple[str, str, int]],
    inside: str,
    depth: int,
) -> None:
    if depth > MOST_DEPTH:
        raise ModelFileError(f"bodies and functions are nested over {MOST_DEPTH} deep")
    for index, node in enumerate(nodes):
        domain, op = domain_of(node), node.op_type
        label = f"{inside}{label_of(node, index)}"
        for body in bodies_of(node):
            _search(body.node, opsets, functions, missing, seen, f"{label}/", depth + 1)
        version = opsets.get(domain, 1)
        function = functions.get((domain, op))
        if function is None and is_ours(domain, op):
            continue
        if function is None and not has_body(op, domain, version):
            missing.setdefault((domain, op), []).append(label)
            continue
        function = function or static_body(op, domain, version)
        if function is not None and (domain, op, version) not in seen:
            seen.add((domain, op, version))
            inner = {**opsets, **opsets_of(function.opset_import, label)}
            _search(function.node, inner, functions, missing, seen, f"{label}/", depth + 1)


def is_ours(domain: str, op: str) -> bool:
    """Whether a rule here converts the op, so that no function body of ONNX's is needed."""
    if domain == MICROSOFT:
        return op in MICROSOFT_TABLE
    known = op in CONTROL or op in MAKES or op in READS
    return not domain and (known or entry_of(op) is not None)
