"""Spelling suggestions: the same for every kind of name."""

import pytest

import atmc
from atmc.common.errors import InputError
from atmc.common.suggest import close_matches, did_you_mean


def test_the_nearest_name_in_its_own_spelling_whatever_the_case() -> None:
    assert close_matches("DIGITS-sgd", ["Digits-SGD", "digits-sgld"]) == ["Digits-SGD"]
    assert close_matches("sgdl", ["sgd", "sgld", "atmc"], count=2) == ["sgd", "sgld"]
    assert close_matches("qqq", ["sgd", "sgld"]) == []


def test_a_line_ends_with_the_nearest_or_with_all_there_are() -> None:
    assert did_you_mean("lapace", ["laplace", "gaussian"]) == "did you mean laplace?"
    assert did_you_mean("x", ["laplace", "gaussian"]) == "there are laplace, gaussian"
    assert did_you_mean("x", []) == "there are none"


@pytest.mark.parametrize(
    ("ask", "near"),
    [
        (lambda: atmc.nn.build("Resnetp"), "resnetpp"),
        (lambda: atmc.priors.build("LAPLACE"), "laplace"),
        (lambda: atmc.likelihoods.build("dirclp"), "dirclip"),
        (lambda: atmc.data.load("CIFAR10"), "cifar10"),
    ],
)
def test_networks_priors_likelihoods_and_data_say_it_alike(ask, near: str) -> None:
    with pytest.raises(InputError, match=rf"^unknown [a-z ]+ '\w+'; did you mean {near}\?$"):
        ask()
