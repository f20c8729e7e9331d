"""A bias is a list: one of another rank is refused before a kernel reads it."""

import numpy as np
import pytest
from op_samples import SEED, outputs_of

from trireme.ir.builder import GraphBuilder
from trireme.ir.op import all_ops
from trireme.support.errors import GraphError

SHAPED = ("rnn", "gru", "lstm", "layer_normalization")
"""Their bias has a row for each direction, or any shape that broadcasts."""


def cases():
    for op in all_ops():
        names = op.inputs.replace("?", "").split()
        if "bias" not in names or op.name in SHAPED:
            continue
        at = names.index("bias")
        for sample in op.samples(np.random.default_rng(SEED)):
            bias = sample.inputs[at] if len(sample.inputs) > at else None
            if bias is not None and bias.ndim == 1:
                yield pytest.param(op, sample, at, id=op.name)
                break


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("op, sample, at", list(cases()))
def test_a_bias_of_two_dimensions_is_refused(op, sample, at, axis):
    builder, operands = GraphBuilder("g"), []
    for position, array in enumerate(sample.inputs):
        given = np.expand_dims(array, axis) if position == at else array
        quant = sample.quants[position] if position < len(sample.quants) else None
        operands.append(None if given is None else builder.constant("c", given, quant))
    with pytest.raises(GraphError, match="bias"):
        builder.add_node(
            op.name,
            operands,
            sample.attrs,
            outputs=max(outputs_of(op, sample), 1),
            quants=sample.out_quants,
        )
