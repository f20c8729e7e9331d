"""Cache entries that are mapped: what was stored comes back, and no damaged byte passes."""

import numpy as np
import pytest

from trireme.support.mapped_cache import MappedCache

SEED = 5
SIZES = (0, 8, 64, 1000, 3_000_000)


@pytest.fixture
def cache(tmp_path):
    return MappedCache(tmp_path / "cache", ".x", 10, 1 << 30)


@pytest.fixture
def arrays():
    print("seed", SEED)
    rng = np.random.default_rng(SEED)
    return [rng.integers(0, 256, size, np.uint8) for size in SIZES]


def test_arrays_come_back_aligned_and_read_only(cache, arrays):
    cache.store_mapped("key", b"the head", [*arrays, arrays[3].reshape(10, 100).T])
    head, data = cache.load_mapped("key")
    assert head == b"the head" and not data.flags.writeable and data.ctypes.data % 64 == 0
    at = 0
    for array in (*arrays, np.ascontiguousarray(arrays[3].reshape(10, 100).T).reshape(-1)):
        assert data[at : at + array.size].tobytes() == array.tobytes()
        at += -(-array.size // 64) * 64
    assert at == len(data)
    assert cache.load_mapped("other") is None


def test_an_entry_without_data(cache):
    cache.store_mapped("key", b"", [])
    head, data = cache.load_mapped("key")
    assert head == b"" and not data.size


def test_every_damaged_byte_is_found(cache, arrays, tmp_path, caplog):
    cache.store_mapped("key", b"head" * 9, arrays[:4])
    (file,) = (tmp_path / "cache").iterdir()
    good = file.read_bytes()
    pad = good.index(b"head" * 9) + 36
    data = len(good) - (len(arrays[1]) + 56 + 64 + 1024)
    for at in [*range(pad), *range(data, len(good), 7), len(good) - 1]:
        file.write_bytes(good[:at] + bytes([good[at] ^ 0x10]) + good[at + 1 :])
        assert cache.load_mapped("key") is None, at
        assert not file.exists()
    for size in (0, 1, 31, 32, 60, pad, data, len(good) - 1):
        file.write_bytes(good[:size])
        assert cache.load_mapped("key") is None, size
    file.write_bytes(good + bytes(64))
    assert cache.load_mapped("key") is None
    assert "a damaged file was removed" in caplog.text
    file.write_bytes(good)
    assert cache.load_mapped("key")[0] == b"head" * 9


def test_a_mapped_entry_outlives_its_file(cache, arrays, tmp_path):
    cache.store_mapped("key", b"old", arrays)
    _, data = cache.load_mapped("key")
    before = data.tobytes()
    cache.store_mapped("key", b"new", [arrays[1]])
    assert data.tobytes() == before and cache.load_mapped("key")[0] == b"new"
    for file in (tmp_path / "cache").iterdir():
        file.unlink()
    assert data.tobytes() == before
