"""Mixtures of experts: rows sorted by expert, each multiplied with its expert's weight."""

import importlib.util

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import trireme  # noqa: E402

SEED = 20261126
EXPERTS, DEPTH, WIDTH = 4, 6, 5


def product(rows, weight, ends):
    """Multiply as transformers does, without its library."""
    made, start = torch.zeros(len(rows), weight.shape[2]), 0
    for expert, end in enumerate(ends.tolist()):
        made[start:end] = rows[start:end] @ weight[expert]
        start = end
    return made


@pytest.fixture(scope="module", autouse=True)
def grouped_mm():
    """The op of transformers, or one of its name and schema where it is not installed."""
    if importlib.util.find_spec("transformers") is not None:
        import transformers.integrations.moe  # noqa: F401 - registers the op

        yield
        return
    library = torch.library.Library("transformers", "DEF")
    library.define("grouped_mm_fallback(Tensor input, Tensor weight, Tensor offs) -> Tensor")
    library.impl("grouped_mm_fallback", product, "CPU")
    torch.library.register_fake(
        "transformers::grouped_mm_fallback",
        lambda rows, weight, ends: rows.new_empty(rows.shape[0], weight.shape[2]),
        lib=library,
    )
    yield
    library._destroy()


class Experts(torch.nn.Module):
    def __init__(self, rng):
        super().__init__()
        weight = rng.standard_normal((EXPERTS, DEPTH, WIDTH)).astype(np.float32)
        self.weight = torch.nn.Parameter(torch.from_numpy(weight))

    def forward(self, rows, ends):
        return torch.ops.transformers.grouped_mm_fallback(rows, self.weight, ends)


@pytest.mark.parametrize("rows", [1, 3, 4, 5, 11])
@pytest.mark.parametrize("is_open", [False, True])
def test_each_row_meets_its_expert(rows, is_open):
    print("seed", SEED)
    rng = np.random.default_rng(SEED)
    module = Experts(rng)
    count = max(rows, 2) if is_open else rows
    examples = (torch.zeros(count, DEPTH), torch.zeros(EXPERTS, dtype=torch.int64))
    dims = {"rows": {0: torch.export.Dim("rows", max=16)}, "ends": None} if is_open else None
    graph = trireme.convert(module, examples, dynamic_shapes=dims)
    with trireme.Session(graph) as session:
        for _ in range(6):
            ends = np.sort(rng.integers(0, rows + 1, EXPERTS))  # rows behind the last are zeros
            x = rng.standard_normal((rows, DEPTH)).astype(np.float32)
            (found,) = session.run({"rows": x, "ends": ends}).values()
            weight = module.weight.detach()
            wanted = product(torch.from_numpy(x), weight, torch.from_numpy(ends))
            np.testing.assert_allclose(found, wanted.numpy(), rtol=1e-5, atol=1e-5)
