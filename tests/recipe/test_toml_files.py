"""Recipes: what is read is what is run, and every mistake is one line that names the key."""

import tomllib
from copy import deepcopy
from dataclasses import replace
from pathlib import Path

import pytest

from atmc.common.errors import InputError
from atmc.recipe.settings import Recipe, flat, recipe_from_dict
from atmc.recipe.toml_files import load_recipe, recipe_from_values, recipe_to_toml, without_unset

GOOD = """
name = "mine"
seed = 7
[data]
name = "digits"
batch_size = 32
[sampler]
name = "atmc"
lr = 1e-3
speed = 3e-4
max_speed = 1e-3
momentum = 0.9
[schedule]
epochs = 20
cycle_epochs = 5
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    file = tmp_path / "good.toml"
    file.write_text(GOOD)
    return file


def test_reads_what_is_written(path: Path) -> None:
    recipe = load_recipe(path)
    assert (recipe.name, recipe.seed, recipe.data.batch_size) == ("mine", 7, 32)
    assert recipe.sampler.max_speed == 1e-3
    assert recipe.sampler.temperature == 1.0


def test_resolved_recipe_has_every_key_and_reads_back_equal(path: Path) -> None:
    recipe = load_recipe(path, ["sampler.max_speed=inf", "model.options.bias=none", 'name=a "b" \\ c'])
    text = recipe_to_toml(recipe)
    assert recipe_from_dict(tomllib.loads(text)) == recipe
    for key in flat(Recipe()):
        assert key.rpartition(".")[2] in text


def test_overrides_are_toml_values_and_bare_words_are_text(path: Path) -> None:
    recipe = load_recipe(
        path, ["sampler.temperature=0.25", "data.name=cifar10", "run.compile=true", 'run.evaluate=["test", "train"]']
    )
    assert recipe.sampler.temperature == 0.25
    assert recipe.data.name == "cifar10"
    assert recipe.run.compile is True
    assert recipe.run.evaluate == ["test", "train"]


@pytest.mark.parametrize(("text", "value"), [(".5", 0.5), ("+.5e1", 5.0), ("5.", 5.0), ("5.E-1", 0.5)])
def test_numbers_as_people_write_them_are_numbers(path: Path, text: str, value: float) -> None:
    """TOML wants a digit on both sides of the point; the answer was "'.5' must be a number"."""
    assert load_recipe(path, [f"sampler.temperature={text}"]).sampler.temperature == value


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("sampler.tempreature=1", ["sampler.tempreature", "sampler.temperature?"]),
        ("sampler.learning_rate=1", ["sampler.learning_rate", "sampler.lr?"]),
        ("sampler.lerning_rate=1", ["sampler.lerning_rate", "sampler.lr?"]),
        ("temperature=1", ["temperature", "sampler.temperature?"]),
        ("smapler.lr=1", ["smapler", "[sampler]?"]),
        ("data.batch_size=1.5", ["data.batch_size", "whole number"]),
        ("data.batch_size=many", ["data.batch_size", "whole number"]),
        ("sampler.lr=true", ["sampler.lr", "number"]),
        ("run.compile=1", ["run.compile", "true or false"]),
        ("sampler=3", ["sampler", "section"]),
        ("sampler.name=atcm", ["sampler.name", "atmc?"]),
        ("sampler.lr=nan", ["sampler.lr", "above 0"]),
        ("sampler.temperature=-1", ["sampler.temperature", "at least 0"]),
        ("schedule.cycle_epochs=50", ["schedule.cycle_epochs", "longer than the run", "schedule.epochs"]),
        ("schedule.burn_in_epochs=20", ["schedule.burn_in_epochs", "schedule.epochs"]),
        ("schedule.cycle_warmup_epochs=5", ["schedule.cycle_warmup_epochs", "not shorter than schedule.cycle_epochs"]),
        ("schedule.kind=step", ["schedule.milestones", "rising epochs"]),
        ("sampler.mass=1.0", ["sampler.mass", "sampler.speed"]),
        ("sampler.name=sgd", ["sampler.speed", "sgd"]),
        ("sampler.weight_decay=0.1", ["sampler.weight_decay", "target.prior"]),
        ("model.norm=bn", ["model.norm", "BatchNorm"]),
        ("target.prior=none", ["target.prior", "sampler.name"]),
        ("run.evaluate=[\"validation\"]", ["run.evaluate", "data.validation"]),
        ("run.evaluate=[\"tset\"]", ["run.evaluate", "tset"]),
        ("run.device=gpu", ["run.device", "cuda"]),
        ("schedule.temperature_schedule=ramp", ["schedule.temperature_ramp_epochs"]),
        ("schedule.temperature_schedule=anneal", ["schedule.temperature_peak", "above 1"]),
        ("schedule.temperature_schedule=explore", ["schedule.explore_fraction", "above 0"]),
        ("schedule.hold_fraction=1", ["schedule.hold_fraction", "in [0, 1)"]),
        ("schedule.temperature_peak=0.5", ["schedule.temperature_peak", "at least 1"]),
        ("nothing", ["key=value"]),
    ],
)  # fmt: skip
def test_mistakes_are_one_line_with_the_key_and_the_cure(path: Path, override: str, words: list[str]) -> None:
    with pytest.raises(InputError) as caught:
        load_recipe(path, [override])
    said = str(caught.value)
    assert "\n" not in said
    for word in words:
        assert word in said, said


def test_another_kind_of_schedule_leaves_the_settings_of_the_old_one_behind(path: Path) -> None:
    """They cannot be left out with --set, and a person who names another kind does not mean them."""
    constant = ["schedule.kind=constant", "schedule.sample_every_steps=50"]
    found = load_recipe(path, [*constant, "schedule.burn_in_epochs=5"]).schedule
    assert (found.kind, found.cycle_epochs, found.sample_every_steps) == ("constant", None, 50)
    explore = ["schedule.temperature_schedule=explore", "schedule.explore_fraction=0.5", "schedule.hold_fraction=0.2"]
    base = without_unset(load_recipe(path, explore).to_dict())
    found = recipe_from_values(deepcopy(base), [*constant, "schedule.temperature_schedule=constant"]).schedule
    assert (found.hold_fraction, found.explore_fraction) == (0.0, 0.0)
    assert recipe_from_values(deepcopy(base), ["schedule.kind=cyclic"]).schedule.hold_fraction == 0.2
    for refused in (
        [*constant, "schedule.cycle_epochs=4"],  # said beside it: a contradiction, not a leftover
        ["schedule.hold_fraction=0.2", *constant],
        ["schedule.milestones=[3]"],  # of no kind that was left
    ):
        with pytest.raises(InputError, match="has no meaning"):
            load_recipe(path, refused)
    with pytest.raises(InputError, match="sample_every_steps"):  # a burn-in says that several samples are wanted
        recipe_from_values({**base, "schedule": {**base["schedule"], "burn_in_epochs": 5}}, [
            "schedule.kind=constant", "schedule.temperature_schedule=constant"
        ])  # fmt: skip


def test_the_control_at_zero_is_one_override() -> None:
    """`--set sampler.temperature=0` leaves behind what only a temperature gives a meaning to."""
    found = load_recipe("cifar10/atmc-settled", ["sampler.temperature=0"])
    plain = load_recipe("cifar10/atmc-zero")
    assert replace(found, name=plain.name) == plain
    with pytest.raises(InputError, match="temperature_schedule"):  # exploring says which of these samples are kept
        load_recipe(
            "cifar10/atmc-settled",
            ["sampler.temperature=0", "schedule.samples_per_cycle=1", "schedule.sample_every_steps=300"],
        )


def test_not_toml_is_one_line_with_the_place(tmp_path: Path) -> None:
    file = tmp_path / "bad.toml"
    file.write_text("name = \n")
    with pytest.raises(InputError, match=r"bad\.toml: not a TOML file: .*line 1"):
        load_recipe(file)


def test_an_unknown_recipe_names_the_nearest() -> None:
    for name in ("digits-amtc", "Digits-ATMC"):
        with pytest.raises(InputError, match=r"did you mean digits-atmc\?$"):
            load_recipe(name)
    with pytest.raises(InputError, match=r"^no recipe mine\.toml: there is no such file$"):
        load_recipe("mine.toml")
    with pytest.raises(InputError, match=r"^no recipe atmc$"):  # a sampler is no recipe, other than in Python
        load_recipe("atmc")


def test_no_cycle_after_burn_in_is_said_where_the_length_is_known() -> None:
    from atmc.engine.schedule import make_schedule

    recipe = recipe_from_values({"schedule": {"epochs": 10, "cycle_epochs": 6, "burn_in_epochs": 8}})
    with pytest.raises(InputError, match=r"schedule\.burn_in_epochs"):
        make_schedule(recipe, 1000)


def _shipped() -> list[Path]:
    return sorted((Path(__file__).parents[2] / "recipes").rglob("*.toml"))


@pytest.mark.parametrize("file", _shipped(), ids=lambda p: p.stem)
def test_every_shipped_recipe_is_valid(file: Path) -> None:
    from atmc.engine.schedule import make_schedule

    recipe = load_recipe(file)
    assert make_schedule(recipe, 50_000).sample_after


def test_a_mistake_is_said_of_what_was_typed_or_of_the_file(tmp_path):
    """Whoever types `--set` knows of no file in which its value stands."""
    with pytest.raises(InputError, match=r"^--set run\.precision=fp32: run\.precision = 'fp32' must be one of"):
        load_recipe("digits-atmc", ["seed=3", "run.precision=bf16", "run.precision=fp32"])
    with pytest.raises(InputError, match=r"^--set schedule\.epochs=2: .*longer than the run \(schedule\.epochs = 2\)"):
        load_recipe("cifar10/atmc", ["schedule.epochs=2"])
    own = tmp_path / "own.toml"
    own.write_text('chains = 2\n[run]\nprecision = "fp32"\n', encoding="utf-8")
    with pytest.raises(InputError, match=r"own\.toml: run\.precision = 'fp32'"):
        load_recipe(own, ["seed=3"])
    with pytest.raises(InputError, match=r"digits-atmc\.toml: run\.precision"):  # nobody has typed that
        load_recipe("digits-atmc", ["run.precision=fp32", "seed=3"], typed=["seed=3"])


def test_a_setting_is_not_blamed_for_one_that_is_called_like_it(tmp_path):
    own = tmp_path / "own.toml"
    own.write_text("[data]\nname = 5\n", encoding="utf-8")
    with pytest.raises(InputError, match=r"own\.toml: data\.name = 5"):
        load_recipe(own, ["name=foo"])
    own.write_text("[sampler]\nlr_min = 3\n", encoding="utf-8")
    with pytest.raises(InputError, match=r"own\.toml: unknown key sampler\.lr_min"):
        load_recipe(own, ["sampler.lr=0.1"])


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (["data.augment=flip"], 'data.augment = "flip"'),
        (["data.augment=own"], 'data.augment = "own"'),
        (["run.parallel=data"], 'run.parallel = "data"'),
    ],
)
def test_what_does_not_go_with_drawing_by_importance_is_one_line(path: Path, settings: list[str], words: str) -> None:
    assert load_recipe(path).data.draw == "auto"
    assert load_recipe(path, ["data.draw=importance", "sampler.noise_rank=8"]).data.draw == "importance"
    assert load_recipe(path, settings).data.draw == "auto"
    with pytest.raises(InputError, match=r'data\.draw = "importance" .*use .* or data\.draw = "auto"$') as caught:
        load_recipe(path, ["data.draw=importance", *settings])
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_sgd_does_not_draw_by_importance() -> None:
    values = {"sampler": {"name": "sgd"}, "target": {"prior": "none"}, "schedule": {"cycle_epochs": 5}}
    with pytest.raises(InputError, match=r'^data\.draw = "importance" is for samplers.*BatchNorm'):
        recipe_from_values({**values, "data": {"draw": "importance"}})
