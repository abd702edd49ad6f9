"""A newcomer's path: their own folder of images, each step typed as the step before has printed it."""

import re
import shlex
from pathlib import Path

import numpy as np
from PIL import Image
from shell import atmc
from tiny_recipes import RECIPE


def pictures_of(folder, count=40):
    """Two kinds of picture, of several sizes: even ones, and ones with a bright frame."""
    rng = np.random.default_rng(0)
    for kind in ("even", "framed"):
        place = folder / kind
        place.mkdir(parents=True)
        for i in range(count):
            size = int(rng.integers(12, 40))
            pixels = rng.integers(0, 80, (size, size, 3), dtype=np.uint8)
            if kind == "framed":
                edge = size // 5
                pixels[:edge] += 150
                pixels[-edge:] += 150
            Image.fromarray(pixels).save(place / f"{i}.{'png' if i % 2 else 'jpg'}")


def next_commands(result):
    lines = re.findall(r"^(?:Next:|     ) atmc (.*)$", result.out, re.M)
    assert lines, result
    return [shlex.split(line) for line in lines]


def test_from_a_folder_of_images_to_a_prediction(tmp_path):
    pictures_of(tmp_path / "my images")
    Path("mine.toml").write_text(RECIPE.replace("epochs = 4\n", "epochs = 6\n"))
    changes = ["data.name=folder:my images?size=8", "data.validation=0", "data.batch_size=16", 'run.evaluate=["test"]']
    changes += ["schedule.warm_start_epochs=25", "sampler.temperature=0.01", "model.width=4"]
    typed = [word for change in changes for word in ("--set", change)]
    result = atmc("sample", "mine.toml", "--out", "runs/mine", *typed)
    assert result.code == 0, result.err
    (report,) = next_commands(result)
    result = atmc(*report)
    assert result.code == 0, result.err
    assert Path("runs/mine/report.html").is_file()
    predict, doctor = next_commands(result)
    assert predict[-1] == "IMAGE.png"
    result = atmc(*predict[:-1], "my images/even/1.png", "my images/framed/3.png")
    assert result.code == 0, result.err
    assert "my images/even/1.png: even" in result.out
    assert "my images/framed/3.png: framed" in result.out
    assert atmc(*doctor).code == 0
    for further in next_commands(result):
        assert atmc(*further).code == 0


def test_a_run_that_was_stopped_is_reported_as_such(tmp_path):
    text = RECIPE.replace("epochs = 4\n", "epochs = 4000\n")
    Path("long.toml").write_text(text)
    result = atmc("sample", "long.toml", "--out", "r", "--time-budget", "3")
    assert result.code == 3
    (go_on,) = next_commands(result)
    assert go_on == ["sample", "r"]
    result = atmc("report", "r")
    if result.code == 0:  # on a slow machine three seconds may not be enough for a first sample
        assert "has not finished" in Path("r/report.html").read_text()
    else:
        assert "has no samples yet; go on with atmc sample r" in result.err
