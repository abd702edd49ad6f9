"""What docs/cifar10.md tells of more heat, T = .05, is what is kept."""

from __future__ import annotations

import itertools
import tomllib
from typing import Any

import numpy as np
import pytest

from atmc.diagnose.convergence import gain_of_pairs

from .rescored import RESULTS, ROOT, ahead, costs, limit
from .test_controls import CHAINS, by_chain, of_places, scores_of_chains, with_error
from .told import TEXT, bare, between, p_of, said_by_runs, said_of, table_after

BY_T = {"0": "atmc-zero", ".02": "atmc-settled", ".05": "atmc-settled-T0.05"}


@pytest.fixture(scope="module")
def kept(explored) -> dict[str, list[dict[str, Any]]]:
    return said_by_runs(explored, BY_T)


def alone(samples: list[dict[str, Any]]) -> np.ndarray:
    """The mean NLL of a chain's samples by themselves, of each chain."""
    return np.array([np.mean([s["single nll"] for s in samples if s["chain"] == c]) for c in range(CHAINS)])


def rise(samples: list[dict[str, Any]]) -> np.ndarray:
    """By how much the NLL rises from the first sample of a place to the second, of each chain."""
    nll = {(s["chain"], round(s["epoch"])): s["single nll"] for s in samples}
    ends = (100, 150, 200, 250)
    return np.array([np.mean([nll[c, end - 1] - nll[c, end - 2] for end in ends]) for c in range(CHAINS)])


def test_the_warmer_row_differs_in_its_temperature_only():
    one, two = (tomllib.loads((RESULTS / f"{BY_T[key]}.toml").read_text(encoding="utf-8")) for key in (".02", ".05"))
    assert [one["sampler"].pop("temperature"), two["sampler"].pop("temperature")] == [0.02, 0.05]
    assert one == two


def test_scores_by_temperature_are_those_of_the_probabilities(labels, kept):
    found = table_after("### Warmer: T = .05")
    assert [cells[0] for cells in found] == list(BY_T)
    for of, single, place, two, three, chain, together, many in found:
        row, samples = BY_T[of], kept[of]
        means = {f"single {score}": np.mean([s[f"single {score}"] for s in samples]) for score in ("accuracy", "nll")}
        assert single == bare(f"{100 * means['single accuracy']:.2f} / {means['single nll']:.3f}"), of
        places = of_places(row)
        assert place == with_error(costs(places).mean((1, 2)), 4), of
        for said, n in ((two, 2), (three, 3)):  # of other chains, in the same cycle
            some = [places[list(chains)].mean(0) for chains in itertools.combinations(range(CHAINS), n)]
            assert said == bare(f"{np.mean([costs(each).mean() for each in some]):.4f}"), of
        nll, right = scores_of_chains(row, labels)
        assert chain == f"{with_error(right, 2)} / {with_error(nll, 4)}", of
        mean = by_chain(row).mean((0, 1))
        assert together == bare(f"{100 * np.mean(mean.argmax(-1) == labels):.2f} / {costs(mean).mean():.3f}"), of
        assert many == bare(f"{limit(places.reshape(-1, *mean.shape))[0]:.3f}"), of


def test_what_heat_does_in_a_place_and_in_the_average(labels, kept):
    zero, warm = (costs(of_places(BY_T[key])).mean((1, 2)) for key in ("0", ".05"))
    assert warm.max() < zero.min()  # "in each of four chains", as docs/temperature.md says
    single = alone(kept["0"]), alone(kept[".05"])
    words = f"have {between(zero, warm, 4)} less NLL together than three points of SGD, and a sample alone has "
    assert f"{words}{between(*single, 4)} less (four chains each, p = " in TEXT
    assert bare(f"p = {p_of(zero, warm):.4f} and {p_of(*single):.4f} if they are normal, and 1 in 70") in TEXT
    rises = [rise(kept[key]) for key in ("0", ".05")]
    words = bare(f"rises by {rises[0].mean():.4f} from the first to the second; at T = .05 by ")
    assert f"{words}{with_error(rises[1], 4)}." in TEXT
    gains = []
    for key in ("0", ".05"):
        flat = of_places(BY_T[key]).swapaxes(0, 1).reshape(-1, len(labels), 10)
        gains.append(gain_of_pairs(flat, labels, list(range(CHAINS)) * 4, orders=1).two)
    assert bare(f"two of two chains gain {gains[1]:.4f}, those of SGD {gains[0]:.4f}.") in TEXT
    (nll, right), (other, less) = (scores_of_chains(BY_T[key], labels) for key in ("0", ".05"))
    nll_all, points = ahead(BY_T["0"], BY_T[".05"])
    assert f"four of a chain {between(other, nll, 4)} behind, all sixteen " in TEXT
    assert f"all sixteen {nll_all}; and in accuracy they are behind by {points} points" in TEXT
    assert bare(f"(by chains {between(right, less, 2)}, p = {p_of(right, less):.3f})") in TEXT
    assert f"T = .05 and .02 are level ({ahead(BY_T['.02'], BY_T['.05'])[0]})" in TEXT
    momenta, positions = (
        np.array([s[f"{kind}_temperature"] for s in kept[".05"]]) / 0.05 for kind in ("kinetic", "configurational")
    )
    error = positions.std(ddof=1) / len(positions) ** 0.5
    said = f"(momenta {momenta.mean():.2f} T, positions {positions.mean():.2f} ± {error:.2f})"
    assert said.replace("± 0.", "± .") in TEXT


def test_what_is_said_of_heat_in_short(rows):
    row = rows["atmc-settled-T0.05", "posterior predictive"]
    assert f"At T = .05 they have {said_of(row)}; there the three samples of a place" in TEXT
    places = [costs(of_places(BY_T[key])).mean() for key in (".05", "0")]
    assert bare("of a place have {:.3f} together where SGD's points have {:.3f} (test)".format(*places)) in TEXT
    page = " ".join((ROOT / "docs" / "temperature.md").read_text(encoding="utf-8").split())
    words = "three samples of a place have an NLL of {:.3f} together where three points of SGD have {:.3f}"
    assert bare(words.format(*places)) in page
    assert bare(f"over all sixteen places {row['nll']:.3f}") in page
