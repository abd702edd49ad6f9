"""Bad input: a clear error that names the culprit, and nothing moved."""

from __future__ import annotations

import math
import warnings

import pytest
import torch

import atmc
from atmc.samplers import checks


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("lr", -1.0),
        ("lr", math.nan),
        ("lr", math.inf),
        ("mass", 0.0),
        ("mass", -2.0),
        ("mass", math.inf),
        ("friction", -1.0),
        ("friction", math.inf),
        ("speed_limit", 0.0),
        ("temperature", -0.1),
        ("temperature", math.nan),
        ("inertia", 0.0),
        ("reference_lr", 0.0),
        ("reference_lr", -0.1),
        ("reference_lr", math.inf),
        ("reference_lr", "rl"),
        ("reference_lr", True),
        ("reference_temperature", 0.0),
        ("reference_temperature", "warm"),
        ("lr", "fast"),
        ("mass", [1.0, -1.0, 1.0, 1.0, 1.0]),
        ("mass", [1.0]),
        ("integrator", "euler"),
        ("backend", "quick"),
        ("nonfinite", "maybe"),
        ("seed", 1.5),
        ("measure_every", 0),
    ],
)
def test_bad_hyperparameters_are_named(kit, key, value):
    with pytest.raises(ValueError, match="mass" if isinstance(value, list) else key):
        atmc.ATMC(kit.problem(large=False), **{key: value})


@pytest.mark.parametrize(
    ("kind", "given", "words"),
    [
        (atmc.ATMC, {"momentum": 0.9}, r"ATMC takes no momentum: .*friction.*ATMC\.from_speeds"),
        (atmc.SGHMC, {"momentum": 0.9}, r"SGHMC takes no momentum: .*SGHMC\.from_speeds"),
        (atmc.SGLD, {"momentum": 0.9}, "SGLD takes no momentum: it has none"),
        (atmc.SGNHT, {"weight_decay": 1e-4}, r"SGNHT takes no weight_decay: .*atmc\.priors\.gaussian"),
        (atmc.SGLD, {"weight_decay": 1e-4}, r"SGLD takes no weight_decay: .*atmc\.priors\.gaussian"),
        (atmc.ATMC, {"foreach": True}, "backend='foreach'"),
        (atmc.ATMC, {"temprature": 1.0}, "did you mean temperature"),
        (atmc.SGHMC, {"betas": (0.9, 0.99)}, "SGHMC takes no betas: there are lr, mass, .*seed"),
    ],
)
def test_arguments_of_other_optimizers_are_told_what_is_meant(kit, kind, given, words):
    with pytest.raises(TypeError, match=words):
        kind(kit.problem(large=False), **given)
    with pytest.raises(TypeError, match=r"takes no weight_decay: .*atmc\.priors\.gaussian"):
        atmc.ATMC.from_speeds(kit.problem(large=False), lr=1e-3, speed=1e-3, weight_decay=0.1)


def test_parameters_too_coarse_for_small_steps_are_told(kit):
    def moved(dtype):
        p = torch.nn.Parameter(torch.ones(1000, dtype=dtype))
        sampler = atmc.SGHMC.from_speeds([p], lr=1e-3, speed=3e-4)
        for _ in range(50):
            p.grad = p.detach().clone()
            sampler.step()
        return float((p != 1).float().mean())

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert moved(torch.float32) > 0.99
    with pytest.warns(UserWarning, match=r"bfloat16: steps below about 1/256 of a weight .*torch\.autocast") as told:
        assert moved(torch.bfloat16) < 0.5
    assert len(told) == 1


@pytest.mark.filterwarnings("always:parameter")
def test_the_warning_of_coarse_parameters_comes_once_and_points_to_the_callers_line():
    """It came for every group, and from_speeds and add_param_group made it point elsewhere."""
    coarse = [torch.nn.Parameter(torch.ones(3, dtype=torch.bfloat16)) for _ in range(3)]
    fine = atmc.SGLD([torch.nn.Parameter(torch.ones(3))])
    for make in (
        lambda: atmc.ATMC([{"params": [p]} for p in coarse]),
        lambda: atmc.SGLD(coarse),
        lambda: atmc.ATMC.from_speeds(coarse, lr=1e-3, speed=1e-3),
        lambda: fine.add_param_group({"params": coarse}),
    ):
        with pytest.warns(UserWarning, match="bfloat16") as told:
            make()
        assert [warning.filename for warning in told] == [__file__]


def test_weight_decay_of_a_group_is_not_ignored(kit):
    params = kit.problem(large=False)
    with pytest.raises(ValueError, match=r"weight_decay of group 0 would do nothing: .*prior"):
        atmc.ATMC([{"params": params, "weight_decay": 1e-4}])
    atmc.ATMC([{"params": params, "weight_decay": 0.0, "note": "mine"}])


@pytest.mark.parametrize(
    ("kind", "given", "words"),
    [
        (atmc.ATMC, {"temprature": 0.1}, "did you mean temperature"),
        (atmc.ATMC, {"maximize": True}, "the gradient of U"),
        (atmc.ATMC, {"seed": 3}, r"it is of the whole sampler: ATMC\(groups, seed=…\)"),
        (atmc.SGHMC, {"noise_estimate": 3.0}, "it is of the whole sampler"),
        (atmc.SGNHT, {"speed": 1e-3}, r"SGNHT\.from_speeds\(groups, …\) takes it; .*speed_settings"),
        (atmc.SGLD, {"speed": 1e-3}, "it has none; its steps are set by lr alone"),
        (atmc.SGLD, {"momentum": 0.9}, r"it has none; atmc\.SGHMC has"),
    ],
)
def test_settings_of_a_group_that_would_do_nothing_are_named(kit, kind, given, words):
    params = kit.problem(large=False)
    with pytest.raises(ValueError, match=rf"{next(iter(given))} of group 0 would do nothing: .*{words}"):
        kind([{"params": params, **given}])
    sampler = kind(params[1:])
    with pytest.raises(ValueError, match="of group 1 would do nothing"):
        sampler.add_param_group({"params": params[:1], **given})
    assert len(sampler.param_groups) == 1
    kind([{"params": params, "maximize": False, "foreach": None, "name": "mine", "lr_scale": 0.5, "initial_lr": 1.0}])


def test_groups_may_have_speeds_of_their_own(kit):
    params = kit.problem(large=False)
    groups = [{"params": params[:2], "speed": 1e-2}, {"params": params[2:3], "lr": 2e-3, "momentum": 0.5}]
    sampler = atmc.ATMC.from_speeds([*groups, {"params": params[3:]}], lr=1e-3, speed=1e-3, max_speed=3e-3)
    first, second, third = sampler.param_groups
    assert first["mass"] == pytest.approx(0.01)
    assert first["speed_limit"] == pytest.approx(3.0)
    assert second["mass"] == pytest.approx(4.0)
    assert second["friction"] == pytest.approx(-math.log(0.5) / 2e-3)
    assert second["lr"] == 2e-3
    assert second["momentum"] is None
    assert third["mass"] == pytest.approx(1.0)
    assert third["friction"] == pytest.approx(-math.log(0.9) / 1e-3)
    assert groups[0].keys() == {"params", "speed"}  # the caller's own
    with pytest.raises(ValueError, match=r"mass: .*one or the other"):
        atmc.ATMC.from_speeds([{"params": params, "speed": 1e-2, "mass": 2.0}], lr=1e-3, speed=1e-3)


def test_bad_group_leaves_the_sampler_as_it_was(kit):
    params = kit.problem(large=False)
    sampler = atmc.ATMC(params[:2])
    with pytest.raises(ValueError, match="mass of group 1"):
        sampler.add_param_group({"params": params[2:], "mass": -1.0})
    assert len(sampler.param_groups) == 1
    kit.run(sampler, params[:2], 1)


def test_a_group_whose_noise_is_less_than_the_estimate_is_refused(kit):
    """No noise would be added and the group would descend instead of sample."""
    params = kit.problem(large=False)
    with pytest.raises(ValueError, match=r"friction of group 1 is 0\.5"):
        atmc.SGHMC([{"params": params[:2]}, {"params": params[2:], "friction": 0.5}], friction=2.0, noise_estimate=1.0)
    sampler = atmc.SGHMC(params[:2], friction=2.0, noise_estimate=1.0)
    with pytest.raises(ValueError, match=r"friction of group 1 is 0\.5"):
        sampler.add_param_group({"params": params[2:], "friction": 0.5})
    assert len(sampler.param_groups) == 1


@pytest.mark.parametrize("backend", ["single", "foreach", "fused"])
def test_noise_lowered_below_the_estimate_is_caught_at_the_step(kit, backend):
    params = kit.problem(large=False)
    sampler = atmc.SGHMC(params, lr=0.1, friction=2.0, noise_estimate=1.0, backend=backend)
    kit.run(sampler, params, 1)
    before = kit.snapshot(sampler, params)
    sampler.param_groups[0]["friction"] = 0.5
    kit.set_gradients(params, 1)
    with pytest.raises(ValueError, match=r"friction of group 0 is 0\.5, less than noise_estimate"):
        sampler.step()
    assert all(torch.equal(a, b) for a, b in zip(before, kit.snapshot(sampler, params), strict=True))
    sampler.param_groups[0]["friction"] = 1.0
    sampler.step()


@pytest.mark.parametrize("bad", ["1", None, math.nan, True, [0.5]])
@pytest.mark.parametrize(
    ("key", "build"),
    [
        ("noise_estimate", lambda p, v: atmc.SGHMC([p], noise_estimate=v)),
        ("decay", lambda p, v: atmc.SGLD([p], preconditioner="rmsprop", decay=v)),
        ("epsilon", lambda p, v: atmc.SGLD([p], preconditioner="rmsprop", epsilon=v)),
        ("momentum", lambda p, v: atmc.ATMC.from_speeds([p], lr=1e-3, speed=1e-4, momentum=v)),
        ("speed", lambda p, v: atmc.ATMC.from_speeds([p], lr=1e-3, speed=v)),
        ("cycle", lambda p, v: atmc.CyclicCosine(atmc.SGLD([p]), v)),
        ("steps_per_epoch", lambda p, v: atmc.CyclicCosine(atmc.SGLD([p]), 2, [] if v is None else v)),
    ],
)
def test_what_is_no_number_is_named(key, build, bad):
    with pytest.raises(ValueError, match=f"^{key} must be"):
        build(torch.nn.Parameter(torch.zeros(2)), bad)


@pytest.mark.parametrize("backend", ["single", "foreach", "fused"])
@pytest.mark.parametrize("how", ["in place", "replaced", "inference"])
@pytest.mark.parametrize("bad", [-1.0, 0.0, math.nan, math.inf])
def test_masses_of_elements_that_went_bad_are_caught_at_the_step(kit, backend, how, bad):
    params = [torch.nn.Parameter(torch.ones(4)), torch.nn.Parameter(torch.ones(3))]
    with torch.inference_mode(how == "inference"):
        masses = [torch.ones(4), torch.ones(3)]
    sampler = atmc.ATMC(params, lr=0.1, friction=1.0, mass=masses, backend=backend)
    kit.run(sampler, params, 2)
    before = kit.snapshot(sampler, params)
    with torch.inference_mode(how == "inference"):
        if how == "replaced":
            masses[1] = sampler.param_groups[0]["mass"][1] = torch.ones(3)
        masses[1][2] = bad
    kit.set_gradients(params, 2)
    for _ in range(2):  # and it stays caught
        with pytest.raises(ValueError, match="mass of parameter 1 of group 0"):
            sampler.step()
        assert all(torch.equal(a, b) for a, b in zip(before, kit.snapshot(sampler, params), strict=True))
    with torch.inference_mode(how == "inference"):
        masses[1][2] = 2.0
    sampler.step()


def test_masses_of_elements_are_looked_at_only_when_they_changed(kit, monkeypatch):
    looked = []
    monkeypatch.setattr(checks, "check_element_masses", lambda mass, name: looked.append(name))
    params = [torch.nn.Parameter(torch.ones(4))]
    mass = torch.ones(4)
    sampler = atmc.ATMC(params, lr=0.1, mass=[mass])
    kit.run(sampler, params, 3)
    before = len(looked)
    kit.run(sampler, params, 3)
    assert len(looked) == before
    mass.mul_(2.0)
    kit.run(sampler, params, 3)
    assert len(looked) == before + 1


def test_empty_and_wrong_parameters():
    with pytest.raises(ValueError, match="empty"):
        atmc.ATMC([])
    with pytest.raises(ValueError, match="empty"):
        atmc.ATMC([{"params": []}])
    with pytest.raises(ValueError, match="complex"):
        atmc.ATMC([torch.nn.Parameter(torch.zeros(3, dtype=torch.complex64))])


@pytest.mark.parametrize("backend", ["single", "foreach", "fused"])
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_nonfinite_gradient_names_the_parameter_and_moves_nothing(make, kit, backend, bad):
    params = kit.problem(large=False)
    named = [(f"layer.{i}", p) for i, p in enumerate(params)]
    sampler = make(named, backend=backend)
    kit.run(sampler, params, 2)
    before = kit.snapshot(sampler, params)
    saved = sampler.state_dict()["sampler"]
    kit.set_gradients(params, 2)
    params[3].grad[1, 1, 1, 1] = bad
    with pytest.raises(RuntimeError, match=r"layer\.3"):
        sampler.step()
    assert all(torch.equal(a, b) for a, b in zip(before, kit.snapshot(sampler, params), strict=True))
    assert int(saved["step"]) == int(sampler.state_dict()["sampler"]["step"])


def test_nonfinite_check_can_be_turned_off(kit):
    params = kit.problem(large=False)
    sampler = atmc.ATMC(params, nonfinite="ignore")
    kit.set_gradients(params, 0)
    params[0].grad[0] = math.nan
    sampler.step()
    assert params[0].isnan().sum() == 1


def test_sparse_gradient_is_named(kit):
    params = kit.problem(large=False)
    sampler = atmc.ATMC(params)
    kit.set_gradients(params, 0)
    params[0].grad = torch.sparse_coo_tensor([[0]], [1.0], (5,))
    before = kit.snapshot(sampler, params)
    with pytest.raises(RuntimeError, match=r"parameter 0 of group 0.*sparse"):
        sampler.step()
    assert all(torch.equal(a, b) for a, b in zip(before, kit.snapshot(sampler, params), strict=True))


def test_bad_learning_rate_from_a_scheduler_is_caught_at_the_step(kit):
    params = kit.problem(large=False)
    sampler = atmc.ATMC(params)
    sampler.param_groups[0]["lr"] = -1.0
    before = kit.snapshot(sampler, params)
    kit.set_gradients(params, 0)
    with pytest.raises(ValueError, match="lr of group 0"):
        sampler.step()
    assert all(torch.equal(a, b) for a, b in zip(before, kit.snapshot(sampler, params), strict=True))


@pytest.mark.parametrize("backend", ["single", "foreach", "fused"])
@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("mass", [torch.ones(3)]),  # compiled code would read beyond its end
        ("mass", [1.0, 2.0]),
        ("mass", torch.ones(4)),
        ("temperature", torch.ones(2)),
        ("lr", [0.1]),
        ("friction", None),
    ],
)
def test_settings_that_stopped_fitting_are_caught_at_the_step(kit, backend, key, value):
    params = [torch.nn.Parameter(torch.ones(4))]
    sampler = atmc.ATMC(params, lr=0.1, backend=backend)
    kit.run(sampler, params, 1)
    before = kit.snapshot(sampler, params)
    sampler.param_groups[0][key] = value
    kit.set_gradients(params, 1)
    with pytest.raises(ValueError, match=rf"{key} of (group 0|parameter)"):
        sampler.step()
    assert all(torch.equal(a, b) for a, b in zip(before, kit.snapshot(sampler, params), strict=True))


def test_speeds_are_the_papers():
    p = torch.nn.Parameter(torch.zeros(1))
    group = atmc.ATMC.from_speeds([p], lr=1e-3, speed=3e-4, max_speed=1e-3, momentum=0.9).param_groups[0]
    assert group["mass"] == pytest.approx(11.11, rel=1e-3)
    assert group["speed_limit"] == pytest.approx(1.0)
    assert group["friction"] == pytest.approx(105.4, rel=1e-3)
    for bad in ({"speed": 0.0}, {"speed": 1e-4, "max_speed": -1.0}, {"speed": 1e-4, "momentum": 1.5}):
        with pytest.raises(ValueError, match=list(bad)[-1]):
            atmc.ATMC.from_speeds([p], lr=1e-3, **bad)


def test_closure_is_called_with_gradients_on():
    p = torch.nn.Parameter(torch.ones(3))
    sampler = atmc.SGHMC([p], lr=0.1, friction=1.0, temperature=0.0)

    def closure():
        sampler.zero_grad()
        loss = (p**2).sum()
        loss.backward()
        return loss

    assert float(sampler.step(closure).detach()) == 3.0
    assert float(p.detach()[0]) < 1.0
