"""Products in blocks through local memory, as a GPU has them."""

from dataclasses import replace

import numpy as np
import opencl
import pytest

from trireme.backend.registry import open_device
from trireme.devices.opencl.kernels import blocks
from trireme.devices.opencl.tuning import (
    BLOCKS,
    CLASSES,
    BlockCut,
    ProductSizes,
    best_cut,
    tuning_for,
)
from trireme.ir.builder import GraphBuilder
from trireme.ir.graph import Quant, TensorType
from trireme.ir.interpreter import interpret

GPU = replace(CLASSES["desktop_gpu"], units=132)


@pytest.fixture(scope="module")
def device(tmp_path_factory):
    opencl.need_opencl()
    made = open_device(
        "opencl", tuning="desktop_gpu", cache_dir=tmp_path_factory.mktemp("programs")
    )
    made.programs.options.append("-cl-opt-disable")
    yield made
    made.close()


def conv(dtype, size, inside, out, kernel, stride):
    """Return a conv of two images with uneven sides, bias and relu."""
    b, rng = GraphBuilder("conv"), np.random.default_rng(size)
    quant = None if dtype == "float32" else Quant((0.03,), (3,))
    x = b.input("x", TensorType((2, size, size + 1, inside), dtype, quant))
    shape = (out, kernel, kernel, inside)
    if quant is None:
        w = b.constant("w", rng.standard_normal(shape).astype(np.float32))
        bias = b.constant("b", rng.standard_normal(out).astype(np.float32))
    else:
        w = b.constant("w", rng.integers(0, 256, shape).astype(dtype), Quant((0.02,), (128,)))
        bias = b.constant(
            "b", rng.integers(-900, 900, out).astype(np.int32), Quant((0.0006,), (0,))
        )
    attrs = dict(strides=(stride, 1), pads=(1, 0, 1, 1), dilations=(1, 1), groups=1, layout="NHWC")
    y = b.add(
        "conv", x, w, bias, activation="relu", quants=[quant and Quant((0.5,), (10,))], **attrs
    )
    return b.finish(y)


def matmul(a, b):
    builder = GraphBuilder("matmul")
    x, w = (builder.input("", TensorType(shape, "float32")) for shape in (a, b))
    return builder.finish(builder.add("matmul", x, w))


PRODUCTS = {
    "depth and columns of no vector": matmul((37, 33), (33, 39)),
    "batches that broadcast": matmul((2, 1, 17, 64), (3, 64, 36)),
    "one row": matmul((1, 200), (200, 12)),
    "windows of three channels": conv("float32", 9, 3, 16, 3, 2),
    "windows of vectors": conv("float32", 7, 20, 33, 3, 1),
    "stored bytes past 2^24": conv("uint8", 6, 40, 21, 3, 1),
}


def feeds_of(graph):
    rng = np.random.default_rng(11)
    return {
        v.id: rng.integers(0, 256, v.type.dims).astype(v.type.dtype)
        if v.type.quant
        else rng.standard_normal(v.type.dims).astype(np.float32)
        for v in graph.input_values()
    }


@pytest.mark.parametrize("parts", [1, 3])
@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: f"{block.rows}x{block.columns}")
def test_products_of_every_block_agree_with_sums_of_doubles(device, block, parts, monkeypatch):
    """Quantised ones bit for bit; a shared depth gives the same bits in every run."""

    def cut(tuning, sizes, has_integers):
        whole = -(-sizes.depth // block.depth)
        slices = -(-whole // parts)
        return BlockCut(block, -(-whole // slices), slices, 1)

    monkeypatch.setattr(blocks, "best_cut", cut)
    made = device.compile(list(PRODUCTS.values()))
    for (name, graph), executable in zip(PRODUCTS.items(), made, strict=True):
        feeds = feeds_of(graph)
        first, again = (opencl.run(device, graph, feeds, executable)[0][0] for _ in range(2))
        np.testing.assert_array_equal(first, again, err_msg=name)
        assert "_local" in str(executable.steps[0].name)
        if graph.nodes[0].op == "matmul":
            a, b = (feeds[value].astype(np.float64) for value in graph.inputs)
            np.testing.assert_allclose(first, a @ b, rtol=1e-5, atol=1e-5, err_msg=name)
            continue
        wanted = interpret(graph, feeds)[graph.outputs[0]]
        tolerance = 0 if "bytes" in name else 1e-5
        np.testing.assert_allclose(
            first.astype(np.float64), wanted, rtol=tolerance, atol=10 * tolerance, err_msg=name
        )


@pytest.mark.parametrize(
    ("sizes", "block", "shares"),
    [
        (ProductSizes(4096, 4096, 4096), (128, 128), False),
        (ProductSizes(1024, 1024, 1024), (128, 128), True),
        (ProductSizes(128, 256, 1024), (16, 32), False),
        (ProductSizes(1, 2048, 1000), (16, 64), True),
    ],
)
def test_few_blocks_share_their_depth(sizes, block, shares):
    """As is fastest on an H200: docs/experiments/opencl.md."""
    cut = best_cut(GPU, sizes, has_integers=False)
    assert ((cut.block.rows, cut.block.columns), cut.parts > 1) == (block, shares)


def test_every_cut_covers_the_depth_and_no_part_is_empty():
    for depth in (1, 15, 16, 17, 500, 4608):
        for has_integers in (False, True):
            cut = best_cut(GPU, ProductSizes(49, depth, 512), has_integers)
            whole = -(-depth // cut.block.depth)
            assert (cut.parts - 1) * cut.slices < whole <= cut.parts * cut.slices
            assert not has_integers or cut.block.item_rows * cut.block.item_columns <= 32
    assert best_cut(CLASSES["cpu"], ProductSizes(64, 64, 64), has_integers=False) is None


def test_blocks_fit_the_device(device):
    """A device with little local memory, or small work-groups, has the smaller blocks alone."""

    class Handle:
        max_compute_units, max_clock_frequency = 20, 1500
        max_work_group_size, local_mem_size = 1024, 32 << 10

    found = replace(device.found, kind="gpu", device="small", handle=Handle())
    assert tuning_for(found, "desktop_gpu").blocks == BLOCKS[:2]
    assert tuning_for(found, "desktop_gpu").units == 20
    Handle.max_work_group_size, Handle.local_mem_size = 128, 48 << 10
    assert tuning_for(found, "desktop_gpu").blocks == BLOCKS[:2]
    assert tuning_for(found, "desktop_gpu").row_items == 128
    Handle.max_work_group_size = 256
    assert tuning_for(found, "desktop_gpu").blocks == BLOCKS
