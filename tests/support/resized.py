"""Graphs with symbols on calls that change their shape."""

import numpy as np

from trireme.backend.capabilities import ResizableExecutable
from trireme.devices.cpu.compile.one_shape import program_at
from trireme.devices.cpu.kernels.lowering import Extents
from trireme.ir.decided import DecidedValues
from trireme.runtime.shapes.resizable import symbols_of_inputs


def resizable(device, graph):
    """The program of a graph, a call that changes its shape, and what shapes decide."""
    (every,) = device.compile_polymorphic([graph])
    assert isinstance(every, ResizableExecutable)
    contents = DecidedValues(graph, symbols_of_inputs(graph))
    return every, every.resizable(contents), contents


def run_tables(device, call, tables, one, feeds, scratch=None):
    """Run a shape, in memory of its own or in the scratch given; return its outputs in order."""
    inputs = [np.ascontiguousarray(feeds[value]) for value in one.inputs]
    types = [one.type(value) for value in one.outputs]
    outputs = [np.full(type.dims, 7).astype(type.dtype) for type in types]
    if scratch is None and tables.scratch_bytes:
        scratch = device.alloc(tables.scratch_bytes)
    if scratch is not None:
        scratch.handle[:] = 0xA5
    call.run(tables, scratch, [array.ctypes.data for array in (*inputs, *outputs)])
    return outputs


def check_words(every, resizer, tables, one):
    """See that alike steps have the words, chunks and code that each has by itself."""
    program = every._program
    region, steps = program_at(program, one), program.steps
    for k, step in enumerate(region.items):
        (extents,) = (read for read in step.reads if isinstance(read, Extents))
        words, chunks, _, _, variant, _ = tables.rows[resizer.group_of[k]]
        count = steps[k].size(one).words
        assert words == count
        assert extents.words[extents.at : extents.at + len(count)].tolist() == list(count)
        assert chunks == step.chunks
        assert steps[k].codes[variant].symbol == step.code.symbol
    assert tables.local_bytes == region.local_bytes
    assert tables.scratch_bytes == region.scratch_bytes
