"""The chi-squared test that samples are held to."""

from collections import Counter

from scipy import stats


def assert_law(samples, law):
    """No sample off the support, and a chi-squared test over the cells, small ones pooled."""
    counts = Counter(samples)
    assert counts.keys() <= law.keys(), f"impossible: {counts.keys() - law.keys()}"
    n = sum(counts.values())
    expected, observed = [], []
    pooled = [0.0, 0]
    for cell, probability in law.items():
        if n * probability >= 5:
            expected.append(n * probability)
            observed.append(counts[cell])
        else:
            pooled = [pooled[0] + n * probability, pooled[1] + counts[cell]]
    if pooled[0] > 0:
        expected.append(pooled[0])
        observed.append(pooled[1])
    statistic = sum((o - e) ** 2 / e for o, e in zip(observed, expected, strict=True))
    assert stats.chi2.sf(statistic, len(expected) - 1) > 1e-4
