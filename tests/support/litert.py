"""Run .tflite models on LiteRT, the yardstick of the converter and of quantised arithmetic."""

from __future__ import annotations

import pathlib

import numpy as np
import pytest


def interpreter(model: pathlib.Path | str | bytes, *, reference: bool = True, keep: bool = False):
    """A LiteRT interpreter on one thread; skips the test where ai-edge-litert is absent.

    `reference` takes the reference kernels, whose arithmetic ours is; else LiteRT's fast ones.
    `keep` keeps every tensor for `get_tensor`. Without it the reference kernels can read what their
    memory planner has given away: a max_pool beside a reshape of one tensor read other bytes.
    """
    litert = pytest.importorskip("ai_edge_litert.interpreter")
    kind = litert.OpResolverType.BUILTIN_REF if reference else litert.OpResolverType.AUTO
    where = {"model_content": model} if isinstance(model, bytes) else {"model_path": str(model)}
    made = litert.Interpreter(
        **where,
        num_threads=1,
        experimental_op_resolver_type=kind,
        experimental_preserve_all_tensors=keep,
    )
    made.allocate_tensors()
    return made


def litert_run(
    model: pathlib.Path | str | bytes, inputs: dict[str, np.ndarray], *, reference: bool = True
) -> dict[str, np.ndarray]:
    """Outputs by tensor name, given inputs by tensor name, for a model file or its bytes."""
    made = interpreter(model, reference=reference, keep=reference)
    for detail in made.get_input_details():
        made.set_tensor(detail["index"], inputs[detail["name"]])
    made.invoke()
    return {d["name"]: made.get_tensor(d["index"]) for d in made.get_output_details()}


def litert_tensors(
    model: pathlib.Path | str | bytes, inputs: dict[str, np.ndarray]
) -> dict[str, np.ndarray]:
    """Every tensor of a run on the reference kernels, by name: to find where answers part."""
    made = interpreter(model, keep=True)
    for detail in made.get_input_details():
        made.set_tensor(detail["index"], inputs[detail["name"]])
    made.invoke()
    found = {}
    for detail in made.get_tensor_details():
        try:
            found[detail["name"]] = made.get_tensor(detail["index"])
        except ValueError:
            continue
    return found


def random_inputs(model: pathlib.Path | str | bytes, seed: int) -> dict[str, np.ndarray]:
    """Seeded inputs of a model: the whole range of 8-bit integers, floats in -1..1."""
    rng = np.random.default_rng(seed)
    inputs = {}
    for detail in interpreter(model, reference=False).get_input_details():
        shape, dtype = tuple(detail["shape"]), np.dtype(detail["dtype"])
        if dtype.kind in "iu":
            info = np.iinfo(dtype)
            inputs[detail["name"]] = rng.integers(info.min, info.max + 1, shape, dtype)
        else:
            inputs[detail["name"]] = rng.uniform(-1, 1, shape).astype(dtype)
    return inputs
