"""Methods that need of hospitals only sums over patients: what one round asks, and what is made of it.

Every patient's vector is clipped in ``privacy.sums``.
"""

from __future__ import annotations

from functools import partial
from typing import Protocol

import numpy as np

from polyclinic.privacy import sums
from polyclinic.synthesis.layout import Layout
from polyclinic.synthesis.synthesizer import Synthesizer
from polyclinic.types import Arrays, Floats, Ints

#: The number of a state that is not 0 where noise hides what every column has to do with the label.
HIDDEN = "label hidden"
#: By how many deviations of a column noise moves its mean within the rarest class of the label, by what is public.
MOVED = "class means moved"
#: The numbers of a state that are the fewest and the most patients whom a sum so far was of, where a method counts them.
ANSWERED = "answered"


class SumsMethod(Protocol):
    """A method of ``rounds`` sums.

    Its ``state`` holds what was made of the sums so far, all of it public; it begins with ``classes``, (K,) frequencies
    of the label. The entry ``patients`` is how many the last sum was of, by what is public.
    """

    @property
    def name(self) -> str: ...

    @property
    def layout(self) -> Layout: ...

    @property
    def rounds(self) -> int: ...

    def question(self, round: int, state: Arrays) -> Arrays:
        """What hospitals must be told for the sum of ``round``, from 1 on."""
        ...

    def size(self, round: int, question: Arrays) -> int:
        """How many numbers the sum has that answers ``question``."""
        ...

    def contributions(self, round: int, question: Arrays, z: Floats, patient: Ints, patients: int) -> Floats:
        """(patients, size) what each patient adds; of a patient with several rows their mean.

        Args:
            round: The round, from 1 on.
            question: What ``question`` gave for the round.
            z: (n, D) rows of the layout.
            patient: (n,) the patient of each row.
            patients: The number of patients.
        """
        ...

    def absorb(self, round: int, state: Arrays, mean: Floats, noise: float) -> Arrays:
        """The next state.

        Args:
            round: The round, from 1 on.
            state: What was made of the sums so far.
            mean: (size,) noisy sum by the number of patients.
            noise: Standard deviation in each entry of ``mean``.
        """
        ...


class SynthesisMethod(SumsMethod, Protocol):
    """One that ends in something that draws rows."""

    def synthesizer(self, state: Arrays) -> Synthesizer:
        """What the last state draws by."""
        ...


def clipped_total(
    method: SumsMethod, round: int, question: Arrays, z: Floats, patient: Ints, patients: int, apart: bool = False
) -> Floats:
    """(size,) sum of the patients' vectors of ``round``, as ``privacy.sums.clipped_total``.

    Args:
        method: What makes the vectors.
        round: The round, from 1 on.
        question: What the method's ``question`` gave for the round.
        z: (n, D) rows of the layout.
        patient: (n,) the patient of each row.
        patients: The number of patients.
        apart: As in ``privacy.sums.clipped_total``: each patient's vector is computed by itself.
    """
    contributions = partial(method.contributions, round, question)
    return sums.clipped_total(contributions, method.size(round, question), z, patient, patients, method.name, apart)


def class_frequencies(counts: Floats) -> Floats:
    """(K,) a distribution from noisy counts: each class keeps a little, so that none is impossible."""
    positive = np.maximum(counts, max(1e-3 * float(np.abs(counts).sum()), 1.0))
    return np.asarray(positive / positive.sum())


def fit_centrally(
    method: SynthesisMethod, z: Floats, patient: Ints, patients: int, noise_multiplier: float, rng: np.random.Generator,
) -> Synthesizer:  # fmt: skip
    """Fits a method over one table, as a trusted curator would; each round's sum has Gaussian noise.

    The frequencies of classes are released with the same noise, as one more release. Not private at noise 0.

    Args:
        method: The method, of which all rounds are taken.
        z: (n, D) rows of the layout.
        patient: (n,) the patient of each row.
        patients: The number of patients.
        noise_multiplier: Standard deviation of the noise in each sum of vectors of length at most 1.
        rng: The source of the noise.
    """
    label = sums.mean_of_rows(z[:, method.layout.label], patient, patients).sum(axis=0)
    classes = class_frequencies(label + noise_multiplier * rng.standard_normal(len(label)))
    state: Arrays = {"classes": classes, "patients": np.array([float(patients)])}
    for round in range(1, method.rounds + 1):
        total = clipped_total(method, round, method.question(round, state), z, patient, patients)
        noisy = total + noise_multiplier * rng.standard_normal(len(total))
        state = method.absorb(round, state, noisy / patients, noise_multiplier / patients)
    return method.synthesizer(state)
