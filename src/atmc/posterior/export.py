"""Export a posterior: safetensors, one JSON file, and an ONNX graph of the predictive.

The ONNX file returns averaged probabilities, their entropy and epistemic uncertainty; of a regression the mean and the
standard deviation of the predictive and the two parts of its variance, in the units of the targets. It is kept only if
onnxruntime agrees with PyTorch on real inputs; the largest difference is written into the JSON file.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from atmc.common.errors import InputError, RunError
from atmc.posterior.onnx_regression import OUTPUTS
from atmc.posterior.save_load import save

if TYPE_CHECKING:
    from atmc.posterior.posterior import Posterior

NAME = "posterior.onnx"
TOLERANCE = 1e-4  # largest difference of a probability; float32 arithmetic in another order is near 1e-6
EXTERNAL = 1 << 30  # a protobuf holds at most 2 GiB: from here on the weights go to a file beside it


def export(
    posterior: Posterior,
    folder: Path,
    onnx: bool = True,
    inputs: Tensor | None = None,
    tolerance: float = TOLERANCE,
) -> Path:
    """Write `posterior` into `folder`, with `onnx` also as `posterior.onnx`, checked on `inputs`.

    `inputs` are a few real examples, uint8 pixels or floats (default: `posterior.example`); the ONNX file takes the
    same. `Posterior.load` opens the folder.
    """
    folder = Path(folder)
    if not onnx:
        return save(posterior, folder)
    if len(posterior) == 0:
        raise ValueError("the posterior has no samples to export")
    real = posterior.example if inputs is None else inputs
    if real is None or len(real) == 0:
        raise InputError("an ONNX file is checked on real inputs before it is handed over: pass inputs=x[:16]")
    if not posterior.is_regression:
        _softmax_only(posterior)
    try:
        import onnx as onnx_format

        from atmc.posterior.onnx_graph import build

        model = build(posterior, real)
    except ImportError as error:
        raise InputError(
            f"ONNX export needs the onnx extra ({error.name} is missing): pip install 'atmc[onnx]'"
        ) from None
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / NAME
    large = posterior.bytes_each * len(posterior) > EXTERNAL
    beside = f"{NAME}.data" if large else None
    for old in (path, folder / f"{NAME}.data"):
        old.unlink(missing_ok=True)
    onnx_format.save(model, str(path), save_as_external_data=large, location=beside)
    gap = difference(posterior, path, real)
    kind = "a mean, in standard deviations" if posterior.is_regression else "a probability"
    if not gap <= tolerance:
        path.unlink()
        raise RunError(
            f"onnxruntime and PyTorch differ by {gap:.1e} in {kind} (allowed: {tolerance:.0e}); "
            "the ONNX file was removed"
        )
    about: dict[str, Any] = {
        "file": NAME,
        "input": {"dtype": "uint8" if real.dtype == torch.uint8 else "float32", "shape": list(real.shape[1:])},
        "outputs": list(OUTPUTS) if posterior.is_regression else ["probs", "entropy", "epistemic"],
        "checked_on": len(real),
        "largest_difference": gap,
    }
    return save(posterior, folder, onnx=about)


def difference(posterior: Posterior, path: Path, inputs: Tensor) -> float:
    """Largest difference between onnxruntime and PyTorch in any probability, for all inputs at once and for one.

    Of a regression, in the mean and in the standard deviation, as shares of the latter.
    """
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    real = inputs.detach().cpu()
    if real.dtype != torch.uint8:
        real = real.float()
    worst = 0.0
    for batch in (real, real[:1]):
        given = {"input": batch.contiguous().numpy()}
        if posterior.is_regression:
            estimate = posterior.regress(batch, device="cpu")
            expected = {"mean": estimate.mean.numpy(), "std": estimate.std.numpy()}
            for name, found in zip(expected, session.run(list(expected), given), strict=True):
                worst = max(worst, float((np.abs(found - expected[name]) / expected["std"]).max()))
            continue
        found = session.run(["probs"], given)[0]
        probs = posterior.predict(batch, device="cpu", strategy="loop").probs.numpy()
        worst = max(worst, float(np.abs(found - probs).max()))
    return worst


def _softmax_only(posterior: Posterior) -> None:
    """The graph ends in a softmax: refuse a likelihood that reads the outputs in another way."""
    probe = torch.linspace(-2.0, 3.0, 8, dtype=torch.float64).view(2, 4)
    if not torch.allclose(posterior.to_probs(probe), torch.softmax(probe, dim=-1)):
        raise InputError(f"{type(posterior.likelihood).__name__} is not a softmax: it cannot be exported to ONNX")
