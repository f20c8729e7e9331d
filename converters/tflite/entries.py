"""Read the entries of a .tflite file: signatures, and subgraphs that nothing calls.

One entry is converted. The subgraphs that it calls are read with it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from trireme.converters.tflite.file import FileGraph, FileReader, reading, text_of
from trireme.support.errors import ConvertError, ModelFileError


@dataclass(frozen=True, eq=False)
class FileEntry:
    """An entry of the file: a signature, or a subgraph without a signature.

    names: the signature's names of inputs and outputs, by tensor
    """

    name: str
    subgraph: int
    names: Mapping[int, str]


@dataclass(frozen=True, eq=False)
class FileModel:
    """An entry of a file.

    graphs: the subgraph of the entry and all that it calls, by index
    others: the names of the other entries
    """

    entry: FileEntry
    graphs: Mapping[int, FileGraph]
    others: tuple[str, ...]

    @property
    def main(self) -> FileGraph:
        """The subgraph of the entry."""
        return self.graphs[self.entry.subgraph]


def read_file(data: memoryview, signature: str | None = None) -> FileModel:
    """Return an entry of a .tflite file: the one of a signature, or the one of the first subgraph.

    signature: the key of a signature, or the name of a subgraph without one
    Errors: ModelFileError, naming the field that is damaged; ConvertError, if there is no such
        signature
    """
    reader = FileReader(data)
    graphs: dict[int, FileGraph] = {}
    entries = [_signature(reader, i) for i in range(_signatures(reader))]
    signed = {entry.subgraph for entry in entries}
    unsigned = sorted(set(range(reader.subgraphs)) - signed)
    called: set[int] = set()
    if any(unsigned):  # the first is an entry in any case
        called = _called(_reachable(reader, range(reader.subgraphs), graphs))
    for index in unsigned:
        if index == 0 or index not in called:
            entries.append(FileEntry(_name(reader, index), index, {}))
    entry = _chosen(entries, signature)
    own = _reachable(reader, [entry.subgraph], graphs)
    others = tuple(one.name for one in entries if one is not entry)
    return FileModel(entry, {graph.index: graph for graph in own}, others)


def _reachable(
    reader: FileReader, roots: Iterable[int], graphs: dict[int, FileGraph]
) -> list[FileGraph]:
    """Return the subgraphs that the roots are or call; `graphs` keeps what is read."""
    waiting, found = list(roots), set()
    while waiting:
        index = waiting.pop()
        if index not in found:
            found.add(index)
            if index not in graphs:
                graphs[index] = reader.graph(index)
            waiting += sorted(_called([graphs[index]]))
    return [graphs[index] for index in sorted(found)]


def _called(graphs: Iterable[FileGraph]) -> set[int]:
    return {i for graph in graphs for operator in graph.operators for i in operator.subgraphs}


def _name(reader: FileReader, index: int) -> str:
    with reading(f"Model.subgraphs[{index}]"):
        name = text_of(reader.model.Subgraphs(index).Name(), "SubGraph.name")
    return name or f"subgraph_{index}"


def _signatures(reader: FileReader) -> int:
    with reading("Model.signature_defs"):
        return reader.count(reader.model.SignatureDefsLength(), "Model.signature_defs")


def _signature(reader: FileReader, index: int) -> FileEntry:
    field = f"Model.signature_defs[{index}]"
    with reading(field):
        signature = reader.model.SignatureDefs(index)
        subgraph = signature.SubgraphIndex()
        key = text_of(signature.SignatureKey(), f"{field}.signature_key")
        names: dict[int, str] = {}
        for side in ("Inputs", "Outputs"):
            n = reader.count(getattr(signature, f"{side}Length")(), f"{field}.{side.lower()}")
            pairs = [getattr(signature, side)(i) for i in range(n)]
            names |= {p.TensorIndex(): text_of(p.Name(), f"{field}.name") for p in pairs}
    if subgraph >= reader.subgraphs:
        raise ModelFileError(f"{field}.subgraph_index is {subgraph}, there are {reader.subgraphs}")
    return FileEntry(key or f"signature_{index}", subgraph, names)


def _chosen(entries: Sequence[FileEntry], signature: str | None) -> FileEntry:
    """Return the entry of a name; None selects the one of the first subgraph.

    Errors: ConvertError, listing the entries
    """
    for entry in entries:
        if entry.subgraph == 0 if signature is None else entry.name == signature:
            return entry
    known = ", ".join(repr(entry.name) for entry in entries)
    raise ConvertError(f"the model has no signature {signature!r}", facts=[f"signatures: {known}"])
