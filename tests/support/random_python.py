"""Random programs in Python: nested branches and loops, breaks, continues and early returns.

`source(rng)` is the text of a function of two whole numbers and a float. Every loop ends: it counts
to its end, or down to 0.
"""

import importlib.util

NUMBERS = ("a", "b", "c")


def load(text, path):
    """Return the function `program` of a file with this text."""
    path.write_text(text)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.program


class Writer:
    """Writes the statements of one program."""

    def __init__(self, rng):
        self.rng = rng
        self.lines = []
        self.loops = 0

    def one_of(self, *choices):
        return choices[self.rng.integers(len(choices))]

    def number(self, depth=2):
        if not depth or self.rng.random() < 0.3:
            return self.one_of(*NUMBERS, str(self.rng.integers(-3, 8)))
        left, right = self.number(depth - 1), self.number(depth - 1)
        simple = f"({left} {self.one_of('+', '-')} {right})"
        return self.one_of(
            simple,
            simple,
            f"({left} % {self.rng.integers(2, 6)})",
            f"({left} // {self.rng.integers(2, 5)})",
            f"min({left}, {right})",
            f"max({left}, {right})",
            f"abs({left})",
            f"({left} if {self.truth(0)} else {right})",
        )

    def truth(self, depth=1):
        compare = self.one_of("<", "<=", ">", ">=", "==", "!=")
        simple = f"{self.number(depth)} {compare} {self.number(0)}"
        if not depth:
            return simple
        return self.one_of(
            simple,
            f"{self.number(1)} < {self.number(1)} <= {self.number(1)}",
            f"({self.truth(depth - 1)} {self.one_of('and', 'or')} {self.truth(depth - 1)})",
            f"not ({self.truth(depth - 1)})",
        )

    def block(self, depth, indent, in_loop):
        for _ in range(self.rng.integers(1, 4)):
            self.statement(depth, indent, in_loop)

    def add(self, indent, text):
        self.lines.append("    " * indent + text)

    def statement(self, depth, indent, in_loop):
        kinds = ["assign", "assign", "augment", "pair", "real"]
        if depth:
            kinds += ["if", "if", "for", "while"]
        if in_loop:
            kinds += ["leave"]
        kind = self.one_of(*kinds)
        if kind == "assign":
            self.add(indent, f"{self.one_of(*NUMBERS)} = {self.number()} % 50")
        elif kind == "augment":
            self.add(indent, f"{self.one_of(*NUMBERS)} {self.one_of('+=', '-=')} {self.number(1)}")
        elif kind == "pair":
            self.add(indent, f"{self.one_of('a, b', 'b, c', 'c, a')} = b, {self.number(1)}")
        elif kind == "real":
            self.add(indent, f"x = x * 0.5 + {self.number(1)} % 7")
        elif kind == "leave":
            self.add(indent, f"if {self.truth()}:")
            self.add(indent + 1, self.one_of("break", "continue", f"return {self.number(1)}, x"))
        elif kind == "if":
            self.add(indent, f"if {self.truth()}:")
            self.block(depth - 1, indent + 1, in_loop)
            if self.rng.random() < 0.6:
                self.add(indent, "else:")
                self.block(depth - 1, indent + 1, in_loop)
        else:
            self.loop(kind, depth, indent)

    def loop(self, kind, depth, indent):
        self.loops += 1
        name = f"i{self.loops}"
        if kind == "for":
            count = self.one_of("3", f"{self.number(0)} % 4", "20")
            self.add(indent, f"for {name} in range({count}):")
            self.add(indent + 1, f"c = c + {name}")
        else:
            self.add(indent, f"{name} = {self.number(1)} % 6")
            self.add(indent, f"while {name} > 0 and ({self.truth(0)} or {name} < 4):")
            self.add(indent + 1, f"{name} -= 1")
        self.block(depth - 1, indent + 1, True)
        if self.rng.random() < 0.2:
            self.add(indent, "else:")
            self.add(indent + 1, "c = c + 1")


def source(rng, name="program", depth=3):
    """Return the text of a random function of (a, b, x)."""
    writer = Writer(rng)
    writer.add(0, f"def {name}(a, b, x):")
    writer.add(1, "c = 1")
    for _ in range(3):
        writer.statement(depth, 1, False)
    writer.add(1, "return a + b * 2 + c, x")
    return "\n".join(writer.lines) + "\n"
