"""The arrays that a command feeds to a model: files, an image, zeros, or seeded random numbers."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from trireme.ir.bind_shapes import value_at
from trireme.ir.graph import Value
from trireme.runtime.program.feeds import random_array
from trireme.runtime.session.session import Session
from trireme.support.dtypes import Array
from trireme.support.errors import RunError
from trireme.tools.image import load_image
from trireme.tools.parsed import parse_sizes

_FIX = "give an .npy file, which numpy.save writes, or random or zeros"


def make_feeds(options: argparse.Namespace, inputs: Sequence[Value]) -> dict[str, Array]:
    """Return an array for every input: from a file, an image, zeros, or seeded random numbers."""
    given = _given_inputs(options.input, inputs)
    sizes = parse_sizes(getattr(options, "at", []))
    inputs = [value_at(value, sizes) for value in inputs]
    rng = np.random.default_rng(options.seed)
    feeds: dict[str, Array] = {}
    pictures = [v.name for v in inputs if v.name not in given and len(v.type.shape) >= 3]
    if options.image and not pictures:
        facts = [f"the model takes {value.name} {value.type}" for value in inputs]
        raise RunError(
            "--image: no input takes a picture that no --input gives",
            facts=facts,
            fix="leave out --image",
        )
    for value in inputs:
        source = given.get(value.name, "random")
        if options.image and value.name in pictures:
            feeds[value.name] = load_image(options.image, value.type, normalise=options.normalise)
        else:
            feeds[value.name] = _from_source(value, source, rng)
    return feeds


def named_inputs(options: argparse.Namespace, session: Session) -> list[Value]:
    """Return the inputs of a session, and the optional ones that --input names."""
    named = {row.rpartition("=")[0] for row in options.input}
    required = session.inputs
    if named <= {value.name for value in required}:
        return required
    return [*required, *(value for value in session.optional_inputs if value.name in named)]


def _given_inputs(rows: Sequence[str], inputs: Sequence[Value]) -> Mapping[str, str]:
    given = {}
    names = [value.name for value in inputs]
    for row in rows:
        name, _, source = row.rpartition("=")
        if name not in names:
            facts = [f"the model takes {value.name} {value.type}" for value in inputs]
            fix = f"--input {names[0]}={source}" if len(names) == 1 else ""
            raise RunError(f"--input {row}: no input is called {name!r}", facts=facts, fix=fix)
        given[name] = source
    return given


def _from_source(value: Value, source: str, rng: np.random.Generator) -> Array:
    makers: Mapping[str, Callable[[], Array]] = {
        "random": lambda: random_array(value, rng),
        "zeros": lambda: np.zeros(value.type.dims, value.type.dtype),
    }
    if source in makers:
        return makers[source]()
    what = f"--input {value.name}={source}"
    try:
        loaded = np.load(source, allow_pickle=False)
    except OSError as error:
        raise RunError(f"{what} cannot be read: {error.strerror or error}", fix=_FIX) from error
    except ValueError as error:
        raise RunError(f"{what} is no array of numbers in numpy's format", fix=_FIX) from error
    if isinstance(loaded, np.ndarray):
        return loaded
    names = ", ".join(loaded.files)
    loaded.close()
    raise RunError(f"{what} is a file of several arrays ({names})", fix=_FIX)
