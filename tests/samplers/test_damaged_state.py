"""Loading a state that is damaged: one clear ValueError, and the sampler exactly as before."""

from __future__ import annotations

import copy
import math

import pytest
import torch

import atmc


def flat(value, path=""):
    """A state as text by place: what must not have changed."""
    if isinstance(value, dict):
        return {k: v for key, part in value.items() for k, v in flat(part, f"{path}/{key}").items()}
    if isinstance(value, (list, tuple)):
        return {k: v for i, part in enumerate(value) for k, v in flat(part, f"{path}/{i}").items()}
    return {path: (str(value.dtype), value.tolist()) if isinstance(value, torch.Tensor) else value}


def same(a, b):
    """Equal, with NaN equal to itself."""
    return repr(sorted(a.items())) == repr(sorted(b.items()))


def places(value, path=()):
    """Every place in a state, containers too."""
    yield path
    if isinstance(value, dict):
        for key, part in value.items():
            yield from places(part, (*path, key))
    elif isinstance(value, list):
        for i, part in enumerate(value):
            yield from places(part, (*path, i))


def replaced(state, path, junk):
    """A state with one value replaced; the rest is shared."""
    if not path:
        return junk
    state = state.copy()
    state[path[0]] = replaced(state[path[0]] if len(path) > 1 else None, path[1:], junk)
    return state


def stepped(make, kit, seed=7):
    params = [torch.nn.Parameter(torch.ones(3)), torch.nn.Parameter(torch.ones(2, 2, dtype=torch.float64))]
    sampler = make([{"params": params[:1]}, {"params": params[1:]}], seed=seed)
    kit.run(sampler, params, 2)
    return params, sampler


JUNK = [
    "a",
    None,
    5,
    -3,
    2.5,
    math.nan,
    True,
    [],
    {},
    ["q", "q"],
    torch.tensor(math.nan),
    torch.tensor(1j),
    torch.zeros(7),
    10**30,
    object(),
]


def test_whatever_is_damaged_it_is_refused_or_loaded_whole(make, kit):
    """Every value of a state replaced by every kind of junk. Some is harmless; none may be half loaded."""
    state = stepped(make, kit)[1].state_dict()
    params, sampler = stepped(make, kit, seed=5)
    before = flat(sampler.state_dict())
    refused = loaded = 0
    for path in places(state):
        for junk in JUNK:
            try:
                sampler.load_state_dict(replaced(state, path, junk))
            except ValueError:
                refused += 1
                assert same(flat(sampler.state_dict()), before), (path, junk)
                continue
            loaded += 1
            kit.run(sampler, params, 1, start=2)  # what was taken can be gone on from
            assert all(sampler.state[p][slot].isfinite().all() for p in params for slot in sampler.slots), (path, junk)
            params, sampler = stepped(make, kit, seed=5)
    assert refused > 300
    assert loaded < 0.3 * refused


@pytest.mark.parametrize(
    ("path", "junk", "named"),
    [
        (("sampler", "step"), "a", "step"),
        (("sampler", "calls"), "a", "calls"),
        (("sampler", "seed"), "q", "seed"),
        (("sampler", "last_lr"), ["q"], "last_lr"),
        (("sampler", "last_lr", 0), math.inf, "last_lr"),
        (("sampler", "options"), 5, "options"),
        (("sampler", "options"), {"nonfinite": "zzz"}, "nonfinite"),
        (("sampler", "options"), {"measure_every": 0}, "measure_every"),
        (("sampler", "readings"), torch.zeros(3), "readings"),
        (
            ("state", 1, "momentum"),
            torch.full((2, 2), math.nan, dtype=torch.float64),
            r"momentum of parameter 0 of group 1",
        ),
        (("state", 1, "thermostat"), torch.full((2, 2), math.inf), r"thermostat of parameter 0 of group 1"),
        (("state", 0, "momentum"), torch.zeros(3, dtype=torch.complex64), r"momentum of parameter 0 of group 0"),
        (("state", 0, "momentum"), torch.zeros(3).to_sparse(), r"momentum of parameter 0 of group 0"),
        (("state", "a"), {}, "number of a parameter"),
        (("param_groups", 1, "friction"), "much", "friction of group 1"),
        (("param_groups", 1, "momentum"), 1.5, "momentum of group 1"),
    ],
)
def test_what_is_wrong_is_named(kit, path, junk, named):
    _, sampler = stepped(lambda p, **o: atmc.ATMC(p, lr=0.05, friction=1.0, **o), kit)
    before = flat(sampler.state_dict())
    with pytest.raises(ValueError, match=named):
        sampler.load_state_dict(replaced(sampler.state_dict(), path, junk))
    assert same(flat(sampler.state_dict()), before)


def test_a_mean_of_squares_is_not_negative(kit):
    make = lambda p, **o: atmc.SGLD(p, preconditioner="rmsprop", **o)  # noqa: E731
    _, sampler = stepped(make, kit)
    with pytest.raises(ValueError, match="square_avg of parameter 0 of group 0"):
        sampler.load_state_dict(replaced(sampler.state_dict(), ("state", 0, "square_avg"), -torch.ones(3)))


def test_options_of_a_state_must_go_with_its_groups(kit):
    _, sampler = stepped(lambda p, **o: atmc.SGHMC(p, lr=0.05, friction=1.0, **o), kit)
    before = flat(sampler.state_dict())
    with pytest.raises(ValueError, match="less than noise_estimate"):
        sampler.load_state_dict(replaced(sampler.state_dict(), ("sampler", "options", "noise_estimate"), 3.0))
    assert same(flat(sampler.state_dict()), before)


def test_states_of_what_was_never_stepped_or_is_empty_load(make):
    """Nothing has been measured (NaN readings) and no momentum has moved: that is not damage."""
    params = [
        torch.nn.Parameter(torch.ones(3)),
        torch.nn.Parameter(torch.zeros(0, 4)),
        torch.nn.Parameter(torch.ones(2)),
    ]
    sampler = make(params)
    sampler.load_state_dict(make(params).state_dict())
    params[0].grad = torch.ones(3)  # the others never have one
    sampler.step()
    other = make(params, seed=3)
    other.load_state_dict(sampler.state_dict())
    assert same(flat(other.state_dict()), flat(sampler.state_dict()))


def test_the_readings_come_along(make, kit):
    """The temperature is known right after loading, whatever became of the layout; older states have none to give."""
    params, sampler = stepped(make, kit)
    kit.run(sampler, params, 12, start=2)
    saved = sampler.state_dict()
    twins = [torch.nn.Parameter(p.detach().double()) for p in params]  # one shard instead of two
    for others in (params, twins):
        other = make([{"params": others[:1]}, {"params": others[1:]}], seed=1)
        other.load_state_dict(copy.deepcopy(saved))
        assert repr(float(other.kinetic_temperature())) == repr(float(sampler.kinetic_temperature()))
        assert other.readings().configurational == pytest.approx(sampler.readings().configurational)
    if "momentum" in sampler.slots:
        assert math.isfinite(float(sampler.kinetic_temperature()))
    del saved["sampler"]["readings"]
    sampler.load_state_dict(saved)
    assert math.isnan(float(sampler.kinetic_temperature()))


def test_the_chains_own_readings_do_no_harm(kit):
    """A chain puts readings by shard beside ours, under a key of its own."""
    _, sampler = stepped(lambda p, **o: atmc.ATMC(p, lr=0.05, friction=1.0, **o), kit)
    state = {**sampler.state_dict(), "readings": [shard.readings.clone() for shard in sampler._shards]}
    before = float(sampler.kinetic_temperature())
    sampler.load_state_dict(state)
    assert float(sampler.kinetic_temperature()) == before


@pytest.mark.parametrize("later", ["momentum", "reference_lr", "reference_temperature"])
def test_states_from_before_a_setting_load(kit, later):
    _, sampler = stepped(lambda p, **o: atmc.ATMC(p, lr=0.05, friction=1.0, **o), kit)
    state = sampler.state_dict()
    for group in state["param_groups"]:
        del group[later]
    sampler.load_state_dict(state)
    assert [group[later] for group in sampler.param_groups] == [None, None]
