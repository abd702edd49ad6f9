"""The posterior predictive, its uncertainty, metrics, calibration, distillation and export."""

from typing import TYPE_CHECKING

from atmc.common.lazy import lazy_names

if TYPE_CHECKING:
    from atmc.posterior.posterior import Posterior
    from atmc.posterior.uncertainty import Prediction

__all__ = ["Posterior", "Prediction"]

# Metrics need NumPy alone, so that tables and reports load no torch.
__getattr__ = lazy_names(__name__, {"Posterior": "posterior", "Prediction": "uncertainty"})
