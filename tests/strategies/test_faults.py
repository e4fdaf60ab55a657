"""Adaptive clipping where a peer's breaks: nobody in the round, and counts that are not shifted."""

from __future__ import annotations

import numpy as np
import pytest
from flwr.serverapp.strategy import FedAvg

from polyclinic.privacy.central import next_clip_norm
from polyclinic.strategies.central import CentralDP
from tests.strategies.test_central import one_round, plan, wide


def test_fault_27_a_round_of_nobody_gets_its_noise_and_moves_the_clip_norm_as_half_clipped() -> None:
    """No bits: the count says half of those expected, give or take its noise; the divisor is still theirs."""
    how = plan(quantile=0.8, expected_sites=1000.0, expected_weight=1000.0)
    strategy = CentralDP(FedAvg(), how, seed=0)
    step = one_round(strategy, wide(0.0), [])["w"]
    assert np.std(step) * 1000 == pytest.approx(how.noise_scale, rel=0.02)
    # 50 of 1000 is the count's noise: five times that.
    least, most = (next_clip_norm(1.0, share, 0.8) for share in (0.75, 0.25))
    assert least < strategy.clip_norm < most and strategy.clip_norm != 1.0
