"""Find the kernel of a node in a table that each device fills; devices use it at compile time.

A look-up has two stages: the op in the node's layout, then the form of its data. A form is a dtype,
and whether the dtype is quantised. A kernel may serve every layout, every form, or all plain or
quantised forms. A miss is a sentence that lists the nearest entries. A kernel itself checks its
further demands, such as constant weights or two spatial axes.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator
from typing import Generic, TypeVar

from trireme.ir.graph import Graph, Node
from trireme.ir.interpreter import is_quantized
from trireme.ir.op import get_op, has_op
from trireme.support.records import dataclass

K = TypeVar("K")

ANY = "any"
"""Stands for every layout or dtype."""
_MOST_LISTED = 4


@dataclass(frozen=True)
class Form:
    """The form of data: its dtype, and whether it is stored integers of a quantised type.

    quantised: None stands for both
    """

    dtype: str = ANY
    quantised: bool | None = None

    def __str__(self) -> str:
        if self.quantised is None:
            return self.dtype
        if self.dtype == ANY:
            return "quantised" if self.quantised else "plain"
        return f"quantised {self.dtype}" if self.quantised else self.dtype


PLAIN, QUANTISED = Form(quantised=False), Form(quantised=True)
"""Values as they are, and stored integers, of every dtype."""
STORED_8 = (Form("int8", True), Form("uint8", True))
STORED_16 = (Form("int16", True),)


@dataclass(frozen=True)
class Entry(Generic[K]):
    """A line of the table: the kernel for an op in a layout ("NHWC", "any") and a form."""

    op: str
    device: str
    layout: str
    form: Form
    kernel: K

    def __str__(self) -> str:
        layout = "" if self.layout == ANY else f" {self.layout}"
        return f"{self.op}{layout} {'any dtype' if self.form == Form() else self.form}"


def layout_of(node: Node) -> str:
    """Return the node's layout, "any" where its op has none."""
    return str(node.attrs.get("layout") or ANY)


def form_of(graph: Graph, node: Node) -> Form:
    """Return the form of a node's data, quantised if it reads or makes stored integers.

    The dtype is the main input's; for a node without inputs, an output's.
    """
    values = [*node.used[get_op(node.op).main_input :], *node.outputs]
    types = [graph.type(value) for value in values]
    if is_quantized(graph, node):
        stored = next((type for type in types if type.quant is not None), types[0])
        return Form(stored.dtype, True)
    return Form(types[0].dtype, False)


class KernelTable(Generic[K]):
    """The kernels of one device."""

    def __init__(self, device: str) -> None:
        self.device = device
        self._stages: dict[tuple[str, str], dict[Form, K]] = {}
        self._nearest: dict[tuple[str, str, Form], list[Entry[K]]] = {}

    def add(
        self,
        ops: str | Iterable[str],
        kernel: K,
        forms: Iterable[str | Form] = (Form(),),
        layout: str = ANY,
    ) -> None:
        """Add a kernel for some ops: a line a form. It replaces an existing line.

        forms: a dtype stands for its plain form
        """
        self._nearest.clear()
        named = [Form(one, False) if isinstance(one, str) else one for one in forms]
        for op in (ops,) if isinstance(ops, str) else ops:
            stage = self._stages.setdefault((op, layout), {})
            stage.update(dict.fromkeys(named, kernel))

    def find(self, graph: Graph, node: Node) -> K | None:
        """Return the kernel for a node, None where there is none."""
        layout = layout_of(node)
        for key in dict.fromkeys(((node.op, layout), (node.op, ANY))):
            stage = self._stages.get(key)
            if stage:
                form = form_of(graph, node)
                for one in (form, QUANTISED if form.quantised else PLAIN, Form()):
                    if one in stage:
                        return stage[one]
        return None

    def ops(self) -> tuple[str, ...]:
        """Return the ops that have a kernel in some layout and form."""
        return tuple(sorted({op for op, _ in self._stages}))

    def entries(self) -> Iterator[Entry[K]]:
        """Yield the lines of the table."""
        for (op, layout), stage in self._stages.items():
            for form, kernel in stage.items():
                yield Entry(op, self.device, layout, form, kernel)

    def miss(self, graph: Graph, node: Node) -> str:
        """Return the sentence for a node without a kernel, with the nearest entries."""
        layout, form = layout_of(node), form_of(graph, node)
        wanted = str(Entry(node.op, self.device, layout, form, None))
        nearest = ", ".join(map(str, self.nearest(node.op, layout, form)))
        found = f"nearest: {nearest}" if nearest else f"{self.device} has no {node.op}"
        return f"no kernel for {wanted}; {found}"

    def nearest(self, op: str, layout: str, form: Form) -> list[Entry[K]]:
        """Return the entries nearest to a missing one: of the same op, else of similar ops.

        The same layout comes first, then the same kind of form. Similar ops have one family and
        similar names. The answer is cached, because callers ask about a graph many times.
        """
        key = (op, layout, form)
        if key not in self._nearest:
            self._nearest[key] = self._search(op, layout, form)
        return self._nearest[key]

    def _search(self, op: str, layout: str, form: Form) -> list[Entry[K]]:

        def distance(entry: Entry[K]) -> tuple[bool, bool, bool]:
            other_kind = bool(entry.form.quantised) != bool(form.quantised)
            return entry.layout not in (layout, ANY), entry.form != form, other_kind

        same = sorted((e for e in self.entries() if e.op == op), key=distance)
        if same:
            return same[:_MOST_LISTED]
        family = get_op(op).family if has_op(op) else ""
        like = {e.op for e in self.entries() if has_op(e.op) and get_op(e.op).family == family}
        names = difflib.get_close_matches(op, sorted(like), n=2, cutoff=0.75)
        return [min((e for e in self.entries() if e.op == name), key=distance) for name in names]
