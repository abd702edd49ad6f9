"""Verbs compute with the threads of the run that they are given."""

import pictures
import pytest
import torch
from PIL import Image
from shell import atmc
from tiny_recipes import RECIPE

from atmc.posterior import Posterior, metrics


@pytest.mark.parametrize("threads", [1, None])
def test_verbs_use_the_threads_of_the_run(tmp_path, monkeypatch, threads):
    """Small networks crawl on a busy machine with more. What was before is put back; without a setting it is used."""
    text = RECIPE.replace("[run]", f"[run]\nthreads = {threads}") if threads else RECIPE
    (tmp_path / "few.toml").write_text(text.replace("epochs = 4\n", "epochs = 2\n"))
    assert atmc("sample", tmp_path / "few.toml", "--out", "few").code == 0
    Image.fromarray(pictures.GREY).save(tmp_path / "a.png")
    used, before = set(), torch.get_num_threads()

    def noting(work):
        def noted(*args, **how):
            used.add(torch.get_num_threads())
            return work(*args, **how)

        return noted

    monkeypatch.setattr(torch.nn.Module, "__call__", noting(torch.nn.Module.__call__))
    monkeypatch.setattr(metrics, "summary", noting(metrics.summary))
    monkeypatch.setattr(Posterior, "export", noting(Posterior.export))
    verbs = ["evaluate few", "evaluate few --split train", "predict few a.png", "distill few one --epochs 1"]
    torch.set_num_threads(3)
    try:
        for verb in [*verbs, "export few all --no-onnx"]:
            used.clear()
            result = atmc(*verb.split())
            assert result.code == 0, result
            assert used == {threads or 3}, verb
            assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)
