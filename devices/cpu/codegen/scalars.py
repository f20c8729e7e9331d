"""Element types of kernels: the form of each in memory and in a register.

A bool is a byte in memory and one bit in a register; 16-bit floats are float32 in registers and
rounded after every op. `load` and `store` go between the two, `convert` is a cast.
"""

from __future__ import annotations

from typing import Literal

from trireme.devices.cpu.codegen.ir import Function, Index, Operand, Value
from trireme.devices.cpu.codegen.llvm_types import element_of, lanes_of, vector
from trireme.support.records import dataclass

Kind = Literal["single", "double", "signed", "unsigned", "bool"]
"""The arithmetic of an element; "single" is float32 and every type that is computed in float32."""


@dataclass(frozen=True)
class Scalar:
    """An element type: LLVM's types in memory and in a register, and a short name for kernels."""

    memory: str
    register: str
    kind: Kind
    nbytes: int
    short: str


SCALARS: dict[str, Scalar] = {
    "float32": Scalar("float", "float", "single", 4, "f32"),
    "float64": Scalar("double", "double", "double", 8, "f64"),
    "float16": Scalar("i16", "float", "single", 2, "f16"),
    "bfloat16": Scalar("i16", "float", "single", 2, "bf16"),
    "bool": Scalar("i8", "i1", "bool", 1, "bool"),
    **{f"int{b}": Scalar(f"i{b}", f"i{b}", "signed", b // 8, f"i{b}") for b in (8, 16, 32, 64)},
    **{f"uint{b}": Scalar(f"i{b}", f"i{b}", "unsigned", b // 8, f"u{b}") for b in (8, 16, 32, 64)},
}
"""The element types of native kernels, by the graph's names."""


def load(fn: Function, dtype: str, pointer: Value, lanes: int, count: Index | None = None) -> Value:
    """Load `count` elements (all lanes when None) and no byte beyond; the other lanes are 0."""
    scalar = SCALARS[dtype]
    type, count = vector(lanes, scalar.memory), lanes if count is None else count
    if count == lanes:
        raw = fn.load(type, pointer, min(scalar.nbytes, 4))
    elif scalar.nbytes >= 4 or isinstance(count, Value):
        raw = fn.load_some(type, pointer, count, min(scalar.nbytes, 4))
    else:
        raw = _load_pieces(fn, scalar, pointer, lanes, count)
    return _to_register(fn, dtype, raw)


def store(
    fn: Function, dtype: str, value: Value, pointer: Value, count: Index | None = None
) -> None:
    """Store the first `count` elements (all lanes when None) and no byte beyond them."""
    scalar = SCALARS[dtype]
    lanes = lanes_of(value.type)
    raw, count = _to_memory(fn, dtype, value), lanes if count is None else count
    if count == lanes:
        fn.store(raw, pointer, min(scalar.nbytes, 4))
    elif scalar.nbytes >= 4 or isinstance(count, Value):
        fn.store_some(raw, pointer, count, min(scalar.nbytes, 4))
    else:
        for at, width in _pieces(count):
            part = fn.shuffle(raw, raw, range(at, at + width)) if width > 1 else fn.extract(raw, at)
            fn.store(part, fn.at(pointer, at, scalar.memory), scalar.nbytes)


def _pieces(count: int) -> list[tuple[int, int]]:
    """Cut a count into powers of two, each with where it begins."""
    found, at = [], 0
    while at < count:
        width = 1 << (count - at).bit_length() - 1
        found.append((at, width))
        at += width
    return found


def _load_pieces(fn: Function, scalar: Scalar, pointer: Value, lanes: int, count: int) -> Value:
    whole = fn.as_value(vector(lanes, scalar.memory), 0)
    for at, width in _pieces(count):
        place = fn.at(pointer, at, scalar.memory)
        part = fn.load(vector(width, scalar.memory), place, scalar.nbytes)
        if width == 1:
            whole = fn.emit(whole.type, f"insertelement {whole}, {part}, i32 {at}")
            continue
        wide = fn.shuffle(part, part, [lane if lane < width else -1 for lane in range(lanes)])
        order = [lanes + i - at if at <= i < at + width else i for i in range(lanes)]
        whole = fn.shuffle(whole, wide, order)
    return whole


def rounded(fn: Function, dtype: str, value: Value) -> Value:
    """Return a value in a register as its type in memory holds it."""
    if SCALARS[dtype].memory == SCALARS[dtype].register or dtype == "bool":
        return value
    return _to_register(fn, dtype, _to_memory(fn, dtype, value))


def _to_register(fn: Function, dtype: str, raw: Value) -> Value:
    if dtype == "bool":
        return fn.compare("ne", raw, 0)
    if dtype == "float16":
        return _from_half(fn, raw)
    if dtype == "bfloat16":
        wide = fn.convert("zext", raw, _ints(raw))
        return fn.convert("bitcast", bits(fn, "shl", wide, 16), _floats(raw))
    return raw


def _to_memory(fn: Function, dtype: str, value: Value) -> Value:
    lanes = lanes_of(value.type)
    if dtype == "bool":
        return fn.convert("zext", value, vector(lanes, "i8"))
    if dtype == "float16":
        return _to_half(fn, value)
    if dtype == "bfloat16":
        return _to_bfloat(fn, value)
    return value


def bits(fn: Function, op: str, left: Value, right: Operand) -> Value:
    """Emit an instruction on the bits of integers: and, or, xor, shl, lshr, ashr..."""
    return fn.emit(left.type, f"{op} {left.type} {left.text}, {left.text_of(right)}")


def any_lane(fn: Function, condition: Value) -> Value:
    """Whether a condition holds in some lane."""
    lanes = lanes_of(condition.type)
    if lanes == 1:
        return condition
    return fn.compare("ne", fn.convert("bitcast", condition, f"i{lanes}"), 0)


def _ints(like: Value) -> str:
    return vector(lanes_of(like.type), "i32")


def _floats(like: Value) -> str:
    return vector(lanes_of(like.type), "float")


def _from_half(fn: Function, raw: Value) -> Value:
    """Return float32 of the bits of float16.

    Source without instructions for it: F. Giesen, half_to_float_fast5 (2012)
    """
    lanes = lanes_of(raw.type)
    if fn.isa.halves:
        half = fn.convert("bitcast", raw, vector(lanes, "half"))
        return fn.convert("fpext", half, _floats(raw))
    wide = fn.convert("zext", raw, _ints(raw))
    size = bits(fn, "shl", bits(fn, "and", wide, 0x7FFF), 13)
    scaled = fn.convert("bitcast", size, _floats(raw)) * 2.0**112
    scaled = fn.convert("bitcast", scaled, size.type)
    special = bits(fn, "or", scaled, 0x7F800000)
    found = fn.select(fn.compare("uge", size, 0x7C00 << 13), special, scaled)
    sign = bits(fn, "shl", bits(fn, "and", wide, 0x8000), 16)
    return fn.convert("bitcast", bits(fn, "or", found, sign), _floats(raw))


def _to_half(fn: Function, value: Value) -> Value:
    """Return the bits of float16 nearest to float32, halves to even.

    Source without instructions for it: F. Giesen, float_to_half_fast3_rtne
    """
    lanes = lanes_of(value.type)
    if fn.isa.halves:
        half = fn.convert("fptrunc", value, vector(lanes, "half"))
        return fn.convert("bitcast", half, vector(lanes, "i16"))
    whole = fn.convert("bitcast", value, _ints(value))
    size = bits(fn, "and", whole, 0x7FFFFFFF)
    odd = bits(fn, "and", bits(fn, "lshr", size, 13), 1)
    normal = bits(fn, "lshr", size + (0xFFF - (112 << 23)) + odd, 13)
    tiny = fn.convert("bitcast", fn.convert("bitcast", size, _floats(value)) + 0.5, size.type)
    found = fn.select(fn.compare("ult", size, 113 << 23), tiny - (126 << 23), normal)
    found = fn.select(fn.compare("uge", size, 0x477FF000), 0x7C00, found)
    found = fn.select(fn.compare("ugt", size, 0x7F800000), 0x7E00, found)
    sign = bits(fn, "lshr", bits(fn, "and", whole, -0x80000000), 16)
    return fn.convert("trunc", bits(fn, "or", found, sign), vector(lanes, "i16"))


def _to_bfloat(fn: Function, value: Value) -> Value:
    """Return the bits of bfloat16 nearest to float32, halves to even."""
    whole = fn.convert("bitcast", value, _ints(value))
    odd = bits(fn, "and", bits(fn, "lshr", whole, 16), 1)
    near = bits(fn, "lshr", whole + 0x7FFF + odd, 16)
    quiet = bits(fn, "or", bits(fn, "lshr", whole, 16), 0x40)
    found = fn.select(fn.compare("uno", value, value), quiet, near)
    return fn.convert("trunc", found, vector(lanes_of(value.type), "i16"))


def convert(fn: Function, value: Value, source: str, target: str) -> Value:
    """Return a cast, in registers, by the rules of the op `cast` (engine/ops/conversion.py)."""
    old, new = SCALARS[source], SCALARS[target]
    type = vector(lanes_of(value.type), new.register)
    if new.kind == "bool":
        is_float = old.kind in ("single", "double")
        return value if old.kind == "bool" else fn.compare("une" if is_float else "ne", value, 0)
    if old.kind in ("single", "double"):
        if new.kind in ("signed", "unsigned"):
            if source == "float16" and target == "uint32":
                return fn.convert("trunc", _to_integer(fn, value, SCALARS["int64"]), type)
            return _to_integer(fn, value, new)
        resized = _resized(fn, value, type, "fpext", "fptrunc")
        return rounded(fn, target, resized)
    signed = old.kind == "signed"
    if new.kind in ("single", "double"):
        return rounded(fn, target, fn.convert("sitofp" if signed else "uitofp", value, type))
    return _resized(fn, value, type, "sext" if signed else "zext", "trunc")


def _resized(fn: Function, value: Value, type: str, widen: str, narrow: str) -> Value:
    old, new = (_WIDTH[element_of(t)] for t in (value.type, type))
    return value if old == new else fn.convert(widen if new > old else narrow, value, type)


_WIDTH = {"float": 32, "double": 64, "i1": 1, "i8": 8, "i16": 16, "i32": 32, "i64": 64}


def _to_integer(fn: Function, value: Value, new: Scalar) -> Value:
    """Return a float cut toward zero; a value outside gives ONNX Runtime's result on x86.

    Up to 32 bits a number outside int32, or NaN, counts as -2^31; then the low bits are kept. int64
    likewise. The upper half of uint32 and uint64 is converted less 2^31 or 2^63, which is added to
    the bits again.
    """
    width = max(8 * new.nbytes, 32)
    type = vector(lanes_of(value.type), f"i{width}")
    if new.kind == "signed" or new.nbytes < 4:
        return _resized(
            fn, _to_signed(fn, value, type), vector(lanes_of(type), new.register), "sext", "trunc"
        )
    half = 2.0 ** (width - 1)
    above = fn.compare("oge", value, half)
    low = _to_signed(fn, fn.select(above, value - half, value), type)
    return fn.select(above, bits(fn, "xor", low, -(1 << width - 1)), low)


def _to_signed(fn: Function, value: Value, type: str) -> Value:
    limit = 2.0 ** (_WIDTH[element_of(type)] - 1)
    inside = bits(fn, "and", fn.compare("oge", value, -limit), fn.compare("olt", value, limit))
    safe = fn.select(inside, value, fn.as_value(value.type, 0.0))
    return fn.select(inside, fn.convert("fptosi", safe, type), fn.as_value(type, -int(limit)))
