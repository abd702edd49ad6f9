"""All commands and their options; each command's code is imported when it is called, so that `--help` is fast."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(
    name="atmc",
    help="Bayesian deep learning by SG-MCMC: sample networks from the posterior and average their predictions.",
    epilog="Start here: atmc demo",
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)
data = typer.Typer(help="List and download data sets.", pretty_exceptions_enable=False)
app.add_typer(data, name="data", epilog="Example: atmc data get cifar10")

Run = Annotated[Path, typer.Argument(metavar="RUN", help="A run directory made by atmc sample.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print the result as JSON on stdout.")]
Device = Annotated[str | None, typer.Option(metavar="DEVICE", help="cpu, cuda or cuda:N; default: CUDA if available.")]

Shift = Annotated[
    str | None, typer.Option(metavar="corruptions", help="Score corrupted test images: noise, blur, JPEG, fog, …")
]


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
    out: Annotated[Path, typer.Option(metavar="DIR", help="Folder for the runs and the report.")] = Path("atmc-demo"),
    seed: Annotated[int, typer.Option(help="Random seed.")] = 0,
    as_json: AsJson = False,
) -> int:
    """Sample a small network on handwritten digits, compare it with SGD and write a report; about a minute on a CPU."""
    from atmc.cli.demo import demo as verb

    return verb(out, seed=seed, as_json=as_json)


@app.command(epilog="Example: atmc sample digits-atmc --out runs/first --set sampler.temperature=0.5 --time-budget 600")
def sample(
    recipe: Annotated[
        str,
        typer.Argument(
            metavar="RECIPE",
            help="A TOML file, a recipe's name, a run to resume, or folder:PATH with a sub-folder of images per class.",
        ),
    ],
    out: Annotated[Path | None, typer.Option(metavar="RUN", help="The run directory; default runs/NAME.")] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Override one setting.")
    ] = None,
    time_budget: Annotated[
        float | None, typer.Option(metavar="SECONDS", help="Stop after this time (exit code 3).")
    ] = None,
    as_json: AsJson = False,
) -> int:
    """Run a recipe, or resume its run exactly where it stopped. Ctrl-C loses nothing."""
    from atmc.cli.sample import sample as verb

    return verb(recipe, out=out, settings=settings or [], time_budget=time_budget, as_json=as_json)


@app.command(epilog="Example: atmc evaluate runs/first --json")
def evaluate(
    run: Run,
    on: Annotated[str | None, typer.Option(metavar="DATASET", help="Another data set, or folder:PATH.")] = None,
    split: Annotated[str, typer.Option(help="test, validation or train.")] = "test",
    shift: Shift = None,
    device: Device = None,
    as_json: AsJson = False,
) -> int:
    """Score the last sample and the posterior predictive.

    Classification: accuracy, NLL, Brier, ECE. Regression: RMSE, NLL, coverage of the 90 % interval.
    """
    from atmc.cli.evaluate import evaluate as verb

    return verb(run, on=on, split=split, shift=shift, device=device, as_json=as_json)


@app.command(epilog="Example: atmc report runs/atmc runs/sgd --out table.html --figures figures")
def report(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Run directories to compare.")],
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Default RUN/report.html, or report.html for several runs.")
    ] = None,
    figures: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Also save plots and tables as files here.")
    ] = None,
    ood: Annotated[
        list[str] | None,
        typer.Option("--ood", metavar="DATASET", help="OOD images: letters, noise, scrambled, or a data set."),
    ] = None,
    shift: Shift = None,
    as_json: AsJson = False,
) -> int:
    """Write a self-contained HTML page: scores, calibration, uncertain images, OOD inputs, traces, diagnostics."""
    from atmc.cli.report import report as verb

    return verb(runs, out=out, figures=figures, ood=ood or [], shift=shift, as_json=as_json)


@app.command(epilog="Example: atmc compare prices.csv --target price    or: atmc compare folder:pictures")
def compare(
    source: Annotated[
        str, typer.Argument(metavar="DATA", help="A .csv table, a recipe, or folder:PATH with images of each class.")
    ],
    target: Annotated[
        str | None, typer.Option(metavar="COLUMN", help="The column of a table to predict; default the last.")
    ] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Override one setting of a recipe.")
    ] = None,
    epochs: Annotated[int | None, typer.Option(min=1, help="Epochs of the sampler; all get what these cost.")] = None,
    method: Annotated[
        list[str] | None, typer.Option("--method", metavar="NAME", help="Only some of the methods; may be repeated.")
    ] = None,
    repeats: Annotated[int, typer.Option(help="Seeds to repeat all of it with.")] = 1,
    seed: Annotated[int, typer.Option(help="Random seed.")] = 0,
    as_json: AsJson = False,
) -> int:
    """Compare ATMC with SGD, deep ensemble, SWA, SWAG, MC dropout and last-layer Laplace at equal compute."""
    from atmc.cli.compare import compare as verb

    return verb(
        source,
        target=target,
        settings=settings or [],
        epochs=epochs,
        methods=method or [],
        repeats=repeats,
        seed=seed,
        as_json=as_json,
    )


@app.command(epilog="Example: atmc predict runs/first photo.png scans/*.jpg --json")
def predict(
    run: Run,
    images: Annotated[list[Path], typer.Argument(metavar="IMAGE...", help="Image files, or folders of them.")],
    top: Annotated[int, typer.Option(min=1, help="Classes to print for each image.")] = 3,
    size: Annotated[str | None, typer.Option(metavar="WxH", help="Image size of a saved posterior without it.")] = None,
    invert: Annotated[
        bool, typer.Option("--invert", help="Invert brightness first (ink on paper, for digits).")
    ] = False,
    device: Device = None,
    as_json: AsJson = False,
) -> int:
    """Predict the class of each image, with its probability and uncertainty.

    The exit code is 1 if some images cannot be read, and 2 if none can.
    """
    from atmc.cli.predict import predict as verb

    return verb(run, images, top=top, size=size, invert=invert, device=device, as_json=as_json)


@app.command(epilog="Example: atmc serve runs/first --port 8000")
def serve(
    run: Run,
    host: Annotated[str, typer.Option(help="The address to listen at.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="The port; 0 takes any that is free.")] = 8000,
    allow_remote: Annotated[bool, typer.Option("--allow-remote", help="Let other machines in; needs a token.")] = False,
    token: Annotated[
        str | None, typer.Option(envvar="ATMC_TOKEN", help="Every request must have it; at least 16 characters.")
    ] = None,
) -> int:
    """Serve a page on this machine to try the model on: drop an image or type a row of numbers."""
    from atmc.cli.serve import serve as verb

    return verb(run, host=host, port=port, allow_remote=allow_remote, token=token)


@app.command(epilog="Example: atmc doctor runs/first")
def doctor(run: Run, as_json: AsJson = False) -> int:
    """Check the convergence of a run: temperatures, thermostat, R-hat, effective sample size, and what to change."""
    from atmc.cli.doctor import doctor as verb

    return verb(run, as_json=as_json)


@app.command(epilog="Example: atmc export runs/first exported --no-onnx")
def export(
    run: Run,
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="A new folder for the exported posterior.")],
    onnx: Annotated[bool, typer.Option(help="Also an ONNX graph of the predictive.")] = True,
    as_json: AsJson = False,
) -> int:
    """Export the samples as safetensors, and an ONNX graph of the predictive (classifiers only)."""
    from atmc.cli.export import export as verb

    return verb(run, folder, onnx=onnx, as_json=as_json)


@app.command(epilog="Example: atmc distill runs/first runs/first-student --epochs 50")
def distill(
    run: Run,
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="A new folder for the distilled network.")],
    epochs: Annotated[int, typer.Option(min=1, help="Passes over the training images.")] = 30,
    as_json: AsJson = False,
) -> int:
    """Train one network to match the predictive of all samples (classifiers only)."""
    from atmc.cli.distill import distill as verb

    return verb(run, folder, epochs=epochs, as_json=as_json)


@data.command("list", epilog="Example: atmc data list --json")
def data_list(as_json: AsJson = False) -> int:
    """List the data sets and whether they are downloaded."""
    from atmc.cli.data import data_list as verb

    return verb(as_json=as_json)


@data.command("get", epilog="Example: atmc data get cifar10 --from ~/Downloads/cifar-10-binary.tar.gz")
def data_get(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A name from atmc data list.")],
    source: Annotated[
        str | None, typer.Option("--from", metavar="PATH", help="A local copy to use instead of downloading.")
    ] = None,
    root: Annotated[Path | None, typer.Option(metavar="DIR", help="Folder for data sets; default ATMC_DATA.")] = None,
    as_json: AsJson = False,
) -> int:
    """Download and verify a data set."""
    from atmc.cli.data import data_get as verb

    return verb(name, source=source, root=root, as_json=as_json)


@data.command("shard", epilog="Example: atmc data shard ~/imagenet shards/imagenet --megabytes 256")
def data_shard(
    folder: Annotated[
        Path, typer.Argument(metavar="FOLDER", help="train/CLASS and val/CLASS, CLASS alone, or ImageNet's tar files.")
    ],
    out: Annotated[Path, typer.Argument(metavar="OUT", help="Folder for the shards.")],
    megabytes: Annotated[float, typer.Option(min=0.01, metavar="MB", help="The largest shard.")] = 256.0,
    as_json: AsJson = False,
) -> int:
    """Write tar shards for streaming from a folder of images. Run it again after a stop: it goes on."""
    from atmc.cli.data import data_shard as verb

    return verb(folder, out, megabytes=megabytes, as_json=as_json)
