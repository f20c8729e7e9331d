"""Whether two graphs are the same but for the order of their nodes and the names inside bodies."""

import hashlib

from trireme.ir.graph import digest
from trireme.ops.repeats import bodies_of, repeat_of


def short(*parts):
    """A short text that stands for some parts."""
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:16]


def described(graph, is_body=False):
    """A text that is equal for equal graphs: each output and effect by all that it comes from."""
    known = {}
    for value in graph.values.values():
        if value.data is not None:
            known[value.id] = short("constant", str(value.type), str(digest(value.data)))
    for place, value in enumerate(graph.input_values()):
        known[value.id] = short("input", place, "" if is_body else value.name, str(value.type))
    effects = []
    for node in graph.nodes:
        inputs = [None if one is None else known[one] for one in node.inputs]
        what = short(node.op, inputs, attributes(node), node.source, node.pin)
        if node.after:
            effects.append((what, len(node.after)))
        for place, value in enumerate(node.outputs):
            known[value] = short(what, place, str(graph.type(value)))
    ends = [("" if is_body else v.name, known[v.id]) for v in graph.output_values()]
    return short([known[v] for v in graph.inputs], ends, sorted(effects))


def attributes(node):
    """The attributes of a node: bodies as texts, and the way that a scan goes in one form."""
    bodies = [(key, described(body, True)) for key, body in bodies_of(node).items()]
    form = repeat_of(node.attrs) if bodies else None
    if not bodies:
        return sorted((key, str(value)) for key, value in node.attrs.items())
    return bodies if form is None else (bodies, form.counts, form.carried, form.slices, form.rows)
