"""Runs that `atmc.sample` made from a person's own tensors: the verbs use the labels that the run kept."""

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from shell import atmc, fails, fingerprint
from torch import nn

import atmc as package
from atmc import Posterior
from atmc.api.sampling import sample
from atmc.common.errors import InputError
from atmc.posterior.save_load import checksum
from atmc.storage.run_directory import RunDir


def points(n, seed=0):
    """Two kinds of points around two centres that overlap."""
    generator = torch.Generator().manual_seed(seed)
    y = torch.arange(n) % 2
    return torch.randn(n, 2, generator=generator) + 1.5 * y[:, None], y


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 2))


def draw(out, seed=0, **more):
    return sample(network(), points(120), epochs=12, out=out, seed=seed, progress=None, **more)


@pytest.fixture(scope="module")
def own(tmp_path_factory):
    """Two runs of two chains that were evaluated on test tensors, and one that was evaluated on nothing."""
    folder = tmp_path_factory.mktemp("own")
    for seed in (0, 1):
        draw(folder / f"mine-{seed}", seed, test=points(60, 1), chains=2)
    draw(folder / "bare")
    return folder


def test_evaluate_gives_the_scores_that_python_gives(own):
    found = json.loads(atmc("evaluate", own / "mine-0", "--json").out)
    posterior = draw(own / "mine-0", test=points(60, 1), chains=2)  # done already: only opened
    expected = posterior.evaluate(*points(60, 1))
    for score in ("accuracy", "nll", "brier", "ece"):
        assert found["predictive"][score] == pytest.approx(expected["predictive"][score], rel=1e-4)
    said = atmc("evaluate", own / "mine-0").out
    assert "on 60 test examples" in said
    assert "images" not in said


def test_reports_compare_such_runs_and_the_doctor_has_scores(own):
    result = atmc("report", own / "mine-0", own / "mine-1", "--json")
    assert result.code == 0, result.err
    rows = json.loads(result.out)["rows"]
    assert [row["row"] for row in rows if row["samples"] > 1] == ["ATMC (posterior predictive)"] * 2
    page = Path("report.html").read_text()
    assert "of 60 test examples" in page
    for said in ("Sequential, a custom network", "tensors given in Python, not augmented"):
        assert f"<dd>{said}</dd>" in page, said
    told = atmc("report", own / "mine-0", "--out", "one.html").out
    assert "Next: atmc doctor" in told
    assert "atmc predict" not in told, "nobody can name an image file to this network"
    assert "On test the NLL is" in atmc("doctor", own / "mine-0").out


def test_images_that_were_tensors_are_scored_and_not_shown(tmp_path):
    x, y = torch.rand(64, 1, 4, 4), torch.arange(64) % 2
    model = nn.Sequential(nn.Flatten(), nn.Linear(16, 2))
    sample(model, (x, y), epochs=4, out="pictures", test=(x, y), progress=None)
    assert atmc("report", "pictures").code == 0
    assert "No images are shown: pictures was made from tensors" in Path("pictures/report.html").read_text()
    fails("report", "pictures", "--ood", "noise", match="only labels and predictions are kept")


def test_predict_says_what_can_be_done_with_a_network_of_ones_own(own, tmp_path):
    pixels = np.random.default_rng(0).integers(0, 256, (64, 1, 4, 4), dtype=np.uint8)
    model = nn.Sequential(nn.Flatten(), nn.Linear(16, 2))
    posterior = sample(model, (pixels, np.arange(64) % 2), epochs=4, out="pictures", progress=None)
    Image.fromarray(pixels[0, 0]).save("x.png")
    line = fails("predict", "pictures", "x.png", match="atmc.Posterior.from_run('pictures', model)")
    assert "model=" not in line, "no command takes it"
    posterior.save("saved")  # what the line says works
    assert "atmc predict FOLDER" in line
    assert atmc("predict", "saved", "x.png").code == 0
    fails("predict", own / "bare", "x.png", match="which are not images: in Python, use atmc.Posterior.from_run(")


def in_python(line):
    """What a line says to write in Python, run as it is written there."""
    call = re.search(r"in Python, use (atmc\.Posterior\..*\))", line)[1]
    return eval(call, {"atmc": package, "model": network(), "x": points(120)[0]})


def test_export_of_examples_that_are_not_images_names_the_call_that_does_it(own):
    pytest.importorskip("onnxruntime")
    line = fails("export", own / "bare", "out", match="model).export('out', inputs=x[:16])")
    assert "predict" not in line
    in_python(line)
    assert Path("out/posterior.onnx").is_file()
    line = fails("export", own / "bare", "plain", "--no-onnx", match="model).save('plain')")
    in_python(line)
    assert atmc("export", "plain", "again").code == 0, "it knows the shape of its inputs, and is checked on random ones"
    assert json.loads(Path("again/posterior.json").read_text())["onnx"]["largest_difference"] < 1e-4
    about = json.loads(Path("plain/posterior.json").read_text())
    about["input"]["shape"] = None
    about["checksum"] = checksum(about)
    Path("plain/posterior.json").write_text(json.dumps(about))
    line = fails("export", "plain", "third", match="atmc.Posterior.load('plain').export('third', inputs=x[:16])")
    in_python(line)
    assert Path("third/posterior.onnx").is_file()
    result = atmc("export", "again", "copy", "--no-onnx")
    assert result.code == 0, result.err
    assert "atmc predict" not in result.out, "nobody can name an image file to this network"
    for size in ((), ("--size", "8x8")):
        line = fails("predict", "again", "x.png", *size, match="which are not images")
        in_python(line)


def test_distilling_ones_own_network_names_the_call_that_does_it(own):
    line = fails("distill", own / "mine-0", "student", match="model).distill(x).posterior.save('student'), with x the")
    assert "test=" not in line
    in_python(line)
    assert len(Posterior.load("student")) == 1


def test_a_run_with_neither_labels_nor_data_says_so(own):
    before = fingerprint(own / "bare")
    for verb in ("evaluate", "report"):
        fails(verb, own / "bare", match="has no test labels: give test=(x, y) to atmc.sample")
    line = fails("evaluate", own / "mine-0", "--split", "train", match="no train labels")
    assert "test=" not in line, "it was given, and no argument makes a run keep these"
    fails("sample", own / "bare", match="call atmc.sample in Python again")
    assert atmc("doctor", own / "bare").code == 0
    assert fingerprint(own / "bare") == before


def test_damaged_labels_are_named_and_never_used(own, tmp_path):
    shutil.copytree(own / "mine-0", "copy")
    path = Path("copy/labels/test.safetensors")
    content = bytearray(path.read_bytes())
    content[-1] ^= 1  # the last label
    path.write_bytes(content)
    for verb in ("evaluate", "report"):
        fails(verb, "copy", code=1, match="labels/test.safetensors: was altered")
    path.unlink()
    fails("evaluate", "copy", code=1, match="labels/test.safetensors: is missing")


def test_labels_need_no_data_set_where_there_was_one(tiny, monkeypatch):
    """A named data set that is not on this machine any more, and one that was changed."""
    whole = json.loads(atmc("evaluate", tiny, "--json").out)

    def gone(*arguments):
        raise InputError("digits: not here")

    monkeypatch.setattr("atmc.engine.run_data._get", gone)
    assert json.loads(atmc("evaluate", tiny, "--json").out) == whole
    assert atmc("report", tiny, "--out", "r.html").code == 0
    assert "No images are shown: digits: not here" in Path("r.html").read_text()
    fails("evaluate", tiny, "--split", "train", match="digits: not here")


def test_a_run_from_before_labels_were_kept_reads_the_data_set(tiny, tmp_path):
    from atmc.storage.manifest import Manifest

    shutil.copytree(tiny, "old")
    manifest = Manifest.load(Path("old"))
    for split in ("test", "validation"):
        manifest.forget(f"labels/{split}.safetensors")
    manifest.commit()
    shutil.rmtree("old/labels")
    assert RunDir.open("old").labels("test") is None
    assert json.loads(atmc("evaluate", "old", "--json").out) == json.loads(atmc("evaluate", tiny, "--json").out)
