"""Few-shot tasks: different classes, different images, nothing of the test in the training."""

import os

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from biadam.data import episodes
from biadam.data.episodes import Episodes, Groups, OnHost, evaluation_episodes
from biadam.data.omniglot import Characters, few_shot_digits, omniglot

KEY = jax.random.key(3)
COUNT, DRAWINGS = 7, 20


def tagged(count: int = COUNT) -> Characters:
    """Images that tell their character and drawing in the two corners of their first row."""
    image = np.zeros((count, DRAWINGS, 3, 3), np.uint8)
    image[..., 0, 0] = np.arange(1, count + 1)[:, None]
    image[..., 0, 2] = np.arange(101, 101 + DRAWINGS)
    return Characters(image, np.zeros(count, int), np.arange(count))


def read(image: jax.Array) -> np.ndarray:
    """(character, drawing, quarter turn) of every image."""
    level = np.rint(255 * np.asarray(image)).astype(int)
    corners = level[..., [0, 0, 2, 2], [0, 2, 0, 2]].reshape(-1, 2, 2)
    tags = []
    for one in corners:
        (quarter,) = [
            q
            for q in range(4)
            if (row := np.rot90(one, -q)[0])[0] in range(1, 101) and row[1] > 100
        ]
        tags.append((*(np.rot90(one, -quarter)[0] - [1, 101]), quarter))
    return np.array(tags).reshape(*image.shape[:-2], 3)


def many(source, steps: int):
    """The samples of several steps, drawn by one compiled program."""
    return eqx.filter_jit(jax.vmap(lambda t: source(KEY, t, 1)))(jnp.arange(steps))


@pytest.fixture(scope="module")
def fresh():
    source = Episodes(tagged(), ways=5, shots=2, queries=6, tasks=3, anchor=4)
    return source, many(source, 50)


def test_shapes(fresh):
    _, sample = fresh
    assert sample.outer.image.shape == (50, 3, 30, 3, 3)
    assert sample.inner.image.shape == (50, 1, 3, 10, 3, 3)
    assert sample.inner.label.shape == (50, 1, 3, 10)
    assert sample.outer.block.shape == (50, 3)
    query, support = sample.whole
    assert query.image.shape == (50, 4, 30, 3, 3)
    assert support.image.shape == (50, 4, 10, 3, 3)


def test_classes_differ_and_support_is_never_among_queries(fresh):
    _, sample = fresh
    pairs = ((sample.outer, jax.tree.map(lambda a: a[:, 0], sample.inner)), sample.whole)
    for query, support in pairs:
        asked, shown = read(query.image), read(support.image)
        tasks = zip(
            *(a.reshape(-1, *a.shape[2:]) for a in (asked, shown, query.label, support.label)),
            strict=True,
        )
        for q, s, q_label, s_label in tasks:
            classes = [tuple(s[s_label == n][0, [0, 2]]) for n in range(5)]
            assert len(set(classes)) == 5
            for n, (character, quarter) in enumerate(classes):
                drawings = [*q[q_label == n], *s[s_label == n]]
                assert len(drawings) == 8
                assert {(c, t) for c, _, t in drawings} == {(character, quarter)}
                assert len({d for _, d, _ in drawings}) == 8


def test_everything_is_drawn_equally_often(fresh):
    _, sample = fresh
    classes, drawings, quarters = read(sample.inner.image)[:, 0].reshape(-1, 3).T
    for seen, among in ((classes, COUNT), (drawings, DRAWINGS), (quarters, 4)):
        counts, mean = np.bincount(seen, minlength=among), len(seen) / among
        assert (np.abs(counts - mean) < 5 * np.sqrt(2 * mean)).all()  # a class comes in pairs
    place = read(sample.inner.image)[:, 0].reshape(-1, 5, 2, 3)[:, :, 0, 0]
    assert np.abs(np.corrcoef(place[:, 0], place[:, 1])[0, 1] + 1 / 27) < 5 / np.sqrt(150)


def test_the_whole_is_another_draw(fresh):
    _, sample = fresh
    first = np.asarray(sample.outer.image == sample.whole[0].image[:, :3]).all(axis=(2, 3, 4))
    assert not first.any()


def test_samples_depend_on_key_and_step_alone(fresh):
    source, sample = fresh
    one = eqx.filter_jit(source)(KEY, jnp.asarray(7), 3)
    np.testing.assert_array_equal(sample.outer.image[7], one.outer.image)
    np.testing.assert_array_equal(sample.inner.image[7], one.inner.image)
    other = eqx.filter_jit(source)(jax.random.key(4), jnp.asarray(7), 3)
    assert (one.outer.image != other.outer.image).any()
    assert (sample.outer.image[7] != sample.outer.image[8]).any()


def test_host_and_device_give_the_same(tmp_path):
    """Bit for bit, from a file mapped into memory, also under vmap."""
    characters = tagged()
    np.save(tmp_path / "images.npy", characters.image)
    mapped = characters._replace(image=np.load(tmp_path / "images.npy", mmap_mode="r"))
    given = dict(ways=4, shots=1, queries=3, tasks=2)
    here, there = Episodes(characters, **given), Episodes(OnHost(mapped), **given)
    one, other = many(here, 3), many(there, 3)
    assert eqx.tree_equal((one.outer, one.inner), (other.outer, other.inner))
    one, other = (eqx.filter_jit(s)(KEY, jnp.asarray(2), 1) for s in (here, there))
    assert eqx.tree_equal(one.outer, other.outer)


def test_turns_are_quarters():
    image = np.arange(9, dtype=np.uint8).reshape(1, 3, 3)
    for quarter in range(4):
        turned = episodes._turn(jnp.asarray(image), jnp.full((1, 1, 1), quarter))
        np.testing.assert_array_equal(turned[0], np.rot90(image[0], quarter))


@pytest.fixture(scope="module")
def groups():
    source = Groups(tagged(), ways=3, shots=1, queries=4, tasks=2, rotations=True, seed=1)
    return source, many(source, 60)


def test_groups_partition_the_classes(groups):
    source, _ = groups
    assert source.count == 4 * COUNT // 3
    members = np.asarray(source.groups).ravel().tolist()
    assert len(set(members)) == len(members) == 3 * source.count
    assert set(members) <= set(range(4 * COUNT))
    other = Groups(tagged(), ways=3, shots=1, queries=4, tasks=2, rotations=True, seed=2)
    assert (source.groups != other.groups).any()


def test_a_group_comes_back_with_its_labels_and_fresh_images(groups):
    source, sample = groups
    support = jax.tree.map(lambda a: a[:, 0], sample.inner)
    np.testing.assert_array_equal(sample.outer.block, support.block)
    assert (np.asarray(support.block)[:, 0] != np.asarray(support.block)[:, 1]).all()
    counts = np.bincount(np.asarray(support.block).ravel(), minlength=source.count)
    assert (np.abs(counts - 120 / source.count) < 5 * np.sqrt(120 / source.count)).all()
    for part in (sample.outer, support):
        tags = read(part.image)
        classes = 4 * tags[..., 0] + tags[..., 2]
        want = np.take_along_axis(
            np.asarray(source.groups)[np.asarray(part.block)], np.asarray(part.label), axis=-1
        )
        np.testing.assert_array_equal(classes, want)
    drawings = read(support.image)[..., 0, 1].ravel()
    assert len(set(drawings)) > 15
    asked = read(sample.outer.image).reshape(120, 3, 4, 3)[..., 1]
    shown = read(support.image).reshape(120, 3, 1, 3)[..., 1]
    assert not (asked == shown).any()


def test_evaluation_tasks_are_as_many_as_asked_and_never_turned():
    parts = list(evaluation_episodes(tagged(), 5, 1, queries=2, episodes=7, chunk=3, key=KEY))
    assert [query.image.shape[0] for query, _ in parts] == [3, 3, 1]
    tags = np.concatenate([read(query.image) for query, _ in parts])
    assert not tags[..., 2].any()
    assert len({task.tobytes() for task in tags}) == 7
    again = list(evaluation_episodes(tagged(), 5, 1, queries=2, episodes=7, chunk=3, key=KEY))
    for part, other in zip(parts, again, strict=True):
        assert eqx.tree_equal(part, other)


def leaked(training: Characters, test: Characters) -> bool:
    """Whether a drawing of the training tasks is one of the test tasks' or their characters'."""
    level = lambda part: np.rint(255 * np.asarray(part.image)).astype(np.uint8)
    flat = lambda image: {one.tobytes() for one in image.reshape(-1, *image.shape[-2:])}
    source = Episodes(training, 5, 1, queries=5, rotations=False)
    sample = source(KEY, 0, 1)
    trained = flat(level(sample.outer)) | flat(level(sample.inner))
    (pair,) = evaluation_episodes(test, 5, 1, queries=5, episodes=4, chunk=4, key=KEY)
    tested = flat(level(pair[0])) | flat(level(pair[1]))
    assert trained <= flat(training.image)
    assert tested <= flat(test.image)
    return bool(trained & flat(test.image) or tested & flat(training.image))


def test_nothing_leaks_from_test_to_training():
    train, test = few_shot_digits()
    assert not leaked(train, test)
    assert leaked(train, train)  # so the check can tell


@pytest.mark.skipif("BIADAM_DATA" not in os.environ, reason="needs the real images")
def test_nothing_leaks_from_the_evaluation_characters(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert not leaked(*omniglot())
