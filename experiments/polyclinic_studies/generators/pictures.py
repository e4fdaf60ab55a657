"""What judges generated pictures, by a small classifier fitted on real ones in place of the Inception network.

Such numbers compare generators under the same classifier, and not with those of papers, whose classifier is another.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from polyclinic.errors import DataError
from polyclinic.types import Floats

HIDDEN, EPOCHS = 64, 100


@dataclass(frozen=True)
class PictureClassifier:
    """A network of one hidden layer: weights (P, H) and (H, K) with their offsets (H,) and (K,)."""

    first: Floats
    first_offset: Floats
    last: Floats
    last_offset: Floats

    @property
    def classes(self) -> int:
        """K, the largest inception score there can be."""
        return len(self.last_offset)

    def features(self, pictures: ArrayLike) -> Floats:
        """(n, H) activations of the hidden layer, of pictures (n, ...) of P pixels."""
        flat = _flat(pictures)
        if flat.shape[1] != len(self.first):
            raise DataError(
                f"pictures have {flat.shape[1]} pixels, and the classifier was fitted on {len(self.first)}."
            )
        return np.asarray(np.maximum(flat @ self.first + self.first_offset, 0))

    def probabilities(self, pictures: ArrayLike) -> Floats:
        """(n, K) class probabilities of pictures (n, ...)."""
        z = self.features(pictures) @ self.last + self.last_offset
        odds = np.exp(z - z.max(axis=1, keepdims=True))
        return np.asarray(odds / odds.sum(axis=1, keepdims=True))


def fit_classifier(pictures: ArrayLike, labels: ArrayLike, seed: int = 0, hidden: int = HIDDEN) -> PictureClassifier:
    """A classifier of real pictures (n, ...), pixels best in 0..1, of classes 0..K-1 (n,), by scikit-learn's Adam.

    Raises DataError if a class of 0..K-1 has no picture or there are fewer than two classes.
    """
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.neural_network import MLPClassifier

    x, y = _flat(pictures), np.asarray(labels)
    present = np.unique(y)
    if len(y) != len(x) or len(present) < 2 or not np.array_equal(present, np.arange(len(present))):
        raise DataError("labels must be whole numbers 0..K-1, K > 1, one for each picture and each with a picture.")
    model = MLPClassifier((hidden,), max_iter=EPOCHS, n_iter_no_change=5, tol=1e-3, random_state=seed % 2**32)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # a judge need not be at its optimum
        model.fit(x, y)
    first, last = (np.asarray(weights, dtype=np.float64) for weights in model.coefs_)
    first_offset, last_offset = (np.asarray(offset, dtype=np.float64) for offset in model.intercepts_)
    if len(present) == 2:  # scikit-learn has one logit for two classes
        last = np.concatenate([np.zeros_like(last), last], axis=1)
        last_offset = np.concatenate([[0.0], last_offset])
    return PictureClassifier(first, first_offset, last, last_offset)


def inception_score(probabilities: ArrayLike) -> float | None:
    """exp of the mean KL divergence of each picture's class probabilities (n, K) from their mean; 1 to K, more is better.

    K is reached by pictures that are each certain and together even over the classes.  Salimans et al. 2016.
    ``None`` without pictures or with a non-finite probability.
    """
    p = np.asarray(probabilities, dtype=np.float64)
    if not p.size or not np.isfinite(p).all():
        return None
    mean = np.broadcast_to(p.mean(axis=0), p.shape)
    there = p > 0
    divergence = np.where(
        there, p * (np.log(p, where=there, out=np.zeros_like(p)) - np.log(np.where(there, mean, 1))), 0
    )
    return float(np.exp(divergence.sum(axis=1).mean()))


def generate_score(inception: Mapping[str, float]) -> dict[str, float | None]:
    """PPGAN's score |IS - mean IS| / (max IS - min IS) of each of a named set of runs (Liu et al. 2019).

    It is a place within this set alone: it is not comparable with another set or paper, and not even monotone, since a
    run far below the mean scores as one far above.  ``None`` for all where the runs do not differ.
    """
    values = np.array(list(inception.values()), dtype=np.float64)
    if not values.size or not np.ptp(values) > 0:
        return dict.fromkeys(inception)
    found = abs(values - values.mean()) / np.ptp(values)
    return {name: float(score) for name, score in zip(inception, found, strict=True)}


def frechet_distance(real: ArrayLike, generated: ArrayLike) -> float | None:
    """Frechet distance of Gaussians fitted to two sets of features (n, H), (m, H); 0 is best.

    ||m1 - m2||^2 + tr(S1 + S2 - 2 (S1 S2)^(1/2)).  Heusel et al. 2017, there in Inception's features. Few pictures make
    it larger: compare at the same numbers.  ``None`` where a set has fewer than two rows or a non-finite feature.
    """
    a, b = np.asarray(real, dtype=np.float64), np.asarray(generated, dtype=np.float64)
    if a.ndim != 2 or b.ndim != 2 or a.shape[1] != b.shape[1]:
        raise DataError(f"features must be (n, H) of the same H, not {a.shape} and {b.shape}.")
    if min(len(a), len(b)) < 2 or not (np.isfinite(a).all() and np.isfinite(b).all()):
        return None
    covariances = [np.atleast_2d(np.cov(x, rowvar=False)) for x in (a, b)]
    root = _root(covariances[0])
    # tr (S1 S2)^(1/2) = tr (S1^(1/2) S2 S1^(1/2))^(1/2), whose matrix is symmetric.
    cross = np.sqrt(np.linalg.eigvalsh(root @ covariances[1] @ root).clip(0)).sum()
    apart = a.mean(axis=0) - b.mean(axis=0)
    return max(0.0, float(apart @ apart + np.trace(covariances[0]) + np.trace(covariances[1]) - 2 * cross))


def coverage(real: ArrayLike, generated: ArrayLike, neighbours: int = 5) -> float | None:
    """Share of real pictures (n, ...) that a generated one (m, ...) lies as near to as its ``neighbours``-th nearest real one.

    It falls where a generator leaves modes out; real pictures themselves have about 1 - 2^-neighbours. Naeem et al. 2020
    (arXiv:2002.09797), here between pixels. ``None`` with too few pictures.
    """
    from sklearn.neighbors import NearestNeighbors

    a, b = _flat(real), _flat(generated)
    if len(a) <= neighbours or not len(b):
        return None
    radius = NearestNeighbors(n_neighbors=neighbours + 1).fit(a).kneighbors(a)[0][:, -1]
    nearest = NearestNeighbors(n_neighbors=1).fit(b).kneighbors(a)[0][:, 0]
    return float((nearest <= radius).mean())


def label_agreement(probabilities: ArrayLike, labels: ArrayLike) -> float | None:
    """Share of generated pictures (n, K) that the real pictures' classifier takes for what was asked for, labels (n,).

    ``None`` without pictures. How well generated pictures train a classifier is ``transfer``'s to say.
    """
    p, asked = np.asarray(probabilities, dtype=np.float64), np.asarray(labels)
    return float((p.argmax(axis=1) == asked).mean()) if p.size and np.isfinite(p).all() else None


def _root(matrix: Floats) -> Floats:
    values, vectors = np.linalg.eigh(matrix)
    return np.asarray((vectors * np.sqrt(values.clip(0))) @ vectors.T)


def _flat(pictures: ArrayLike) -> Floats:
    x = np.asarray(pictures, dtype=np.float64)
    if x.ndim < 2 or not np.isfinite(x).all():
        raise DataError(f"pictures must be (n, ...) finite pixels, not of shape {x.shape} or with a missing pixel.")
    return x.reshape(len(x), -1)
