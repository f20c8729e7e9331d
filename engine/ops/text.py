"""Ops over strings: concatenation, splitting, matching, normalising, counting n-grams."""

from __future__ import annotations

import re
from collections.abc import Iterable
from itertools import pairwise

import numpy as np

from trireme.ir.graph import UNKNOWN, Dim, TensorType, Value
from trireme.ir.op import Attr, Call, define
from trireme.ops.shapes import Types, broadcast, expect_rank, one
from trireme.support.dtypes import INDICES, TEXT, Array
from trireme.support.errors import GraphError, ShapeError

Ints = tuple[int, ...]
Strs = tuple[str, ...]


def _cost(call: Call) -> int:
    return sum(value.type.elements for value in call.inputs if value is not None)


def _infer_concat(a: Value, b: Value) -> Types:
    return one(broadcast(a.shape, b.shape), "string")


define(
    "string_concat",
    "a b",
    "y = a followed by b, broadcast. Source: ONNX StringConcat-20",
    _infer_concat,
    lambda a, b: np.asarray(a.astype(object) + b.astype(object), object),
    flops=_cost,
    family="other",
    dtypes=(TEXT, TEXT),
)


def _infer_split(x: Value, **attrs: object) -> Types:
    return TensorType((*x.shape, UNKNOWN), "string"), TensorType(x.shape, "int64")


def _split(x: Array, *, delimiter: str, maxsplit: int | None) -> tuple[Array, Array]:
    most = -1 if maxsplit is None else maxsplit
    parts = [str(text).split(delimiter or None, most) for text in x.reshape(-1)]
    width = max(map(len, parts), default=0)
    y = np.full((x.size, width), "", object)
    for row, found in zip(y, parts, strict=True):
        row[: len(found)] = found
    counts = np.array([len(found) for found in parts], np.int64)
    return y.reshape(*x.shape, width), counts.reshape(x.shape)


define(
    "string_split",
    "x",
    "y, count = the parts of each string between delimiters (or runs of blanks), padded with "
    "empty strings. Shapes: x [..] -> y [..,most parts], count [..]. Source: ONNX, opset 20",
    _infer_split,
    _split,
    outputs="y count?",
    flops=_cost,
    family="other",
    attrs={"delimiter": Attr("str", ""), "maxsplit": Attr("int", None)},
    dtypes=(TEXT,),
)


def _infer_match(x: Value, *, pattern: str) -> Types:
    try:
        re.compile(pattern)
    except re.error as error:
        raise GraphError(f"pattern {pattern!r} is not understood: {error}") from error
    return one(x.shape, "bool")


def _match(x: Array, *, pattern: str) -> Array:
    whole = re.compile(pattern)
    hits = [whole.fullmatch(str(text)) is not None for text in x.reshape(-1)]
    return np.array(hits, bool).reshape(x.shape)


define(
    "regex_full_match",
    "x",
    "y = whether `pattern` matches all of x; the syntax that RE2 and Python's re share. "
    "Source: ONNX RegexFullMatch-20",
    _infer_match,
    _match,
    flops=_cost,
    family="other",
    attrs={"pattern": Attr("str", "")},
    dtypes=(TEXT,),
    bounded=False,
)


def _infer_normalizer(x: Value, **attrs: object) -> Types:
    rank = expect_rank("x", x, 1, 2)
    return one((UNKNOWN,) if rank == 1 else (1, UNKNOWN), "string")


def _normalizer(
    x: Array, *, case_change_action: str, is_case_sensitive: int, stopwords: Strs, locale: str
) -> Array:
    fold = str if is_case_sensitive else str.lower
    change = {"LOWER": str.lower, "UPPER": str.upper}.get(case_change_action, str)
    stop = {fold(word) for word in stopwords}
    kept = [change(str(text)) for text in x.reshape(-1) if fold(str(text)) not in stop] or [""]
    made = np.array(kept, object)
    return made if x.ndim == 1 else made[None]


define(
    "string_normalizer",
    "x",
    "y = x without the stop words, in small or capital letters; one empty string when "
    "nothing is left. Shapes: x [C] or [1,C]. Source: ONNX StringNormalizer-10",
    _infer_normalizer,
    _normalizer,
    flops=_cost,
    family="other",
    attrs={
        "case_change_action": Attr("str", "NONE", ("NONE", "LOWER", "UPPER")),
        "is_case_sensitive": Attr("int", 0),
        "stopwords": Attr("strs", ()),
        "locale": Attr("str", ""),
    },
    dtypes=(TEXT,),
)


def _infer_tf_idf(
    x: Value,
    *,
    ngram_indexes: Ints,
    ngram_counts: Ints,
    pool_int64s: Ints | None,
    pool_strings: Strs | None,
    **attrs: object,
) -> Types:
    rank = expect_rank("x", x, 1, 2)
    size = len(pool_strings or pool_int64s or ())
    if any(a > b for a, b in pairwise((0, *ngram_counts, size))):
        raise ShapeError(f"ngram_counts are {ngram_counts}, expected to rise from 0 to {size}")
    width = max(ngram_indexes, default=-1) + 1
    lead: tuple[Dim, ...] = x.shape[: rank - 1]
    return one((*lead, width), "float32")


def _grams(
    pool: tuple[object, ...], starts: Ints, least: int, most: int
) -> Iterable[tuple[int, tuple[object, ...]]]:
    """Yield (number, gram) for each n-gram of the pool with n in least..most."""
    number = 0
    for n, start in enumerate(starts, 1):
        end = starts[n] if n < len(starts) else len(pool)
        if (end - start) % n:
            raise ShapeError(f"the pool's {end - start} items do not divide into {n}-grams")
        for at in range(start, end, n):
            if least <= n <= most:
                yield number, pool[at : at + n]
            number += 1


def _tf_idf(
    x: Array,
    *,
    ngram_indexes: Ints,
    ngram_counts: Ints,
    weights: tuple[float, ...] | None,
    pool_int64s: Ints | None,
    pool_strings: Strs | None,
    min_gram_length: int,
    max_gram_length: int,
    max_skip_count: int,
    mode: str,
) -> Array:
    pool: tuple[object, ...] = pool_strings or pool_int64s or ()
    grams = dict(
        (gram, number)
        for number, gram in _grams(pool, ngram_counts, min_gram_length, max_gram_length)
    )
    y = np.zeros((x.size // max(x.shape[-1], 1), max(ngram_indexes, default=-1) + 1), np.float32)
    factors = np.ones(len(ngram_indexes)) if weights is None else np.array(weights)
    for line, out in zip(x.reshape(len(y), -1).tolist(), y, strict=True):
        seen: set[int] = set()
        for gram in _found(line, min_gram_length, max_gram_length, max_skip_count):
            number = grams.get(gram)
            if number is not None and not (mode == "IDF" and number in seen):
                seen.add(number)
                out[ngram_indexes[number]] += 1 if mode == "TF" else factors[number]
    return y.reshape(*x.shape[:-1], -1)


def _found(line: list[object], least: int, most: int, skips: int) -> Iterable[tuple[object, ...]]:
    for n in range(max(least, 1), min(most, len(line)) + 1):
        longest = (len(line) - 1) // (n - 1) if n > 1 else 1  # steps beyond leave the line
        for step in range(1, min(skips + 1, longest) + 1):
            for start in range(len(line) - (n - 1) * step):
                yield tuple(line[start : start + (n - 1) * step + 1 : step])


define(
    "tf_idf_vectorizer",
    "x",
    "y[i] = how often the n-grams with index i occur in x, elements of a gram lying 1 to "
    "max_skip_count + 1 apart (TF), whether they do times their weight (IDF), or the count "
    "times it (TFIDF). Shapes: x [C] or [N,C] -> y [..,indexes]. Source: ONNX, opset 9",
    _infer_tf_idf,
    _tf_idf,
    flops=_cost,
    family="other",
    attrs={
        "ngram_indexes": Attr("ints", least=0),
        "ngram_counts": Attr("ints"),
        "weights": Attr("floats", None),
        "pool_int64s": Attr("ints", None),
        "pool_strings": Attr("strs", None),
        "min_gram_length": Attr("int"),
        "max_gram_length": Attr("int"),
        "max_skip_count": Attr("int"),
        "mode": Attr("str", choices=("TF", "IDF", "TFIDF")),
    },
    dtypes=(INDICES | TEXT,),
)
