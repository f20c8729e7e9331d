"""Whole modules: names, state, symbols, control flow and errors, against torch."""

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from torch.export import Dim  # noqa: E402
from torch.nn import functional as F  # noqa: E402, N812 - torch's own name for it

import trireme  # noqa: E402
from trireme.support.errors import ConvertError  # noqa: E402

SEED = 20261123
HOP = torch._higher_order_ops


class Model(torch.nn.Module):
    """A function as a module."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, *inputs):
        return self.function(*inputs)


def draw(*shape, seed=SEED):
    print("seed", seed)
    return torch.from_numpy(np.random.default_rng(seed).standard_normal(shape).astype(np.float32))


def run(session, *inputs):
    names = [value.name for value in session.inputs]
    made = session.run({n: one.numpy() for n, one in zip(names, inputs, strict=True)})
    return [made[value.name] for value in session.outputs]


def assert_same(found, wanted):
    wanted = torch.utils._pytree.tree_leaves(wanted)
    assert len(found) == len(wanted)
    for ours, theirs in zip(found, wanted, strict=True):
        assert ours.shape == tuple(theirs.shape)
        np.testing.assert_allclose(ours, theirs.detach().numpy(), rtol=1e-5, atol=1e-5)


def agrees(function, *sets, **options):
    """Compare a Session with torch on several sets of inputs."""
    module = function if isinstance(function, torch.nn.Module) else Model(function)
    graph = trireme.convert(module, sets[0], **options)
    with trireme.Session(graph) as session:
        for inputs in sets:
            assert_same(run(session, *inputs), module(*inputs))
    return graph


# -- inputs, outputs, names -----------------------------------------------------------------


def test_outputs_have_the_names_of_the_structure():
    class Named(torch.nn.Module):
        def forward(self, x, y=None):
            return {"last": x + 1, "none": None, "all": (x, [x * 2, x + 1])}

    graph = trireme.convert(Named(), draw(3))
    names = [value.name for value in graph.output_values()]
    assert names == ["last", "all.0", "all.1.0", "all.1.1"]
    assert [value.name for value in graph.input_values()] == ["x"]
    with trireme.Session(graph) as session:
        x = draw(3)
        made = session.run({"x": x.numpy()})
    np.testing.assert_array_equal(made["all.0"], x.numpy())
    np.testing.assert_array_equal(made["all.1.0"], (x * 2).numpy())


def test_one_output_and_a_tuple_have_plain_names():
    (one,) = trireme.convert(Model(torch.relu), draw(3)).output_values()
    pair = trireme.convert(Model(lambda x: (x + 1, x)), draw(3)).output_values()
    assert one.name == "output"
    assert [value.name for value in pair] == ["output.0", "output.1"]


def test_inputs_can_be_given_by_name():
    class Named(torch.nn.Module):
        def forward(self, x, scale=2, y=None):
            return x * scale + y

    x, y = draw(3), draw(3, seed=1)
    graph = trireme.convert(Named(), {"x": x, "y": y})
    with trireme.Session(graph) as session:
        made = session.run({"x": x.numpy(), "y": y.numpy()})
    np.testing.assert_allclose(made["output"], (2 * x + y).numpy())


def test_nodes_know_their_module_and_line():
    module = torch.nn.Sequential(torch.nn.Linear(4, 3), Model(lambda x: torch.erf(x)))
    graph = trireme.convert(module, draw(2, 4))
    first, second = (node.source for node in graph.nodes)
    assert first.startswith("torch:linear in 0")
    assert second.startswith("torch:erf in 1 at test_programs.py:")


def test_the_weights_are_copied_and_tied_ones_are_one_constant():
    class Tied(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)
            self.second.weight = self.first.weight
            self.register_buffer("shift", torch.ones(4), persistent=False)

        def forward(self, x):
            return self.second(self.first(x)) + self.shift

    module, x = Tied(), draw(2, 4)
    graph = trireme.convert(module, x)
    matrices = [v for v in graph.values.values() if v.is_constant and v.type.shape == (4, 4)]
    assert len(matrices) == 1
    wanted = module(x)
    with torch.no_grad():
        module.first.weight.zero_()
    with trireme.Session(graph) as session:
        assert_same(run(session, x), wanted)


def test_a_module_keeps_its_mode_and_dropout_does_nothing():
    module = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Dropout(0.9))
    module[0].eval()
    graph = trireme.convert(module, draw(2, 4))
    assert [node.op for node in graph.nodes] == ["fully_connected"]
    assert (module.training, module[0].training, module[1].training) == (True, False, True)


def test_bfloat16_weights_keep_their_bits():
    layer = torch.nn.Linear(4, 4, bias=False, dtype=torch.bfloat16)
    graph = trireme.convert(layer, torch.ones(2, 4, dtype=torch.bfloat16))
    (weight,) = (v.data for v in graph.values.values() if v.is_constant)
    np.testing.assert_array_equal(weight.astype(np.float32), layer.weight.detach().float().numpy())


# -- state ----------------------------------------------------------------------------------


class Counter(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("count", torch.zeros(2))
        self.register_buffer("cache", torch.zeros(3, 2), persistent=False)

    def forward(self, x):
        self.count.add_(1)
        self.cache[1:] = self.cache[:-1].clone()
        self.cache[0] = x * self.count
        return self.cache + 0, self.count * 2


def test_buffers_that_change_are_state():
    module, again = Counter(), Counter()
    graph = trireme.convert(module, draw(2))
    assert {node.attrs["state"] for node in graph.nodes if node.op == "assign"} == {
        "count",
        "cache",
    }
    with trireme.Session(graph) as session:
        for seed in range(4):
            x = draw(2, seed=seed)
            assert_same(run(session, x), again(x))


def test_an_input_that_changes_is_an_output():
    def function(x, y):
        x.add_(y)
        return x * 2

    x, y = draw(3), draw(3, seed=1)
    graph = trireme.convert(Model(function), (x.clone(), y))
    assert [value.name for value in graph.output_values()][0].endswith(".new")
    with trireme.Session(graph) as session:
        assert_same(run(session, x, y), (x + y, (x + y) * 2))


# -- symbols --------------------------------------------------------------------------------


def test_names_and_bounds_of_dims_are_symbols():
    batch = Dim("batch", min=1, max=8)
    shapes = (({0: batch, 1: Dim.DYNAMIC}, {0: batch}),)
    graph = trireme.convert(
        Model(lambda x, y: x + y[:, :1]), (draw(3, 5), draw(3, 4)), dynamic_shapes=shapes
    )
    (x, y) = graph.input_values()
    assert (x.shape[0], y.shape[0]) == ("batch", "batch")
    assert graph.symbols["batch"] == (1, 8)
    assert graph.symbols[x.shape[1]] == (2, None)


def attend(x):
    y = x.reshape(x.shape[0], x.shape[1], 2, -1).transpose(1, 2)
    z = F.scaled_dot_product_attention(y, y, y, is_causal=True)
    z = z.transpose(1, 2).reshape(x.shape)
    places = torch.arange(x.shape[1]) / x.shape[1]
    return z + places[:, None], x.flatten(0, 1), x[:, -1] * (x.shape[0] * x.shape[1] - 1)


OPEN = (({0: Dim("batch", max=8), 1: Dim("length", min=2, max=16)},),)


def test_one_session_runs_any_shape():
    sets = [(draw(b, s, 8, seed=s),) for b, s in ((2, 5), (1, 16), (7, 2))]
    agrees(attend, *sets, dynamic_shapes=OPEN)


def test_given_shapes_leave_no_symbol():
    graph = trireme.convert(
        Model(attend), (draw(2, 5, 8),), dynamic_shapes=OPEN, shapes={"inputs_0": (3, 7, 8)}
    )
    assert not graph.symbols
    assert not any(node.op == "shape" for node in graph.nodes)
    with trireme.Session(graph) as session:
        assert_same(run(session, draw(3, 7, 8)), attend(draw(3, 7, 8)))


@pytest.mark.parametrize(
    ("shapes", "why"),
    [
        ({"z": (3, 7, 8)}, "no input is called 'z'"),
        ({"inputs_0": (3, 7)}, "was given for"),
        ({"inputs_0": (3, 7, 9)}, "was given for"),
    ],
)
def test_shapes_that_do_not_fit_are_an_error(shapes, why):
    with pytest.raises(ConvertError, match=why):
        trireme.convert(Model(attend), (draw(2, 5, 8),), dynamic_shapes=OPEN, shapes=shapes)


def test_sizes_that_depend_on_data():
    def function(x):
        taken = x[x > 0]
        count = torch.count_nonzero(x > 0).item()
        torch._check(count >= 0)
        return taken * 2, taken.sum() / (count + 1)

    agrees(function, (draw(9),), (draw(9, seed=3),))


# -- control flow ---------------------------------------------------------------------------


def test_cond_is_an_if():
    weight = torch.full((4,), 3.0)

    def function(x):
        return torch.cond(x.sum() > 0, lambda v: (v * weight).sin(), lambda v: v - 1, (x,))

    graph = agrees(function, (draw(4).abs(),), (-draw(4).abs(),))
    (node,) = (node for node in graph.nodes if node.op == "if")
    assert {len(node.attrs[name].inputs) for name in ("then_branch", "else_branch")} == {1}


def test_while_loop_is_a_loop():
    def function(n, x):
        def going(n, x):
            return n > 0

        def step(n, x):
            return n - 1, x * 1.5 + n

        return HOP.while_loop(going, step, (n, x))

    graph = agrees(Model(function), *((torch.tensor(n), draw(3)) for n in (4, 1, 0)))
    (node,) = (node for node in graph.nodes if node.op == "loop")
    assert node.inputs[0] is None


class Scanned(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.shift = torch.nn.Parameter(torch.full((4,), 0.5))

    def forward(self, xs, first, scale):
        def step(carry, x):
            after = carry * 0.9 + x * scale + self.shift
            return after, after.tanh()

        return HOP.scan(step, first, xs, dim=0)


def test_scan_is_a_scan():
    inputs = (draw(6, 4), draw(4, seed=1), draw(4, seed=2))
    graph = agrees(Scanned(), inputs)
    assert "scan" in {node.op for node in graph.nodes}


# -- errors ---------------------------------------------------------------------------------


def test_an_antialiased_resize_from_corner_to_corner_is_refused():
    class Shrinking(torch.nn.Module):
        def forward(self, x):
            options = {"mode": "bilinear", "antialias": True, "align_corners": True}
            return torch.nn.functional.interpolate(x, size=(3, 4), **options)

    with pytest.raises(ConvertError, match="antialias with align_corners=True is not supported"):
        trireme.convert(Shrinking(), draw(1, 2, 9, 10))


def test_every_unsupported_op_is_named_with_its_line():
    class Odd(torch.nn.Module):
        def forward(self, x):
            a = torch.fft.rfft(x).sqrt()
            b = torch.linalg.svdvals(x)
            return a.abs(), b

    with pytest.raises(ConvertError, match="ops are not supported") as caught:
        trireme.convert(Odd(), draw(4, 4))
    line = Odd.forward.__code__.co_firstlineno
    text = "\n".join(caught.value.facts)
    why = "it has no rule for complex numbers"
    assert f"aten.sqrt.default: 1 x ({__file__}:{line + 1}): {why}" in text
    assert f"aten._linalg_svd.default: 1 x ({__file__}:{line + 2}): no op factors a matrix" in text


def test_complex_numbers_stay_inside_a_program():
    class Spectrum(torch.nn.Module):
        def forward(self, x):
            return torch.fft.fft(x)

    with pytest.raises(ConvertError, match="output 'output' is of complex numbers") as caught:
        trireme.convert(Spectrum(), draw(4, 4))
    assert caught.value.fix == "return torch.view_as_real(y)"
    with pytest.raises(ConvertError, match="input 'x' is of complex numbers"):
        trireme.convert(Spectrum(), (torch.zeros(4, 4, dtype=torch.complex64),))


def test_weights_are_complex_numbers():
    class Rotary(torch.nn.Module):
        def __init__(self):
            super().__init__()
            angles = torch.outer(torch.arange(6.0), torch.tensor([1.0, 0.5]))
            self.register_buffer("turns", torch.polar(torch.ones(6, 2), angles))
            self.register_buffer("back", self.turns.conj())  # shares its memory

        def forward(self, x):
            pairs = torch.view_as_complex(x.unflatten(-1, (-1, 2)))
            there = torch.view_as_real(pairs * self.turns).flatten(-2)
            return there, torch.view_as_real(pairs * self.back).flatten(-2)

    rows = {"x": {0: Dim("rows", max=8)}}
    agrees(Rotary(), (draw(3, 6, 4),), (draw(5, 6, 4),), dynamic_shapes=rows)


def test_spectra_have_an_open_length():
    lengths = {"inputs": ({1: Dim("length", min=4, max=64)},)}
    agrees(lambda x: torch.fft.rfft(x).abs(), (draw(2, 16),), (draw(2, 9),), dynamic_shapes=lengths)


def test_a_rule_that_refuses_names_the_line():
    class Odd(torch.nn.Module):
        def forward(self, x):
            return torch.cdist(x, x, p=0)

    line = Odd.forward.__code__.co_firstlineno + 1
    with pytest.raises(ConvertError, match=rf"cdist.*test_programs.py:{line}.*order 0"):
        trireme.convert(Odd(), draw(1, 4, 4))


def test_a_module_needs_examples():
    with pytest.raises(ConvertError, match="needs example inputs"):
        trireme.convert(torch.nn.Linear(4, 4))


def test_a_module_that_cannot_be_exported_is_a_sentence():
    def function(x):
        return x + 1 if x.sum() > 0 else x - 1

    with pytest.raises(ConvertError, match="torch.export cannot export Model"):
        trireme.convert(Model(function), draw(3))


def test_examples_are_for_modules():
    with pytest.raises(ConvertError, match="takes no example_inputs"):
        trireme.convert(b"", (draw(3),))
    with pytest.raises(ConvertError, match="expected a path, bytes or an object of torch"):
        trireme.convert(3)


# -- recurrent layers, matrices ----------------------------------------------------------------


@pytest.mark.parametrize("ways", [False, True], ids=["forward", "both ways"])
def test_an_lstm_with_projections_is_unrolled(ways):
    cell = torch.nn.LSTM(4, 6, num_layers=2, proj_size=3, batch_first=True, bidirectional=ways)
    agrees(cell, (draw(2, 5, 4),), (draw(2, 5, 4, seed=SEED + 1),))


def test_an_inverse_of_any_batch():
    batch = Dim("batch", max=9)
    function = lambda x: torch.linalg.inv(x + 3 * torch.eye(4))  # noqa: E731
    sets = [(draw(rows, 4, 4, seed=SEED + rows),) for rows in (3, 1, 7)]
    agrees(function, *sets, dynamic_shapes={"inputs": ({0: batch},)})


def test_a_large_matrix_is_refused():
    with pytest.raises(ConvertError, match="a matrix of 20 rows: those of up to 16 are solved"):
        trireme.convert(Model(torch.linalg.inv), (torch.eye(20),))
