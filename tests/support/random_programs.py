"""Random ONNX programs of nested If, Loop and Scan, as text; all values are float32[3]."""

import random

from onnx import parser
from programs import HEAD

UNARY = ("Tanh", "Neg", "Sin", "Sigmoid", "Identity", "Abs")
BINARY = ("Add", "Sub", "Max", "Min")
MOST_DEPTH = 3


class Writer:
    """Writes statements; every name is new."""

    def __init__(self, seed):
        self.rng, self.count = random.Random(seed), 0

    def name(self, kind):
        self.count += 1
        return f"{kind}{self.count}"

    def block(self, live, depth, statements):
        """The text of some statements, and the values that live after them."""
        lines, live = [], list(live)
        for _ in range(statements):
            kinds = ["unary", "binary", "binary"]
            kinds += ["choose", "loop", "until", "scan"] if depth < MOST_DEPTH else []
            kind = self.rng.choice(kinds)
            made = self.name("v")
            lines.append(getattr(self, kind)(made, live, depth))
            live.append(made)
        return "\n".join(lines), live

    def unary(self, made, live, depth):
        return f"{made} = {self.rng.choice(UNARY)}({self.rng.choice(live)})"

    def binary(self, made, live, depth):
        a, b = self.rng.choice(live), self.rng.choice(live)
        mean = self.name("m")
        return f"{mean} = {self.rng.choice(BINARY)}({a}, {b}) {made} = Mul({mean}, half)"

    def condition(self, live):
        """Statements that compare two sums, and the name of the answer."""
        a, b, c = (self.name(kind) for kind in "abc")
        x, y = self.rng.choice(live), self.rng.choice(live)
        sums = f"{a} = ReduceSum <keepdims = 0> ({x}) {b} = ReduceSum <keepdims = 0> ({y})"
        return f"{sums} {c} = Less({a}, {b})", c

    def branch(self, live, depth):
        text, after = self.block(live, depth + 1, self.rng.randrange(1, 4))
        out = self.name("o")
        return f"{self.name('g')} () => (float[3] {out}) {{ {text} {out} = Identity({after[-1]}) }}"

    def choose(self, made, live, depth):
        text, c = self.condition(live)
        then, other = self.branch(live, depth), self.branch(live, depth)
        return f"{text} {made} = If ({c}) < then_branch = {then}, else_branch = {other} >"

    def turn(self, live, depth, ends):
        """The body of a loop of one carried value, and the name of its condition's text."""
        i, on, s, more, t = (self.name(kind) for kind in "insmt")
        text, after = self.block([*live, s], depth + 1, self.rng.randrange(1, 4))
        answer = f"{more} = Identity({on})"
        if ends:
            compared, c = self.condition([s, after[-1]])
            answer = f"{compared} {more} = Identity({c})"
        head = f"(int64 {i}, bool {on}, float[3] {s}) => (bool {more}, float[3] {t})"
        return f"{self.name('g')} {head} {{ {text} {answer} {t} = Identity({after[-1]}) }}"

    def loop(self, made, live, depth):
        trips = self.rng.choice(["n", "two", "zero"])
        body = self.turn(live, depth, ends=False)
        return f"{made} = Loop ({trips}, , {self.rng.choice(live)}) <body = {body}>"

    def until(self, made, live, depth):
        trips = self.rng.choice(["n", "five"])
        body = self.turn(live, depth, ends=True)
        return f"{made} = Loop ({trips}, yes, {self.rng.choice(live)}) <body = {body}>"

    def scan(self, made, live, depth):
        s, x, t, row, rows = (self.name(kind) for kind in "sxtrw")
        text, after = self.block([*live, s, x], depth + 1, self.rng.randrange(1, 3))
        back, turned = self.rng.randrange(2), self.rng.randrange(2)
        head = f"(float[3] {s}, float[3] {x}) => (float[3] {t}, float[3] {row})"
        ends = f"{t} = Identity({after[-1]}) {row} = Add({t}, {x})"
        body = f"{self.name('g')} {head} {{ {text} {ends} }}"
        ways = f"scan_input_directions = [{back}], scan_output_directions = [{turned}]"
        last, start = self.name("l"), self.rng.choice(live)
        node = f"{last}, {rows} = Scan ({start}, xs) <num_scan_inputs = 1, {ways}, body = {body}>"
        mean = self.name("m")
        averaged = f"{mean} = ReduceMean <keepdims = 0> ({rows}, first)"
        return f"{node} {averaged} {made} = Add({mean}, {last})"


def random_program(seed):
    """Return the bytes of a model of inputs n, x[3] and xs[4,3]."""
    writer = Writer(seed)
    text, live = writer.block(["x"], 0, 4)
    outputs = live[1:]
    ends = ", ".join(f"float[3] {name}" for name in outputs)
    constants = """
        half = Constant <value = float {0.5}> ()
        two = Constant <value = int64 {2}> ()
        zero = Constant <value = int64 {0}> ()
        five = Constant <value = int64 {5}> ()
        first = Constant <value = int64[1] {0}> ()
        yes = Constant <value = bool {1}> ()
    """
    model = f"program (int64 n, float[3] x, float[4,3] xs) => ({ends}) {{ {constants} {text} }}"
    return parser.parse_model(HEAD + model).SerializeToString()
