"""What the samples say: the predictive, its uncertainty, metrics, calibration, diagnostics, distillation, export."""

from atmc.posterior.posterior import Posterior
from atmc.posterior.uncertainty import Prediction

__all__ = ["Posterior", "Prediction"]
