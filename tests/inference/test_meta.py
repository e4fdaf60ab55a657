"""Meta-analysis against published numbers and statsmodels."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from polyclinic.errors import DataError
from polyclinic.inference.meta import meta_analysis

# Thirteen trials of the BCG vaccine against tuberculosis (Colditz et al. 1994; ``dat.bcg`` of the R package metafor): cases and
# others among the vaccinated, cases and others among the rest.
BCG = np.array([
    (4, 119, 11, 128), (6, 300, 29, 274), (3, 228, 11, 209), (62, 13536, 248, 12619), (33, 5036, 47, 5761),
    (180, 1361, 372, 1079), (8, 2537, 10, 619), (505, 87886, 499, 87892), (29, 7470, 45, 7232), (17, 1699, 65, 1600),
    (186, 50448, 141, 27197), (5, 2493, 3, 2338), (27, 16886, 29, 17825),
], dtype=float)  # fmt: skip
A, B, C, D = BCG.T
RATIOS = np.log(A / (A + B)) - np.log(C / (C + D))
ERRORS = np.sqrt(1 / A - 1 / (A + B) + 1 / C - 1 / (C + D))


def test_bcg_by_reml_is_as_published() -> None:
    """Viechtbauer 2010, Journal of Statistical Software 36(3), section 4.1: ``rma(yi, vi, data = dat)``."""
    combined = meta_analysis(RATIOS, ERRORS, "reml", hartung_knapp=False)
    assert combined.tau2 == pytest.approx(0.3132, abs=5e-5) and combined.i2 == pytest.approx(0.9222, abs=5e-5)
    assert combined.q == pytest.approx(152.2330, abs=5e-5) and combined.q_p < 1e-4
    assert [combined.random.estimate, combined.random.error] == pytest.approx([-0.7145, 0.1798], abs=5e-5)
    assert [combined.random.low, combined.random.high] == pytest.approx([-1.0669, -0.3622], abs=5e-5)


def test_bcg_by_moments_and_of_one_effect_is_what_statsmodels_has() -> None:
    from statsmodels.stats.meta_analysis import combine_effects

    theirs = combine_effects(RATIOS, ERRORS**2, method_re="dl", use_t=False)
    frame = theirs.summary_frame()
    combined = meta_analysis(RATIOS, ERRORS, "dl", hartung_knapp=False)
    assert combined.tau2 == pytest.approx(theirs.tau2, rel=1e-9) and combined.i2 == pytest.approx(theirs.i2, rel=1e-9)
    for ours, row in ((combined.fixed, "fixed effect"), (combined.random, "random effect")):
        assert [ours.estimate, ours.error, ours.low, ours.high] == pytest.approx(
            frame.loc[row].iloc[:4].tolist(), rel=1e-9
        )
    adjusted = meta_analysis(RATIOS, ERRORS, "dl").random  # Hartung and Knapp's
    assert adjusted.error == pytest.approx(frame.loc["random effect wls", "sd_eff"], rel=1e-9)


@given(shift=st.floats(-5, 5), size=st.floats(0.01, 100), same=st.integers(2, 9))
def test_it_moves_and_stretches_with_the_effects_and_alike_hospitals_differ_by_nothing(
    shift: float, size: float, same: int
) -> None:
    one, other = meta_analysis(RATIOS, ERRORS), meta_analysis(shift + size * RATIOS, size * ERRORS)
    assert other.random.estimate == pytest.approx(shift + size * one.random.estimate, rel=1e-6, abs=1e-6)
    assert other.tau2 == pytest.approx(size**2 * one.tau2, rel=1e-6) and other.i2 == pytest.approx(one.i2, rel=1e-6)
    alike = meta_analysis(np.full(same, shift), np.full(same, size))
    assert alike.tau2 == alike.i2 == 0 and alike.random.estimate == pytest.approx(shift)


@pytest.mark.parametrize("errors", [[0.1], [0.1, 0.0], [0.1, np.nan]])
def test_what_cannot_be_combined_is_refused(errors: list[float]) -> None:
    with pytest.raises(DataError, match="meta-analysis needs"):
        meta_analysis(np.zeros(len(errors)), np.array(errors))
