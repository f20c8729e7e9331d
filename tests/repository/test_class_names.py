"""One name, one class: no two production classes are called alike."""

import ast
import collections

from house_figures import TOPS, files
from zoo import CHECKOUT

ALLOWED = {
    "Value": "a value of a graph, and LLVM's word for the result of an instruction",
    "Server": "trireme.serving.Server, and a thread of the cpu device that serves its tasks",
}
"""Names of two classes, with the reason."""


def test_every_class_has_a_name_of_its_own():
    where = collections.defaultdict(list)
    for path in files(*TOPS):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                where[node.name].append(str(path.relative_to(CHECKOUT)))
    twice = {name: paths for name, paths in where.items() if len(paths) > 1}
    assert len(where) > 500
    assert twice.keys() == ALLOWED.keys(), {n: p for n, p in twice.items() if n not in ALLOWED}
