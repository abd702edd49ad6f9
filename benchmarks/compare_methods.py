"""`atmc compare` on 300 digits and on scikit-learn's diabetes table, as typed on a command line: results/compare/.

    python benchmarks/compare_methods.py [--out results/compare] [--only digits|diabetes]

`seconds` are of whatever machine this ran on, other work on it included; `cpu_seconds` are those of the command alone.
"""

import argparse
import csv
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

DIGITS = ["digits-atmc", "--set", 'data.name="digits?train=300"']


def diabetes(folder: Path) -> list[str]:
    """442 patients, 10 measurements, and how far the disease went in a year."""
    from sklearn.datasets import load_diabetes

    found = load_diabetes(scaled=False)
    path = folder / "diabetes.csv"
    with path.open("w", newline="") as file:
        out = csv.writer(file)
        out.writerow([*found.feature_names, "progression"])
        out.writerows([*row, target] for row, target in zip(found.data.tolist(), found.target.tolist(), strict=True))
    return [str(path), "--target", "progression"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("results/compare"))
    parser.add_argument("--only", choices=("digits", "diabetes"))
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        words = {"digits": DIGITS, "diabetes": diabetes(Path(folder))}
        for name, call in words.items():
            if given.only in (None, name):
                began, spent = time.monotonic(), _cpu()
                command = [sys.executable, "-m", "atmc", "compare", *call, "--json"]
                done = subprocess.run(command, check=True, capture_output=True, text=True)
                found = json.loads(done.stdout)
                typed = " ".join(["atmc", "compare", Path(call[0]).name, *call[1:]])
                took = {"seconds": round(time.monotonic() - began, 1), "cpu_seconds": round(_cpu() - spent, 1)}
                found = {"command": typed, **took, **found}
                (given.out / f"{name}.json").write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n")
                print(name, took, *found["verdict"])


def _cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


if __name__ == "__main__":
    main()
