"""A converter in a few lines: a text of op names becomes a graph of them, one after another.

`tests/converters/test_contract.py` holds it to what every converter is held to.
"""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

import trireme
from trireme.ir.builder import GraphBuilder
from trireme.ir.graph import Graph, TensorType
from trireme.support.errors import ConvertError, ModelFileError, TriremeError
from trireme.support.mapped import OnOpen, ignore_file, open_file


def convert(
    source: str | os.PathLike[str] | bytes,
    *,
    shapes: Mapping[str, Sequence[int]] | None = None,
    on_open: OnOpen = ignore_file,
    **_: object,
) -> Graph:
    """Return the graph of a text such as b"relu tanh".

    `register_converter(Format("text", ".txt", "my_package:convert"))` of
    `trireme.model_file.convert` makes it the converter of files that end so.
    on_open: is told of every file that is read; a session keeps a graph until one changes
    Errors: ModelFileError, if the file cannot be read; ConvertError, if it is no text or an op is
    not known
    """
    shape = tuple((shapes or {}).get("x", (4,)))
    builder = GraphBuilder("text")
    value = builder.input("x", TensorType(shape, "float32"))
    for number, op in enumerate(_text(source, on_open).split()):
        try:
            value = builder.add(op, value, source=f"text:{number}")
        except TriremeError as error:
            raise ConvertError(f"word {number}, {op!r}: {error}") from error
    return builder.finish(value)


def _text(source: str | os.PathLike[str] | bytes, on_open: OnOpen) -> str:
    try:
        if isinstance(source, bytes):
            return source.decode()
        file = open_file(Path(source))
        on_open(file)
        return bytes(file.data).decode()
    except OSError as error:
        raise ModelFileError(f"{os.fspath(source)} cannot be read: {error}") from error
    except UnicodeDecodeError as error:
        raise ConvertError(f"the model is no text: {error}") from error


def main() -> None:
    """Convert a text and run it."""
    graph = convert(b"relu tanh neg")
    with trireme.Session(graph, devices=["cpu"]) as session:
        print(session.run({"x": np.array([-1, 0, 1, 2], np.float32)}))


if __name__ == "__main__":
    main()
