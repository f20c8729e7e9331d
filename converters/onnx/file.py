"""Read an ONNX file without trusting it: sizes, references and paths are checked before use."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import field as fresh
from pathlib import Path
from typing import Any

import numpy as np
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

from trireme.converters.onnx.proto import ModelProto
from trireme.converters.onnx.strip import strip
from trireme.support.dtypes import Array
from trireme.support.errors import ModelFileError
from trireme.support.mapped import OnOpen, ignore_file, open_file
from trireme.support.records import dataclass

Model = Any
"""An onnx.ModelProto; the onnx package has no types that mypy could use."""
OLDEST_OPSET = 6
NEWEST_OPSET = 28
"""The newest opset whose changes `adapt` and `table` know."""
MOST_DENSE = 1 << 28
"""The most elements of all sparse tensors of a model, made dense."""
_DEFAULT = ("", "ai.onnx")


@dataclass(frozen=True, eq=False)
class Files:
    """The sources of tensor data: the model's own bytes, and files in the model's folder.

    own: uint8[size of the model]
    folder: the only folder of external data; None for a model given as bytes
    use_mmap: map files instead of reading them
    on_open: called with every file
    """

    own: Array
    folder: Path | None = None
    use_mmap: bool = True
    on_open: OnOpen = ignore_file
    _opened: dict[Path, Array] = fresh(default_factory=dict)
    _dense: list[int] = fresh(default_factory=list)

    def count_dense(self, elements: int, where: str) -> None:
        """Count the elements of a sparse tensor made dense; raise ModelFileError on too many.

        A sparse tensor of a few bytes may stand for gigabytes, and a model may hold many.
        """
        self._dense.append(elements)
        if sum(self._dense) > MOST_DENSE:
            raise ModelFileError(f"{where}: sparse tensors take over {MOST_DENSE} elements in all")

    def read(self, path: Path) -> Array:
        """Return the bytes of a file of external data; raise OSError."""
        if path not in self._opened:
            file = open_file(path, self.use_mmap)
            self.on_open(file)
            self._opened[path] = file.data
        return self._opened[path]


def read_model(
    source: str | Path | bytes, use_mmap: bool = True, on_open: OnOpen = ignore_file
) -> tuple[Model, Files]:
    """Return the model, and the sources of its tensors' data.

    Errors: ModelFileError, if it cannot be read, is no ONNX model, or its version is unknown
    """
    if isinstance(source, bytes):
        own = np.frombuffer(source, np.uint8)
        return _parse(own, "the bytes"), Files(own)
    path = Path(source)
    try:
        file = open_file(path, use_mmap)
    except OSError as error:
        raise ModelFileError(f"{path} cannot be read: {error.strerror or error}") from error
    on_open(file)
    return _parse(file.data, str(path)), Files(file.data, path.parent, use_mmap, on_open)


def _parse(data: Array, where: str) -> Model:
    model = ModelProto()
    try:
        model.ParseFromString(strip(data.data))
    except (DecodeError, UnicodeDecodeError, ValueError, RuntimeError) as error:
        raise ModelFileError(
            f"{where}: not an ONNX model, or a damaged one",
            facts=[f"{len(data)} bytes, protobuf says: {error}"],
        ) from error
    if not model.HasField("graph") or not model.opset_import:
        raise ModelFileError(
            f"{where}: not an ONNX model, or an empty one",
            facts=[f"{len(data)} bytes hold no graph with an opset"],
        )
    _check_text(model, where)
    return model


def _check_text(message: Any, where: str) -> None:
    """Raise ModelFileError for text that is not UTF-8, which protobuf returns as bytes."""
    for field, value in message.ListFields():
        if field.type not in (field.TYPE_STRING, field.TYPE_MESSAGE):
            continue
        several = not isinstance(value, str | bytes) and hasattr(value, "__len__")
        for item in value if several else (value,):
            if field.type == field.TYPE_MESSAGE:
                _check_text(item, where)
            elif isinstance(item, bytes):
                raise ModelFileError(f"{where}: {field.name} {item!r} is not UTF-8")


def opsets_of(imports: Iterable[Any], where: str) -> dict[str, int]:
    """Return the version of each domain; the default domain is called ""."""
    versions: dict[str, int] = {}
    for item in imports:
        domain = "" if item.domain in _DEFAULT else item.domain
        known = 1 <= item.version < 1 << 31
        if not known or versions.setdefault(domain, item.version) != item.version:
            raise ModelFileError(f"{where}: opset {domain or 'ai.onnx'} {item.version} is no good")
    return versions


def newer_opsets(model: Model) -> Iterator[str]:
    """Yield a note for the user where the model is of an opset newer than `NEWEST_OPSET`."""
    version = opsets_of(model.opset_import, "the model").get("", NEWEST_OPSET)
    if version > NEWEST_OPSET:
        yield (
            f"the model is of opset {version}, newer than {NEWEST_OPSET}, the newest known: "
            "an op whose meaning changed since gives other results"
        )


def domain_of(node: Any) -> str:
    """Return the domain of a node; the default domain is called ""."""
    return "" if node.domain in _DEFAULT else str(node.domain)


def label_of(node: Any, index: int) -> str:
    """Return a node's name in messages: "onnx:NAME", or "onnx:Conv_17" when it has no name."""
    return f"onnx:{node.name or f'{node.op_type}_{index}'}"


def in_order(nodes: Iterable[Any], where: str) -> list[tuple[str, Any]]:
    """Return labelled nodes, each after the makers of its inputs.

    Errors: ModelFileError, if two nodes make one value, or nodes wait for each other in a cycle
    """
    labelled = [(label_of(node, index), node) for index, node in enumerate(nodes)]
    maker: dict[str, int] = {}
    for index, (label, node) in enumerate(labelled):
        for name in filter(None, node.output):
            if name in maker:
                other = labelled[maker[name]][0]
                raise ModelFileError(f"{where}: value '{name}' is made by both {other} and {label}")
            maker[name] = index
    needs = [{maker[name] for name in used_names(node) if name in maker} for _, node in labelled]
    if all(not wanted or max(wanted) < index for index, wanted in enumerate(needs)):
        return labelled
    return [labelled[index] for index in _sorted(needs, [label for label, _ in labelled], where)]


def _sorted(needs: list[set[int]], labels: list[str], where: str) -> list[int]:
    users: dict[int, list[int]] = {}
    for index, wanted in enumerate(needs):
        for other in wanted:
            users.setdefault(other, []).append(index)
    left = [len(wanted) for wanted in needs]
    order = [index for index, count in enumerate(left) if not count]
    for index in order:
        for user in users.get(index, ()):
            left[user] -= 1
            if not left[user]:
                order.append(user)
    if len(order) < len(needs):
        stuck = [label for label, count in zip(labels, left, strict=True) if count]
        raise ModelFileError(
            f"{where}: nodes wait for each other in a cycle",
            facts=[", ".join(stuck[:8]) + (" ..." if len(stuck) > 8 else "")],
        )
    return order


def used_names(node: Any) -> set[str]:
    """Return the names that a node reads, outside values of its bodies included."""
    names = set(filter(None, node.input))
    for body in bodies_of(node):
        made = {value.name for value in body.input} | {value.name for value in body.initializer}
        made |= {name for inner in body.node for name in inner.output}
        inner_names = set(itertools.chain.from_iterable(used_names(inner) for inner in body.node))
        names |= (inner_names | {value.name for value in body.output}) - made
    return names


def bodies_of(node: Any) -> list[Any]:
    """Return the graphs among a node's attributes."""
    return [
        graph
        for attribute in node.attribute
        for graph in (*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs)
    ]
