"""From metrics files, which may be anybody's, to traces."""

import numpy as np
import pytest

from atmc.common.errors import InputError
from atmc.report import build
from atmc.report.read_run import Reading, trace


def test_rows_become_columns_and_what_is_no_number_is_not_read():
    rows = [
        {"event": "log", "chain": 0, "epoch": 1, "loss": 0.5, "kinetic_temperature": 1.1, "thermostat_q50": 3},
        {"event": "log", "chain": 0, "epoch": 2, "loss": "much", "kinetic_temperature": None, "thermostat_q50": True},
        {"event": "sample", "chain": 0, "epoch": 2},
        {"event": "damage", "chain": 0},
        {},
    ]
    found = trace(rows, 0)
    np.testing.assert_array_equal(found.epoch, [1, 2])
    np.testing.assert_array_equal(found.loss, [0.5, np.nan])
    np.testing.assert_array_equal(found.temperature, [1.1, np.nan])
    np.testing.assert_array_equal(found.thermostat, [3, np.nan])


def test_what_is_not_a_run_is_said(tmp_path):
    with pytest.raises(InputError, match="atmc sample"):
        Reading(tmp_path / "nowhere")
    with pytest.raises(InputError, match="not a run directory"):
        Reading(tmp_path)
    with pytest.raises(InputError, match="at least one"):
        build([], tmp_path / "x.html")
    assert list(tmp_path.iterdir()) == []
