"""What casts doubt on a case's numbers."""

import numpy as np
import pytest

from pomology.experiment.outcome import drift


def test_drift_is_the_ratio_of_thirds_where_it_is_more_than_their_noise():
    assert drift([1.0] * 17) is drift([0.0] * 18) is None
    assert drift([1.0] * 12 + [2.0] * 6) == pytest.approx(1.0)
    assert drift([2.0] * 7 + [1.0] * 14) == pytest.approx(-0.5)
    assert drift([2.0] * 6 + [9.0] * 6 + [2.0] * 6) == pytest.approx(3.5)  # and came back
    generator = np.random.default_rng(3)
    noise = generator.normal(1.0, 0.1, (400, 60))
    assert np.mean([abs(drift(times)) > 0.1 for times in noise]) <= 0.01
    slower = noise * np.where(np.arange(60) < 30, 1.0, 1.2)
    assert np.mean([abs(drift(times)) > 0.1 for times in slower]) >= 0.95
