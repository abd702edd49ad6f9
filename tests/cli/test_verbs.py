"""Every verb on real runs: what it prints, what it returns, and the next command it names."""

import json
import re
import shutil
import time
from pathlib import Path

import pictures
import pytest
from PIL import Image
from shell import atmc, fails, fingerprint
from tiny_recipes import RECIPE, SGD

from atmc.cli.data import _sample_it
from atmc.cli.predict import read_picture
from atmc.posterior import Posterior
from atmc.storage.manifest import Manifest
from atmc.storage.sample_bank import SampleBank


def test_evaluate_has_the_agreed_json(tiny):
    result = atmc("evaluate", tiny, "--json")
    found = json.loads(result.out)
    assert result.code == 0
    assert {"single", "predictive", "samples"} <= found.keys()
    for part in ("single", "predictive"):
        assert {"accuracy", "nll", "brier", "ece"} <= found[part].keys()
    assert found["samples"] == 3
    assert found["scaled"]["temperature"] > 0


def test_evaluate_agrees_with_the_stored_probabilities(tiny):
    """The predictive's NLL from the files themselves, by hand."""
    import numpy as np
    from safetensors.numpy import load_file

    from atmc.data import load

    probs = np.mean([load_file(p)["probs"] for p in sorted(tiny.glob("predictions/test/*.safetensors"))], axis=0)
    labels = load("digits", "test").labels.numpy()
    by_hand = -np.log(probs[np.arange(500), labels].astype(np.float64)).mean()
    assert json.loads(atmc("evaluate", tiny, "--json").out)["predictive"]["nll"] == pytest.approx(by_hand, rel=1e-5)


def test_evaluate_for_people(tiny):
    out = atmc("evaluate", tiny).out
    assert "tiny on 500 digits test images" in out
    assert "T = 0.1" in out
    assert "predictive of 3 samples" in out
    assert f"Next: atmc report {tiny}" in out


def test_evaluate_on_a_split_that_was_not_stored(tiny):
    stored = json.loads(atmc("evaluate", tiny, "--split", "validation", "--json").out)
    computed = json.loads(atmc("evaluate", tiny, "--split", "train", "--json", "--device", "cpu").out)
    assert stored["samples"] == computed["samples"] == 3
    assert 0 < computed["predictive"]["nll"] < 10
    fails("evaluate", tiny, "--split", "noon", match="choose test, validation or train")
    fails("evaluate", tiny, "--device", "tpu", match="--device tpu")
    fails("evaluate", tiny, "--device", "cuda:99", match="CUDA")


def test_evaluate_on_other_data(tiny, tmp_path):
    strangers = json.loads(atmc("evaluate", tiny, "--on", "synthetic:3x16x16?classes=4&test=40", "--json").out)
    assert 0 <= strangers["auroc"] <= 1
    assert "accuracy" not in strangers
    assert "AUROC" in atmc("evaluate", tiny, "--on", "synthetic:1x8x8?classes=4&test=40").out
    own = json.loads(atmc("evaluate", tiny, "--on", "digits", "--json").out)
    assert own["predictive"]["nll"] == pytest.approx(
        json.loads(atmc("evaluate", tiny, "--json").out)["predictive"]["nll"], rel=1e-4
    )
    fails("evaluate", tiny, "--on", "digitz", match="digits")
    fails("evaluate", tiny, "--on", "synthetic:3x8x8?classes=10", match="folder:PATH?size=8x8&channels=1")
    for digit in range(10):
        for split in ("train", "test"):
            (tmp_path / split / str(digit)).mkdir(parents=True)
            (tmp_path / split / str(digit) / "x.png").write_bytes(pictures.good()["grey.png"])
    brought = atmc("evaluate", tiny, "--on", f"folder:{tmp_path}?size=8x8&channels=1", "--json")
    assert json.loads(brought.out)["predictive"]["accuracy"] == pytest.approx(0.1)  # ten times the same picture
    for less in ("", "?size=8", "?channels=1", "?crop=1.0"):  # size and channels are the run's where none are asked for
        assert atmc("evaluate", tiny, "--on", f"folder:{tmp_path}{less}", "--json").out == brought.out, less
    fails("evaluate", tiny, "--on", f"folder:{tmp_path}?size=9", match="the run was made for [1, 8, 8]")


def test_reading_verbs_change_nothing(tiny, tmp_path):
    before = fingerprint(tiny)
    (tmp_path / "x.png").write_bytes(pictures.good()["grey.png"])
    for line in (("evaluate", tiny), ("doctor", tiny), ("predict", tiny, "x.png"), ("report", tiny, "--out", "r.html")):
        assert atmc(*line).code == 0
    assert fingerprint(tiny) == before


def test_report_of_one_run_lies_in_it(tiny, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(tiny, copy)
    result = atmc("report", copy, "--figures", "figures")
    assert result.code == 0
    page = (copy / "report.html").read_text()
    assert "tiny" in page
    assert page.count("<svg") >= 6
    assert {"calibration.png", "calibration.svg", "table.tex", "table.md", "table.json"} <= {
        p.name for p in (tmp_path / "figures").iterdir()
    }
    assert f"Next: atmc predict {copy} IMAGE.png" in result.out
    assert atmc("report", copy).code == 0, "our own report may be replaced"
    (copy / "report.html").write_text("my notes")
    fails("report", copy, match="was not made by atmc")
    assert (copy / "report.html").read_text() == "my notes"


def test_report_of_two_runs_with_ood_images(runs, tmp_path):
    result = atmc("report", *runs, "--ood", "letters", "--ood", "noise", "--json")
    found = json.loads(result.out)
    page = Path(found["report"]).read_text()
    assert found["rows"][0]["row"] == "ATMC (single sample)"
    assert "Out-of-distribution inputs" in page
    assert page.count('data-heading="Run"') == 4
    assert "tiny-sgd" in page
    fails("report", *runs, "--ood", "nothing", match="nothing")
    fails("report", *runs, "--out", "no/such/folder/r.html", match="does not exist")
    fails("report", "nowhere", match="no run")


def test_the_table_fits_a_narrow_terminal(runs, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")  # rich then believes that it speaks to a terminal
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "80")
    narrow = atmc("report", *runs, "--out", "r.html").out
    rows = [line for line in narrow.splitlines() if "ATMC (" in line]
    assert any("ATMC (posterior predictive)" in line for line in rows)
    assert "Epochs" not in narrow
    monkeypatch.setenv("COLUMNS", "120")
    assert "Epochs" in atmc("report", *runs, "--out", "r.html").out


def test_two_runs_of_one_recipe_are_told_apart(tiny, tmp_path):
    shutil.copytree(tiny, tmp_path / "again")
    page = tmp_path / "r.html"
    assert atmc("report", tiny, "again", "--out", page).code == 0
    assert ">again<" in page.read_text().replace("</i>again", "</i>>again")


def test_several_chains_and_ensembles_are_reported(tmp_path):
    for name, text in (("pair", RECIPE), ("ensemble", SGD)):
        Path(f"{name}.toml").write_text(
            text.replace("seed = 1", "seed = 1\nchains = 2").replace("epochs = 4", "epochs = 2")
        )
        assert atmc("sample", f"{name}.toml", "--out", name).code == 0
    result = atmc("report", "pair", "ensemble", "--json")
    assert result.code == 0, result.err
    rows = {row["row"]: row for row in json.loads(result.out)["rows"]}
    assert rows["ATMC (posterior predictive)"]["samples"] == 2
    assert rows["SGD (ensemble)"]["samples"] == 2
    assert atmc("doctor", "pair").code == 0


def test_doctor(tiny):
    result = atmc("doctor", tiny)
    assert result.code == 0
    assert re.search(r"^[✓·!✗] ", result.out, re.M)
    assert f"Next: atmc report {tiny}" in result.out
    levels = {entry["level"] for entry in json.loads(atmc("doctor", tiny, "--json").out)}
    assert levels <= {"ok", "note", "warning", "problem"}


def test_predict_names_what_it_did(tiny, tmp_path):
    for name, content in pictures.good().items():
        (tmp_path / name).write_bytes(content)
    result = atmc("predict", tiny, *pictures.good(), "--json")
    found = json.loads(result.out)
    assert result.code == 0
    assert [image["file"] for image in found["images"]] == list(pictures.good())
    for image in found["images"]:
        assert image["entropy"] == pytest.approx(image["aleatoric"] + image["epistemic"])
        assert image["top"][0]["probability"] == image["probability"]
        assert len(image["top"]) == 3


def test_predict_agrees_with_the_posterior(tiny, tmp_path):
    from atmc.data import load

    digit = load("digits", "test").images[:1]
    Image.fromarray(digit[0, 0].numpy()).save("digit.png")
    expected = Posterior.from_run(tiny).predict(digit)
    found = json.loads(atmc("predict", tiny, "digit.png", "--json").out)["images"][0]
    assert found["notes"] == []
    assert found["label"] == str(int(expected.label[0]))
    assert found["probability"] == pytest.approx(float(expected.confidence[0]), rel=1e-5)


def test_predict_goes_on_past_bad_files(tiny, tmp_path):
    (tmp_path / "good.png").write_bytes(pictures.good()["grey.png"])
    for name, (content, _) in pictures.bad().items():
        (tmp_path / name).write_bytes(content)
    result = atmc("predict", tiny, *pictures.bad(), "good.png", "missing.png")
    assert result.code == 1
    assert "good.png: " in result.out
    assert len(result.err.splitlines()) == len(pictures.bad()) + 1
    only_bad = atmc("predict", tiny, "missing.png", "text.png")
    assert only_bad.code == 2
    machine = json.loads(atmc("predict", tiny, "missing.png", "good.png", "--json").out)
    assert machine["images"][0] == {"file": "missing.png", "error": "no such file"}
    assert "label" in machine["images"][1]


def test_reading_many_large_files_says_so(tiny, tmp_path, monkeypatch):
    (tmp_path / "x.png").write_bytes(pictures.good()["grey.png"])
    monkeypatch.setattr("atmc.cli.console.PATIENCE", 0.0)
    monkeypatch.setattr("atmc.cli.predict.read_picture", lambda *a, **k: time.sleep(0.05) or read_picture(*a, **k))
    assert "reading 2 files …" in atmc("predict", tiny, "x.png", "x.png").err


def test_a_file_name_cannot_speak_to_the_terminal(tiny, tmp_path):
    name = "evil\x1b[31m\nname.png"
    (tmp_path / name).write_bytes(pictures.good()["grey.png"])
    result = atmc("predict", tiny, name, "none\x1b]0;x\x07.png")
    assert "\x1b" not in result.out + result.err
    assert "\\x1b" in result.out
    assert len(result.err.splitlines()) == 1


def test_export_and_predict_with_what_was_exported(tiny, tmp_path):
    (tmp_path / "x.png").write_bytes(pictures.good()["grey.png"])
    result = atmc("export", tiny, "out", "--no-onnx")
    assert result.code == 0
    assert "Next: atmc predict out IMAGE.png" in result.out
    images = [json.loads(atmc("predict", where, "x.png", "--json").out)["images"][0] for where in (tiny, "out")]
    assert images[0]["probability"] == pytest.approx(images[1]["probability"])
    assert "Next: atmc report" in atmc("predict", tiny, "x.png").out
    assert "Next:" not in atmc("predict", "out", "x.png").out, "a saved posterior has no traces to report"
    fails("export", tiny, "out", match="not an empty folder")
    fails("predict", "out", "x.png", "--size", "huge", match="WIDTHxHEIGHT")
    fails("predict", "out", "x.png", "--size", "9x9", match="takes images of 8x8 alone: leave --size out")
    # A run says its own size too; what was typed was not looked at there.
    fails("predict", tiny, "x.png", "--size", "huge", match="WIDTHxHEIGHT")
    fails("predict", tiny, "x.png", "--size", "9x9", match="takes images of 8x8 alone: leave --size out")
    assert atmc("predict", tiny, "x.png", "--size", "8x8").code == 0


def test_export_to_onnx(tiny):
    pytest.importorskip("onnxruntime", reason="onnx is an extra")
    result = atmc("export", tiny, "out", "--json")
    assert result.code == 0, result.err
    assert "posterior.onnx" in json.loads(result.out)["files"]


def test_distill(tiny):
    result = atmc("distill", tiny, "student", "--epochs", "1")
    assert result.code == 0
    assert "the distilled network" in result.out
    assert "Next: atmc predict student IMAGE.png" in result.out
    Path("x.png").write_bytes(pictures.good()["grey.png"])
    (image,) = json.loads(atmc("predict", "student", "x.png", "--json").out)["images"]
    assert image["entropy"] > 0
    assert image["epistemic"] is image["aleatoric"] is image["agreement"] is None
    said = atmc("predict", "student", "x.png").out
    assert "how much of it is epistemic one network cannot tell" in said or "almost no uncertainty" in said
    assert atmc("distill", tiny, "student").code == 2


def test_data_verbs(tmp_path, monkeypatch):
    listed = json.loads(atmc("data", "list", "--json").out)
    assert {"digits", "cifar10"} <= {info["name"] for info in listed}
    assert "Next: atmc data get" in atmc("data", "list").out
    monkeypatch.setattr("atmc.cli.console.width", lambda: 80)
    lines = [line.rstrip() for line in atmc("data", "list").out.splitlines()]
    for pattern in (info["detail"] for info in listed if info["state"] == "pattern"):
        assert f"  {pattern}" in lines, "whole, to be copied"
    assert max(len(line) for line in lines) <= 80
    assert any(re.match(r"fashion-mnist +60,000", line) for line in lines)
    got = atmc("data", "get", "digits").out
    assert "needs no fetching" in got
    assert "Next: atmc sample digits-atmc" in got
    assert _sample_it("cifar10") == "atmc sample cifar10/atmc-settled"
    assert _sample_it("imagenet") == "atmc sample imagenet/atmc"
    assert _sample_it("imagewoof").startswith("atmc sample imagenette/atmc --set")
    fails("data", "get", "cifar1", match="did you mean cifar10?")
    fails("data", "get", "cifar10", "--from", "nowhere", match="nowhere")


@pytest.fixture
def young(tiny):
    """A run that was stopped before its first sample."""
    Path("young.toml").write_text(
        RECIPE.replace("epochs = 4\n", "epochs = 4000\n").replace("burn_in_epochs = 1\n", "burn_in_epochs = 3990\n")
    )
    assert atmc("sample", "young.toml", "--out", "young", "--time-budget", "0.5").code == 3
    return Path("young")


def test_a_run_without_samples_is_no_surprise_to_any_verb(young):
    Path("x.png").write_bytes(pictures.good()["grey.png"])
    lines = (("evaluate",), ("report",), ("predict", "x.png"), ("export", "out"), ("distill", "student"))
    for verb, *rest in lines:
        fails(verb, young, *rest, match="has no samples yet; resume it with atmc sample young")
    result = atmc("doctor", young)
    assert result.code == 0
    assert "Next: atmc sample young" in result.out


def test_a_saved_posterior_is_told_from_a_run(tiny):
    assert atmc("export", tiny, "saved", "--no-onnx").code == 0
    for line in (("evaluate", "saved"), ("report", "saved"), ("doctor", "saved"), ("distill", "saved", "student")):
        fails(*line, match="saved is a saved posterior")
    assert atmc("export", "saved", "again", "--no-onnx").code == 0


def test_a_distilled_network_and_a_saved_posterior_become_onnx(tiny):
    pytest.importorskip("onnxruntime")
    assert atmc("distill", tiny, "student", "--epochs", "1").code == 0
    result = atmc("export", "student", "exported")
    assert result.code == 0, result
    assert "1 sample in exported" in result.out
    about = json.loads(Path("exported/posterior.json").read_text())
    assert about["onnx"]["input"] == {"dtype": "uint8", "shape": about["input"]["shape"]}
    assert about["onnx"]["largest_difference"] < 1e-4
    assert Path("exported/posterior.onnx").stat().st_size > 1000


def test_predict_takes_folders(tiny):
    from PIL import Image

    Path("some/deeper").mkdir(parents=True)
    for name in ("some/b.png", "some/deeper/a.PNG"):
        Image.new("L", (8, 8), 90).save(name)
    Path("some/notes.txt").write_text("no image")
    Image.new("L", (8, 8), 20).save("alone.png")
    found = json.loads(atmc("predict", tiny, "alone.png", "some", "--json").out)
    assert [entry["file"] for entry in found["images"]] == ["alone.png", "some/b.png", "some/deeper/a.PNG"]
    Path("none").mkdir()
    fails("predict", tiny, "none", match="none is a folder without images")


def test_a_file_where_a_folder_is_wanted(tiny):
    Path("file").write_text("mine")
    fails("sample", "digits-atmc", "--out", "file", match="file is a file")
    fails("sample", "digits-atmc", "--out", "file/run", match="file is a file")
    fails("report", tiny, "--out", "r.html", "--figures", "file", match="--figures file is a file")
    assert Path("file").read_text() == "mine"
    assert not Path("r.html").exists()


def test_rows_of_two_runs_of_one_recipe_are_told_apart_on_a_terminal(tiny, tmp_path):
    shutil.copytree(tiny, tmp_path / "again")
    out = atmc("report", tiny, "again", "--out", "r.html").out
    assert "again: ATMC (posterior predictive)" in out
    assert "tiny: ATMC (posterior predictive)" in out


@pytest.mark.parametrize("harm", ["remove", "flip"])
def test_evaluate_and_report_name_damage_and_go_on(tiny, tmp_path, harm):
    run = tmp_path / "run"
    shutil.copytree(tiny, run)
    sample = sorted((run / "samples").iterdir())[0]
    raw = bytearray(sample.read_bytes())
    sample.unlink()
    if harm == "flip":
        raw[len(raw) // 2] ^= 1
        sample.write_bytes(raw)
    for verb in ("evaluate", "report"):
        result = atmc(verb, run)
        assert result.code == 0, result
        assert "damaged: " in result.err
        assert sample.name in result.err
        assert f"atmc sample {run}" in result.err
        told = atmc(verb, run, "--json")
        assert sample.name in json.loads(told.out)["damaged"][0]
    assert f"Damaged: {sample.relative_to(tmp_path)}" in (run / "report.html").read_text()
    assert "damaged" not in json.loads(atmc("evaluate", tiny, "--json").out)


@pytest.mark.parametrize("harm", ["remove", "alter"])
def test_a_page_shows_the_recipe_that_was_run(tiny, tmp_path, harm):
    """recipe.toml is the copy for people: without it there was no page, and altered it was shown as what was run."""
    run = tmp_path / "run"
    shutil.copytree(tiny, run)
    own = run / "recipe.toml"
    text = own.read_text()
    own.unlink()
    if harm == "alter":
        own.write_text(text.replace("temperature_peak = 1.0", "temperature_peak = 7.5"))
    result = atmc("report", run)
    assert result.code == 0, result
    assert f"damaged: {own}" in result.err
    page = (run / "report.html").read_text()
    assert "temperature_peak = 1.0" in page
    assert "temperature_peak = 7.5" not in page


@pytest.mark.parametrize("harm", ["altered", "torn"])
@pytest.mark.parametrize("verb", ["doctor", "evaluate"])
def test_metrics_that_were_changed_are_named(tiny, tmp_path, verb, harm):
    folder = tmp_path / "harmed"
    shutil.copytree(tiny, folder)
    log = folder / "metrics.jsonl"
    text = log.read_text(encoding="utf-8")
    log.write_text(
        text.replace('"loss": ', '"loss": 1') if harm == "altered" else text[: len(text) // 2], encoding="utf-8"
    )
    said = atmc(verb, folder).err
    assert "damaged: " in said
    assert "metrics.jsonl" in said
    assert "damaged: " not in atmc(verb, tiny).err


def test_every_verb_that_uses_samples_says_when_some_are_missing(tiny, tmp_path):
    """An average over fewer networks than were drawn must not look like the whole one."""
    shutil.copytree(tiny, "run")
    manifest = Manifest.load(Path("run"))
    SampleBank(manifest).set_aside(1, "it was torn")
    manifest.commit()
    Image.new("L", (8, 8), 128).save("x.png")
    for words in (
        ("predict", "run", "x.png"),
        ("export", "run", "out", "--no-onnx"),
        ("distill", "run", "student", "--epochs", "1"),
        ("doctor", "run"),
    ):
        result = atmc(*words)
        assert result.code == 0, result
        assert "0001.safetensors: no longer in the bank: it was torn" in result.err, words
    assert json.loads(atmc("predict", "run", "x.png", "--json").out)["damaged"]
    for path in Path("run/checkpoint").iterdir():
        path.unlink()
    result = atmc("doctor", "run")
    assert "no checkpoint can be read" in result.err
    assert "The run cannot be resumed" in result.out


def test_what_is_served_of_a_run_is_what_predict_says(tiny):
    import base64

    from atmc.posterior.uncertainty import from_probs
    from atmc.serve.predictor import open_predictor
    from atmc.storage.run_directory import RunDir

    served = open_predictor(tiny)
    assert served.about["takes"] == "image"
    assert len(served.about["examples"]) == 8
    data = base64.b64decode(served.about["examples"][0]["png"])
    Path("one.png").write_bytes(data)
    (told,) = json.loads(atmc("predict", tiny, "one.png", "--json").out)["images"]
    answer = served.image(data)
    assert answer["label"] == told["label"]
    for key in ("entropy", "aleatoric", "epistemic", "agreement"):
        assert answer[key] == pytest.approx(told[key], abs=1e-5)
    found = from_probs(RunDir.open(tiny).predictions("test"))
    share = float((found.confidence < served.rule.confidence).double().mean())
    assert share == pytest.approx(0.1, abs=0.01), "the least confident tenth of the test set"
