"""Quantised models: the ops that torch.ao writes, and integer products as torchao writes them."""

import subprocess
import sys

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import trireme  # noqa: E402

pytestmark = pytest.mark.slow
SEED = 5


def rounded(x, scale, zero, low, high, dtype):
    """quantize and dequantize per tensor."""
    ops = torch.ops.quantized_decomposed
    q = ops.quantize_per_tensor(x, scale, zero, low, high, dtype)
    return ops.dequantize_per_tensor(q, scale, zero, low, high, dtype)


class Static(torch.nn.Module):
    """A convolution and a linear layer as prepare_pt2e and convert_pt2e leave them."""

    def __init__(self):
        super().__init__()
        from torch.ao.quantization.fx import _decomposed  # noqa: F401 - registers the ops

        for name, shape in (("conv", (6, 3, 3, 3)), ("line", (4, 6))):
            w = torch.randn(shape) / 3
            scale = w.abs().flatten(1).amax(1) / 127
            spread = scale.reshape(-1, *[1] * (len(shape) - 1))
            self.register_buffer(f"{name}_scale", scale)
            self.register_buffer(f"{name}_q", (w / spread).round().to(torch.int8))
            self.register_buffer(f"{name}_zero", torch.zeros(len(w), dtype=torch.int64))

    def weight(self, name):
        parts = (getattr(self, f"{name}_{part}") for part in ("q", "scale", "zero"))
        dequantize = torch.ops.quantized_decomposed.dequantize_per_channel
        return dequantize(*parts, 0, -127, 127, torch.int8)

    def forward(self, x):
        x = rounded(x, 0.02, 3, -128, 127, torch.int8)
        x = torch.conv2d(x, self.weight("conv")).relu()
        x = rounded(x, 0.03, 0, 0, 255, torch.uint8).mean((2, 3))
        x = rounded(x, 0.01, -5, -100, 100, torch.int8)
        return torch.nn.functional.linear(x, self.weight("line"))


class Dynamic(torch.nn.Module):
    """A linear layer of int8 weights whose rows of inputs are quantised in each run."""

    def __init__(self, depth):
        super().__init__()
        self.register_buffer("q", torch.randint(-128, 128, (depth, 8), dtype=torch.int8))
        self.register_buffer("scale", torch.rand(8) / 100)

    def forward(self, x):
        step = x.abs().amax(-1, keepdim=True).clamp(min=1e-5) / 127
        whole = (x / step).round().clamp(-128, 127).to(torch.int8)
        return torch._int_mm(whole, self.q).float() * step * self.scale


def compare(module, x, within, tmp_path):
    wanted = module(x).numpy()
    torch.export.save(torch.export.export(module, (x,)), tmp_path / "net.pt2")
    for graph in (trireme.convert(module, (x,)), trireme.convert(tmp_path / "net.pt2")):
        for devices in (["host"], ["cpu"]):
            with trireme.Session(graph, devices=devices) as session:
                (made,) = session.run({"x": x.numpy()}).values()
            np.testing.assert_allclose(made, wanted, rtol=1e-4, atol=within, err_msg=f"{SEED}")


def test_a_statically_quantised_net(tmp_path):
    torch.manual_seed(SEED)
    module = Static()
    # A level more or less of the last rounding, where the sums before it differ in their last bits.
    step = 0.01 * float((module.line_q.abs() * module.line_scale[:, None]).max())
    compare(module, torch.randn(2, 3, 9, 9), 2 * step, tmp_path)


@pytest.mark.parametrize("depth", [16, 3000])
def test_a_dynamically_quantised_layer(depth, tmp_path):
    torch.manual_seed(SEED)
    compare(Dynamic(depth), torch.randn(20, depth), 1e-4, tmp_path)


def test_a_file_converts_in_a_process_that_knows_no_ops_of_torch_ao(tmp_path):
    torch.export.save(torch.export.export(Static(), (torch.randn(1, 3, 9, 9),)), tmp_path / "q.pt2")
    code = "import sys, trireme; print(len(trireme.convert(sys.argv[1]).nodes))"
    made = subprocess.run(
        [sys.executable, "-c", code, tmp_path / "q.pt2"], capture_output=True, text=True
    )
    assert made.returncode == 0 and int(made.stdout) > 4, made.stderr


def test_a_file_with_an_op_of_an_absent_library_names_it(tmp_path):
    with torch.library._scoped_library("elsewhere", "FRAGMENT") as library:
        library.define("twice(Tensor x) -> Tensor")
        library.impl("twice", lambda x: x * 2, "CompositeExplicitAutograd")

        class Own(torch.nn.Module):
            def forward(self, x):
                return torch.ops.elsewhere.twice(x)

        torch.export.save(torch.export.export(Own(), (torch.ones(3),)), tmp_path / "own.pt2")
        with pytest.raises(trireme.ConvertError, match="elsewhere.twice"):
            trireme.convert(tmp_path / "own.pt2")
    with pytest.raises(trireme.ModelFileError, match="elsewhere.twice.*not registered"):
        trireme.convert(tmp_path / "own.pt2")


def test_per_channel_and_limits_to_the_bit(tmp_path):
    torch.manual_seed(SEED)

    class Levels(torch.nn.Module):
        def forward(self, x):
            ops, scale = torch.ops.quantized_decomposed, torch.tensor([0.5, 0.25, 1.0])
            zero = torch.tensor([3, 0, -7])
            q = ops.quantize_per_channel(x, scale, zero, 1, -20, 20, torch.int8)
            return ops.dequantize_per_channel(q, scale, zero, 1, -20, 20, torch.int8)

    Static()
    compare(Levels(), torch.randn(4, 3, 5) * 9, 0, tmp_path)
