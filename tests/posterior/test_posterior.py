"""The posterior as a container and as a predictor, against a plain loop over networks."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from atmc.posterior import Posterior
from atmc.posterior.batched_forward import STRATEGIES, choose
from atmc.posterior.uncertainty import from_probs
from atmc.target.likelihoods import Gaussian

CPU = [s for s in STRATEGIES if s != "graph"]


def network(seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.SELU(), nn.AvgPool2d(2), nn.Flatten(), nn.Linear(4 * 16, 5))


def bank(k: int) -> list[dict[str, Tensor]]:
    return [{n: t.detach().clone() for n, t in network(i).state_dict().items()} for i in range(k)]


def inputs(n: int = 30, seed: int = 0) -> Tensor:
    return torch.randn(n, 1, 8, 8, generator=torch.Generator().manual_seed(seed))


def by_hand(k: int, x: Tensor, weights: np.ndarray | None = None) -> np.ndarray:
    rows = []
    for i in range(k):
        with torch.no_grad():
            rows.append(network(i)(x).double().softmax(-1).numpy())
    w = np.full(k, 1 / k) if weights is None else weights
    return np.tensordot(w, np.stack(rows), axes=1)


@pytest.mark.parametrize("strategy", ["auto", *CPU])
@pytest.mark.parametrize("at_once", [None, 1, 2])
def test_every_way_gives_the_average_of_probabilities(strategy: str, at_once: int | None) -> None:
    posterior, x = Posterior(bank(5), network()), inputs()
    found = posterior.predict(x, batch_size=3, strategy=strategy, samples_at_once=at_once, device="cpu")
    assert found.probs.dtype == torch.float64
    np.testing.assert_allclose(found.probs, by_hand(5, x), atol=1e-6)
    assert found.samples == 5
    assert len(found) == 30


@pytest.mark.parametrize("at_once", [None, 2])
@pytest.mark.parametrize("strategy", CPU)
def test_all_sums_are_those_of_single_samples_also_in_parts(
    strategy: str, at_once: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("atmc.posterior.batched_forward.TOGETHER_LIMIT", 20)
    monkeypatch.setattr("atmc.posterior.batched_forward.TOGETHER_NUMBERS", 100)
    posterior = Posterior(bank(5), network()).weighted([1, 2, 3, 4, 5])
    found = posterior.predict(inputs(), batch_size=10, strategy=strategy, samples_at_once=at_once, device="cpu")
    expected = from_probs(posterior.sample_probs(inputs(), device="cpu"), posterior.weights)
    for part in ("probs", "entropy", "aleatoric", "epistemic", "variation", "agreement"):
        np.testing.assert_allclose(getattr(found, part), getattr(expected, part), atol=1e-6)


def test_the_average_is_not_of_logits() -> None:
    states = [{"weight": torch.tensor([[8.0], [0.0]])}, {"weight": torch.tensor([[-2.0], [0.0]])}]
    found = Posterior(states, nn.Linear(1, 2, bias=False)).predict(torch.ones(1, 1), device="cpu")
    expected = 0.5 * (1 / (1 + np.exp(-8.0)) + 1 / (1 + np.exp(2.0)))
    assert float(found.probs[0, 0]) == pytest.approx(expected, abs=1e-9)


def test_predict_takes_tensors_arrays_loaders_and_streams() -> None:
    posterior, x = Posterior(bank(3), network()), inputs(20)
    expected = posterior.predict(x, device="cpu").probs
    loader = DataLoader(TensorDataset(x, torch.zeros(20)), batch_size=6)
    for other in (x.numpy(), loader, iter(x.split(7)), list(x.split(7))):
        for at_once in (None, 2):
            source = iter(x.split(7)) if hasattr(other, "__next__") else other
            found = posterior.predict(source, samples_at_once=at_once, device="cpu")
            torch.testing.assert_close(found.probs, expected, rtol=0, atol=1e-6)


def test_pixels_are_standardised_and_floats_are_not() -> None:
    pixels = torch.randint(0, 256, (9, 1, 8, 8), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))
    posterior = Posterior(bank(2), network(), mean=[0.3], std=[0.2], classes="abcde")
    found = posterior.predict(pixels, device="cpu")
    scaled = (pixels.float() / 255 - 0.3) / 0.2
    torch.testing.assert_close(found.probs, posterior.predict(scaled, device="cpu").probs)
    np.testing.assert_allclose(found.probs, by_hand(2, scaled), atol=1e-6)
    assert set(found.names) <= set("abcde")
    with pytest.raises(ValueError, match="std must be positive"):
        Posterior(bank(2), network(), mean=[0.3], std=[0.0])


def test_one_sample_is_a_network() -> None:
    posterior, x = Posterior(bank(4), network()), inputs(6)
    model = posterior[2]
    assert isinstance(model, nn.Sequential)
    assert not model.training
    torch.testing.assert_close(model(x), network(2)(x))
    torch.testing.assert_close(posterior[-1](x), network(3)(x))
    with torch.no_grad():
        model[0].weight.zero_()  # the sample itself must not follow
    torch.testing.assert_close(posterior[2](x), network(2)(x))
    assert len(list(posterior)) == 4
    with pytest.raises(IndexError, match="sample 4 of 4"):
        posterior[4]


def test_predictions_can_be_used_in_training_and_memory_is_let_go() -> None:
    posterior, x = Posterior(bank(3), network()), inputs(10)
    found = posterior.predict(x, batch_size=1, device="cpu")  # enough batches to measure, hence to keep what was chosen
    line = nn.Linear(5, 1).double()
    line(found.probs).sum().backward()
    assert line.weight.grad is not None
    assert posterior.held is not None
    again = posterior.predict(x, batch_size=1, device="cpu")
    torch.testing.assert_close(again.probs, found.probs, rtol=0, atol=1e-7)
    posterior.release()
    assert posterior.held is None
    torch.testing.assert_close(posterior.predict(x, device="cpu").probs, found.probs, rtol=0, atol=1e-6)


def test_predict_leaves_the_callers_network_alone() -> None:
    model = network(7)
    before = copy.deepcopy(model.state_dict())
    Posterior(bank(3), model).predict(inputs(5), device="cpu")
    assert all(torch.equal(before[n], t) for n, t in model.state_dict().items())
    assert model.training
    assert all(p.requires_grad for p in model.parameters())


def test_slices_thinning_weights() -> None:
    posterior, x = Posterior(bank(6), network()), inputs(8)
    np.testing.assert_allclose(posterior[:2].predict(x, device="cpu").probs, by_hand(2, x), atol=1e-6)
    assert len(posterior[1:5]) == 4
    thinned = posterior.thin(4)  # samples 1 and 5: the last is always kept
    torch.testing.assert_close(thinned[1](x), posterior[5](x))
    torch.testing.assert_close(thinned[0](x), posterior[1](x))
    picked = posterior[[3, 0]]
    torch.testing.assert_close(picked[0](x), posterior[3](x))
    w = np.array([1.0, 2, 0, 0, 1, 0])
    np.testing.assert_allclose(posterior.weighted(w).predict(x, device="cpu").probs, by_hand(6, x, w / 4), atol=1e-6)
    np.testing.assert_allclose(posterior.weights, 1 / 6)
    half = posterior.weighted(w)[:2]
    np.testing.assert_allclose(half.weights, [1 / 3, 2 / 3])
    with pytest.raises(ValueError, match="at least 1"):
        posterior.thin(0)
    with pytest.raises(ValueError, match="one per sample"):
        posterior.weighted([1.0])


def test_chains_join_and_part() -> None:
    a, b = Posterior(bank(2), network()), Posterior(bank(4)[2:], network(), chains=[5, 6])
    both, x = Posterior.concat([a, b]), inputs(8)
    assert both.chains == (0, 0, 1, 2)
    np.testing.assert_allclose(both.predict(x, device="cpu").probs, by_hand(4, x), atol=1e-6)
    torch.testing.assert_close(both.chain(2)[0](x), network(3)(x))
    uneven = Posterior.concat([a[:1], b.weighted([3.0, 1.0])])
    np.testing.assert_allclose(uneven.weights, [1 / 3, 0.5, 1 / 6])
    other = Posterior([nn.Linear(2, 2).state_dict()], nn.Linear(2, 2))
    with pytest.raises(ValueError, match="another network"):
        Posterior.concat([a, other])
    with pytest.raises(ValueError, match="different inputs or classes"):
        Posterior.concat([a, Posterior(bank(1), network(), classes="abcde")])
    with pytest.raises(ValueError, match="nothing"):
        Posterior.concat([])


def test_networks_make_a_posterior_too() -> None:
    members = [network(i) for i in range(3)]
    x = inputs(4)
    posterior = Posterior(members, members[0])
    with torch.no_grad():
        members[0][0].weight.zero_()  # the posterior has its own copies
    np.testing.assert_allclose(posterior.predict(x, device="cpu").probs, by_hand(3, x), atol=1e-6)


def test_one_networks_state_again_and_again_is_noticed() -> None:
    model = network()
    with pytest.raises(ValueError, match="clone"):
        Posterior([model.state_dict(), model.state_dict()], model)


def test_sample_probs_and_evaluate() -> None:
    posterior, x = Posterior(bank(3), network()), inputs(12)
    rows = posterior.sample_probs(x, batch_size=5, device="cpu")
    assert rows.shape == (3, 12, 5)
    np.testing.assert_allclose(rows.double().mean(0), by_hand(3, x), atol=1e-6)
    torch.testing.assert_close(posterior.sample_probs(iter(x.split(5)), device="cpu"), rows)
    found = posterior.evaluate(x, torch.arange(12) % 5, device="cpu")
    assert found["samples"] == 3
    assert found["predictive"]["nll"] <= found["mean_single"]["nll"]


def test_an_empty_posterior_is_named() -> None:
    for nothing in ([], (), iter([]), nn.ModuleList()):
        with pytest.raises(ValueError, match="no samples in the list: a posterior takes at least one"):
            Posterior(nothing, network())
    empty = Posterior(bank(3), network())[3:]
    assert len(empty) == 0
    with pytest.raises(ValueError, match="no samples"):
        empty.predict(inputs(2), device="cpu")


def test_wrong_samples_and_wrong_inputs_are_named() -> None:
    state = bank(1)[0]
    short = {n: t for n, t in state.items() if n != "4.bias"}
    with pytest.raises(ValueError, match=r"lacks 4\.bias"):
        Posterior([short], network())
    with pytest.raises(ValueError, match="which the network lacks"):
        Posterior([{**state, "more": torch.zeros(1)}], network())
    with pytest.raises(ValueError, match=r"\[5, 64\] in the network"):
        Posterior([{**state, "4.weight": torch.zeros(5, 3)}], network())
    posterior = Posterior(bank(2), network())
    with pytest.raises(ValueError, match="at least one"):
        posterior.predict(torch.zeros(0, 1, 8, 8), device="cpu")
    with pytest.raises(ValueError, match="no examples"):
        posterior.predict([], device="cpu")
    with pytest.raises(ValueError, match="choose auto"):
        posterior.predict(inputs(2), strategy="magic", device="cpu")
    with pytest.raises(ValueError, match="batch_size"):
        posterior.predict(inputs(2), batch_size=-1, device="cpu")


def test_a_diverged_sample_is_named_and_a_bad_input_too() -> None:
    states = bank(3)
    states[1]["0.weight"][0] = float("nan")
    with pytest.raises(RuntimeError, match=r"sample 1 is not finite \(in 0\.weight\)"):
        Posterior(states, network()).predict(inputs(2), device="cpu")
    x = inputs(2)
    x[0] = float("inf")
    with pytest.raises(RuntimeError, match="inputs hold NaN"):
        Posterior(bank(2), network()).predict(x, device="cpu")


def test_extreme_logits_stay_probabilities() -> None:
    states = [{"weight": torch.tensor([[1e4], [-1e4]])}, {"weight": torch.tensor([[1e4], [-1e4]])}]
    found = Posterior(states, nn.Linear(1, 2, bias=False)).predict(torch.ones(1, 1), device="cpu")
    assert found.probs.tolist() == [[1.0, 0.0]]
    assert float(found.entropy) == 0.0
    assert float(found.epistemic) == 0.0


class Stubborn(nn.Module):
    """A network that cannot be vmapped: it looks at its data."""

    def __init__(self) -> None:
        super().__init__()
        self.line = nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.line(x)
        return y if float(y.detach().sum()) > 1e9 else y + 1.0


def test_what_cannot_be_vmapped_is_looped() -> None:
    model = Stubborn()
    posterior = Posterior([Stubborn().state_dict() for _ in range(3)], model)
    states = [dict(posterior.state(k)) for k in range(3)]
    assert choose(model, states, [1 / 3] * 3, posterior.to_probs, torch.ones(4, 3)) == "loop"
    assert len(posterior.predict(torch.ones(20, 3), batch_size=2, device="cpu")) == 20


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_every_way_agrees_on_a_gpu() -> None:
    posterior, x = Posterior(bank(5), network()), inputs(30)
    for strategy in ("auto", *STRATEGIES):
        for at_once in (None, 2):
            for batch in (30, 7):
                found = posterior.predict(x, batch, "cuda", strategy=strategy, samples_at_once=at_once)
                np.testing.assert_allclose(found.probs, by_hand(5, x), atol=2e-3)  # TF32 convolutions
                assert found.probs.device.type == "cpu"
    assert posterior.predict(x.cuda()).probs.is_cuda


def test_arrays_and_masks_choose_samples() -> None:
    posterior, x = Posterior(bank(4), network()), inputs(6)
    expected = posterior[[0, 3]].predict(x, device="cpu").probs
    mask = [True, False, False, True]
    for index in (np.array([0, -1]), torch.tensor([0, 3]), mask, np.array(mask), torch.tensor(mask)):
        torch.testing.assert_close(posterior[index].predict(x, device="cpu").probs, expected)
    torch.testing.assert_close(posterior[np.int64(2)](x), network(2)(x))
    torch.testing.assert_close(posterior[torch.tensor(2)](x), network(2)(x))
    assert len(posterior[[]]) == 0
    for wrong, error in (([4], IndexError), (mask[:2], IndexError), ([0.5], TypeError), (1.0, TypeError)):
        with pytest.raises(error):
            posterior[wrong]


def test_a_batch_of_nothing_is_refused() -> None:
    posterior = Posterior(bank(2), network())
    for ask in (posterior.predict, posterior.sample_probs):
        with pytest.raises(ValueError, match="batch_size must be at least 1"):
            ask(inputs(3), batch_size=0)


def test_what_cannot_be_predicted_is_named() -> None:
    posterior = Posterior(bank(2), network(), mean=(0.5,) * 3, std=(0.2,) * 3)
    with pytest.raises(ValueError, match="must be a tensor, an array"):
        posterior.predict("photo.png")
    with pytest.raises(ValueError, match="1 channels, the network takes 3"):
        posterior.predict(torch.zeros(2, 1, 4, 4, dtype=torch.uint8), device="cpu")
    with pytest.raises(ValueError, match="'graph' is for CUDA"):
        posterior.predict(inputs(), strategy="graph", device="cpu")
    with pytest.raises(ValueError, match="CUDA devices"):
        posterior.predict(inputs(), device="cuda:99")


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_a_network_of_another_precision_gets_inputs_of_it(dtype: torch.dtype) -> None:
    nets, x = [network(i).to(dtype) for i in range(3)], inputs()
    posterior = Posterior(nets, nets[0])
    close = 1e-6 if dtype == torch.float64 else 0.05
    np.testing.assert_allclose(posterior.predict(x, device="cpu").probs, by_hand(3, x), atol=close)
    np.testing.assert_allclose(posterior.sample_probs(x, device="cpu").mean(0), by_hand(3, x), atol=close)
    line = nn.Linear(4, 1).to(dtype)
    estimate = Posterior([line, line], line, likelihood=Gaussian(0.5)).regress(torch.ones(3, 4), device="cpu")
    assert estimate.mean.shape == (3, 1)


def test_whole_numbers_are_left_to_a_network_that_looks_them_up() -> None:
    net = nn.Sequential(nn.Embedding(10, 4), nn.Flatten(), nn.Linear(20, 3))
    words = torch.randint(10, (6, 5))
    found = Posterior([net], net).predict(words, device="cpu").probs
    np.testing.assert_allclose(found, net(words).detach().double().softmax(-1), atol=1e-6)
    plain = nn.Linear(5, 3)
    assert Posterior([plain], plain).predict(words, device="cpu").probs.shape == (6, 3)  # numbers like any others


def test_one_output_is_no_class() -> None:
    line = nn.Linear(4, 1)
    posterior = Posterior([line, line], line)
    for ask in (posterior.predict, posterior.sample_probs):
        with pytest.raises(ValueError, match=r"one output, .*likelihoods\.Gaussian"):
            ask(torch.ones(3, 4), device="cpu")
    flat = nn.Sequential(line, nn.Flatten(0))
    with pytest.raises(ValueError, match="one output"):
        Posterior([flat], flat).predict(torch.ones(3, 4), device="cpu")
    with pytest.raises(ValueError, match=r"likelihood=atmc\.likelihoods\.Gaussian\(scale\)"):
        posterior.regress(torch.ones(3, 4))


def test_samples_collected_by_hand_are_looked_at() -> None:
    net, states = network(), bank(3)
    for several in ((network(i) for i in range(3)), nn.ModuleList([network(i) for i in range(3)])):
        assert len(Posterior(several, net)) == 3
    for wrong, words in (
        ([torch.zeros(5)] * 2, "sample 0 must be a state dict or a network, not Tensor"),
        (states[0], "a list of state dicts or of networks, not one dict"),
        (net, "not one Sequential"),
        ([{n: t.numpy() for n, t in states[0].items()}], "0.weight of sample 0 must be a tensor, not ndarray"),
        ([states[0], {n: t for n, t in states[1].items() if n != "4.bias"}], "lacks 4.bias"),
        ([network(), nn.Linear(4, 3)], "lacks 0.weight"),
    ):
        with pytest.raises(ValueError, match=words):
            Posterior(wrong, net)


@pytest.mark.parametrize("prefix", ["module.", "_orig_mod."])
def test_samples_of_a_wrapped_network_are_told(prefix: str) -> None:
    states = [{prefix + n: t for n, t in state.items()} for state in bank(2)]
    with pytest.raises(ValueError, match=rf"differ by the '{prefix}' that .*network inside"):
        Posterior(states, network())
    if prefix == "_orig_mod.":
        with pytest.raises(ValueError, match="network inside"):
            Posterior(bank(2), torch.compile(network()))


def test_what_is_frozen_may_be_shared_by_samples() -> None:
    states = bank(3)
    shared = [{n: states[0][n] if n.startswith("0") else t for n, t in state.items()} for state in states]
    assert len(Posterior(shared, network())) == 3
    meta = [{n: t.to("meta") for n, t in state.items()} for state in states]  # without memory none is shared
    assert len(Posterior(meta, network())) == 3
    with pytest.raises(ValueError, match="share memory"):
        Posterior([states[0], dict(states[0])], network())
