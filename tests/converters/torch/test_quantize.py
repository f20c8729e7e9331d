"""A module of PyTorch is quantised as it is: the first of the samples exports it."""

import numpy as np
import pytest

import trireme

torch = pytest.importorskip("torch")
SAMPLES = np.random.default_rng(26).standard_normal((12, 1, 3, 8, 8)).astype(np.float32)


class Net(torch.nn.Module):
    """A convolution with batch norm, and a head."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(26)
        self.conv = torch.nn.Conv2d(3, 8, 3, 2, 1)
        self.norm = torch.nn.BatchNorm2d(8)
        self.head = torch.nn.Linear(128, 10)

    def forward(self, image):
        return self.head(self.norm(self.conv(image)).relu().flatten(1))


def test_every_source_of_samples_exports_a_module(tmp_path):
    net = Net()
    np.savez(tmp_path / "s.npz", image=SAMPLES)
    np.save(tmp_path / "s.npy", SAMPLES)
    folder = tmp_path / "parts"
    folder.mkdir()
    for k, part in enumerate(np.split(SAMPLES, 3)):
        np.savez(folder / f"{k}.npz", image=part)
    graph = trireme.convert(net, (torch.from_numpy(SAMPLES[0]),))
    want = str(trireme.quantize(graph, SAMPLES, ranges="min_max", repairs="none"))
    sources = {
        "array": SAMPLES,
        "float64": SAMPLES.astype(np.float64),
        "tensor": torch.from_numpy(SAMPLES),
        "mapping": {"image": SAMPLES},
        "feeds": [{"image": x} for x in SAMPLES],
        "tuples": [(x,) for x in SAMPLES],
        "tensors": list(torch.from_numpy(SAMPLES)),
        "generator": ({"image": x} for x in SAMPLES),
        "function": lambda: iter(SAMPLES),
        "npz": tmp_path / "s.npz",
        "npy": str(tmp_path / "s.npy"),
        "folder": folder,
    }
    for name, source in sources.items():
        made = trireme.quantize(net, source, ranges="min_max", repairs="none")
        assert str(made) == want, name
        assert made.quantization.samples == len(SAMPLES), name


def test_a_file_and_an_exported_program_are_quantised_too(tmp_path):
    program = torch.export.export(Net().eval(), (torch.from_numpy(SAMPLES[0]),))
    torch.export.save(program, tmp_path / "net.pt2")
    texts = [
        str(trireme.quantize(model, SAMPLES, ranges="min_max", repairs="none")).splitlines()[1:]
        for model in (program, tmp_path / "net.pt2", Net())
    ]
    assert texts[0] == texts[1] == texts[2]


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        (None, "needs example inputs"),
        ("random", "needs example inputs"),
        ([], "needs example inputs"),
        ({"image": SAMPLES[:0]}, "hold no sample by which the module is exported"),
        ({"image": np.float32(1)}, "hold no sample by which the module is exported"),
        (SAMPLES[:, 0, 0], "torch.export cannot export Net"),
    ],
)
def test_samples_that_export_nothing_have_a_sentence(data, sentence):
    with pytest.raises(trireme.TriremeError, match=sentence):
        trireme.quantize(Net(), data)
