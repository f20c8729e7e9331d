"""Graphs of one attention, part by part, and their check on the cpu device."""

import numpy as np
from cpu_run import assert_close, run

from trireme.devices.cpu.codegen.target import available_isas
from trireme.ir.builder import GraphBuilder, scalar
from trireme.ir.graph import TensorType
from trireme.ir.interpreter import interpret

SEED = 11
ALL_ISAS = available_isas(variants=False)


class Attention:
    """A graph of one attention under construction, part by part."""

    def __init__(self, seed=SEED):
        print("seed", seed)
        self.rng = np.random.default_rng(seed)
        self.builder = GraphBuilder("attention")
        self.feeds = {}

    def input(self, *shape):
        value = self.builder.input(f"x{len(self.feeds)}", TensorType(shape, "float32"))
        self.feeds[value] = self.rng.standard_normal(shape).astype(np.float32)
        return value

    def constant(self, *shape):
        return self.builder.constant("c", self.rng.standard_normal(shape).astype(np.float32))

    def heads(self, batch, tokens, heads, size):
        """What a projection makes: [batch, tokens, heads, size]."""
        flat = self.input(batch, tokens, heads * size)
        shape = self.builder.constant("shape", np.array([batch, tokens, heads, size], np.int64))
        return self.builder.add("reshape", flat, shape)

    def turned(self, value, *perm):
        return self.builder.add("transpose", value, perm=perm)

    def scores(self, q, k, scale=None, op="mul"):
        scores = self.builder.add("matmul", q, k)
        if scale is None:
            return scores
        return self.builder.add(op, scores, self.builder.constant("scale", scalar(scale)))

    def finish(self, scores, v, beta=1.0, axis=-1, more=()):
        soft = self.builder.add("softmax", scores, axis=axis, beta=beta)
        return self.builder.finish(self.builder.add("matmul", soft, v), *more), soft


def agree(cpus, graph, feeds, fused=True):
    """The reference's result, the same bits with one thread and two, and fused as expected."""
    want = list(interpret(graph, feeds).values())
    for isa in ALL_ISAS:
        bits = []
        for threads in (1, 2):
            got, kernels, _ = run(cpus[isa, threads], graph, feeds, at_end=threads == 1)
            is_fused = any(name.startswith("attention_f32") for name in kernels.values())
            assert is_fused == fused, kernels
            for g, w in zip(got, want, strict=True):
                assert_close(g, w, 1e-5, f"{isa} {kernels} {graph}")
            bits.append([g.tobytes() for g in got])
        assert bits[0] == bits[1], f"results depend on the number of threads of {isa}"
