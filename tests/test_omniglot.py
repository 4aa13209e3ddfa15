"""Omniglot from whatever form it is found in, and its stand-in: disjoint, whole, small, cached."""

import hashlib
import io
import os
import zipfile

import numpy as np
import pytest

from biadam import Mistake
from biadam.data import omniglot as module
from biadam.data.omniglot import (
    ALPHABETS,
    DRAWINGS,
    Characters,
    few_shot_digits,
    omniglot,
    read_archive,
    shrink,
    small_background,
    split_alphabets,
)
from biadam.models import Convolutional
from biadam.tasks import class_groups, fresh_tasks

real = pytest.mark.skipif("BIADAM_DATA" not in os.environ, reason="needs the real images")
RNG = np.random.default_rng(0)


def archive(ink: np.ndarray, first: int) -> bytes:
    """What the official archives look like."""
    from PIL import Image

    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as out:
        out.writestr("images/", "")
        for c, drawings in enumerate(ink):
            for s, one in enumerate(drawings):
                png = io.BytesIO()
                Image.fromarray(~one).save(png, "PNG")
                path = f"images/Some_Alphabet/character{c + 1:02}/{c + first:04}_{s + 1:02}.png"
                out.writestr(path, png.getvalue())
    return packed.getvalue()


def md5(content: bytes) -> str:
    return hashlib.md5(content, usedforsecurity=False).hexdigest()


@pytest.fixture
def tiny(monkeypatch, tmp_path):
    """Three made-up characters in a folder of their own, in both published forms."""
    ink = RNG.random((3, DRAWINGS, 105, 105)) < 0.1
    packed, array = archive(ink, 5), io.BytesIO()
    np.savez_compressed(array, images=~ink)
    monkeypatch.setenv("BIADAM_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "data").mkdir()
    part = module._Part("some", md5(packed), md5(array.getvalue()), 5, 3)
    return tmp_path, ink, part, packed, array.getvalue()


def test_area_means_are_exact():
    """Blocks that fit are averaged; otherwise the weights are the shares of area."""
    ink = RNG.random((2, 3, 12, 12)) < 0.5
    blocks = ink.reshape(2, 3, 4, 3, 4, 3).mean(axis=(3, 5))
    np.testing.assert_array_equal(shrink(ink, 4), np.rint(255 * blocks))
    # 105 -> 28 is 15 fine pixels in 4 coarse ones: upsample by 4, then average blocks of 15.
    ink = RNG.random((1, 2, 105, 105)) < 0.5
    fine = np.kron(ink, np.ones((1, 1, 4, 4)))
    want = 255 * fine.reshape(1, 2, 28, 15, 28, 15).mean(axis=(3, 5))
    assert np.abs(shrink(ink, 28) - want).max() <= 0.5 + 1e-4  # rounding, in single precision


def test_the_archive_is_read_pixel_for_pixel():
    ink = RNG.random((2, DRAWINGS, 105, 105)) < 0.1
    read, numbers = read_archive(archive(ink, 27))
    np.testing.assert_array_equal(read, ink)
    np.testing.assert_array_equal(numbers, [27, 28])


@pytest.mark.parametrize("form", ["zip", "npz"])
def test_both_forms_are_found_checked_and_cached(tiny, form):
    folder, ink, part, packed, array = tiny
    path = folder / "data" / f"some.{form}"
    path.write_bytes(packed if form == "zip" else array)
    found = module._cached(part)
    np.testing.assert_array_equal(found.image, shrink(ink, 28))
    np.testing.assert_array_equal(found.number, [5, 6, 7])
    assert {ALPHABETS[i].name for i in found.alphabet} == {"Arcadian"}

    path.unlink()  # from now on the cache serves
    np.testing.assert_array_equal(module._cached(part).image, found.image)
    (kept,) = (folder / "cache" / "biadam").iterdir()
    whole = kept.read_bytes()
    middle = len(whole) // 2
    holes = io.BytesIO(), io.BytesIO()
    np.savez_compressed(holes[0], image=found.image[:2])
    np.savez_compressed(holes[1], image=found.image[..., :-1])
    bent = whole[:middle] + bytes(200) + whole[middle + 200 :]
    for content in (b"", whole[:1000], bent, *(hole.getvalue() for hole in holes)):
        kept.write_bytes(content)  # a cache that is not whole is made again
        path.write_bytes(packed if form == "zip" else array)
        np.testing.assert_array_equal(module._cached(part).image, found.image)
        np.testing.assert_array_equal(np.load(kept)["image"], found.image)
    kept.write_bytes(whole[:1000])
    path.write_bytes(packed[:-1])
    with pytest.raises(Mistake, match="checksum differs"):
        module._cached(part)


def test_a_cache_that_cannot_be_written_does_no_harm(tiny, monkeypatch):
    folder, ink, part, _, array = tiny
    (folder / "data" / "some.npz").write_bytes(array)
    (folder / "file").write_text("no folder")
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder / "file"))
    np.testing.assert_array_equal(module._cached(part).image, shrink(ink, 28))
    assert (folder / "file").read_text() == "no folder"


def test_without_data_the_mirrors_are_asked(tiny, monkeypatch):
    folder, ink, part, packed, _ = tiny
    with monkeypatch.context() as patch:
        patch.setattr(module, "_MIRRORS", (f"file://{folder}/nowhere/",))
        with pytest.raises(Mistake, match=r"some.zip is neither below .* nor in .*digits"):
            module._cached(part)
    (folder / "mirror").mkdir()
    (folder / "mirror" / "some.zip").write_bytes(packed)
    monkeypatch.setattr(module, "_MIRRORS", (f"file://{folder}/mirror/",))
    np.testing.assert_array_equal(module._cached(part).image, shrink(ink, 28))


def test_alphabets_are_a_partition():
    """Every number belongs to one alphabet; the background is the first 30 of 50."""
    ranges = [range(a.first, a.last + 1) for a in ALPHABETS]
    assert [n for numbers in ranges for n in numbers] == list(range(1, 1624))
    assert (len(ALPHABETS), ALPHABETS[29].last) == (50, 964)
    assert len({a.name for a in ALPHABETS}) == 50


def test_held_out_alphabets_are_whole():
    whole, _ = few_shot_digits()
    train, validation = split_alphabets(whole, 2, seed=0)
    assert len(np.unique(validation.alphabet)) == 2
    assert not set(train.alphabet) & set(validation.alphabet)
    assert sorted([*train.number, *validation.number]) == list(whole.number)
    held = [tuple(split_alphabets(whole, 2, seed)[1].number) for seed in range(5)]
    assert held[0] == tuple(validation.number)
    assert len(set(held)) > 1
    with pytest.raises(Mistake, match=r"`validation` must leave an alphabet .* 6 of 6"):
        split_alphabets(whole, 6, seed=0)


def test_digits_share_nothing_between_training_and_test():
    """No digit, so no class and no drawing; no drawing twice in the test characters."""
    train, test = few_shot_digits()
    digit = lambda some: {d for n in some.number for d in divmod(int(n), 10)}
    assert digit(train) | digit(test) == set(range(10))
    assert not digit(train) & digit(test)
    assert train.image.shape == (36, DRAWINGS, 14, 14)
    assert test.image.shape == (16, DRAWINGS, 14, 14)
    halves = (test.image[..., :6], test.image[..., 8:])
    seen = [half[c, s].tobytes() for half in halves for c in range(16) for s in range(DRAWINGS)]
    assert len(set(seen)) == len(seen)
    again, _ = few_shot_digits()
    np.testing.assert_array_equal(train.image, again.image)


def test_digits_look_like_their_numbers():
    """The mean image of a pair is the mean of its digits, but for the columns that overlap."""
    _, test = few_shot_digits()
    row = lambda number: test.image[list(test.number).index(number)].mean(axis=0)
    for other in (44, 55, 77):
        near = np.abs(row(24) - row(20 + other % 10))[:, :6].mean()
        assert near < np.abs(row(24) - row(other))[:, :6].mean()


@real
def test_the_real_images(tmp_path, monkeypatch):
    """Whole, disjoint, ink on paper; the official small archive equals the repackaged arrays."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    background, evaluation = omniglot()
    assert background.image.shape == (964, DRAWINGS, 28, 28)
    assert evaluation.image.shape == (659, DRAWINGS, 28, 28)
    assert sorted([*background.number, *evaluation.number]) == list(range(1, 1624))
    assert not set(background.alphabet) & set(evaluation.alphabet)
    names = [{one.tobytes() for one in part.image[:, 0]} for part in (background, evaluation)]
    assert not names[0] & names[1]
    for part in (background, evaluation):
        assert 0.05 < part.image.mean() / 255 < 0.1  # 8 % of the pixels are ink
        assert part.image.max() == 255
    small = small_background(2)
    np.testing.assert_array_equal(small.image, background.image[small.number - 1])
    np.testing.assert_array_equal(small.alphabet, background.alphabet[small.number - 1])


@real
def test_the_published_numbers_of_groups_and_turns():
    """964 background characters make 192 groups of 5; fresh tasks have four turns of each."""
    small = Convolutional(4)
    groups = class_groups("omniglot", held_out=0, encoder=small)
    assert groups.source.count == 192
    assert len(groups.y0) == 192
    assert groups.source.dealer.turns == 1
    fresh = fresh_tasks("omniglot", held_out=0, encoder=small)
    assert (fresh.source.dealer.turns, fresh.source.dealer.classes) == (4, 4 * 964)


def test_characters_are_taken_by_mask():
    whole = Characters(np.zeros((3, 1, 2, 2), np.uint8), np.arange(3), np.array([7, 8, 9]))
    assert whole.take(np.array([True, False, True])).number.tolist() == [7, 9]
