"""Statistics, against NumPy's."""

import numpy as np
import pytest
from tinyllm_bench.samples import Samples


@pytest.mark.parametrize("count", [2, 3, 4, 5, 30])
def test_median_and_quartiles_are_those_of_numpy(count: int) -> None:
    seconds = np.random.default_rng(count).random(count)
    samples = Samples(tuple(seconds.tolist()))
    low, middle, high = np.percentile(seconds, [25, 50, 75])
    assert samples.median == pytest.approx(middle)
    assert samples.quartiles == pytest.approx((low, high))
    assert samples.spread == pytest.approx((high - low) / middle)


def test_a_single_sample_has_no_spread() -> None:
    samples = Samples((0.5,))
    assert (samples.median, samples.quartiles, samples.spread) == (0.5, (0.5, 0.5), 0.0)


def test_no_samples_are_refused() -> None:
    with pytest.raises(ValueError, match="expected at least one sample, got none"):
        Samples(())
