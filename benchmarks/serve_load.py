"""Load a server of `atmc serve` from many threads and say how it stood it.

    python benchmarks/serve_load.py runs/first --image photo.png --seconds 60 --clients 50

Starts the server itself, on a free port. Prints requests, errors, latency, and the server's memory during the run.
"""

import argparse
import http.client
import json
import re
import statistics
import subprocess
import sys
import threading
import time
from pathlib import Path


def memory(pid: int) -> float:
    """Resident memory in MB."""
    return int(re.search(r"VmRSS:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())[1]) / 1024


def client(port: int, body: bytes, until: float, took: list[float], wrong: list[str]) -> None:
    link = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    while time.monotonic() < until:
        began = time.monotonic()
        try:
            link.request("POST", "/api/predict", body, {"Content-Type": "image/png"})
            answer = link.getresponse()
            text = answer.read()
            if answer.status != 200 or "label" not in json.loads(text):
                wrong.append(f"{answer.status} {text[:80]!r}")
        except Exception as error:
            wrong.append(repr(error))
            link = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        took.append(time.monotonic() - began)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", type=Path)
    parser.add_argument("--image", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--clients", type=int, default=50)
    given = parser.parse_args()
    began = time.monotonic()
    command = [sys.executable, "-m", "atmc", "serve", str(given.run), "--port", "0"]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        port = int(re.search(r":(\d+)/", server.stdout.readline())[1])
        started = time.monotonic() - began
        body, took, wrong = given.image.read_bytes(), [], []
        first = time.monotonic()
        link = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        link.request("POST", "/api/predict", body, {"Content-Type": "image/png"})
        link.getresponse().read()
        first = time.monotonic() - first
        readings = [memory(server.pid)]
        until = time.monotonic() + given.seconds
        work = (port, body, until, took, wrong)
        threads = [threading.Thread(target=client, args=work) for _ in range(given.clients)]
        for thread in threads:
            thread.start()
        while time.monotonic() < until:
            time.sleep(min(5.0, given.seconds / 6))
            readings.append(memory(server.pid))
        for thread in threads:
            thread.join()
    finally:
        server.terminate()
        server.wait()
    print(f"start {started:.1f} s, first answer {first:.2f} s")
    print(f"{len(took):,} requests of {given.clients} clients in {given.seconds:g} s, {len(wrong)} errors {wrong[:3]}")
    print(f"latency: median {statistics.median(took):.3f} s, longest {max(took):.3f} s")
    print(f"memory in MB: {', '.join(f'{reading:.0f}' for reading in readings)}")


if __name__ == "__main__":
    main()
