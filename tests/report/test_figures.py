"""`--figures`: the same plots as files for papers."""

import io
import json
import xml.etree.ElementTree as ElementTree

import pytest
from factory import report
from PIL import Image

from atmc.common.errors import InputError, RunError
from atmc.report.figures import save_figures
from atmc.report.output_files import refuse_foreign, write
from atmc.report.page import GENERATOR


def test_every_plot_is_an_svg_and_a_png_and_the_table_three_files(tmp_path):
    written = save_figures(report(), tmp_path / "new" / "folder")
    names = {path.name for path in written}
    assert {"table.md", "table.tex", "table.json", "calibration.svg", "calibration.png", "thermostat.png"} <= names
    assert len(json.loads((tmp_path / "new/folder/table.json").read_text())) == 3
    for path in written:
        if path.suffix == ".png":
            with Image.open(io.BytesIO(path.read_bytes())) as image:
                assert image.width >= 700
                assert len(set(image.convert("L").get_flattened_data())) > 10
        elif path.suffix == ".svg":
            text = path.read_text()
            ElementTree.fromstring(text)
            assert "var(--" not in text
            assert "digits-atmc" in text or "test" in text


def test_a_file_that_is_not_ours_is_not_overwritten(tmp_path):
    theirs = tmp_path / "report.html"
    theirs.write_text("<html>the annual report</html>")
    with pytest.raises(InputError, match="--out"):
        refuse_foreign(theirs, GENERATOR)
    theirs.write_text(f"<!doctype html>{GENERATOR}")
    refuse_foreign(theirs, GENERATOR)
    refuse_foreign(tmp_path / "missing.html", GENERATOR)
    with pytest.raises(InputError, match="folder"):
        refuse_foreign(tmp_path, GENERATOR)


def test_writing_where_one_cannot_is_one_line(tmp_path):
    with pytest.raises(RunError, match="cannot write"):
        write(tmp_path / "missing" / "x", "text")
    assert list(tmp_path.iterdir()) == []
