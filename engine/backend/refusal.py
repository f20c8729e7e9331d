"""The reason why a device refuses a node: a sentence for people, and a rule that groups nodes."""

from __future__ import annotations

from trireme.ir.graph import Node
from trireme.ir.op import get_op


class Refusal(str):
    """The sentence with which a device refuses a node: a rule, and the facts that break it.

    rule: the sentence without the facts, the same for all nodes that break the rule
    """

    rule: str
    facts: str

    def __new__(cls, rule: str, facts: str = "") -> Refusal:
        """Return the rule, followed by the facts of a node."""
        made = super().__new__(cls, f"{rule} (here {facts})" if facts else rule)
        made.rule, made.facts = rule, facts
        return made

    def __reduce__(self) -> tuple[type[Refusal], tuple[str, str]]:
        return Refusal, (self.rule, self.facts)


def rule_of(reason: str) -> str:
    """Return the rule that a reason names; the whole sentence of a reason without one."""
    return reason.rule if isinstance(reason, Refusal) else reason


def needs_host(node: Node) -> bool:
    """Return whether a node of this kind is the host's, unless a device keeps its state."""
    return get_op(node.op).is_host_only


def host_reason(node: Node, device: str) -> str | None:
    """Return why a node runs on the host alone; None for nodes that other devices may run."""
    if get_op(node.op).calls_python:
        return Refusal("the host calls Python functions", node.attrs["operator"].name)
    if get_op(node.op).has_body:
        return f"the host drives control flow: {device} compiles no {node.op}"
    if get_op(node.op).effect:
        return f"{node.op} has an effect, which a compiled region cannot keep in order"
    return None
