"""The split of uncertainty: against the definitions, its identities, and its edges."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import rel_entr
from scipy.stats import entropy as scipy_entropy

from atmc.posterior.uncertainty import Prediction, entropy, from_probs


def random_probs(seed: int, *shape: int, sharp: float = 3.0) -> np.ndarray:
    z = np.random.default_rng(seed).normal(size=shape) * sharp
    e = np.exp(z - z.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


def test_parts_equal_their_definitions() -> None:
    p = random_probs(0, 6, 40, 5)
    w = np.array([3.0, 1.0, 0.0, 2.0, 1.0, 1.0]) / 8.0
    found = from_probs(p, w, classes=tuple("abcde"))
    mean = np.tensordot(w, p, axes=1)
    np.testing.assert_allclose(found.probs, mean, atol=1e-14)
    np.testing.assert_allclose(found.entropy, scipy_entropy(mean, axis=-1), atol=1e-12)
    np.testing.assert_allclose(found.aleatoric, w @ scipy_entropy(p, axis=-1), atol=1e-12)
    divergence = rel_entr(p, mean).sum(-1)  # epistemic uncertainty is the mean KL of a sample to the predictive
    np.testing.assert_allclose(found.epistemic, w @ divergence, atol=1e-12)
    label = mean.argmax(-1)
    own = p[:, np.arange(40), label]
    spread = np.sqrt(w @ (own - w @ own) ** 2)
    np.testing.assert_allclose(found.variation, spread, atol=1e-7)
    np.testing.assert_allclose(found.agreement, w @ (p.argmax(-1) == label), atol=1e-12)
    assert found.label.tolist() == label.tolist()
    assert found.names == ["abcde"[i] for i in label]
    np.testing.assert_allclose(found.confidence, mean.max(-1), atol=1e-14)


@settings(max_examples=80, deadline=None)
@given(
    st.integers(0, 10**6),
    st.integers(1, 7),
    st.integers(1, 9),
    st.floats(0.0, 200.0),
    st.sampled_from([np.float16, np.float32, np.float64]),
)
def test_identities(seed: int, k: int, c: int, sharp: float, kind: type) -> None:
    found = from_probs(random_probs(seed, k, 11, c, sharp=sharp).astype(kind))
    np.testing.assert_allclose(found.entropy, found.aleatoric + found.epistemic, rtol=1e-12, atol=1e-12)
    assert (found.epistemic >= 0).all()
    assert (found.aleatoric >= 0).all()
    assert (found.epistemic <= np.log(k) + 2e-2).all()  # float16 rows sum to one only within rounding
    assert (found.entropy <= np.log(c) + 2e-2).all()
    assert ((found.agreement >= 0) & (found.agreement <= 1 + 1e-12)).all()
    assert (found.variation <= 0.5 + 1e-6).all()  # a number in [0, 1] has standard deviation at most one half


def test_one_sample_has_no_epistemic_uncertainty() -> None:
    found = from_probs(random_probs(1, 1, 30, 4))
    assert found.samples == 1
    assert found.epistemic.abs().max() == 0.0
    assert found.variation.abs().max() < 1e-7
    assert (found.agreement == 1.0).all()


def test_certain_samples_that_disagree_are_purely_epistemic() -> None:
    p = np.stack([np.eye(2)[[0, 0]], np.eye(2)[[0, 1]]])
    found = from_probs(p)
    np.testing.assert_allclose(found.aleatoric, [0.0, 0.0])
    np.testing.assert_allclose(found.epistemic, [0.0, np.log(2)])
    np.testing.assert_allclose(found.agreement, [1.0, 0.5])
    assert entropy(torch.tensor([1.0, 0.0])) == 0.0


def test_uncertainty_by_name_concat_and_index() -> None:
    p = random_probs(2, 3, 10, 4)
    whole = from_probs(p)
    parts = Prediction.concat([from_probs(p[:, :6]), from_probs(p[:, 6:])])
    for kind in ("entropy", "epistemic", "aleatoric", "confidence", "variation", "disagreement"):
        assert torch.equal(whole.uncertainty(kind), parts.uncertainty(kind))
    assert len(whole[2:5]) == 3
    assert torch.equal(whole[2:5].probs, whole.probs[2:5])
    with pytest.raises(ValueError, match="choose one of entropy"):
        whole.uncertainty("vibes")
    with pytest.raises(ValueError, match="no examples"):
        Prediction.concat([])
    with pytest.raises(ValueError, match="no posterior samples"):
        from_probs(np.zeros((0, 2, 2)))


def test_printed_it_is_one_line_with_the_means() -> None:
    found = from_probs(random_probs(3, 3, 300, 4))
    confidence, total, own = (float(t.mean()) for t in (found.confidence, found.entropy, found.epistemic))
    assert repr(found) == (
        "Prediction(300 examples, 4 classes, 3 samples; "
        f"mean confidence {confidence:.3f}, entropy {total:.3f} nats, of which epistemic {own:.3f})"
    )
    assert repr(found[:1]).startswith("Prediction(1 example, 4 classes, 3 samples; mean")
    assert repr(found[:0]) == "Prediction(0 examples, 4 classes, 3 samples)"
