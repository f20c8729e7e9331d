"""Versions, leases, reloads: what serves, why not, and that no request is lost."""

import os
import random
import shutil
import threading
import time
from functools import partial

import numpy as np
import pytest
from serving_models import affine_model, put, put_version

from trireme.serving import repository as repository_module
from trireme.serving.config import ModelSettings
from trireme.serving.errors import ServingError
from trireme.serving.layout import ModelFile
from trireme.serving.opening import open_model
from trireme.serving.repository import ModelRepository
from trireme.serving.versions import VersionPolicy
from trireme.support.errors import ModelFileError, RunError

X = np.arange(4, dtype=np.float32).reshape(1, 4)
OPEN = partial(open_model, settings=ModelSettings(threads=1))


def factor(model):
    """The factor of the model that answers."""
    return float(model.run({"x": X})["y"][0, 1]) - 1


def ask(repository, name="net", version=""):
    with repository.lease(name, version) as model:
        return model.version, factor(model)


def rows(repository):
    return {(row.name, row.version): (row.state, row.reason) for row in repository.index()}


@pytest.fixture
def folder(tmp_path):
    put_version(tmp_path, "net", 1, affine_model(1))
    return tmp_path


def test_the_newest_version_serves_by_default(folder):
    put_version(folder, "net", 2, affine_model(2))
    put_version(folder, "net", 10, affine_model(10))
    with ModelRepository(folder, OPEN) as repository:
        assert ask(repository) == ("10", 10.0)
        assert rows(repository)["net", "2"][0] == "UNAVAILABLE"
        with pytest.raises(ServingError, match="not among the versions to serve"):
            ask(repository, version="2")


@pytest.mark.parametrize(
    "policy, served",
    [(VersionPolicy(latest=2), ["2", "3"]), (VersionPolicy(specific=(1, 3)), ["1", "3"])],
)
def test_policies(folder, policy, served):
    for version in (2, 3):
        put_version(folder, "net", version, affine_model(version))
    with ModelRepository(folder, OPEN, policies={"net": policy}) as repository:
        ready = [version for (_, version), row in rows(repository).items() if row[0] == "READY"]
        assert ready == served
        for version in served:
            assert ask(repository, version=version) == (version, float(version))
        assert ask(repository) == ("3", 3.0)


@pytest.mark.parametrize("wrong", [{"latest": 0}, {"specific": [0]}, {"latest": "2"}])
def test_wrong_policies(wrong):
    with pytest.raises(RunError):
        VersionPolicy(**wrong)


def test_unknown_models_and_versions(folder):
    with ModelRepository(folder, OPEN) as repository:
        for name, version in [("nett", ""), ("net", "7"), ("../net", ""), ("net", "x")]:
            with pytest.raises(ServingError) as caught:
                ask(repository, name, version)
            assert caught.value.kind == "not_found"


def test_a_plain_file_and_named_places(tmp_path):
    file = put(tmp_path / "plain.onnx", affine_model(3))
    with ModelRepository(tmp_path, OPEN) as repository:
        assert ask(repository, "plain") == ("1", 3.0)
    with ModelRepository({"other": file}, OPEN) as repository:
        assert ask(repository, "other") == ("1", 3.0)


def test_reload_brings_new_changed_and_removed_versions(folder):
    with ModelRepository(folder, OPEN) as repository:
        assert not repository.reload()
        put_version(folder, "net", 2, affine_model(2))
        changed = {(row.version, row.state) for row in repository.reload()}
        assert changed == {("1", "UNAVAILABLE"), ("2", "READY")}
        assert ask(repository) == ("2", 2.0)
        put(folder / "net/2/model.onnx", affine_model(5))
        repository.reload()
        assert ask(repository) == ("2", 5.0)
        os.rename(folder / "net/2", folder / ".gone")
        repository.reload()
        assert ask(repository) == ("1", 1.0)
        put(folder / "more.onnx", affine_model(4))
        repository.reload()
        assert ask(repository, "more") == ("1", 4.0)
        os.remove(folder / "more.onnx")
        repository.reload()
        with pytest.raises(ServingError, match="there is no model 'more'"):
            ask(repository, "more")


def test_a_new_version_that_fails_leaves_the_old_one(folder, monkeypatch):
    told = []
    monkeypatch.setattr(repository_module._LOG, "warning", lambda text, *of: told.append(text % of))
    with ModelRepository(folder, OPEN) as repository:
        put_version(folder, "net", 2, b"no model")
        repository.reload()
        assert ask(repository) == ("1", 1.0)
        state, reason = rows(repository)["net", "2"]
        assert state == "UNAVAILABLE"
        assert "model.onnx" in reason and str(folder) not in reason
        assert "version 2 of 'net' does not load" in told[0]
        with pytest.raises(ServingError, match="version 2 of model 'net' is not ready") as caught:
            ask(repository, version="2")
        assert caught.value.kind == "unavailable"
        assert repository.is_ready()
        put(folder / "net/2/model.onnx", affine_model(2))
        repository.reload()
        assert ask(repository) == ("2", 2.0)


def test_a_changed_file_that_fails_leaves_the_old_one(folder):
    with ModelRepository(folder, OPEN) as repository:
        put(folder / "net/1/model.onnx", affine_model(1)[:40])
        repository.reload()
        assert ask(repository) == ("1", 1.0)
        state, reason = rows(repository)["net", "1"]
        assert state == "READY" and reason.startswith("the earlier file serves on: ")


def test_a_model_whose_warm_up_fails_does_not_serve(folder):
    def refuse(file: ModelFile):
        model = OPEN(file)
        if file.version == 2:
            model.session.close()
            model.run({"x": X})
        return model

    with ModelRepository(folder, refuse) as repository:
        put_version(folder, "net", 2, affine_model(2))
        repository.reload()
        assert ask(repository) == ("1", 1.0)
        assert rows(repository)["net", "2"] == ("UNAVAILABLE", "the session is closed")


def test_an_exception_of_an_opener_is_a_reason(folder):
    def refuse(file):
        raise ZeroDivisionError("odd")

    with ModelRepository(folder, refuse) as repository:
        assert rows(repository)["net", "1"] == ("UNAVAILABLE", "ZeroDivisionError: odd")
        assert not repository.is_ready()


def test_a_file_that_changes_while_it_is_read_is_not_served(folder):
    def slow(file):
        model = OPEN(file)
        if factor(model) == 1:
            put(file.path, affine_model(9))
        return model

    with ModelRepository(folder, slow) as repository:
        assert "changed while" in rows(repository)["net", "1"][1]
        repository.reload()
        assert ask(repository) == ("1", 9.0)


def test_an_overwritten_file_does_not_end_the_process(folder):
    with ModelRepository(folder, OPEN) as repository:
        with open(folder / "net/1/model.onnx", "r+b") as file:
            file.truncate(0)
        assert ask(repository) == ("1", 1.0)


def test_a_lease_holds_its_version_open(folder):
    with ModelRepository(folder, OPEN) as repository:
        with repository.lease("net") as old:
            put_version(folder, "net", 2, affine_model(2))
            repository.reload()
            assert ask(repository) == ("2", 2.0)
            assert factor(old) == 1.0
        deadline = time.monotonic() + 5
        while time.monotonic() < deadline:
            try:
                old.run({"x": X})
            except RunError:
                break
        with pytest.raises(RunError, match="closed"):
            old.run({"x": X})


def test_leases_outlive_the_repository(folder):
    repository = ModelRepository(folder, OPEN)
    lease = repository.lease("net")
    with lease as model:
        repository.close()
        assert factor(model) == 1.0
    with pytest.raises(RunError, match="closed"):
        model.run({"x": X})
    with pytest.raises(ServingError, match="the repository is closed"):
        ask(repository)


def test_unload_and_load(folder):
    with ModelRepository(folder, OPEN) as repository:
        repository.unload("net")
        assert rows(repository)["net", "1"] == ("UNAVAILABLE", "unloaded on request")
        with pytest.raises(ServingError, match="unloaded on request"):
            ask(repository)
        put_version(folder, "net", 2, affine_model(2))
        repository.reload()
        with pytest.raises(ServingError):
            ask(repository)
        assert repository.is_ready()
        repository.load("net")
        assert ask(repository) == ("2", 2.0)
        for call in (repository.load, repository.unload):
            with pytest.raises(ServingError, match="there is no model 'other'"):
                call("other")
        with pytest.raises(ServingError, match="'file' is not supported"):
            repository.load("net", {"file": "x"})


def test_load_says_why_it_fails_and_tries_again(folder):
    with ModelRepository(folder, OPEN) as repository:
        put_version(folder, "net", 2, b"")
        for _ in range(2):
            with pytest.raises(ServingError, match="version 2 of 'net': ") as caught:
                repository.load("net")
            assert caught.value.kind == "unavailable"
        assert ask(repository) == ("1", 1.0)


def test_refused_places_stand_in_the_index(folder):
    put(folder / "a b.onnx", affine_model(1))
    with ModelRepository(folder, OPEN) as repository:
        assert rows(repository)["a b.onnx", ""][0] == "UNAVAILABLE"
        assert repository.is_ready()


def test_a_folder_that_goes_away_leaves_everything_serving(folder, tmp_path_factory):
    with ModelRepository(folder, OPEN) as repository:
        gone = tmp_path_factory.mktemp("gone") / "x"
        os.rename(folder, gone)
        with pytest.raises(ModelFileError, match="cannot be read"):
            repository.reload()
        assert ask(repository) == ("1", 1.0)
        os.rename(gone, folder)


def test_polling_finds_a_new_version(folder):
    with ModelRepository(folder, OPEN, poll_s=0.02) as repository:
        put_version(folder, "net", 2, affine_model(2))
        deadline = time.monotonic() + 20
        while ask(repository)[0] == "1" and time.monotonic() < deadline:
            time.sleep(0.01)
        assert ask(repository) == ("2", 2.0)


def test_loading_is_a_state_of_its_own(folder):
    begun, go_on = threading.Event(), threading.Event()

    def slow(file):
        if file.name == "other":
            begun.set()
            assert go_on.wait(20)
        return OPEN(file)

    with ModelRepository(folder, slow) as repository:
        put(folder / "other.onnx", affine_model(4))
        loading = threading.Thread(target=repository.reload)
        loading.start()
        assert begun.wait(20)
        assert rows(repository)["other", "1"] == ("LOADING", "")
        with pytest.raises(ServingError, match="model 'other' is not ready: loading"):
            ask(repository, "other")
        assert ask(repository) == ("1", 1.0)
        go_on.set()
        loading.join()
        assert ask(repository, "other") == ("1", 4.0)


@pytest.mark.parametrize("reloads", [50, pytest.param(1000, marks=pytest.mark.slow)])
def test_reloads_under_traffic_drop_nothing(tmp_path, reloads):
    """Each answer is of a version that served while the request was under way."""
    seed = 7
    print("seed", seed)
    rng = random.Random(seed)
    put_version(tmp_path, "net", 1, affine_model(1))
    repository = ModelRepository(tmp_path, OPEN)
    ended, wrong, answers = threading.Event(), [], [0, 0, 0]
    newest = [1]

    def client(which):
        while not ended.is_set():
            oldest = newest[0]
            try:
                version, found = ask(repository)
            except Exception as error:
                wrong.append(error)
                return
            if found != float(version) or not oldest - 1 <= int(version) <= newest[0] + 1:
                wrong.append((oldest, version, found, newest[0]))
            answers[which] += 1

    clients = [threading.Thread(target=client, args=(which,)) for which in range(3)]
    for one in clients:
        one.start()
    for version in range(2, reloads + 2):
        if rng.random() < 0.2:
            put_version(tmp_path, "net", f"{version}0000", b"damaged")
        put_version(tmp_path, "net", version, affine_model(version))
        repository.reload()
        newest[0] = version
        for damaged in tmp_path.glob("net/*0000"):
            shutil.rmtree(damaged)
    ended.set()
    for one in clients:
        one.join()
    repository.close()
    assert not wrong
    assert all(answers)
    assert repository.reloads == reloads + 1
