"""Where a node of a torch program comes from: the line of the model's source, and the module."""

from __future__ import annotations

import os
import re
from typing import Any

_FRAME = re.compile(r'File "([^"]+)", line (\d+)')
_LIBRARY = re.compile(r"(^|[/\\])torch[/\\](nn|fx|_\w+|utils|export|functional|autograd)\b")
"""Files of torch itself, whose callers are the model's source."""


def line_of(node: Any) -> str:
    """Return "file:line" of the model's source that made a node; empty when it is not known."""
    frames = _FRAME.findall(node.meta.get("stack_trace") or "")
    own = [frame for frame in frames if not _LIBRARY.search(frame[0])]
    return "{}:{}".format(*own[-1]) if own else ""


def module_of(node: Any) -> str:
    """Return the path of the submodule that made a node, as in state_dict; empty at the top."""
    stack = list((node.meta.get("nn_module_stack") or {}).values())
    path = str(stack[-1][0]) if stack else ""
    return "" if path.startswith("_empty") else path


def op_of(node: Any) -> str:
    """Return the name of the op of a node: "aten.add.Tensor"."""
    target = node.target
    name = target if isinstance(target, str) else getattr(target, "__name__", str(target))
    text = str(target)
    return text if re.fullmatch(r"\w+(\.\w+)+", text) else str(name)


def source_of(node: Any) -> str:
    """Return the source of a node: "torch:linear_3 in encoder.fc at", then file and line."""
    module, line = module_of(node), line_of(node)
    where = f" in {module}" if module else ""
    return f"torch:{node.name}{where}" + (f" at {os.path.basename(line)}" if line else "")


def whereabouts(node: Any) -> str:
    """Return the op, module and full line of a node, for errors."""
    parts = [part for part in (module_of(node), line_of(node)) if part]
    return f"{op_of(node)} ({', '.join([node.name, *parts])})"
