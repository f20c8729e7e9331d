"""Find the converter of a model by the model's bytes, and call it.

A format names its converter as a "module:function" string, so that the libraries of a format are
imported only for its models.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from trireme.ir.bind_shapes import Shapes, bind_shapes, is_open, refused_sizes, shapes_to_give
from trireme.ir.device_scope import device
from trireme.ir.graph import Graph, Value
from trireme.ir.python_op import PythonOp
from trireme.model_file import is_model_file, load, loads
from trireme.model_file.notes import OnNote, log_note
from trireme.support.arguments import checked, shown
from trireme.support.errors import ConvertError, ModelFileError, TriremeError
from trireme.support.mapped import OnOpen, ignore_file
from trireme.support.records import dataclass

_TRM = "trm"


@dataclass(frozen=True)
class Format:
    """A format of models, and its converter.

    suffix: of its files
    function: "module:function" of the converter, which is called as function(source, shapes=shapes,
        use_mmap=mmap, on_open=on_open), with the arguments of `convert`. A session caches the graph
        until a file given to `on_open` changes.
    identifier: bytes 4 to 8 of its files, where the format has an identifier
    start: the first bytes of its files, where those name the format
    has_signatures: whether a file may hold several graphs; the converter then takes `signature`
    has_notes: whether the converter takes `on_note`
    optional_inputs: "module:function" that lists the inputs with a default, where its files may
        have such; the converter then takes `optional_inputs` too, the names of those to keep
    has_python_ops: whether functions of the user may stand for ops of the format; the converter
        then takes `python_ops` too
    classes: full names of classes whose objects the converter takes beside files; it then takes
        `example_inputs` and `dynamic_shapes` too
    has_usual_sizes: whether its files give open dimensions a size, which they have by default; the
        converter then takes `open_inputs` too, the names of inputs that stay open
    """

    name: str
    suffix: str
    function: str
    identifier: bytes = b""
    start: bytes = b""
    has_signatures: bool = False
    has_notes: bool = False
    optional_inputs: str = ""
    has_python_ops: bool = False
    classes: tuple[str, ...] = ()
    has_usual_sizes: bool = False


_FORMATS: dict[str, Format] = {
    one.name: one
    for one in (
        Format(
            "onnx",
            ".onnx",
            "trireme.converters.onnx:convert",
            has_python_ops=True,
            has_notes=True,
            optional_inputs="trireme.converters.onnx.optional:optional_inputs",
        ),
        Format(
            "tflite",
            ".tflite",
            "trireme.converters.tflite.walk:convert",
            b"TFL3",
            has_signatures=True,
            has_notes=True,
            has_python_ops=True,
            has_usual_sizes=True,
        ),
        Format(
            "torch",
            ".pt2",
            "trireme.converters.torch:convert",
            start=b"PK\3\4",
            classes=(
                "torch.nn.modules.module.Module",
                "torch.export.exported_program.ExportedProgram",
            ),
        ),
    )
}


def register_converter(format: Format) -> None:
    """Register a format from outside for `convert`."""
    _FORMATS[format.name] = format


@checked(ConvertError)
def convert(
    source: str | os.PathLike[str] | bytes | object,
    example_inputs: object = None,
    *,
    dynamic_shapes: object = None,
    format: str | None = None,
    shapes: Shapes | None = None,
    signature: str | None = None,
    mmap: bool = True,
    on_open: OnOpen = ignore_file,
    on_note: OnNote = log_note,
    python_ops: Mapping[str, PythonOp] | None = None,
    optional_inputs: Sequence[str] = (),
) -> Graph:
    """Return the graph of a model: a .trm, .tflite, .onnx or .pt2 file, or a module of PyTorch.

    A file is given by its path or its bytes. The constants are views of the file. A mapped file may
    be replaced, but must not be truncated or overwritten in place while the graph is in use. The
    weights of a module are copied.

    example_inputs: for a module of PyTorch, the arguments of its forward: a tuple, or a dict of
        keywords
    dynamic_shapes: for a module of PyTorch, its open dimensions, as torch.export.export takes them
    shapes: shapes of the inputs that the model leaves open; a dimension is a size, or a symbol with
        bounds such as "seq<=512"
    mmap: map the file; False reads it
    on_open: called with every file that the graph is made of
    signature: selects one graph of a .tflite file with several; the default is the first
    on_note: called with a sentence: the names of the other graphs, without `signature`; an ONNX
        opset that is newer than the newest known (default: a warning is logged)
    python_ops: functions of the user: for a .trm file those that its graph calls, by name; for an
        .onnx file those that stand for ops, by "domain::Op"; for a .tflite file by the operator
    optional_inputs: names of ONNX inputs with a default that stay inputs; the defaults of all
        others become constants
    Errors: ModelFileError, if the file is damaged or of no known kind; ConvertError, listing every
        op that is not supported; either names the file; ShapeError, if `shapes` does not fit a .trm
    """
    if isinstance(source, (str, os.PathLike, bytes)):
        kind = format or _format_of(source)
    else:
        kind = _format_of_object(source)
    found = _FORMATS.get(kind)
    examples = {"example_inputs": example_inputs, "dynamic_shapes": dynamic_shapes}
    _check_taken(kind, found, signature, **examples)
    given = shapes or {}
    if kind == _TRM and isinstance(source, (str, os.PathLike, bytes)):
        if isinstance(source, bytes):
            return bind_shapes(loads(source, python_ops=python_ops), given)
        graph = load(source, mmap=mmap, on_open=on_open, python_ops=python_ops)
        return bind_shapes(graph, given)
    if found is None:
        raise ConvertError(
            f"unknown model format {kind!r}", facts=[f"known: {_TRM}, {', '.join(_FORMATS)}"]
        )
    if optional_inputs and not found.optional_inputs:
        raise ConvertError(f"a .{kind} model has no optional inputs")
    if python_ops and not found.has_python_ops:
        raise ConvertError(f"Python operators stand for no op of a .{kind} model")
    sizes = {name: shape for name, shape in given.items() if not is_open(shape)}
    symbols = {name: shape for name, shape in given.items() if is_open(shape)}
    options: dict[str, Any] = {"shapes": sizes or None, "use_mmap": mmap, "on_open": on_open}
    asked = {"signature": signature, "on_note": on_note, "python_ops": python_ops, **examples}
    asked |= {"open_inputs": tuple(symbols), "optional_inputs": tuple(optional_inputs)}
    options |= _taken_by(found, asked)
    try:
        graph = _made_by(found, source, options)
    except (ConvertError, ModelFileError) as error:
        raise _with_fix(error, found, source, options) from error.__cause__
    return bind_shapes(graph, symbols)


def optional_inputs(model: object, mmap: bool = True) -> list[Value]:
    """Return the inputs of a model file, or of its bytes, that a run need not feed.

    Each has its default as data. A Graph and a module have none.
    Errors: ModelFileError, if the file is damaged
    """
    if not isinstance(model, (str, os.PathLike, bytes)):
        return []
    found = _FORMATS.get(_format_of(model))
    if found is None or not found.optional_inputs:
        return []
    module, _, function = found.optional_inputs.partition(":")
    made: list[Value] = getattr(importlib.import_module(module), function)(model, mmap)
    return made


def _taken_by(format: Format, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return those options that the converter of a format takes."""
    taken = {
        "signature": format.has_signatures,
        "on_note": format.has_notes,
        "open_inputs": format.has_usual_sizes,
        "optional_inputs": format.optional_inputs,
        "example_inputs": format.classes,
        "dynamic_shapes": format.classes,
        "python_ops": format.has_python_ops,
    }
    return {name: value for name, value in options.items() if taken[name]}


def _check_taken(
    kind: str, found: Format | None, signature: str | None, **examples: object
) -> None:
    """Refuse what models of a kind do not take."""
    for name, value in examples.items():
        if value is not None and not (found and found.classes):
            raise ConvertError(f"a .{kind} model takes no {name}")
    if signature is not None and not (found and found.has_signatures):
        raise ConvertError(f"a .{kind} model has no signatures, {signature!r} was asked for")


def _with_fix(
    error: ConvertError | ModelFileError, format: Format, source: object, options: dict[str, Any]
) -> TriremeError:
    """Return the error of a model with shapes of inputs: with a fix where it converts without."""
    shapes = options["shapes"]
    if not shapes or error.fix:
        return error
    try:
        as_it_is = _made_by(format, source, {**options, "shapes": None})
    except TriremeError:
        return error
    if isinstance(error, ModelFileError):
        error = ConvertError(error.summary, facts=error.facts)
    usual = {v.name: v.type.dims for v in as_it_is.input_values() if v.type.is_static}
    if format.has_usual_sizes and shapes.keys() <= usual.keys():
        fix = shapes_to_give({name: usual[name] for name in shapes})
        return ConvertError(error.summary, facts=error.facts, fix=fix)
    return refused_sizes(error, as_it_is, shapes)


def _made_by(format: Format, source: object, options: Mapping[str, Any]) -> Graph:
    """Return what the converter of a format makes of a model, with the file in any error."""
    module, _, function = format.function.partition(":")
    try:
        with device(None):
            made: Graph = getattr(importlib.import_module(module), function)(source, **options)
        return made
    except (ConvertError, ModelFileError) as error:
        where = os.fspath(source) if isinstance(source, (str, os.PathLike)) else ""
        if not where or where in error.summary:
            raise
        summary = f"{where}: {error.summary}"
        raise type(error)(summary, facts=error.facts, fix=error.fix) from error


def _format_of_object(source: object) -> str:
    """Return the format whose converter takes objects of a class of the source's."""
    classes = {f"{one.__module__}.{one.__qualname__}" for one in type(source).__mro__}
    for one in _FORMATS.values():
        if classes.intersection(one.classes):
            return one.name
    known = ", ".join(name for one in _FORMATS.values() for name in one.classes)
    raise ConvertError(f"source is {shown(source)}, expected a path, bytes or an object of {known}")


def _format_of(source: str | os.PathLike[str] | bytes) -> str:
    """Return the format by the file's identifier, else by its suffix, else "onnx" for bytes."""
    if not isinstance(source, bytes):
        path = Path(source)
        try:
            if path.exists() and not path.is_file():
                raise ModelFileError(f"{path} cannot be read: it is not a regular file")
            with path.open("rb") as file:
                head = file.read(8)
        except (OSError, ValueError) as error:  # a zero byte in the name is a ValueError
            why = error.strerror if isinstance(error, OSError) else error
            raise ModelFileError(f"{path} cannot be read: {why}") from error
        name, suffix = str(path), path.suffix.lower()
    else:
        head, name, suffix = source[:8], "what is given", ".onnx"
    if is_model_file(head):
        return _TRM
    formats = _FORMATS.values()
    for one in formats:
        if one.identifier and head[4:8] == one.identifier:
            return one.name
        if one.start and head.startswith(one.start):
            return one.name
    suffixes = {**{one.suffix: one.name for one in formats}, f".{_TRM}": _TRM}
    if suffix not in suffixes:
        known = ", ".join(suffixes)
        raise ModelFileError(f"{name} is of no known kind", facts=[f"known suffixes: {known}"])
    return suffixes[suffix]
