"""Types of values whose rank only a run tells: they hold for what the samples of every op make."""

import itertools
from dataclasses import replace

import pytest
from op_samples import by_op, named, sample_graph

from trireme.ir.graph import ANY_RANK
from trireme.ir.op import get_op
from trireme.ir.verify import infer_types
from trireme.support.errors import TriremeError


def holds(told, true):
    """Whether a type says nothing wrong of a value's type."""
    if told.dtype != true.dtype:
        return False
    if not told.has_rank:
        return True
    return len(told.shape) == len(true.shape) and all(
        isinstance(dim, str) or dim == size
        for dim, size in zip(told.shape, true.shape, strict=True)
    )


def late(value):
    return replace(value, type=replace(value.type, shape=ANY_RANK), data=None)


@pytest.mark.parametrize(("op", "samples"), list(by_op(lambda op: not op.has_body)))
def test_types_hold_whatever_inputs_have_a_late_rank(op, samples):
    """A refusal says that something must be known; a type that is given must be right."""
    for sample, name in samples:
        graph, _ = sample_graph(op, sample)
        (node,) = graph.nodes
        inputs = [None if i is None else graph.values[i] for i in node.inputs]
        places = [k for k, value in enumerate(inputs) if value is not None]
        chosen = [c for n in (1, 2) for c in itertools.combinations(places, n)][:6]
        for ks in chosen:
            given = [late(v) if k in ks else v for k, v in enumerate(inputs)]
            with named(name):
                try:
                    types = infer_types(
                        get_op(op.name), given, node.attrs, len(node.outputs), node.label
                    )
                except TriremeError:
                    continue
                true = [graph.type(out) for out in node.outputs]
                told = zip(types, true, strict=True)
                assert all(itertools.starmap(holds, told)), (ks, list(map(str, types)))
