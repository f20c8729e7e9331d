"""Dataclasses whose methods are written later act as those of the standard library."""

import copy
import dataclasses
import inspect
import pickle
import random
import re
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import FrozenInstanceError, asdict, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from trireme.support import records

OPTIONS: list[dict[str, bool]] = [
    {},
    {"frozen": True},
    {"eq": False},
    {"frozen": True, "eq": False},
    {"frozen": True, "repr": False},
    {"frozen": True, "kw_only": True},
    {"frozen": True, "slots": True},
]


def classes(decorate: Callable[..., Any], options: dict[str, bool]) -> list[Any]:
    """Return classes with every kind of field."""

    @decorate(**options)
    class Plain:
        """A class."""

        a: int
        b: str = "b"
        c: list[int] = field(default_factory=list)

    @decorate(**options)
    class Special:
        """A class."""

        a: float
        hidden: int = field(default=3, compare=False, repr=False)
        number: int = field(default=1, hash=False)
        named: str = field(default="n", kw_only=True)
        made: list[int] = field(default_factory=lambda: [1, 2], init=False, compare=False)
        seen: int = field(default=7, init=False)

    @decorate(**options)
    class After:
        """A class."""

        a: int

        def __post_init__(self) -> None:
            if self.a < 0:
                raise ValueError("negative")

    @decorate(**options)
    class Derived(Plain):
        """A class."""

        d: int = 4

    @decorate(**options)
    class Own:
        """A class."""

        a: int

        def __eq__(self, other: object) -> bool:
            return isinstance(other, type(self))

        def __hash__(self) -> int:
            return 5

        def __repr__(self) -> str:
            return "own"

    @decorate(**options)
    class OwnEquality:
        """A class."""

        a: int

        def __eq__(self, other: object) -> bool:
            return isinstance(other, type(self))

    @decorate(**options)
    class Empty:
        """A class."""

    return [Plain, Special, After, Derived, Own, OwnEquality, Empty]


def outcome(call: Callable[[], Any]) -> str:
    """Return what a call gives, as text without addresses."""
    try:
        found = call()
    except Exception as error:
        found = f"{type(error).__name__}: {error}"
    return re.sub("0x[0-9a-f]+", "0x", repr(found))


def facts(one: Any, rng: random.Random) -> list[str]:
    """Return what can be seen of a class and of instances made from drawn arguments."""
    found = [outcome(lambda: inspect.signature(one)), outcome(lambda: one.__match_args__)]
    found += [outcome(lambda: [(f.name, f.default, f.kw_only) for f in dataclasses.fields(one)])]
    found.append(outcome(lambda: one.__hash__ is None))
    calls = [[], [1], [1, 2], [-1], [float("nan")], [1, "b", [3]], [1, 2, 3, 4, 5, 6, 7]]
    named = [{}, {"a": 1}, {"named": "x"}, {"made": []}, {"b": 4}, {"d": 9, "a": 3}]
    made = []
    for _ in range(30):
        args, more = rng.choice(calls), rng.choice(named)
        try:
            made.append(one(*args, **more))
            found.append(outcome(lambda: made[-1]))
        except (TypeError, ValueError) as error:
            found.append(str(error))
    pairs = zip(made, made[1:], strict=False)
    return found + [fact for x, y in pairs for fact in facts_of_two(x, y)]


def facts_of_two(x: Any, y: Any) -> list[str]:
    """Return what can be seen of two instances of a class."""
    found = [outcome(lambda: x == y), outcome(lambda: x == copy.deepcopy(x)), repr(x == 1)]
    found += [outcome(lambda: hash(x) == hash(copy.copy(x)))]
    found += [outcome(lambda: asdict(x)), outcome(lambda: replace(x, a=5))]
    for name in ("a", "other"):
        found.append(outcome(partial(setattr, copy.copy(x), name, 2)))
        found.append(outcome(partial(delattr, copy.copy(x), name)))
    return found


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_a_class_is_that_of_the_standard_library(options: dict[str, bool]) -> None:
    mine, theirs = classes(records.dataclass, options), classes(dataclasses.dataclass, options)
    for number, (one, other) in enumerate(zip(mine, theirs, strict=True)):
        print("seed", number)
        assert facts(one, random.Random(number)) == facts(other, random.Random(number))


@records.dataclass(frozen=True)
class Kept:
    """A class of this module, which pickle finds."""

    a: int
    b: tuple[int, ...] = ()


def test_an_instance_is_pickled_to_a_process_that_made_none() -> None:
    code = (
        "import pickle, sys; from tests.engine.support.test_records import Kept;"
        "x = pickle.loads(bytes.fromhex(sys.argv[1])); y = pickle.loads(pickle.dumps(x));"
        "print(x, x == y, hash(x) == hash(y), x == Kept(1, (2,)))"
    )
    stored = pickle.dumps(Kept(1, (2,))).hex()
    done = subprocess.run([sys.executable, "-c", code, stored], capture_output=True, text=True)
    assert done.stdout == "Kept(a=1, b=(2,)) True True True\n", done.stderr


def test_threads_may_make_the_first_instances_at_once() -> None:
    with ThreadPoolExecutor(8) as threads:
        for _ in range(50):
            (one, *_) = classes(records.dataclass, {"frozen": True})
            made = list(threads.map(lambda n, one=one: one(n % 2), range(8)))
            assert made == [one(n % 2) for n in range(8)]


def test_a_frozen_class_may_be_derived_by_either_decorator() -> None:
    derived = dataclasses.dataclass(frozen=True)(type("Derived", (Kept,), {}))
    assert derived(1) == derived(1)
    with pytest.raises(FrozenInstanceError):
        derived(1).a = 2
    with pytest.raises(TypeError, match="non-frozen"):
        dataclasses.dataclass(type("Derived", (Kept,), {}))


def test_modules_that_a_session_loads_write_no_methods() -> None:
    code = (
        "import sys, trireme; from trireme.ir.builder import GraphBuilder;"
        "from trireme.ir.graph import TensorType; b = GraphBuilder('g');"
        "x = b.input('x', TensorType((2,), 'float32')); graph = b.finish(b.add('relu', x));"
        "trireme.Session(graph, devices=['cpu']).close();"
        "print(*(m.__file__ for n, m in sys.modules.items() if n.startswith('trireme.')))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    eager = re.compile(r"^from dataclasses import .*\bdataclass\b", re.MULTILINE)
    found = [Path(one) for one in done.stdout.split() if eager.search(Path(one).read_text())]
    alone = ["timing.py"]  # workers of `trireme bench` load this file, and nothing of trireme
    assert [path.name for path in found] == alone, (
        "trireme.support.records has the decorator for these"
    )
