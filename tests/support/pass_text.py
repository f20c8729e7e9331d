"""One pass on a graph: its text before and after, and both interpreted."""

from same_results import assert_same_results

from trireme.passes.pipeline import optimise


def only(graph, *passes, **checks):
    """The graph after some passes alone, checked against the graph before."""
    made = optimise(graph, passes=passes)
    assert_same_results(graph, made, **checks)
    again = optimise(made, passes=passes)
    assert again is made, "not idempotent"
    return made


def body(graph):
    """The lines of a graph's text without its first."""
    return [line.strip() for line in str(graph).splitlines()[1:]]
