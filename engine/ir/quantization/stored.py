"""The report of a quantisation as text in a model's file, and back.

The text depends on the samples and the settings alone. Where samples lay and how long steps took
are left out, so that equal samples give equal files. The model file asks.
"""

from __future__ import annotations

import json
import math
import types
import typing
from collections.abc import Mapping
from dataclasses import MISSING, asdict, fields, is_dataclass, replace
from typing import Any, Literal, TypeVar, Union

from trireme.ir.quantization.report import QuantizationReport

R = TypeVar("R")
RANDOM = "random"
"""The start of the source of random samples, which a file names."""
_NOT_FINITE = {"inf": math.inf, "-inf": -math.inf, "nan": math.nan}


def report_text(report: QuantizationReport) -> str:
    """Return a report as JSON of ASCII; numbers that are not finite are texts."""
    source = report.source if report.source.startswith(RANDOM) else ""
    plain = replace(report, source=source, seconds={})
    return json.dumps(_plain(asdict(plain)), sort_keys=True, separators=(",", ":"))


def report_from(text: str) -> QuantizationReport:
    """Return the report of a text.

    Errors: ValueError, if the text is none of `report_text`
    """
    try:
        report = _made(QuantizationReport, json.loads(text))
    except (RecursionError, OverflowError) as error:
        raise ValueError(str(error)) from error
    if report.precision and sum(one.is_chosen for one in report.precision.front) != 1:
        raise ValueError("the front has not one chosen point")
    return report


def _plain(data: Any) -> Any:
    if isinstance(data, Mapping):
        return {key: _plain(value) for key, value in data.items()}
    if isinstance(data, (list, tuple)):
        return [_plain(value) for value in data]
    return str(data) if isinstance(data, float) and not math.isfinite(data) else data


def _made(kind: type[R], data: Any) -> R:
    """Return a dataclass of JSON data; a field that is missing has its default."""
    known = {field.name: field for field in fields(kind)}  # type: ignore[arg-type]
    if not isinstance(data, dict) or not data.keys() <= known.keys():
        raise ValueError(f"{kind.__name__} is {str(data)[:60]!r}")
    for name, field in known.items():
        if name not in data and field.default is MISSING and field.default_factory is MISSING:
            raise ValueError(f"{kind.__name__} has no {name}")
    hints = typing.get_type_hints(kind)
    return kind(**{name: _value(hints[name], value) for name, value in data.items()})


def _value(hint: Any, data: Any) -> Any:
    """Return JSON data as a value of a type."""
    origin, parts = typing.get_origin(hint), typing.get_args(hint)
    if is_dataclass(hint):
        return _made(typing.cast(type, hint), data)
    if origin in (Union, types.UnionType):
        inner = next(part for part in parts if part is not type(None))
        return None if data is None else _value(inner, data)
    if origin is tuple and isinstance(data, list):
        return tuple(_value(parts[0], one) for one in data)
    if origin is not None and origin is not Literal and isinstance(data, dict):
        return {str(key): _value(parts[1], one) for key, one in data.items()}
    if hint is float and (data in _NOT_FINITE if isinstance(data, str) else _is_number(data)):
        return _NOT_FINITE[data] if isinstance(data, str) else float(data)
    if origin is Literal and data in parts or hint in (int, str, bool) and type(data) is hint:
        return data
    raise ValueError(f"{str(data)[:60]!r} is no {getattr(hint, '__name__', hint)}")


def _is_number(data: object) -> bool:
    return isinstance(data, (int, float)) and not isinstance(data, bool)
