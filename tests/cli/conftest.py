"""Makes the helpers beside the tests importable: tests are collected one by one (import-mode=importlib)."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
