"""The verbs and their options, and nothing else: each verb's work is in a file of its own, imported when it is called.

One file for all signatures, so that `atmc --help` imports no verb, and so that options mean the same on every verb.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(
    name="atmc",
    help="Bayesian deep learning by sampling: train by drawing networks from the posterior, predict with all of them.",
    epilog="Start here: atmc demo",
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)
data = typer.Typer(help="Data sets: what there is, and getting it.", pretty_exceptions_enable=False)
app.add_typer(data, name="data", epilog="Example: atmc data get cifar10")

Run = Annotated[Path, typer.Argument(metavar="RUN", help="A run directory, as atmc sample makes it.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print the result as JSON on stdout.")]
Device = Annotated[str | None, typer.Option(metavar="DEVICE", help="cpu, cuda or cuda:1; chosen by itself otherwise.")]


def _version(asked: bool) -> None:
    if asked:
        from atmc import __version__

        typer.echo(f"atmc {__version__}")
        raise typer.Exit(0)


@app.callback(invoke_without_command=True)
def top(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


@data.callback(invoke_without_command=True)
def data_top(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


@app.command(epilog="Example: atmc demo --out my-first-run")
def demo(
    out: Annotated[Path, typer.Option(metavar="DIR", help="Where the runs and the report go.")] = Path("atmc-demo"),
    seed: Annotated[int, typer.Option(help="Another seed, another chain.")] = 0,
    as_json: AsJson = False,
) -> int:
    """The whole story in about a minute: sample digits on the CPU, train SGD beside it, compare, write the report."""
    from atmc.cli.demo import demo as verb

    return verb(out, seed=seed, as_json=as_json)


@app.command(epilog="Example: atmc sample digits-atmc --out runs/first --set sampler.temperature=0.5 --time-budget 600")
def sample(
    recipe: Annotated[
        str,
        typer.Argument(
            metavar="RECIPE",
            help="A TOML file, a recipe's name, a run to go on with, or folder:PATH for pictures of your own "
            "(a sub-folder for each class).",
        ),
    ],
    out: Annotated[Path | None, typer.Option(metavar="RUN", help="The run directory; runs/NAME otherwise.")] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Change one setting.")
    ] = None,
    time_budget: Annotated[
        float | None, typer.Option(metavar="SECONDS", help="Stop cleanly then (exit code 3).")
    ] = None,
    as_json: AsJson = False,
) -> int:
    """Run a recipe; where its run directory exists, go on exactly where it stopped. Ctrl-C loses nothing."""
    from atmc.cli.sample import sample as verb

    return verb(recipe, out=out, settings=settings or [], time_budget=time_budget, as_json=as_json)


@app.command(epilog="Example: atmc evaluate runs/first --json")
def evaluate(
    run: Run,
    on: Annotated[str | None, typer.Option(metavar="DATASET", help="Another data set, or folder:PATH.")] = None,
    split: Annotated[str, typer.Option(help="test, validation or train.")] = "test",
    device: Device = None,
    as_json: AsJson = False,
) -> int:
    """Accuracy, NLL, Brier and ECE of the last sample and of the posterior predictive.

    For a regression: RMSE, NLL of the density and coverage of the 90 % interval.
    """
    from atmc.cli.evaluate import evaluate as verb

    return verb(run, on=on, split=split, device=device, as_json=as_json)


@app.command(epilog="Example: atmc report runs/atmc runs/sgd --out table.html --figures figures")
def report(
    runs: Annotated[
        list[Path], typer.Argument(metavar="RUN...", help="Run directories; several make the paper's table.")
    ],
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="RUN/report.html otherwise, or report.html for several.")
    ] = None,
    figures: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Also the plots as SVG and PNG, the table as files.")
    ] = None,
    strangers: Annotated[
        list[str] | None,
        typer.Option(
            "--ood", metavar="DATASET", help="Doubt on other images: letters, noise, scrambled, or a data set."
        ),
    ] = None,
    as_json: AsJson = False,
) -> int:
    """One self-contained HTML page: verdict, table, calibration, traces, and the images it doubts."""
    from atmc.cli.report import report as verb

    return verb(runs, out=out, figures=figures, strangers=strangers or [], as_json=as_json)


@app.command(epilog="Example: atmc predict runs/first photo.png scans/*.jpg --json")
def predict(
    run: Run,
    images: Annotated[list[Path], typer.Argument(metavar="IMAGE...", help="Image files of any kind.")],
    top: Annotated[int, typer.Option(min=1, help="How many classes to name for each image.")] = 3,
    size: Annotated[str | None, typer.Option(metavar="WxH", help="For a saved posterior that does not say it.")] = None,
    invert: Annotated[
        bool, typer.Option("--invert", help="Swap dark and light first (ink on paper, for digits).")
    ] = False,
    device: Device = None,
    as_json: AsJson = False,
) -> int:
    """Class, probability, and how much of the doubt is the model's, for each image.

    An image that cannot be read gets one line, and the others are still predicted; the exit code is then 1, and 2 where
    none could be read.
    """
    from atmc.cli.predict import predict as verb

    return verb(run, images, top=top, size=size, invert=invert, device=device, as_json=as_json)


@app.command(epilog="Example: atmc doctor runs/first")
def doctor(run: Run, as_json: AsJson = False) -> int:
    """Is this chain healthy? Temperatures, thermostat, R-hat, effective samples, and what to change."""
    from atmc.cli.doctor import doctor as verb

    return verb(run, as_json=as_json)


@app.command(epilog="Example: atmc export runs/first exported --no-onnx")
def export(
    run: Run,
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="A new folder for the exported posterior.")],
    onnx: Annotated[bool, typer.Option(help="Also one ONNX file that averages the samples.")] = True,
    as_json: AsJson = False,
) -> int:
    """Samples as safetensors with one JSON file, and an ONNX graph of the predictive, checked against PyTorch.

    The ONNX graph is for classifiers; of a regression --no-onnx exports the samples.
    """
    from atmc.cli.export import export as verb

    return verb(run, folder, onnx=onnx, as_json=as_json)


@app.command(epilog="Example: atmc distill runs/first runs/first-student --epochs 50")
def distill(
    run: Run,
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="A new folder for the distilled network.")],
    epochs: Annotated[int, typer.Option(min=1, help="Passes over the training images.")] = 30,
    as_json: AsJson = False,
) -> int:
    """One network that matches the predictive of all samples, for when many forward passes are too many.

    For classifiers only.
    """
    from atmc.cli.distill import distill as verb

    return verb(run, folder, epochs=epochs, as_json=as_json)


@data.command("list", epilog="Example: atmc data list --json")
def data_list(as_json: AsJson = False) -> int:
    """The data sets that atmc knows, and whether they are here."""
    from atmc.cli.data import data_list as verb

    return verb(as_json=as_json)


@data.command("get", epilog="Example: atmc data get cifar10 --from ~/Downloads/cifar-10-binary.tar.gz")
def data_get(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A name from atmc data list.")],
    source: Annotated[
        str | None, typer.Option("--from", metavar="PATH", help="A copy that is already on this machine.")
    ] = None,
    root: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Where data sets are kept; ATMC_DATA otherwise.")
    ] = None,
    as_json: AsJson = False,
) -> int:
    """Fetch and verify a data set; a half-finished or altered download is never used."""
    from atmc.cli.data import data_get as verb

    return verb(name, source=source, root=root, as_json=as_json)
