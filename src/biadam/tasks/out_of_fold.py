"""What a model says of examples that it has not seen, from the noisy labels alone."""

import jax
import numpy as np
from jaxtyping import Float

from .images import CLASSES, Labelled, fitted

FOLDS = 5
RIDGES = (0.3, 0.1, 0.03, 0.01, 0.003, 0.001)
PRECISION = 1e-3  # of the fits
TINY = float(np.finfo(np.float32).tiny)


def out_of_fold(of: Labelled, seed: int) -> Float[np.ndarray, "n classes"]:
    """The probability of every class for each example, by a linear model of the other folds.

    The model's penalty is the one under which the given labels are likeliest out of fold, from the
    largest down as long as they get likelier. Wrong labels, which the other folds don't explain,
    are unlikely under a model that has learned its own wrong labels by heart.
    """
    n = len(of.label)
    fold = np.random.default_rng(seed).permutation(n) % min(FOLDS, n)
    likeliest, found = -np.inf, np.full((n, CLASSES), 1 / CLASSES)
    for ridge in RIDGES:
        probability = _by_others(of, fold, ridge)
        likelihood = float(np.mean(np.log(given(of, probability))))
        if likelihood <= likeliest:
            break
        likeliest, found = likelihood, probability
    return found


def given(of: Labelled, probability: np.ndarray) -> Float[np.ndarray, " n"]:
    """The probability of the label that each example came with, never quite zero."""
    named = probability[np.arange(len(probability)), np.asarray(of.label)]
    return np.maximum(named, TINY)


def _by_others(of: Labelled, fold: np.ndarray, ridge: float) -> np.ndarray:
    probability = np.empty((len(fold), CLASSES))
    for k in np.unique(fold):
        y = fitted(of, (fold != k).astype(float), ridge, PRECISION)
        probability[fold == k] = np.asarray(jax.nn.softmax(of.features @ y))[fold == k]
    return probability
