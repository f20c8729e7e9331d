"""Architectures of transformers with random weights, through a Session, against torch."""

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("transformers", reason="transformers is not installed")

from torch.utils import _pytree  # noqa: E402
from torch_architectures import ARCHITECTURES, SEED, build, ids, mask  # noqa: E402 - needs torch

import trireme  # noqa: E402

MOST_ERROR = 1e-4


def tensors(values):
    return [one for one in _pytree.tree_leaves(values) if isinstance(one, torch.Tensor)]


def run(graph, inputs):
    """Return the outputs of a Session on default devices, in order."""
    with trireme.Session(graph) as session:
        names = [value.name for value in session.inputs]
        feeds = (one.numpy() for one in tensors(inputs))
        made = session.run(dict(zip(names, feeds, strict=True)))
        return [made[value.name] for value in session.outputs]


@pytest.mark.slow
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_an_architecture_agrees_with_torch(name):
    print("seed", SEED)
    module, inputs = build(name)
    with torch.no_grad():
        wanted = tensors(module(**inputs))
    found = run(trireme.convert(module, inputs), inputs)
    assert len(found) == len(wanted)
    for ours, theirs in zip(found, wanted, strict=True):
        assert ours.shape == tuple(theirs.shape)
        scale = min(1.0, float(theirs.abs().max()))
        assert float(np.abs(ours - theirs.numpy()).max()) <= MOST_ERROR * scale


def test_there_are_twenty_architectures():
    assert len(ARCHITECTURES) >= 20


@pytest.mark.slow
@pytest.mark.parametrize("name", ["bert", "distilbert", "gpt2", "llama"])
def test_one_session_of_open_dimensions_agrees_at_any_shape(name):
    print("seed", SEED)
    module, inputs = build(name)
    dims = {0: torch.export.Dim("batch", max=8), 1: torch.export.Dim("length", min=2, max=32)}
    graph = trireme.convert(module, inputs, dynamic_shapes={key: dims for key in inputs})
    with trireme.Session(graph) as session:
        for batch, length in ((2, 12), (1, 5), (5, 31)):
            feeds = {"input_ids": ids(batch, length), "attention_mask": mask(batch, length)}
            with torch.no_grad():
                wanted = tensors(module(**feeds))
            made = session.run({key: one.numpy() for key, one in feeds.items()})
            for value, theirs in zip(session.outputs, wanted, strict=True):
                error = np.abs(made[value.name] - theirs.numpy()).max()
                assert error <= MOST_ERROR, (batch, length)
