"""`atmc.compare` and `atmc compare`: the same compute for all, one table, one verdict."""

import json
import re
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import atmc
from atmc.common.errors import InputError
from atmc.comparison.compare import METHODS
from atmc.comparison.table_file import read_table

sys.path.insert(0, str(Path(__file__).parents[1] / "cli"))
from shell import atmc as shell

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")


def table(path, rows=120, words=False, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(rows, 2))
    price = 100 + 30 * x[:, 0] + 5 * rng.normal(size=rows)
    lines = ["size,town,age,price"]
    for i in range(rows):
        cell = ("high" if price[i] > 100 else "low") if words else f"{price[i]:.3f}"
        lines.append(f"{x[i, 0]:.4f},{'ab'[i % 2]},{x[i, 1]:.4f},{cell}")
    path.write_text("\n".join(lines) + "\n")
    return path


def test_all_methods_have_the_same_compute_and_a_row(tmp_path):
    train, test = atmc.data.load("digits?train=300", "train"), atmc.data.load("digits?train=300", "test")
    said = []
    found = atmc.compare(atmc.nn.mlp(depth=2, width=16), train, test=test, epochs=20, tell=said.append)
    rows = found.table()
    assert [row["method"] for row in rows] == list(METHODS)
    assert said == ["ATMC", *METHODS[:-1]]
    assert found.examples == 1497
    gradients = [row["gradients"] for row in rows]
    assert max(gradients) <= 1.02 * min(gradients), gradients
    for row in rows:
        assert row["seconds"] > 0
        low, high = row["intervals"]["accuracy"]
        assert low < row["accuracy"] < high
        assert row["accuracy"] > 0.5
    assert found.verdict[0].split()[0] in ("Cannot", "ATMC", "Deep", "SGD", "SWA", "SWAG", "MC", "Last-layer")
    assert "deep ensemble" in str(found)
    json.dumps(rows)


def test_without_a_test_set_a_fifth_is_held_out_and_unfit_methods_are_left_out():
    torch.manual_seed(0)
    x = torch.randn(100, 3)
    y = (x[:, 0] > 0).long()
    net = torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.Tanh(), torch.nn.Linear(8, 2), torch.nn.Tanh())
    found = atmc.compare(net, (x, y), epochs=20, methods=["sgd", "last-layer laplace"])
    assert found.examples == 20
    assert [row.method for row in found.rows] == ["SGD", "ATMC"]
    assert found.left_out == {"last-layer Laplace": "the network does not end in a linear layer"}


def test_repeats_are_seeds_of_their_own():
    torch.manual_seed(0)
    x = torch.randn(80, 3)
    found = atmc.compare(torch.nn.Linear(3, 2), (x, (x[:, 0] > 0).long()), epochs=20, methods=["SGD"], repeats=2)
    one, two = (spread["nll"].value for spread in found.rows[-1].spreads)
    assert one != two
    assert found.rows[-1].score("nll") == pytest.approx((one + two) / 2)


def test_an_unknown_method_is_named():
    with pytest.raises(InputError, match="did you mean 'deep ensemble'"):
        atmc.compare(torch.nn.Linear(2, 2), (torch.randn(60, 2), torch.zeros(60).long()), methods=["deep ensembel"])


def numbers(rows=120, noise=5.0, seed=0):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, 2, generator=generator)
    return x, 100 + 30 * x[:, 0] + noise * torch.randn(rows, generator=generator)


def test_every_method_learns_the_noise_of_a_regression_in_its_own_units():
    """Targets of mean 100 with noise of 5: an RMSE near 5, and an NLL near the entropy log(5 √(2πe)) = 3.03."""
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(2, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
    found = atmc.compare(net, numbers(200), test=numbers(400, seed=1), epochs=60)
    rows = found.table()
    assert [row["method"] for row in rows] == ["Adam", *METHODS[1:]]
    assert {row["gradients"] for row in rows} == {rows[0]["gradients"]}
    for row in rows:
        assert 4.5 < row["rmse"] < 6.5, row
        assert 2.9 < row["nll"] < 3.5, row
        low, high = row["intervals"]["coverage90"]
        assert low < row["coverage90"] < high
    assert "trained by Adam" in found.verdict[1]
    assert rows[0]["how"] == "one network, Adam, cosine"


@pytest.mark.parametrize("likelihood", ["heteroscedastic", "student-t"])
def test_other_noises_are_shared_by_all_methods(likelihood):
    torch.manual_seed(0)
    net = torch.nn.Sequential(
        torch.nn.Linear(2, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1 + (likelihood == "heteroscedastic"))
    )
    methods = ["SGD", "MC dropout", "last-layer Laplace"]
    found = atmc.compare(net, numbers(), epochs=8, methods=methods, likelihood=likelihood)
    assert found.left_out == {}
    assert all(4 < row["rmse"] < 12 and row["nll"] < 4.5 for row in found.table()), found.table()


def test_a_likelihood_of_ones_own_is_refused():
    class Own:
        def nll(self, outputs, y):
            return (outputs[:, 0] - y).square()

    with pytest.raises(InputError, match="not one of your own"):
        atmc.compare(torch.nn.Linear(2, 1), numbers(), likelihood=Own())


def test_a_table_of_numbers_from_the_command_line(tmp_path):
    path = table(tmp_path / "prices.csv")
    result = shell("compare", path, "--epochs", "3", "--method", "SWAG")
    assert result.code == 0, result
    assert "96 training and 24 test rows of 4 columns, to predict a number, whose noise is" in result.out
    assert "RMSE" in result.out
    assert "SWAG" in result.out
    found = json.loads(shell("compare", path, "--epochs", "20", "--method", "SGD", "--json").out)
    assert found["task"] == "regression"
    assert [row["method"] for row in found["rows"]] == ["Adam", "ATMC"]
    assert all(3 < row["rmse"] < 15 for row in found["rows"]), "in the units of the price"
    assert found["verdict"]


def test_a_recipe_from_the_command_line():
    sets = (
        "schedule.epochs=12",
        "schedule.cycle_epochs=4",
        "schedule.burn_in_epochs=4",
        "schedule.warm_start_epochs=2",
    )
    words = [word for setting in sets for word in ("--set", setting)]
    found = json.loads(shell("compare", "digits-atmc", *words, "--method", "SGD", "--json").out)
    sgd, sampled = found["rows"]
    assert sampled["how"] == "2 samples"
    assert sampled["gradients"] == 14 * 200
    assert sgd["gradients"] >= sampled["gradients"]
    assert shell("compare", "digits-sgd").code == 2
    assert "for a table" in shell("compare", "digits-atmc", "--target", "x").err


def test_a_table_is_split_standardised_and_its_words_are_columns(tmp_path):
    found = read_table(table(tmp_path / "t.csv"), "price")
    (x, y), (held, _) = found.train, found.test
    assert (len(x), len(held), found.columns) == (96, 24, 4)
    torch.testing.assert_close(x[:, 0].mean(), torch.tensor(0.0), atol=1e-5, rtol=0)
    assert 90 < float(y.mean()) < 110, "targets stay in their own units"
    assert set(x[:, 1].tolist()) == {0.0, 1.0}
    classes = read_table(table(tmp_path / "c.csv", words=True), "price")
    assert classes.classes == ("high", "low")
    assert classes.train[1].dtype == torch.int64


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a,b\n1,2\n", "0 complete rows|1 complete rows"),
        ("1,2\n3,4\n", "begins with numbers"),
        ("a,b\n1\n", "row 2 has 1 cells"),
        ("a\n1\n", "at least two columns"),
        ("", "at least two columns"),
        ("a,b\n" + "x,1.5\n" * 60, "is the same in every row"),
        ("a,b\n" + "".join(f"w{i},{i}.5\n" for i in range(60)), "60 different words"),
    ],
)
def test_a_table_that_cannot_be_used_is_one_line(tmp_path, text, said):
    path = tmp_path / "bad.csv"
    path.write_text(text)
    with pytest.raises(InputError, match=said):
        read_table(path, None)


def test_a_wrong_column_and_a_missing_file(tmp_path):
    with pytest.raises(InputError, match="did you mean price"):
        read_table(table(tmp_path / "t.csv"), "pirce")
    with pytest.raises(InputError, match="cannot be read as a table"):
        read_table(tmp_path / "none.csv", None)
    lines = table(tmp_path / "gaps.csv").read_text().splitlines()
    lines[5] = "NA," + lines[5].partition(",")[2]
    (tmp_path / "gaps.csv").write_text("\n".join(lines))
    assert read_table(tmp_path / "gaps.csv", None).dropped == 1


def test_the_page_has_the_numbers_of_results():
    root = Path(__file__).parents[2]
    page = (root / "docs/tutorials/compare.md").read_text(encoding="utf-8")
    digits, diabetes = (
        json.loads((root / f"results/compare/{name}.json").read_text(encoding="utf-8"))
        for name in ("digits", "diabetes")
    )
    for one, two in zip(digits["rows"], diabetes["rows"], strict=True):
        cells = [f"{100 * one['accuracy']:.1f}", f"{one['nll']:.3f}", f"{one['ece']:.3f}", f"{two['rmse']:.3g}"]
        cells += [f"{two['nll']:.3f}", f"{100 * two['coverage90']:.1f}"]
        assert f"| {one['method']} | {' | '.join(cells)} |" in page
    for found in (digits, diabetes):
        gain, half = re.search(r"by ([\d.]+) (?:.* )?± ([\d.]+\d)", found["verdict"][0]).groups()
        assert f"{gain} ± {half}" in page
        assert f"{found['rows'][0]['gradients']:,}" in page
        gradients = [row["gradients"] for row in found["rows"]]
        assert max(gradients) <= 1.001 * min(gradients), "equal compute"
