"""What a run leaves on disk: run directory, samples, checkpoints, metrics, manifest, lock."""

from atmc.common.lazy import lazy_names

__all__ = ["RunDir", "SampleBank"]

__getattr__ = lazy_names(__name__, {"RunDir": "run_directory", "SampleBank": "sample_bank"})
