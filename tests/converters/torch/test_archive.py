""".pt2 files: what is read, and what is refused before any of its code could run."""

import io
import json
import pickle
import zipfile

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import trireme  # noqa: E402
from trireme.support.errors import ConvertError, ModelFileError  # noqa: E402
from trireme.tools.cli import main  # noqa: E402

SEED = 20261123


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 3)
        self.register_buffer("shift", torch.ones(3), persistent=False)

    def forward(self, x):
        return self.layer(x).relu() + self.shift * torch.tensor([1.0, 2.0, 3.0])


def archive(dynamic=None):
    torch.manual_seed(SEED)
    module = Model()
    exported = torch.export.export(module, (torch.zeros(2, 4),), dynamic_shapes=dynamic)
    file = io.BytesIO()
    torch.export.save(exported, file)
    return module, file.getvalue()


def changed(data, change):
    """Return an archive whose records went through change(name, bytes) -> bytes."""
    made = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as old, zipfile.ZipFile(made, "w") as new:
        for name in old.namelist():
            new.writestr(name, change(name.partition("/")[2], old.read(name)))
    return made.getvalue()


def test_a_file_is_a_session_and_a_command(tmp_path):
    module, data = archive(({0: torch.export.Dim("batch", max=9)},))
    path, out = tmp_path / "model.pt2", tmp_path / "m.trm"
    path.write_bytes(data)
    x = np.random.default_rng(SEED).standard_normal((5, 4)).astype(np.float32)
    wanted = module(torch.from_numpy(x)).detach().numpy()
    assert main(["convert", str(path), "-o", str(out), "--shape", "x=5,4"]) == 0
    for source, shapes in ((path, {"x": (5, 4)}), (out, None)):
        with trireme.Session(source, shapes=shapes) as session:
            np.testing.assert_allclose(session.run({"x": x})["output"], wanted, rtol=1e-5)


def test_an_exported_program_is_a_model():
    module, data = archive()
    graph = trireme.convert(torch.export.load(io.BytesIO(data)))
    (x,) = graph.input_values()
    assert (x.name, x.type.dims) == ("x", (2, 4))


def test_examples_are_not_for_programs():
    _, data = archive()
    with pytest.raises(ConvertError, match="are for modules"):
        trireme.convert(data, (torch.zeros(2, 4),), format="torch")


class Code:
    """An object whose unpickling would leave a mark."""

    def __reduce__(self):
        return exec, ("import builtins; builtins.trireme_was_here = True",)


def program(change):
    """Return a change of the record with the program."""

    def rule(name, data):
        if name != "models/model.json":
            return data
        tree = json.loads(data)
        change(tree)
        return json.dumps(tree).encode()

    return rule


def call_system(tree):
    node = tree["graph_module"]["graph"]["nodes"][0]
    node["target"] = "torch.os.getcwd"


def evaluate(tree):
    tree["range_constraints"] = {}
    tree["extra"] = {"expr_str": "__import__('os').getcwd()"}


def payload(name, data):
    if not name.endswith("_constants_config.json"):
        return data
    tree = json.loads(data)
    for entry in tree["config"].values():
        entry["path_name"] = "custom_obj_0"
    return json.dumps(tree).encode()


REFUSED = {
    "pickled inputs": (
        lambda name, data: pickle.dumps(Code()) if name.startswith("data/sample") else data,
        "objects that only code can load",
    ),
    "pickled constants": (payload, "an object that only code can load"),
    "a function": (program(call_system), "calls 'torch.os.getcwd', which is no op"),
    "an expression": (program(evaluate), "which is no arithmetic"),
    "no program": (
        lambda name, data: b"{}" if name == "models/model.json" else data,
        "not a .pt2 file",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_needs_code_is_refused(case):
    import builtins

    change, why = REFUSED[case]
    with pytest.raises(ModelFileError, match=why):
        trireme.convert(changed(archive()[1], change), format="torch")
    assert not hasattr(builtins, "trireme_was_here")


def test_two_records_of_one_name_are_refused():
    data = io.BytesIO(archive()[1])
    with zipfile.ZipFile(data, "a") as file, pytest.warns(UserWarning, match="Duplicate"):
        file.writestr(file.namelist()[0], b"")
    with pytest.raises(ModelFileError, match="one name"):
        trireme.convert(data.getvalue(), format="torch")


def test_damaged_files_are_sentences():
    print("seed", SEED)
    _, data = archive()
    rng = np.random.default_rng(SEED)
    for _ in range(30):
        broken = bytearray(data)
        for place in rng.integers(0, len(data), 8):
            broken[place] ^= int(rng.integers(1, 256))
        cut = bytes(broken[: int(rng.integers(1, len(data)))])
        for one in (bytes(broken), cut):
            try:
                trireme.convert(one, format="torch")
            except (ModelFileError, ConvertError):
                continue


def saved(module, *examples, dynamic):
    """Return the bytes of a module's .pt2 file."""
    file = io.BytesIO()
    torch.export.save(torch.export.export(module, examples, dynamic_shapes=dynamic), file)
    return file.getvalue()


def test_the_bytes_of_a_file_are_a_model(tmp_path):
    module, data = archive()
    x = np.random.default_rng(SEED).standard_normal((2, 4)).astype(np.float32)
    wanted = module(torch.from_numpy(x)).detach().numpy()
    odd = tmp_path / "model.bin"
    odd.write_bytes(data)
    for source in (data, odd):
        with trireme.Session(source) as session:
            np.testing.assert_allclose(session.run({"x": x})["output"], wanted, rtol=1e-5)


class Enlarged(torch.nn.Module):
    def forward(self, x):
        return torch.nn.functional.interpolate(x, scale_factor=1.5, mode="bilinear")


def test_an_open_size_times_a_float(tmp_path):
    size = torch.export.Dim("size", min=4, max=32)
    data = saved(Enlarged(), torch.zeros(2, 3, 8, 8), dynamic=({2: size},))
    with trireme.Session(data) as session:
        for rows in (6, 9, 32):
            x = np.random.default_rng(SEED).standard_normal((2, 3, rows, 8)).astype(np.float32)
            wanted = Enlarged()(torch.from_numpy(x)).numpy()
            np.testing.assert_allclose(session.run({"x": x})["output"], wanted, atol=1e-5)


class Counted(torch.nn.Module):
    def forward(self, x):
        return x.relu(), x.shape[0] * 2, 7


def test_a_number_that_is_an_output_has_no_axis():
    data = saved(Counted(), torch.zeros(2, 4), dynamic=({0: torch.export.Dim("n", max=9)},))
    with trireme.Session(data) as session:
        made = session.run({"x": np.zeros((5, 4), np.float32)})
    assert [array.shape for array in made.values()] == [(5, 4), (), ()]
    assert [int(array) for array in list(made.values())[1:]] == [10, 7]


def test_a_file_that_torch_cannot_decompose_has_a_fix():
    rows = 3 * torch.export.Dim("third", min=2, max=9)
    module, x = Model().eval(), torch.zeros(12, 4)
    with pytest.raises(ConvertError, match="torch cannot decompose the program") as caught:
        trireme.convert(saved(module, x, dynamic=({0: rows},)))
    assert "give the module, not its file" in caught.value.fix
    with trireme.Session(trireme.convert(module, (x,), dynamic_shapes=({0: rows},))) as session:
        y = np.random.default_rng(SEED).standard_normal((15, 4)).astype(np.float32)
        wanted = module(torch.from_numpy(y)).detach().numpy()
        np.testing.assert_allclose(session.run({"x": y})["output"], wanted, rtol=1e-5)


@pytest.mark.parametrize("kind", ["state_dict", "script"])
def test_another_file_of_torch_names_what_to_save(kind, tmp_path):
    path, module = tmp_path / "m.pt", torch.nn.Linear(3, 3)
    if kind == "script":
        torch.jit.save(torch.jit.trace(module, torch.zeros(1, 3)), path)
    else:
        torch.save(module.state_dict(), path)
    with pytest.raises(ModelFileError, match="no program of torch.export") as caught:
        trireme.convert(path)
    assert "torch.export.save" in caught.value.fix
