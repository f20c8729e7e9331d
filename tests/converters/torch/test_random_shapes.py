"""Transformers of open dimensions at random shapes: a module and its .pt2 file, against torch.

Each source has a cache folder of its own, empty for its first Session and full for its second.
"""

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("transformers", reason="transformers is not installed")

from torch.utils import _pytree  # noqa: E402
from torch_architectures import SEED, build, ids, mask  # noqa: E402 - needs torch

import trireme  # noqa: E402

NAMES = ("bert", "distilbert", "gpt2", "llama", "t5_encoder")
SHAPES, MOST_BATCH, MOST_LENGTH = 50, 8, 40
MOST_ERROR = 1e-4


def sources(name, folder):
    """Return the module, and yield a graph of it and the path of its .pt2 file."""
    module, inputs = build(name)
    dims = {0: torch.export.Dim("batch", max=MOST_BATCH)}
    dims[1] = torch.export.Dim("length", max=MOST_LENGTH)
    dynamic = {key: dims for key in inputs}
    path = folder / f"{name}.pt2"
    exported = torch.export.export(module, (), inputs, dynamic_shapes=dynamic)
    torch.export.save(exported, path)
    graph = trireme.convert(module, inputs, dynamic_shapes=dynamic)
    return module, {"module": graph, "pt2": path}


def drawn(rng):
    """Yield inputs of random shapes, the least and the most among them."""
    shapes = [(1, 1), (1, 2), (MOST_BATCH, MOST_LENGTH)]
    while len(shapes) < SHAPES:
        shapes.append((int(rng.integers(1, MOST_BATCH + 1)), int(rng.integers(1, MOST_LENGTH + 1))))
    for batch, length in rng.permutation(shapes).tolist():
        kept = mask(batch, length) if length > 4 else torch.ones(batch, length, dtype=torch.int64)
        yield {"input_ids": ids(batch, length), "attention_mask": kept}


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_one_session_agrees_at_random_shapes(name, tmp_path, monkeypatch):
    print("seed", SEED)
    module, given = sources(name, tmp_path)
    for kind, source in given.items():
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / kind))
        for caches in ("empty", "full"):
            torch.manual_seed(SEED)
            with trireme.Session(source) as session:
                for feeds in drawn(np.random.default_rng(SEED)):
                    compare(session, module, feeds, f"{kind}, {caches} caches")


def compare(session, module, feeds, what):
    with torch.no_grad():
        made = _pytree.tree_leaves(module(**feeds))
    wanted = [one for one in made if isinstance(one, torch.Tensor)]
    found = session.run({key: one.numpy() for key, one in feeds.items()})
    assert len(session.outputs) == len(wanted)
    for value, theirs in zip(session.outputs, wanted, strict=True):
        ours = found[value.name]
        assert ours.shape == tuple(theirs.shape)
        error = float(np.abs(ours - theirs.numpy()).max())
        assert error <= MOST_ERROR, f"{what}, {tuple(feeds['input_ids'].shape)}: {error}"
