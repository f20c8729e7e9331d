"""A description of two devices, one of them far, and a graph to place on it."""

from trireme.devices.described import load_soc
from trireme.ir.builder import GraphBuilder
from trireme.ir.graph import TensorType

TEXT = """
name = "test"
[devices.cpu]
flops = { float32 = 1e9 }
bandwidth = 2e9
launch_s = 1e-6
[devices.cpu.sources]
flops = "t"
bandwidth = "t"
launch_s = "t"
[devices.far]
flops = { float32 = 1e12 }
bandwidth = 1e11
launch_s = 1e-5
memory = "far"
link_latency_s = 5e-6
link_bandwidth = 1e8
except_ops = ["erf"]
[devices.far.sources]
flops = "t"
bandwidth = "t"
launch_s = "t"
link_latency_s = "t"
link_bandwidth = "t"
except_ops = "t"
"""


def soc_of(tmp_path, text=TEXT):
    path = tmp_path / "soc.toml"
    path.write_text(text)
    return load_soc(str(path))


def chain(ops=("tanh",) * 6, size=100_000):
    b = GraphBuilder("chain")
    x = b.input("x", TensorType((size,), "float32"))
    for op in ops:
        x = b.add(op, x)
    return b.finish(x)
