"""States that a session holds between runs, and snapshots of them that a file can keep."""

from __future__ import annotations

import io
import os
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from trireme.ir.dims import Bounds, bounds_of, substituted, symbols_of
from trireme.ir.effects import States, state_misfit
from trireme.ir.graph import UNKNOWN, Dim, Graph, Value
from trireme.runtime.program.feeds import as_array, refuse_names
from trireme.runtime.states.rules import Tie
from trireme.support.atomic import write_atomic
from trireme.support.dtypes import Array
from trireme.support.errors import ModelFileError, RunError


class StateSnapshot(Mapping[str, Array]):
    """Copies of states by name; one that has had no value yet may be missing.

    `Session.get_state` makes one, `Session.set_state` restores it.
    """

    def __init__(self, arrays: Mapping[str, Array]) -> None:
        self._arrays = {name: np.array(array) for name, array in arrays.items()}

    def __getitem__(self, name: str) -> Array:
        return self._arrays[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._arrays)

    def __len__(self) -> int:
        return len(self._arrays)

    def __repr__(self) -> str:
        shown = (f"{n}: {a.dtype}{list(a.shape)}" for n, a in self._arrays.items())
        return f"StateSnapshot({', '.join(shown)})"

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the states to an .npz file, whole or not at all.

        Errors: ModelFileError, if it cannot be written
        """
        made = io.BytesIO()
        with zipfile.ZipFile(made, "w", allowZip64=True) as archive:
            for name, array in self._arrays.items():
                one = io.BytesIO()
                np.save(one, array, allow_pickle=False)
                archive.writestr(f"{name}.npy", one.getbuffer())
        try:
            write_atomic(Path(path), [made.getbuffer()])
        except ModelFileError as error:
            raise ModelFileError(f"{path}: {error.summary}") from error

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> StateSnapshot:
        """Return the states of a file that `save` wrote, or of any .npz file.

        Errors: ModelFileError, if it cannot be read
        """
        try:
            with open(path, "rb") as opened, np.lib.npyio.NpzFile(opened) as file:
                return cls({name: file[name] for name in file.files})
        except Exception as error:  # zipfile's parser lets many kinds out on damaged files
            raise ModelFileError(f"{path}: no file of states: {error}") from error


class TiedStates:
    """The inputs and outputs of a session whose other inputs and outputs are states.

    inputs, outputs: what the caller feeds and gets
    """

    def __init__(
        self, graph: Graph, ties: Sequence[Tie], states: States, are_variables: bool
    ) -> None:
        self.ties, self._states, self._symbols = ties, states, graph.symbols
        self.are_variables = are_variables
        if not are_variables:
            states.types |= {tie.name: tie.past.type for tie in ties}
            states.symbols |= graph.symbols
        past = {tie.past.name for tie in ties}
        present = {tie.present.name for tie in ties}
        self.inputs = [value for value in graph.input_values() if value.name not in past]
        self.outputs = [value for value in graph.output_values() if value.name not in present]
        self._present = {tie.present.name: tie for tie in ties}
        values = (*self.inputs, *(tie.past for tie in ties))
        self._symbol_axes = {value.name: _symbol_axes(value) for value in values}
        self._bounded = [
            (tie, axis, most)
            for tie in ties
            for axis in tie.grows
            if (most := _most(tie.past.shape[axis], graph.symbols)) is not None
        ]

        known = {symbol for axes in self._symbol_axes.values() for _, symbol in axes}
        self._unsure = [tie for tie in ties if not _always_fits(tie, graph.symbols, known)]

    def feeds(self, given: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return what the program is fed: what is given, and the states.

        Errors: RunError, if a feed is missing or unknown, a size of a feed is not the one that a
        state holds, or the run would make a state longer than its bound
        """
        names = {value.name for value in self.inputs}
        if not isinstance(given, Mapping) or set(given) != names:
            refuse_names(given, self.inputs)
        if self.are_variables:
            return given
        sizes = self._sizes(given)
        held = {tie.name: self._array(tie, sizes) for tie in self.ties}
        if self._bounded:
            for tie in self.ties:
                sizes |= self._sizes_of(tie.past, held[tie.name])
            self._check_growth(sizes)
        return {**given, **held}

    def outputs_asked(
        self, out: Mapping[str, Array] | None
    ) -> tuple[Mapping[str, Array] | None, dict[str, Array]]:
        """Return the arrays of `out` for outputs, and those for states, by the output's name."""
        if not isinstance(out, Mapping):
            return out, {}
        mine = {name: array for name, array in out.items() if name in self._present}
        rest = {name: array for name, array in out.items() if name not in mine}
        return rest or None, mine

    def keep(
        self, results: dict[str, Array], asked: Mapping[str, Array] | None = None
    ) -> dict[str, Array]:
        """Hold the states of a run, and return its other outputs.

        asked: arrays for states, written and returned with the outputs
        Errors: RunError, if an output does not fit its input; then no state changes
        """
        made = {name: array for name, array in results.items() if name not in self._present}
        if not self.are_variables:
            kept = {tie: results[tie.present.name] for tie in self.ties}
            for tie in self._unsure:
                self._check_kept(tie, kept[tie])
            for tie, array in kept.items():
                self._states.arrays[tie.name] = array
        for name, target in (asked or {}).items():
            made[name] = _written(name, self._states.arrays[self._present[name].name], target)
        return made

    def _sizes(self, given: Mapping[str, Any]) -> dict[str, int]:
        """Return the sizes of symbols that feeds give."""
        sizes: dict[str, int] = {}
        for value in self.inputs:
            sizes |= self._sizes_of(value, as_array(value, given[value.name]))
        return sizes

    def _sizes_of(self, value: Value, array: Array) -> dict[str, int]:
        """Return the sizes of the symbols that stand alone in a value's shape."""
        shape = array.shape
        axes = self._symbol_axes[value.name]
        return {symbol: shape[axis] for axis, symbol in axes if axis < len(shape)}

    def _array(self, tie: Tie, sizes: Mapping[str, int]) -> Array:
        """Return the array of a state, its initial one where there is none."""
        held = self._states.arrays.get(tie.name, tie.initial)
        if held is None:
            return self._empty(tie, sizes)
        for axis, symbol in self._symbol_axes[tie.name]:
            if sizes.get(symbol, held.shape[axis]) != held.shape[axis]:
                raise RunError(
                    f"state '{tie.name}' holds {symbol} = {held.shape[axis]}, the inputs have "
                    f"{symbol} = {sizes[symbol]}",
                    fix="session.reset() begins anew",
                )
        return held

    def _empty(self, tie: Tie, sizes: Mapping[str, int]) -> Array:
        """Return zeros, of length 0 along the axes that grow."""
        shape = []
        for axis, (dim, made) in enumerate(zip(tie.past.shape, tie.present.shape, strict=True)):
            size = substituted(dim, sizes)
            if not isinstance(size, int) and axis in tie.grows:
                size = made if isinstance(made, int) else 0  # of a fixed size after every run
            least, _ = bounds_of(dim, self._symbols) if isinstance(size, int) else (0, None)
            if not isinstance(size, int) or size < least:
                why = f"is {least} or more" if isinstance(size, int) else "follows from no input"
                raise RunError(
                    f"state '{tie.name}' {tie.past.type} has no value before the first run: {dim} "
                    f"{why}",
                    fix=f"states={{'{tie.name}': State('{tie.present.name}', initial=array)}}, or "
                    "session.set_state",
                )
            shape.append(size)
        return tie.zeros(shape)

    def _check_growth(self, sizes: Mapping[str, int]) -> None:
        """Raise RunError if the run would make a state that is longer than its bound."""
        for tie, axis, most in self._bounded:
            size = substituted(tie.present.shape[axis], sizes)
            if isinstance(size, int) and size > most:
                raise RunError(
                    f"state '{tie.name}' would be {size} long along axis {axis}, its bound is "
                    f"{tie.past.shape[axis]}<={most}",
                    fix="session.reset() begins anew; shapes= sets the bound",
                )

    def _check_kept(self, tie: Tie, array: Array) -> None:
        if why := state_misfit(tie.past.type, self._symbols, array):
            raise RunError(
                f"output '{tie.present.name}' cannot be '{tie.name}' of the next run: it {why}"
            )


def _most(dim: Dim, symbols: Mapping[str, Bounds]) -> int | None:
    """Return the most that a dimension can be, None where it has no bound."""
    return bounds_of(dim, symbols)[1] if symbols_of(dim) else None


def _always_fits(tie: Tie, symbols: Mapping[str, Bounds], known: set[str]) -> bool:
    """Whether an output fits its input after every run whose growth was checked before.

    known: the symbols whose sizes inputs give
    """
    for axis in tie.grows:
        past, present = tie.past.shape[axis], tie.present.shape[axis]
        least, most = symbols.get(str(past), (0, None))
        if symbols_of(past) != {past} or least:
            return False
        if most is not None and (present == UNKNOWN or not symbols_of(present) <= known):
            return False
    return True


def _symbol_axes(value: Value) -> list[tuple[int, str]]:
    """Return the axes of a value whose size is a symbol, with the symbol."""
    dims = enumerate(value.shape)
    return [(axis, str(dim)) for axis, dim in dims if symbols_of(dim) == frozenset({dim})]


def _written(name: str, array: Array, target: Array) -> Array:
    if target.shape != array.shape or target.dtype != array.dtype:
        found = f"{array.dtype}{list(array.shape)}"
        raise RunError(
            f"output '{name}' is {found}, the array is {target.dtype}{list(target.shape)}"
        )
    target[...] = array
    return target
