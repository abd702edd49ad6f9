"""What a sample says about the evaluation sets, as it is stored."""

from collections.abc import Mapping

from torch import Tensor

# Beyond this many numbers (ImageNet has 50 million) predictions are kept as log-probabilities in half precision, whose
# error in the log is below 0.5 %; probabilities themselves would underflow there.
_LARGE = 5_000_000


def to_file(probs: Tensor, regression: bool) -> dict[str, Tensor]:
    """Predictions as they are stored: `probs`, or `log_probs` in half precision where there are very many."""
    if regression:
        return {"outputs": probs}
    if probs.numel() > _LARGE:
        return {"log_probs": probs.clamp_min(1e-30).log().half()}
    return {"probs": probs}


def from_file(tensors: Mapping[str, Tensor]) -> Tensor:
    """The reverse of `to_file`, float32."""
    if "log_probs" in tensors:
        probs = tensors["log_probs"].float().exp()
        return probs / probs.sum(1, keepdim=True)
    return (tensors["probs"] if "probs" in tensors else tensors["outputs"]).float()
