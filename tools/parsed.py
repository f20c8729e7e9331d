"""Turn parsed options into names, pins, shapes, and the arguments of a session or a placement."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from trireme.backend.device import kind_of
from trireme.backend.registry import kind_named
from trireme.ir.bind_shapes import shapes_at
from trireme.ir.graph import Graph
from trireme.model_file.branches import convert_at
from trireme.placement.lock import Lock, devices_of
from trireme.placement.lockfile import load_lock
from trireme.placement.options import PlacementOptions, Sharding
from trireme.runtime.program.options import ExecutionOptions
from trireme.runtime.session.session import Session
from trireme.support.errors import RunError
from trireme.support.user_files import calibration_file
from trireme.tools.options import flag_value, flagged_options
from trireme.tools.python_ops import python_ops


def parse_shapes(rows: Sequence[str]) -> dict[str, tuple[int | str, ...]]:
    """Return the shapes given as NAME=1,3,224,224, where a symbol such as seq<=512 stays open."""
    shapes = {}
    for row in rows:
        name, _, dims = row.replace("<=", "\0").rpartition("=")
        given = [dim.replace("\0", "<=").strip() for dim in dims.split(",")]
        if not name or not all(given):
            raise RunError(f"--shape {row}: expected NAME=1,3,224,224 or NAME=1,seq<=512")
        shapes[name] = tuple(int(dim) if dim.lstrip("-").isdecimal() else dim for dim in given)
    return shapes


def parse_sizes(rows: Sequence[str]) -> dict[str, int]:
    """Return the sizes of symbols given as SYMBOL=128,OTHER=1."""
    sizes = {}
    for row in rows:
        for part in row.split(","):
            name, _, size = part.partition("=")
            if not name.strip() or not size.strip().isdecimal():
                raise RunError(f"--at {row}: expected SYMBOL=128, or several with commas")
            sizes[name.strip()] = int(size)
    return sizes


def parse_buckets(rows: Sequence[str]) -> dict[str, tuple[int, ...]]:
    """Return the sizes of symbols given as SYMBOL=64,128,512."""
    buckets = {}
    for row in rows:
        name, _, sizes = row.partition("=")
        given = [size.strip() for size in sizes.split(",")]
        if not name.strip() or not all(size.isdecimal() for size in given):
            raise RunError(f"--bucket {row}: expected SYMBOL=64,128,512")
        buckets[name.strip()] = tuple(map(int, given))
    return buckets


def model_shapes(options: argparse.Namespace) -> dict[str, tuple[int | str, ...]] | None:
    """Return the shapes of inputs that --shape and --at give; None without.

    A symbol with buckets stays open: its size is that of the feeds alone.
    """
    shapes = parse_shapes(getattr(options, "shape", []))
    sizes = parse_sizes(getattr(options, "at", []))
    buckets = parse_buckets(getattr(options, "bucket", []))
    sizes = {name: size for name, size in sizes.items() if name not in buckets}
    if sizes:
        graph = convert_at(options.model, shapes or None, signature=options.signature)
        shapes = {**shapes, **shapes_at(graph, sizes)}
    return shapes or None


def parse_states(rows: Sequence[str]) -> dict[str, str] | None:
    """Return the states given as INPUT=OUTPUT; None without."""
    states = {}
    for row in rows:
        name, _, output = row.partition("=")
        if not name or not output:
            raise RunError(f"--state {row}: expected INPUT=OUTPUT, such as past.*=present.*")
        states[name] = output
    return states or None


def parse_pins(rows: Sequence[str]) -> dict[str, str]:
    """Return the pins given as NODE=DEVICE, in their order."""
    pins: dict[str, str] = {}
    for row in rows:
        name, _, device = row.rpartition("=")
        if not name or not device:
            raise RunError(f"--pin {row}: expected NODE=DEVICE, such as op:softmax=cpu")
        pins.pop(name, None)
        pins[name] = device
    return pins


def calibration_path() -> Path:
    """Return the file of this machine's calibration (user_files.py).

    Errors: RunError, where this user has none
    """
    file = calibration_file()
    if file is None:
        raise RunError(
            "this user has no home folder to keep a calibration in",
            fix="set TRIREME_CALIBRATION to a file's name",
        )
    return file


def calibration_given(options: argparse.Namespace) -> Path:
    """Return the calibration file of --output, else that of this machine.

    Errors: as `calibration_path`
    """
    return Path(options.output) if options.output else calibration_path()


def device_options(options: argparse.Namespace) -> dict[str, dict[str, Any]]:
    """Return the options of each device that the command line names.

    Errors: RunError, if an option is of a device that is not used
    """
    given: dict[str, dict[str, Any]] = {}
    kinds = {kind_of(name) for name in device_list(options)}
    for flag, declared in flagged_options().items():
        if flag_value(options, declared[0][1]) is None:
            continue
        if kinds.isdisjoint(kind for kind, _ in declared):
            one = "it" if len(declared) == 1 else "one of them"
            raise RunError(
                f"{flag} is an option of {' and '.join(kind for kind, _ in declared)}, "
                f"and the devices are {options.devices}",
                fix=f"add {one} to --devices, or leave out {flag}",
            )
        for kind, option in declared:
            if kind in kinds:
                given.setdefault(kind, {})[option.name] = flag_value(options, option)
    return given


def thread_counts(options: argparse.Namespace, devices: Sequence[str]) -> Sequence[int | None]:
    """Return the numbers of threads to measure devices with: None where none takes threads, or for
    all of its cores.
    """
    takes = any(kind_named(name).takes("threads") for name in devices)
    return options.threads if takes and options.threads else (None,)


def device_list(options: argparse.Namespace) -> list[str]:
    """Return the names given with --devices."""
    return [name.strip() for name in options.devices.split(",") if name.strip()]


def use_lock(options: argparse.Namespace) -> None:
    """Take from the lock of --placement, or --check, what the command line leaves open.

    Errors: ModelFileError, if the lock cannot be read
    """
    given = vars(options)
    file = given.get("placement") or given.get("check")
    if isinstance(file, str):
        locked = load_lock(file)
        fill_from_lock(options, locked)
    if "objective" in given:
        options.objective = options.objective or "makespan"


_NEEDS = (("top", "labels", 5), ("normalise", "image", "signed"), ("tolerance", "check", 0.0))
"""An option, the option without which it says nothing, and its default."""


def refuse_unused(options: argparse.Namespace) -> None:
    """Refuse an option that says nothing without another.

    Errors: RunError
    """
    given = vars(options)
    for name, other, default in _NEEDS:
        if other in given and not given[other] and given.get(name, default) != default:
            raise RunError(
                f"--{name} says nothing without --{other}",
                fix=f"add --{other}, or leave out --{name}",
            )


def fill_from_lock(options: argparse.Namespace, locked: Lock) -> None:
    """Give the options that are not set the values that a lock was made with; pins add up, and a
    pin of the command line comes after those of the lock."""
    given, made_with = vars(options), locked.options
    if not options.devices_given:
        options.devices, options.devices_given = ",".join(devices_of(locked)), True
    for name, value in (
        ("objective", locked.objective),
        ("batch", made_with.batch),
        ("threads", made_with.threads),
        ("soc", made_with.soc or None),
    ):
        if name in given and given[name] is None:
            setattr(options, name, value)
    if not given.get("vary") and "vary" in given:
        options.vary = [f"{name}={value!r}" for name, value in made_with.figures.items()]
    options.pin = [*(f"{name}={to}" for name, to in made_with.pins.items()), *options.pin]


def sharding(options: argparse.Namespace) -> Sharding:
    """Return what --shard asks for: its texts, or "auto" or "off" where it is one of these."""
    given: list[str] = options.shard or ["auto"]
    return given[0] if given in (["auto"], ["off"]) else given


def passes_off(options: argparse.Namespace) -> list[str]:
    """Return the optimiser's passes to leave out."""
    return [name for name in options.passes_off.split(",") if name]


def plan_choices(options: argparse.Namespace) -> dict[str, Any]:
    """Return how a placement is made a plan, as arguments of `make_plan`."""
    return dict(subgraphs=options.subgraphs, execution=options.execution or "sunk")


def placement_options(
    options: argparse.Namespace, prove_s: float | None = None
) -> PlacementOptions:
    """Return what the options ask of a placement."""
    return PlacementOptions(
        objective=options.objective,
        pins=parse_pins(options.pin),
        fixed=options.placement,
        sharding=sharding(options),
        multi_device=options.multi_device,
        prove_s=prove_s,
    )


def session_arguments(options: argparse.Namespace) -> dict[str, Any]:
    """Return what the options say of a session, as its arguments."""
    return dict(
        devices=device_list(options),
        threads=options.threads,
        fallback=options.fallback,
        mode=options.mode,
        placement=options.placement,
        measure=options.measure,
        shapes=model_shapes(options),
        states=parse_states(getattr(options, "state", [])),
        buckets=parse_buckets(getattr(options, "bucket", [])) or None,
        placement_options=PlacementOptions(**placement_fields(options)),
        execution_options=ExecutionOptions(
            **execution_fields(options), python_ops=python_ops(options)
        ),
    )


def placement_fields(options: argparse.Namespace) -> dict[str, Any]:
    """Return what the options say of PlacementOptions, by field, as JSON can carry it."""
    return dict(
        objective=options.objective,
        pins=parse_pins(options.pin),
        sharding=sharding(options),
        multi_device=options.multi_device,
    )


def execution_fields(options: argparse.Namespace) -> dict[str, Any]:
    """Return what the options say of ExecutionOptions, by field, as JSON can carry it."""
    return dict(
        **plan_choices(options),
        device_options=device_options(options),
        schedule=getattr(options, "schedule", "static"),
        passes_off=passes_off(options),
        signature=getattr(options, "signature", None),
    )


def open_session(
    options: argparse.Namespace, model: Graph | str | None = None, **changed: Any
) -> Session:
    """Return a session for the options' model and devices; `changed` overrides its arguments."""
    given = session_arguments(options)
    given["batch"] = options.batch
    session = Session(options.model if model is None else model, **{**given, **changed})
    for form in ("ir", "asm"):
        if folder := getattr(options, f"dump_{form}", None):
            dump_code(session, form, Path(folder))
    return session


def dump_code(session: Session, form: str, folder: Path) -> None:
    """Write the code of every kernel into a folder, a file each; `form` is "ir" or "asm"."""
    found = session.kernels(form)
    if not found:
        raise RunError(f"--dump-{form}: the devices of this session generate no code")
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in found.items():
        (folder / name).write_text(text)
