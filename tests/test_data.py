"""Sources of samples: pure in (key, step), independent where they must be, complete by epoch."""

import gzip
import hashlib
import http.client
import io
import urllib.request

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from biadam import Mistake
from biadam.data import FullBatch, Minibatches
from biadam.data.files import download, fetch
from biadam.data.images import corrupt, split
from biadam.data.sources import epoch_indices
from biadam.data.tables import table

KEY = jax.random.key(1)


def test_minibatches_are_rows_and_pure():
    outer, inner = np.arange(10.0), {"a": np.arange(7), "b": 2 * np.arange(7)}
    data = Minibatches(outer=outer, inner=inner, size=(3, 4))
    sample = data(KEY, 5, 2)
    assert sample.outer.shape == (3,)
    assert sample.inner["a"].shape == (2, 4)
    np.testing.assert_array_equal(sample.inner["b"], 2 * sample.inner["a"])
    np.testing.assert_array_equal(sample.batch(1)["a"], sample.inner["a"][1])
    again = jax.jit(lambda t: data(KEY, t, 2))(5)
    jax.tree.map(np.testing.assert_array_equal, sample._replace(key=0), again._replace(key=0))


def test_all_minibatches_of_a_sample_are_independent():
    """No two of xi, zeta, zeta^0, ... are correlated, and each is uniform."""
    data = Minibatches(outer=np.arange(4), inner=np.arange(4), size=1)
    draw = jax.jit(jax.vmap(lambda t: data(KEY, t, 3)))(jnp.arange(4000))
    columns = np.stack([draw.outer[:, 0], *(draw.inner[:, i, 0] for i in range(3))], axis=1)
    for column in columns.T:
        assert (np.abs(np.bincount(column) - 1000) < 150).all()
    assert np.abs(np.corrcoef(columns.T) - np.eye(4)).max() < 0.08


@pytest.mark.parametrize("length", [1, 2, 5, 16, 37, 1000])
def test_an_epoch_visits_every_example_once(length):
    size = min(3, length)
    steps = -(-5 * length // size)
    deal = jax.jit(jax.vmap(lambda t: epoch_indices(KEY, t, size, length)))
    read = np.concatenate(deal(jnp.arange(steps)))
    for epoch in range(5):
        seen = read[epoch * length : (epoch + 1) * length]
        np.testing.assert_array_equal(np.sort(seen), np.arange(length))


def test_epochs_are_shuffled_anew_and_streams_apart():
    data = Minibatches(outer=np.arange(64), inner=np.arange(64), size=64, replacement=False)
    first, second = data(KEY, 0, 2), data(KEY, 1, 2)
    orders = [first.outer, second.outer, *first.inner, *second.inner]
    for order in orders:
        np.testing.assert_array_equal(np.sort(order), np.arange(64))
    for i, one in enumerate(orders):
        for other in orders[:i]:
            assert (np.asarray(one) == np.asarray(other)).sum() < 8


def test_places_in_an_epoch_are_uniform():
    """Over keys, every example is equally often the first."""
    first = jax.jit(jax.vmap(lambda k: epoch_indices(k, 0, 1, 10)[0]))
    counts = np.bincount(first(jax.random.split(KEY, 5000)), minlength=10)
    assert (np.abs(counts - 500) < 5 * np.sqrt(450)).all()


def test_full_batch():
    sample = FullBatch(np.arange(5), np.arange(3))(KEY, 0, 4)
    np.testing.assert_array_equal(sample.outer, np.arange(5))
    for i in range(4):  # one minibatch stands for all
        np.testing.assert_array_equal(sample.batch(i), np.arange(3))


def test_corruption_is_exact_once_and_seeded():
    label = np.random.default_rng(0).integers(0, 10, 1000)
    noisy = corrupt(label, 0.6, 10, seed=3)
    assert (noisy != label).sum() == 600
    np.testing.assert_array_equal(noisy, corrupt(label, 0.6, 10, seed=3))
    assert (noisy != corrupt(label, 0.6, 10, seed=4)).any()
    shift = (noisy - label)[noisy != label] % 10
    assert (np.abs(np.bincount(shift, minlength=10)[1:] - 600 / 9) < 45).all()


def test_splits_are_disjoint():
    parts = split("digits", 100, 50, seed=0)
    rows = [{a.tobytes() for a in part.image} for part in parts]
    assert len(parts.test.label) == 1797 - 150
    assert not rows[0] & rows[1]  # the digits have no duplicates
    assert not rows[0] & rows[2]
    other = split("digits", 100, 50, seed=1)
    np.testing.assert_array_equal(other.test.image, parts.test.image)
    assert not np.array_equal(other.train.image, parts.train.image)
    one, two = (table("diabetes", None, None, 0, seed).test.target for seed in (0, 1))
    assert np.corrcoef(one, two)[0, 1] > 0.999  # alike, but for the units of their training rows


def test_files_are_found_and_checked(tmp_path, monkeypatch):
    content = b"pixels"
    md5 = hashlib.md5(content, usedforsecurity=False).hexdigest()
    (tmp_path / "deep" / "er").mkdir(parents=True)
    (tmp_path / "deep" / "er" / "some-ubyte.gz").write_bytes(gzip.compress(content))
    monkeypatch.setenv("BIADAM_DATA", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert fetch("some-ubyte", md5, ()) == content
    with pytest.raises(Mistake, match="checksum differs"):
        fetch("some-ubyte", "0" * 32, ())
    with pytest.raises(Mistake, match="could not be downloaded"):
        fetch("other-ubyte", md5, (f"file://{tmp_path}/nowhere/",))
    (tmp_path / "mirror").mkdir()
    (tmp_path / "mirror" / "other-ubyte.gz").write_bytes(gzip.compress(content))
    monkeypatch.delenv("BIADAM_DATA")
    assert fetch("other-ubyte", md5, (f"file://{tmp_path}/mirror/",)) == content
    assert (tmp_path / "cache" / "biadam" / "other-ubyte.gz").exists()


@pytest.mark.parametrize("packed", [False, True])
def test_another_data_set_with_the_same_names_is_passed_over(tmp_path, monkeypatch, packed):
    content = b"digits"
    for folder, inside in (("A-fashion", b"shirts"), ("MNIST", content)):
        (tmp_path / folder).mkdir()
        gzipped = packed and folder == "MNIST"
        name = "images-ubyte.gz" if gzipped else "images-ubyte"
        (tmp_path / folder / name).write_bytes(gzip.compress(inside) if gzipped else inside)
    monkeypatch.setenv("BIADAM_DATA", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    md5 = hashlib.md5(content, usedforsecurity=False).hexdigest()
    assert fetch("images-ubyte", md5, ()) == content


def test_a_mirror_that_breaks_off_is_followed_by_the_next(tmp_path, monkeypatch):
    class Reply(io.BytesIO):
        def read(self, *size):
            raise http.client.IncompleteRead(b"x", 10)

    whole = urllib.request.urlopen
    broken = lambda url, timeout: Reply() if "first" in url else whole(url, timeout=timeout)
    monkeypatch.setattr(urllib.request, "urlopen", broken)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "second").mkdir()
    (tmp_path / "second" / "file").write_bytes(b"content")
    md5 = hashlib.md5(b"content", usedforsecurity=False).hexdigest()
    mirrors = (f"file://{tmp_path}/first/", f"file://{tmp_path}/second/")
    assert download("file", md5, mirrors) == b"content"
