"""Small tables of real measurements, with features that mean nothing added on demand."""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from .. import errors
from .splits import order


class Rows(NamedTuple):
    """Examples of one use."""

    feature: Float[np.ndarray, "n d"]
    target: Float[np.ndarray, " n"]  # a real number, or 0 and 1 for two classes


class Table(NamedTuple):
    """Disjoint rows for each of three uses, in the training rows' units of mean 0 and variance 1.

    The targets of two classes are left as they are.
    """

    train: Rows
    validation: Rows
    test: Rows
    names: tuple[str, ...]  # of the features; the added ones come last
    classes: bool  # whether the target is one of two classes


DATASETS = ("breast_cancer", "diabetes")


def table(name: str, train: int | None, validation: int | None, junk: int, seed: int) -> Table:
    """Draw disjoint rows of a data set that comes with scikit-learn; by default thirds of it.

    Args:
        name: ``diabetes``, 442 rows of 10 features and a real target, or ``breast_cancer``, 569
            rows of 30 features and two classes.
        train: number of training rows.
        validation: number of validation rows; the others are to test on, alike for every seed.
        junk: how many features of pure noise are added.
        seed: names the split and the noise.
    """
    if name not in DATASETS:
        raise errors.unknown("data set", name, DATASETS)
    errors.count("junk", junk, least=0)
    feature, target, names, classes = _load(name)
    total = len(target)
    n = total // 3 if train is None else train
    m = total // 3 if validation is None else validation
    errors.count("train", n, least=2)
    errors.count("validation", m)
    if n + m >= total:
        raise errors.Mistake(
            f"`train` and `validation` ask for {n + m} rows, but {name} has {total}, and some "
            f"must be left to test on."
        )
    draw = np.random.default_rng(seed)
    at = order(total, n + m, draw)
    feature = np.concatenate([feature, draw.normal(size=(total, junk))], axis=1)
    known = at[:n]
    feature = _standard(feature, known)
    target = target if classes else _standard(target, known)
    rows = lambda of: Rows(feature[of].astype(np.float32), target[of].astype(np.float32))
    return Table(
        rows(known),
        rows(at[n : n + m]),
        rows(at[n + m :]),
        (*names, *(f"junk {i + 1}" for i in range(junk))),
        classes,
    )


def _standard(values: np.ndarray, known: np.ndarray) -> np.ndarray:
    spread = values[known].std(axis=0)
    return (values - values[known].mean(axis=0)) / np.where(spread > 0, spread, 1)


def _load(name: str) -> tuple[np.ndarray, np.ndarray, tuple[str, ...], bool]:
    try:
        from sklearn import datasets
    except ImportError as error:
        raise errors.Mistake(
            f"{name} comes with scikit-learn, which is not installed; install biadam[cli]."
        ) from error
    classes = name == "breast_cancer"
    bunch = datasets.load_breast_cancer() if classes else datasets.load_diabetes()
    names = tuple(str(feature) for feature in bunch.feature_names)
    return np.asarray(bunch.data), np.asarray(bunch.target, np.float64), names, classes
