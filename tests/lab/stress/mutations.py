"""Damage model files at random, the same way for the same format, seed and number.

Seed files go to child processes on standard input, each a length and bytes.
"""

from __future__ import annotations

import random
import struct
import sys
import zlib
from collections.abc import Iterator
from typing import Any

INTERESTING = (0, 1, 2, 4, 127, 128, 255, 256, 65535, 65536, 2**31 - 1, 2**31, 2**32 - 1, 2**32 - 4)


def mutate(data: bytes, other: bytes, rng: random.Random) -> bytes:
    """Return the data damaged in one to four ways, by bits, words, ends and splices."""
    damaged = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 4))):
        rng.choice(WAYS)(damaged, other, rng)
    return bytes(damaged)


def _place(damaged: bytearray, rng: random.Random, align: int = 1) -> int:
    """A place in the data; the ends, where formats keep their structure, more often."""
    size = max(len(damaged) // align, 1)
    spot = rng.choice((rng.random(), rng.random() ** 4, 1 - rng.random() ** 4))
    return min(int(spot * size), size - 1) * align


def _bits(damaged: bytearray, other: bytes, rng: random.Random) -> None:
    for _ in range(rng.choice((1, 1, 3, 16))):
        if damaged:
            damaged[_place(damaged, rng)] ^= 1 << rng.randrange(8)


def _byte(damaged: bytearray, other: bytes, rng: random.Random) -> None:
    if damaged:
        damaged[_place(damaged, rng)] = rng.choice((0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)))


def _word(damaged: bytearray, other: bytes, rng: random.Random) -> None:
    place, form = _place(damaged, rng, 4), rng.choice(("<I", "<I", "<H", "<Q"))
    if place + struct.calcsize(form) <= len(damaged):
        value = rng.choice((*INTERESTING, len(damaged), rng.getrandbits(64)))
        struct.pack_into(form, damaged, place, value % (1 << 8 * struct.calcsize(form)))


def _nudge(damaged: bytearray, other: bytes, rng: random.Random) -> None:
    place = _place(damaged, rng, 4)
    if place + 4 <= len(damaged):
        value = struct.unpack_from("<I", damaged, place)[0] + rng.choice((-8, -4, -1, 1, 2, 4, 64))
        struct.pack_into("<I", damaged, place, value % 2**32)


def _small(damaged: bytearray, other: bytes, rng: random.Random) -> None:
    """Change a number that is small, and so an element or a count and not an offset far away."""
    form = rng.choice(("<i", "<i", "<h", "<b"))
    size = struct.calcsize(form)
    places = range(0, len(damaged) - size + 1, size)
    for place in rng.choices(places, k=40) if places else ():
        if -4 <= struct.unpack_from(form, damaged, place)[0] < 64:
            struct.pack_into(form, damaged, place, rng.randrange(-3, 20))
            return


def mutate_tflite(data: bytes, other: bytes, rng: random.Random) -> bytes:
    """Return the data damaged anywhere, or as often in one or two small numbers alone.

    Most damage breaks an offset of the FlatBuffers, which ends the case early.
    """
    if rng.random() < 0.5:
        return mutate(data, other, rng)
    damaged = bytearray(data)
    for _ in range(rng.choice((1, 2))):
        _small(damaged, other, rng)
    return bytes(damaged)


def _cut(damaged: bytearray, other: bytes, rng: random.Random) -> None:
    del damaged[_place(damaged, rng) :]


def _remove(damaged: bytearray, other: bytes, rng: random.Random) -> None:
    place = _place(damaged, rng)
    del damaged[place : place + rng.choice((1, 4, 8, 64, 500))]


def _copy(damaged: bytearray, other: bytes, rng: random.Random) -> None:
    start, size, place = _place(damaged, rng), rng.choice((1, 4, 8, 40, 300)), _place(damaged, rng)
    damaged[place : place + rng.choice((0, size))] = damaged[start : start + size]


def _splice(damaged: bytearray, other: bytes, rng: random.Random) -> None:
    start, size, place = rng.randrange(len(other)), rng.choice((4, 8, 64)), _place(damaged, rng)
    damaged[place : place + size] = other[start : start + size]


WAYS = (_bits, _byte, _word, _nudge, _small, _small, _small, _copy, _splice, _cut, _remove)


def change_number(value: int, rng: random.Random) -> int:
    """Another number, near, special or anything."""
    near = value + rng.choice((-2, -1, 1, 2))
    return rng.choice((near, -value, 0, 1, -1, -2, 7, 127, 2**31 - 1, 2**62, -(2**63)))


def change_text(text: str, other: str, rng: random.Random) -> str:
    """Another text: none, a longer or shorter one, a name that means something."""
    return rng.choice(("", other, text + "x", text[:-1], "\0", "ü" * 300, "conv", "float32"))


def mutate_objects(data: bytes, rng: random.Random) -> bytes:
    """Return an encoded .trm graph with one to three fields changed and the rest in order."""
    import flatbuffers

    from trireme.schema.generated import trireme_generated as fbs

    file = fbs.FileT.InitFromPackedBuf(data)
    for _ in range(rng.choice((1, 1, 3))):
        fields = list(_fields(file))
        owner, name = rng.choice(fields)
        same = [getattr(o, n) for o, n in fields if n == name]
        setattr(owner, name, _changed(getattr(owner, name), rng.choice(same), rng))
    builder = flatbuffers.Builder(1024)
    try:
        builder.Finish(file.Pack(builder), b"TRM1")
    except (TypeError, struct.error, AttributeError, OverflowError):
        return data  # a number that does not fit its field
    return bytes(builder.Output())


def _fields(table: Any) -> Iterator[tuple[Any, str]]:
    """Every field of every table below, so that each is as likely as the other."""
    for name, value in vars(table).items():
        yield table, name
        for item in value if isinstance(value, list) else [value]:
            if hasattr(item, "Pack"):
                yield from _fields(item)


def _changed(value: Any, other: Any, rng: random.Random) -> Any:
    if isinstance(value, bytes):
        return change_text(value.decode(), "relu", rng) if rng.random() < 0.5 else other
    if isinstance(value, bool | int):
        return change_number(value, rng) if rng.random() < 0.7 else other
    if isinstance(value, float):
        return rng.choice((other, -value, 0.0, 1e300, float("nan"), float("inf")))
    if value is None or hasattr(value, "Pack") or len(value) == 0 or rng.random() < 0.3:
        return rng.choice((other, None))
    items = list(value)
    way = rng.randrange(4)
    place = rng.randrange(len(items))
    if way == 0:
        items.pop(place)
    elif way == 1:
        items.insert(rng.randrange(len(items) + 1), items[place])
    elif way == 2:
        rng.shuffle(items)
    elif not hasattr(items[place], "Pack") and not isinstance(items[place], str | bytes):
        items[place] = type(items[place])(change_number(int(items[place]), rng) % 2**31)
    return items


def mutate_onnx(data: bytes, other: bytes, rng: random.Random) -> bytes:
    """Damage an ONNX file; most often a few fields, leaving the protobuf in order."""
    import onnx

    if rng.random() < 0.3:
        return mutate(data, other, rng)
    model = onnx.ModelProto.FromString(data)
    for _ in range(rng.choice((1, 1, 3))):
        owner, field = rng.choice(list(_proto_fields(model)))
        value = getattr(owner, field.name)
        repeated = hasattr(value, "__len__") and not isinstance(value, str | bytes)
        if rng.random() < 0.15:
            owner.ClearField(field.name)
        elif repeated and len(value) and rng.random() < 0.5:
            _shuffle_proto(value, rng)
        elif field.type == field.TYPE_BYTES and not repeated:
            setattr(owner, field.name, mutate(value, other, rng))
        elif field.type == field.TYPE_STRING and not repeated:
            setattr(owner, field.name, change_text(value, "Relu", rng))
        elif field.type not in (field.TYPE_MESSAGE, field.TYPE_BYTES, field.TYPE_STRING):
            _change_number_field(owner, field.name, value, repeated, rng)
        elif field.type == field.TYPE_STRING and len(value):
            value[rng.randrange(len(value))] = rng.choice(("", "x", "w", "nowhere"))
    return bytes(model.SerializeToString())


def _proto_fields(message: Any) -> Iterator[tuple[Any, Any]]:
    for field, value in message.ListFields():
        yield message, field
        if field.type == field.TYPE_MESSAGE:
            for item in value if hasattr(value, "__len__") else [value]:
                yield from _proto_fields(item)


def _shuffle_proto(items: Any, rng: random.Random) -> None:
    copies = list(items)
    place = rng.randrange(len(copies))
    if rng.random() < 0.5:
        del items[place]
    elif hasattr(copies[0], "CopyFrom"):
        items.add().CopyFrom(copies[place])
    else:
        items.append(copies[place])


def _change_number_field(
    owner: Any, name: str, value: Any, repeated: bool, rng: random.Random
) -> None:
    try:
        if repeated and len(value):
            place = rng.randrange(len(value))
            value[place] = type(value[place])(change_number(int(value[place]), rng))
        elif not repeated:
            setattr(owner, name, type(value)(change_number(int(value), rng)))
    except (ValueError, OverflowError):
        pass  # a number that does not fit its field


def mutate_trm(data: bytes, other: bytes, rng: random.Random) -> bytes:
    """Damage a .trm file; most often its graph alone, under a header and checksum that fit."""
    size = struct.unpack_from("<Q", data, 16)[0]
    if rng.random() < 0.2:
        return mutate(data, other, rng)
    weights = data[-(-(64 + size) // 64) * 64 :]
    graph = data[64 : 64 + size]
    by_field = rng.random() < 0.5
    graph = mutate_objects(graph, rng) if by_field else mutate(graph, other[64:], rng)
    start = -(-(64 + len(graph)) // 64) * 64
    header = data[:12] + struct.pack(
        "<IQQQ24s", zlib.crc32(graph), len(graph), start, len(weights), bytes(24)
    )
    return header + graph + bytes(start - 64 - len(graph)) + weights


def damaged_cases(
    format: str, seeds: list[bytes], seed: int, count: int, first: int = 0
) -> Iterator[tuple[int, bytes]]:
    """Yield the numbers and bytes of the cases from `first` to below `count`.

    Case n is the same whatever the count.
    """
    change = {"trm": mutate_trm, "tflite": mutate_tflite, "onnx": mutate_onnx}[format]
    for number in range(first, count):
        rng = random.Random(f"{format} {seed} {number}")
        yield number, change(rng.choice(seeds), rng.choice(seeds), rng)


def read_seeds() -> list[bytes]:
    """Return the files on standard input, each behind its length."""
    seeds = []
    while size := sys.stdin.buffer.read(8):
        seeds.append(sys.stdin.buffer.read(struct.unpack("<Q", size)[0]))
    return seeds


def packed(seeds: list[bytes]) -> bytes:
    """Return files as `read_seeds` reads them."""
    return b"".join(struct.pack("<Q", len(data)) + data for data in seeds)
