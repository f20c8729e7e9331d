"""A converter in a few lines: a text of op names becomes a graph of them, one after another."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

import trireme
from trireme.ir.builder import GraphBuilder
from trireme.ir.graph import Graph, TensorType
from trireme.support.errors import ConvertError, TriremeError


def convert(
    source: str | os.PathLike[str] | bytes,
    *,
    shapes: Mapping[str, Sequence[int]] | None = None,
    **_: object,
) -> Graph:
    """Return the graph of a text such as b"relu tanh".

    `trireme.model_file.convert.register_converter("text", ".txt", "my_package:convert")` makes it
    the converter of files that end so.
    Errors: ConvertError, if an op is not known
    """
    text = source if isinstance(source, bytes) else Path(source).read_bytes()
    shape = tuple((shapes or {}).get("x", (4,)))
    builder = GraphBuilder("text")
    value = builder.input("x", TensorType(shape, "float32"))
    for number, op in enumerate(text.decode().split()):
        try:
            value = builder.add(op, value, source=f"text:{number}")
        except TriremeError as error:
            raise ConvertError(f"word {number}, {op!r}: {error}") from error
    return builder.finish(value)


def main() -> None:
    """Convert a text and run it."""
    graph = convert(b"relu tanh neg")
    with trireme.Session(graph, devices=["cpu"]) as session:
        print(session.run({"x": np.array([-1, 0, 1, 2], np.float32)}))


if __name__ == "__main__":
    main()
