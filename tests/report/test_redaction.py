"""A page is made to be shared: it says what files are called, and not where on somebody's disk they lie."""

import re
from pathlib import Path

import numpy as np
import pytest
from factory import report, run
from PIL import Image

from atmc.engine import run as run_recipe
from atmc.recipe.toml_files import recipe_from_values
from atmc.report import build
from atmc.report.page import render
from atmc.report.redaction import Hidden, short_paths


@pytest.fixture
def made(tmp_path):
    """A short run on a folder of pictures, in folders whose names no page should have."""
    rng = np.random.default_rng(0)
    for at in range(48):
        split, name = "train" if at < 32 else "test", ("cats", "dogs")[at % 2]
        folder = tmp_path / "my secret place" / "pics" / split / name
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(rng.integers(0, 255, (6, 6, 3), dtype=np.uint8)).save(folder / f"{at}.png")
    recipe = recipe_from_values({
        "name": "mine",
        "data": {"name": f"folder:{tmp_path}/my secret place/pics?size=6", "batch_size": 16},
        "model": {"name": "mlp", "depth": 1, "width": 4},
        "target": {"prior": "gaussian"},
        "sampler": {"lr": 1e-3, "speed": 3e-3, "momentum": 0.9},
        "schedule": {"epochs": 4, "cycle_epochs": 1},
        "run": {"device": "cpu"},
    })  # fmt: skip
    place = tmp_path / "secret runs" / "mine"
    run_recipe(recipe, place, progress=None)
    return place


@pytest.mark.parametrize("gone", [False, True])
def test_a_page_has_no_paths_of_the_machine_it_was_made_on(made, tmp_path, gone):
    pics = tmp_path / "my secret place" / "pics"
    ood = ["noise", f"folder:{pics}?size=6"]
    if gone:  # then the page says which pictures it cannot show, and which file is damaged
        min((made / "samples").iterdir()).write_bytes(b"torn")
        pics.rename(tmp_path / "elsewhere")
        ood = []
    data = build([made], tmp_path / "r.html", ood=ood, command=f"atmc report '{made}'")
    page = (tmp_path / "r.html").read_text()
    assert "secret" not in page
    assert str(tmp_path) not in page
    assert not re.search(r"(?<![\w/<.])/(?:tmp|home|root|Users)\b", page)
    assert "pics, a folder of pictures, not augmented" in page
    assert "folder:pics?size=6" in page, "in the recipe"
    assert data.runs[0].data.endswith("my secret place/pics?size=6"), "by which runs are compared"
    if gone:
        assert "No images are shown: " in page
        assert "Damaged: mine/samples" in page
    else:
        assert 'alt="a pics image labelled' in page
        assert ">pics, test</text>" in page, "the legend of a plot"
        assert "Test images of pics, resized to" in page


def test_the_legend_calls_data_what_the_page_calls_them():
    page = render(report(runs=(run(data="folder:/srv/a/pics?size=32"),)))
    assert ">pics, test</text>" in page
    assert "/srv" not in page


def test_paths_are_as_short_as_tells_them_apart(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", "/home/me")
    one, two = Path("/data/a/run"), Path("/data/b/run")
    assert short_paths([one]) == ["run"]
    assert short_paths([one, two, Path("runs/x")]) == ["a/run", "b/run", "runs/x"]
    hidden = Hidden([one, two, Path("runs/x")], ["folder:/data/a/it's/pics?size=8", "digits"])
    for text, said in (
        ("atmc report /data/a/run /data/b/run runs/x", "atmc report a/run b/run runs/x"),
        ("atmc sample /data/a/run --out /data/a/run-2", "atmc sample a/run --out a/run-2"),
        ('name = "folder:/data/a/it\'s/pics?size=8"', 'name = "folder:pics?size=8"'),
        ("--ood 'folder:/data/a/it'\"'\"'s/pics?size=8'", "--ood 'folder:pics?size=8'"),
        (f"{tmp_path}/x.png is gone, and /home/me/y.png", "x.png is gone, and ~/y.png"),
        ("3/4 of /usr/data/a/run and https://data/a/run", "3/4 of /usr/data/a/run and https://data/a/run"),
    ):
        assert hidden.text(text) == said
