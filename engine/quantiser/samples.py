"""Sample inputs: from arrays, files, a function or random numbers to feeds by name, one by one.

Each feed is checked. Only one is in memory at a time, where its source allows it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from trireme.ir.graph import Value
from trireme.ir.quantization.stored import RANDOM
from trireme.quantiser.stored_arrays import StoredArray, stored_arrays
from trireme.runtime.program.feeds import as_array, misfit, random_array, refuse_names
from trireme.support.dtypes import Array, dtype_name
from trireme.support.errors import RunError

Feeds = dict[str, Array]
RANDOM_SAMPLES = 16
_HOW = (
    "data=a mapping of input names to arrays with one more axis, an iterable of feeds, the path "
    "of an .npz file or of a folder of them; on the command line --data FILE or --loader "
    "MODULE:FUNCTION"
)


@dataclass(frozen=True)
class Samples:
    """Sample inputs that can be read once; `total` is 0 where their number is not known.

    source: what the report says they came from
    """

    feeds: Iterable[Feeds]
    total: int
    source: str


def open_samples(data: Any, inputs: Sequence[Value], seed: int) -> Samples:
    """Return the samples of any source that `quantize` takes.

    Errors: RunError, if there are none, or one does not fit the inputs
    """
    if data is None:
        raise RunError("quantising needs sample inputs, from which ranges are measured", fix=_HOW)
    if isinstance(data, Samples):
        return Samples(_checked(iter(data.feeds), inputs), data.total, data.source)
    if isinstance(data, (str, os.PathLike)):
        return _of_path(data, inputs, seed)
    if callable(data):
        data = data()
    if isinstance(data, (np.ndarray, Mapping)):
        feeds, total = _of_arrays(data, inputs)
        return Samples(_checked(feeds, inputs), total, "arrays")
    if not isinstance(data, Iterable):
        raise RunError(f"data is {type(data).__name__}, expected sample inputs", fix=_HOW)
    total = len(data) if isinstance(data, Sequence) else 0
    return Samples(_checked((_named(one, inputs) for one in data), inputs), total, "an iterable")


def samples_again(data: Any, inputs: Sequence[Value], seed: int) -> Callable[[], Iterable[Feeds]]:
    """Return what reads all samples once more, at each call.

    Its errors: RunError, if the data are an iterable that can be read once
    """

    def again() -> Iterable[Feeds]:
        if isinstance(data.feeds if isinstance(data, Samples) else data, Iterator):
            raise RunError(
                "a metric reads the samples again and again, and the data can be read once",
                fix="give a list of feeds, arrays, a file, or a function that returns an iterable",
            )
        return open_samples(data, inputs, seed).feeds

    return again


def _of_path(data: str | os.PathLike[str], inputs: Sequence[Value], seed: int) -> Samples:
    if data == RANDOM:
        rng = np.random.default_rng(seed)
        made = ({v.name: random_array(v, rng) for v in inputs} for _ in range(RANDOM_SAMPLES))
        return Samples(made, RANDOM_SAMPLES, f"random numbers of seed {seed}")
    path = Path(data)
    if path.is_dir():
        files = sorted(file for file in path.iterdir() if file.suffix in (".npz", ".npy"))
        if not files:
            raise RunError(
                f"{path} holds no .npz and no .npy file",
                fix="for pictures say how pixels become numbers: --preprocess on the command line",
            )
        found = (feeds for file in files for feeds in _of_file(file, inputs)[0])
        return Samples(_checked(found, inputs), 0, f"{len(files)} files of {path.name}/")
    feeds, total = _of_file(path, inputs)
    return Samples(_checked(feeds, inputs), total, path.name)


def _of_file(path: Path, inputs: Sequence[Value]) -> tuple[Iterator[Feeds], int]:
    found = stored_arrays(path)
    return _of_arrays(next(iter(found.values())) if path.suffix == ".npy" else found, inputs)


def _of_arrays(data: Any, inputs: Sequence[Value]) -> tuple[Iterator[Feeds], int]:
    """Return the feeds of arrays that hold many samples along their first axis."""
    given = _named(data, inputs)
    if set(given) != {value.name for value in inputs}:
        refuse_names(given, inputs)
    arrays = {value.name: _array(value, given[value.name]) for value in inputs}
    counts = {value.name: _count(value, arrays[value.name]) for value in inputs}
    if len(set(counts.values())) > 1:
        facts = [f"'{name}': {count} samples" for name, count in counts.items()]
        raise RunError("the inputs have different numbers of samples", facts=facts)
    parts = [_parts(arrays[value.name], value, counts[value.name]) for value in inputs]
    names = [value.name for value in inputs]
    feeds = (dict(zip(names, row, strict=True)) for row in zip(*parts, strict=True))
    return feeds, next(iter(counts.values()), 0)


def _array(value: Value, given: Any) -> Array | StoredArray:
    return given if isinstance(given, StoredArray) else as_array(value, given)


def _parts(array: Array | StoredArray, value: Value, count: int) -> Iterable[Array]:
    """Return so many samples of an input, one after another."""
    dims = value.type.dims
    if isinstance(array, StoredArray):
        return (as_array(value, part) for part in array.parts(dims, count))
    return array.reshape(count, *dims)


def _count(value: Value, array: Array | StoredArray) -> int:
    """Return how many samples of an input an array holds."""
    dims, shape = value.type.dims, array.shape
    if shape == dims:
        return 1
    if shape[1:] == dims:
        return shape[0]
    whole = dims and len(shape) == len(dims) and shape[1:] == dims[1:]
    if whole and dims[0] and shape[0] % dims[0] == 0:
        return shape[0] // dims[0]
    found = f"{dtype_name(array.dtype)}[{','.join(map(str, shape))}]"
    raise RunError(
        f"samples of input '{value.name}' are {found}, expected [samples,"
        f"{','.join(map(str, dims[1:] if dims[:1] == (1,) else dims))}]",
        fix=_reordered(shape, dims),
    )


def _reordered(shape: tuple[int, ...], dims: tuple[int, ...]) -> str:
    """Return how to move the channels of samples to where the model has them; "" where in vain."""
    rank = len(dims) - 1
    if rank < 2 or len(shape) < rank:
        return ""
    for before, after in ((-1, -rank), (-rank, -1)):
        axes = list(shape)
        axes.insert(len(shape) + after, axes.pop(before))
        if tuple(axes[-rank:]) == dims[1:]:
            return f"move the channels: numpy.moveaxis(x, {before}, {after})"
    return ""


def _named(one: Any, inputs: Sequence[Value]) -> dict[str, Any]:
    """Return feeds by name; an array alone is that of the only input."""
    if isinstance(one, Mapping):
        return dict(one)
    if isinstance(one, (tuple, list)) and len(one) == len(inputs):
        return {value.name: array for value, array in zip(inputs, one, strict=True)}
    if len(inputs) == 1:
        return {inputs[0].name: one}
    return refuse_names(one, inputs)


def _checked(feeds: Iterable[dict[str, Any]], inputs: Sequence[Value]) -> Iterator[Feeds]:
    """Yield feeds that fit the inputs and hold no NaN.

    Errors: RunError, naming the sample and the input
    """
    wanted = {value.name for value in inputs}
    number = 0
    for one in feeds:
        if set(one) != wanted:
            refuse_names(one, inputs)
        yield {value.name: _fitting(value, one[value.name], number) for value in inputs}
        number += 1
    if not number:
        raise RunError("the data hold no sample", fix=_HOW)


def _fitting(value: Value, given: Any, number: int) -> Array:
    array = as_array(value, given)
    dims = value.type.dims
    if array.shape != dims and array.size == value.type.elements and array.shape == dims[1:]:
        array = array.reshape(dims)
    if array.dtype.kind == "f" and value.dtype == "float32":
        with np.errstate(over="ignore"):
            array = array.astype(np.float32, copy=False)
    if array.shape != dims or dtype_name(array.dtype) != value.dtype:
        raise misfit(value, array)
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        what = "NaN" if np.isnan(array).any() else "an infinity"
        raise RunError(
            f"sample {number} of input '{value.name}' holds {what}, which has no place in a range",
            fix="leave the sample out, or repair what reads it",
        )
    return array
