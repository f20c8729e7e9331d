"""Programs of model files, kept from one process to the next: code, tables and packed weights.

A session whose model is a file, and whose program is one task of one device that can store its
tasks (`backend.image`), leaves an entry. A later session with the same file and arguments opens the
entry: nothing is read, placed, planned, lowered or packed, and most of the engine is not even
imported. An entry of open shapes serves other shapes too where it can (StoredShapes). Whatever
such a session is asked beside runs, it then makes as any other session.

An entry is valid while the model's files, the code and the machine are the same; its key and its
list of files hold these. Weights that kernels read in place stay in the model's files.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import struct
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from trireme.backend.device_kind import DeviceKind
from trireme.backend.registry import DEFAULT_DEVICE, kind_named, options_of
from trireme.ir.graph import Graph, Value
from trireme.runtime.models.stored_program import (
    LENGTH,
    StoredEnds,
    StoredEntry,
    StoredProgram,
)
from trireme.runtime.program.failures import described
from trireme.support.code_version import code_version
from trireme.support.disk_cache import MOST_BYTES
from trireme.support.dtypes import Array
from trireme.support.errors import TriremeError
from trireme.support.forks import wait_before_fork
from trireme.support.heap import trim_heap
from trireme.support.live_objects import LiveValues
from trireme.support.mapped import OpenFile, offset_in, stamp_of
from trireme.support.mapped_cache import MappedCache, padded
from trireme.support.records import dataclass
from trireme.support.user_files import USERS_CACHE, cache_folder, calibration_file

if TYPE_CHECKING:
    from trireme.runtime.program.context import ExecutionContext


_log = logging.getLogger(__name__)
SUFFIX = ".program"
MOST_PROGRAMS = 100
MOST_WAIT_S = 30.0
"""For an entry that another thread writes; then the session prepares the model itself."""
LARGEST_BYTES = MOST_BYTES // 2
"""A program with more bytes of packed weights is not stored."""
_APART = ("model", "devices", "progress", "mode", "contexts", "calibration", "execution_options")
"""Arguments that a key holds in a form of their own, or not: every mode runs one task the same."""


Entry = tuple[bytes, Sequence[Array]]
"""The head of an entry, and its data."""


class _NotPlain(Exception):
    """An argument has no form in a key."""


@dataclass(frozen=True)
class StoredKey:
    """What a session was asked for, where a program of it can be stored.

    folder: where the entries are
    options: of the device
    """

    key: str
    folder: Path
    model: str
    kind: DeviceKind
    options: Any

    def open(self) -> StoredProgram | None:
        """Return the stored program, None where there is none that is valid."""
        for thread in threading.enumerate():
            if isinstance(thread, Storing) and thread.key == (self.folder, self.key):
                thread.wait()
        entry = _ENTRIES.get(self.key)
        try:
            if entry is None:
                found = self._cache().load_mapped(self.key)
                if found is None:
                    return None
                entry = StoredEntry(*found)
                _ENTRIES[self.key] = entry
            return _opened(self, entry)
        except (TriremeError, ValueError, LookupError, TypeError, OSError, struct.error) as error:
            _log.warning("a stored program of %s could not be used: %s", self.model, error)
            return None

    def keep(self, make: Callable[[], Entry | None], files: Sequence[OpenFile]) -> Storing:
        """Begin to store a program.

        make: makes its entry, in a thread of its own; None where it has none
        files: those that the model was read from
        """
        storing = Storing(self, make, files)
        storing.start()
        return storing

    def _cache(self) -> MappedCache:
        return MappedCache(self.folder, SUFFIX, MOST_PROGRAMS, MOST_BYTES)


class Storing(threading.Thread):
    """Makes and writes an entry while the session runs; an interpreter that ends waits for it."""

    def __init__(
        self, key: StoredKey, make: Callable[[], Entry | None], files: Sequence[OpenFile]
    ) -> None:
        super().__init__(name="trireme-store")
        self.key, self._cache = (key.folder, key.key), key._cache()
        self._make, self._files = make, files
        self._is_made = threading.Event()
        wait_before_fork(self)  # a child must not find modules that are half imported

    def run(self) -> None:
        """Make the entry, and write it."""
        self._store()
        trim_heap()  # packed weights, as much as the model's

    def _store(self) -> None:
        try:
            made = self._make()
        except Exception as error:
            _log.warning("a program could not be stored: %s", error)
            return
        finally:
            del self._make
            self._is_made.set()
        if made is None or sum(array.nbytes for array in made[1]) > LARGEST_BYTES:
            return
        if all(stamp_of(file.path) == file.stamp for file in self._files):
            self._cache.store_mapped(self.key[1], *made)

    def before_fork(self) -> None:
        """Let it make the entry first."""
        self._is_made.wait(MOST_WAIT_S)

    def wait(self) -> None:
        """Return when the entry is written, or after the longest wait."""
        self.join(MOST_WAIT_S)
        if self.is_alive():
            _log.info("a stored program is not written after %g s", MOST_WAIT_S)


def stored_key(asked: Mapping[str, Any]) -> StoredKey | None:
    """Return the key of a session's program, None where its arguments allow no stored program.

    asked: the arguments of Session by name; nothing is known of their types
    """
    try:
        return _key(asked)
    except (_NotPlain, TriremeError, TypeError, ValueError, OSError):
        return None


def _key(asked: Mapping[str, Any]) -> StoredKey | None:
    model, how = asked["model"], asked["execution_options"]
    devices = [DEFAULT_DEVICE] if asked["devices"] is None else asked["devices"]
    alone = isinstance(devices, list | tuple) and len(devices) == 1 and type(devices[0]) is str
    if not isinstance(model, str | os.PathLike) or not alone:
        return None
    given = {} if how is None else {one.name: getattr(how, one.name) for one in fields(how)}
    name, folder = devices[0], given.pop("model_cache", USERS_CACHE)
    given.pop("max_queue", None)
    own = cache_folder("models") if folder == USERS_CACHE else folder
    stamp, kind = stamp_of(Path(model)), kind_named(name)
    if own is None or stamp is None or kind.open_image is None or name != kind.name:
        return None
    device_options = given.pop("device_options", None) or {}
    options = kind.options(**options_of(name, [name], device_options, asked["threads"]))
    parts = [
        [os.path.realpath(model), stamp, code_version(), sys.implementation.cache_tag],
        [(key, _plain(value)) for key, value in asked.items() if key not in _APART],
        _plain(given),
        [name, _plain(device_options), kind.image_key(options)],
        _calibration(asked["calibration"]),
    ]
    key = hashlib.sha256(json.dumps(parts).encode()).hexdigest()
    return StoredKey(key, Path(own), os.fspath(model), kind, options)


def _calibration(given: Any) -> Any:
    """Return what tells one calibration from another: the stamp of its file."""
    path = calibration_file() if given is None else given
    if path is None:
        return None
    if not isinstance(path, str | os.PathLike):
        raise _NotPlain
    return [os.path.realpath(path), stamp_of(Path(path))]


def _plain(value: Any) -> Any:
    """Return an argument as JSON has it, the same for equal arguments alone. Errors: _NotPlain"""
    if value is None or type(value) in (bool, int, float, str):
        return value
    if isinstance(value, os.PathLike):
        return ["path", os.fspath(value)]
    if isinstance(value, Mapping):
        return ["map", sorted([_plain(key), _plain(one)] for key, one in value.items())]
    if isinstance(value, list | tuple | set | frozenset):
        plain = [_plain(one) for one in value]
        return ["set", sorted(plain)] if isinstance(value, set | frozenset) else plain
    if is_dataclass(value) and not isinstance(value, type):
        parts = {one.name: _plain(getattr(value, one.name)) for one in fields(value)}
        return [type(value).__qualname__, parts]
    raise _NotPlain


def entry_of(
    context: ExecutionContext,
    files: Sequence[OpenFile],
    notes: Sequence[str],
    is_mapped: bool,
    open_graph: Graph | None = None,
    sizing: Mapping[str, Any] | None = None,
) -> Entry | None:
    """Return the entry of a program that is one task which its device can store; else None.

    files: those that the model was read from; is_mapped: whether they stay mapped
    notes: sentences for the user of the model
    open_graph: the graph of open shapes that the program runs at one set of shapes
    sizing: what it allows, where nothing else need be asked (session/sized_runner.py)
    """
    program = context.program
    graph, tasks = program.plan.graph, program.plan.tasks
    if len(tasks) != 1 or program.executables[0] is None:
        return None
    (task,) = tasks
    ends = {*graph.inputs}, {*graph.outputs}
    if ends != ({*task.inputs}, {*task.outputs}) or ends[0] & ends[1]:
        return None
    if len(graph.inputs) + len(graph.outputs) != len(ends[0]) + len(ends[1]):
        return None
    image = program.executables[0].image()
    if image is None:
        return None
    kept: list[Array] = []
    head = {
        "files": [(str(file.path.absolute()), file.stamp) for file in files],
        "notes": list(notes),
        "inputs": [_port_facts(graph.values[v], task.inputs.index(v)) for v in graph.inputs],
        "outputs": [
            _port_facts(graph.values[v], len(task.inputs) + task.outputs.index(v))
            for v in graph.outputs
        ],
        "open": None if open_graph is None else _open_facts(open_graph),
        "sizing": sizing,
        "moves": context.ports.moves,
        "task": described(program.plan, 0),
        "facts": image.facts,
        "tables": [(name, table.dtype.str, table.shape) for name, table in image.tables.items()],
        "constants": _places(image.constants, files if is_mapped else (), kept),
    }
    text = json.dumps(head).encode()
    tables = b"".join(np.ascontiguousarray(table).tobytes() for table in image.tables.values())
    return LENGTH.pack(len(text)) + text + tables, kept


def _port_facts(value: Value, argument: int) -> list[Any]:
    """Return an input or output as JSON has it; the argument is its number in the task's call."""
    quant = value.type.quant
    facts = None if quant is None else [quant.scales, quant.zero_points, quant.axis, quant.rounding]
    return [argument, value.id, value.name, value.type.shape, value.dtype, facts]


def _open_facts(graph: Graph) -> list[list[Any]]:
    """Return the inputs and the outputs of a graph of open shapes as JSON has them."""
    ends = graph.input_values(), graph.output_values()
    return [[_port_facts(value, 0) for value in values] for values in ends]


def _places(
    constants: Sequence[Array], files: Sequence[OpenFile], kept: list[Array]
) -> list[tuple[int, int, str, tuple[int, ...]]]:
    """Return where each constant is: the number of its file, -1 for the entry, and the offset.

    kept: gets the constants that the entry holds
    """
    places, end = [], 0
    for data in constants:
        number, offset = -1, end
        for k, file in enumerate(files):
            found = offset_in(data, file)
            if found is not None:
                number, offset = k, found
        if number < 0:
            kept.append(data)
            end += padded(data.nbytes)
        places.append((number, offset, data.dtype.str, data.shape))
    return places


_ENTRIES = LiveValues[str, StoredEntry]()


def _opened(key: StoredKey, entry: StoredEntry) -> StoredProgram | None:
    """Return the program of an entry; None where a file of the model changed."""
    told = entry.told
    if any(stamp_of(Path(name)) != tuple(stamp) for name, stamp in told["files"]):
        return None
    ends = StoredEnds(told["inputs"], told["outputs"], told["moves"], told["open"])
    assert key.kind.open_image is not None
    open_image = partial(key.kind.open_image, key.options, entry.image)
    for note in told["notes"]:
        _log_note(note)
    return StoredProgram(ends, open_image, entry)


def _log_note(note: str) -> None:
    from trireme.model_file.notes import log_note

    log_note(note)
