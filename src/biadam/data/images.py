"""Small labelled images: MNIST from its published files, digits from scikit-learn."""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int

from .. import errors
from .files import fetch
from .splits import order

_MIRRORS = (
    "https://ossci-datasets.s3.amazonaws.com/mnist/",
    "https://storage.googleapis.com/cvdf-datasets/mnist/",
)
_MNIST = {
    "train-images-idx3-ubyte": "6bbc9ace898e44ae57da46a324031adb",
    "train-labels-idx1-ubyte": "a25bea736e30d166cdddb491f175f624",
    "t10k-images-idx3-ubyte": "2646ac647ad5339dbf082846283269ea",
    "t10k-labels-idx1-ubyte": "27ae3e4e09519cfbb04c329615203637",
}


class Images(NamedTuple):
    """Grey images with ink 1 on paper 0, and their classes."""

    image: Float[np.ndarray, "n height width"]
    label: Int[np.ndarray, " n"]

    def take(self, index: np.ndarray) -> "Images":
        """Those of an index."""
        return Images(self.image[index], self.label[index])


class Split(NamedTuple):
    """Disjoint examples for each of three uses."""

    train: Images
    validation: Images
    test: Images


def mnist() -> tuple[Images, Images]:
    """The 60,000 training and the 10,000 test images, 28 x 28."""
    files = {name: fetch(name, md5, _MIRRORS) for name, md5 in _MNIST.items()}

    def images(prefix: str) -> Images:
        pixels = np.frombuffer(files[f"{prefix}-images-idx3-ubyte"], np.uint8, offset=16)
        labels = np.frombuffer(files[f"{prefix}-labels-idx1-ubyte"], np.uint8, offset=8)
        return Images(
            (pixels.reshape(-1, 28, 28) / np.float32(255)).astype(np.float32),
            labels.astype(np.int32),
        )

    return images("train"), images("t10k")


def digits() -> Images:
    """The 1,797 images of 8 x 8 that come with scikit-learn."""
    try:
        from sklearn.datasets import load_digits
    except ImportError as error:
        raise errors.Mistake(
            "the embedded digits come with scikit-learn, which is not installed; "
            "install biadam[cli]."
        ) from error
    bunch = load_digits()
    return Images(
        (bunch.images / 16).astype(np.float32),
        bunch.target.astype(np.int32),
    )


DATASETS = ("digits", "mnist")


def split(name: str, train: int | None, validation: int | None, seed: int) -> Split:
    """Draw disjoint sets of a data set, those to test on alike for every seed.

    MNIST's test images are its own 10,000.

    By default 5,000 and 5,000 examples of MNIST; 800 and 400 of the digits, which leaves 597.
    """
    if name not in DATASETS:
        raise errors.unknown("data set", name, DATASETS)
    pool, test = mnist() if name == "mnist" else (digits(), None)
    usual = (5000, 5000) if name == "mnist" else (800, 400)
    n = usual[0] if train is None else train
    m = usual[1] if validation is None else validation
    errors.count("train", n)
    errors.count("validation", m)
    spare = len(pool.label) - n - m
    if spare < (0 if test is not None else 1):
        raise errors.Mistake(
            f"`train` and `validation` ask for {n + m} examples, but {name} has "
            f"{len(pool.label)}{'' if test is not None else ', and some must be left to test on'}."
        )
    total = len(pool.label)
    at = order(total, n + m if test is None else total, np.random.default_rng(seed))
    rest = pool.take(at[n + m :]) if test is None else test
    return Split(pool.take(at[:n]), pool.take(at[n : n + m]), rest)


def corrupt(label: np.ndarray, share: float, classes: int, seed: int) -> np.ndarray:
    """Labels of which exactly a share is replaced, once, by another class drawn uniformly."""
    errors.number("noise", share, least=0, most=1)
    draw = np.random.default_rng(seed)
    wrong = draw.permutation(len(label))[: round(share * len(label))]
    noisy = label.copy()
    noisy[wrong] = (label[wrong] + draw.integers(1, classes, len(wrong))) % classes
    return noisy
