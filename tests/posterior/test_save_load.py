"""Saving and opening: equal predictions, no pickles, every damage named."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from atmc.common.errors import InputError, RunError
from atmc.posterior import Posterior
from atmc.posterior.architecture import describe, rebuild, shapes
from atmc.posterior.save_load import checksum
from atmc.target import likelihoods


def network(seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Conv2d(3, 4, (3, 1), stride=(1, 2), padding=(1, 0), bias=False),
        nn.GroupNorm(2, 4),
        nn.Sequential(nn.ReLU(), nn.MaxPool2d(2)),
        nn.Flatten(),
        nn.Linear(16, 3),
    )


def posterior(k: int = 3, **more: object) -> Posterior:
    return Posterior([network(i).state_dict() for i in range(k)], network(), **more)  # type: ignore[arg-type]


PIXELS = torch.randint(0, 256, (7, 3, 4, 8), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))


def test_round_trip(tmp_path: Path) -> None:
    one = posterior(
        4, mean=[0.1, 0.2, 0.3], std=[0.5, 0.6, 0.7], classes=["cat", "dog", "æ"], chains=[0, 0, 1, 1]
    ).weighted([1, 2, 3, 4])
    one.save(tmp_path / "p")
    two = Posterior.load(tmp_path / "p")
    torch.testing.assert_close(
        two.predict(PIXELS, device="cpu").probs, one.predict(PIXELS, device="cpu").probs, rtol=0, atol=0
    )
    assert two.classes == ("cat", "dog", "æ")
    assert two.chains == (0, 0, 1, 1)
    np.testing.assert_allclose(two.weights, one.weights)
    two[1:3].save(tmp_path / "q")
    assert len(Posterior.load(tmp_path / "q")) == 2
    files = sorted(p.suffix for p in (tmp_path / "p").rglob("*") if p.is_file())
    assert files == [".json"] + [".safetensors"] * 4


def test_the_preprocessing_is_kept(tmp_path: Path) -> None:
    made = posterior(mean=[0.1, 0.2, 0.3], std=[0.5, 0.6, 0.7], shape=[3, 4, 8], crop=0.875)
    about = json.loads((made.save(tmp_path / "p") / "posterior.json").read_text())
    assert about["input"] == {"mean": [0.1, 0.2, 0.3], "std": [0.5, 0.6, 0.7], "shape": [3, 4, 8], "crop": 0.875}
    assert Posterior.load(tmp_path / "p")[:1].crop == 0.875
    del about["input"]["crop"]  # as an earlier version wrote it
    about["checksum"] = checksum(about)
    (tmp_path / "p" / "posterior.json").write_text(json.dumps(about))
    assert Posterior.load(tmp_path / "p").crop == 1.0
    with pytest.raises(ValueError, match="crop is the share"):
        posterior(crop=0.0)


def test_saving_again_replaces(tmp_path: Path) -> None:
    posterior(4).save(tmp_path)
    posterior(2).save(tmp_path)
    assert len(Posterior.load(tmp_path)) == 2
    assert len(list((tmp_path / "samples").iterdir())) == 2
    opened = Posterior.load(tmp_path)
    with pytest.raises(ValueError, match="another folder"):
        opened.save(tmp_path)


@pytest.mark.parametrize("likelihood", [likelihoods.Categorical(), likelihoods.NoisyDirichlet(alpha_eps=0.03)])
def test_the_likelihood_is_kept(tmp_path: Path, likelihood: likelihoods.Likelihood) -> None:
    posterior(1, likelihood=likelihood).save(tmp_path)
    assert Posterior.load(tmp_path).likelihood == likelihood


class Own(nn.Module):
    """A class that atmc has never heard of."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.line = nn.Linear(4, classes)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.line(x)
        return y


def test_a_users_own_network_is_given_again(tmp_path: Path) -> None:
    one = Posterior([Own(3).state_dict() for _ in range(2)], Own(3))
    one.save(tmp_path)
    with pytest.raises(InputError, match=r"Own, which only its own code can make: pass it as Posterior\.load"):
        Posterior.load(tmp_path)
    two = Posterior.load(tmp_path, model=Own(3))
    x = torch.randn(5, 4)
    assert torch.equal(one.predict(x, device="cpu").probs, two.predict(x, device="cpu").probs)
    with pytest.raises(InputError, match=r"line\.weight has the shape"):
        Posterior.load(tmp_path, model=Own(5))


@pytest.mark.parametrize(
    "model",
    [
        nn.Linear(3, 4, bias=False),
        nn.Sequential(nn.Conv2d(1, 2, 3, padding="same", groups=1), nn.BatchNorm2d(2, affine=False), nn.Dropout(0.3)),
        nn.Sequential(nn.LayerNorm([4, 2]), nn.Flatten(), nn.LeakyReLU(0.3), nn.Softplus(beta=2.0), nn.Tanh()),
        nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.AvgPool2d((1, 1)), nn.Identity(), nn.PReLU(3)),
    ],
)
def test_torchs_layers_describe_themselves(model: nn.Module) -> None:
    about = describe(model)
    assert about is not None
    twin = rebuild(json.loads(json.dumps(about)))
    assert repr(twin) == repr(model)
    assert shapes(twin) == shapes(model)


def test_a_description_cannot_name_anything_else() -> None:
    for bad in ({"class": "Module"}, {"class": "__builtins__"}, {"class": "functional"}, {"class": "os.system"}, {}):
        with pytest.raises((ValueError, TypeError, NotImplementedError)):
            rebuild(bad)(torch.ones(1))
    with pytest.raises(ValueError, match="only Sequential"):
        rebuild({"class": "Linear", "layers": []})


def test_damage_is_named(tmp_path: Path) -> None:
    posterior(2).save(tmp_path)
    file = tmp_path / "samples" / "0001.safetensors"
    whole = file.read_bytes()
    opened = Posterior.load(tmp_path)
    file.write_bytes(whole[:-5])
    with pytest.raises(RuntimeError, match=r"0001\.safetensors: is torn"):
        opened.predict(PIXELS, device="cpu")
    file.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    with pytest.raises(RuntimeError, match=r"0001\.safetensors: was altered"):
        opened[1]
    file.unlink()
    with pytest.raises(RuntimeError, match=r"0001\.safetensors: is missing"):
        opened[1]


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"samples": 3, "format": 1}', '{"samples": [], "format": 99}', "\x00"]
)
def test_a_bad_description_is_one_line(tmp_path: Path, text: str) -> None:
    (tmp_path / "posterior.json").write_text(text)
    with pytest.raises(InputError, match=r"posterior\.json"):
        Posterior.load(tmp_path)


def leaves(value: object, path: tuple[object, ...] = ()) -> list[tuple[object, ...]]:
    """Every place in a JSON value."""
    found = [path] if path else []
    if isinstance(value, dict):
        found += [p for k, v in value.items() for p in leaves(v, (*path, k))]
    if isinstance(value, list):
        found += [p for i, v in enumerate(value) for p in leaves(v, (*path, i))]
    return found


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    folder = tmp_path_factory.mktemp("saved")
    posterior(2, mean=[0.1] * 3, std=[0.5] * 3, likelihood=likelihoods.Categorical(), shape=(3, 4, 8)).save(folder)
    return folder, (folder / "posterior.json").read_text()


WRONG = st.one_of(
    st.none(), st.booleans(), st.integers(-5, 10**13), st.floats(), st.text(max_size=5), st.just([]), st.just({})
)


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_an_altered_description_is_named(saved: tuple[Path, str], data: st.DataObject) -> None:
    folder, text = saved
    about = json.loads(text)
    *way, last = data.draw(st.sampled_from(leaves(about)))
    place = about
    for step in way:
        place = place[step]
    wrong = data.draw(WRONG)
    assume(json.dumps(wrong) != json.dumps(place[last]))
    place[last] = wrong
    (folder / "posterior.json").write_text(json.dumps(about))
    with pytest.raises(InputError, match=r"posterior\.json") as caught:
        Posterior.load(folder)
    assert "\n" not in str(caught.value)


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_a_forged_description_ends_in_one_line(saved: tuple[Path, str], data: st.DataObject) -> None:
    """Whoever signs a description anew can name any layers, but opening it still gives one line or a posterior."""
    folder, text = saved
    about = json.loads(text)
    *way, last = data.draw(st.sampled_from(leaves(about)))
    place = about
    for step in way:
        place = place[step]
    place[last] = data.draw(WRONG)
    about["checksum"] = checksum(about)
    (folder / "posterior.json").write_text(json.dumps(about))
    with contextlib.suppress(InputError, RunError):
        Posterior.load(folder)


def test_not_a_posterior_and_nothing_to_save(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="not a saved posterior"):
        Posterior.load(tmp_path / "nowhere")
    with pytest.raises(ValueError, match="no samples"):
        posterior(2)[:0].save(tmp_path)


def test_what_is_no_saved_posterior_is_told_apart(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "manifest.json").write_text("{}")
    (tmp_path / "file").write_text("")
    for name, words in (
        ("run", r"it has no posterior\.json; it is a run, which atmc\.Posterior\.from_run opens"),
        ("file", r"that is a folder with a posterior\.json$"),
        ("nothing", r"that is a folder with a posterior\.json$"),
    ):
        with pytest.raises(InputError, match=words):
            Posterior.load(tmp_path / name)
