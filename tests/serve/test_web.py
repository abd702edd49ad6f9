"""`atmc serve`: what it answers, what it refuses, and that a visitor can neither open a file nor break it."""

import http.client
import io
import json
import re
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
import zlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch

pytest.importorskip("fastapi", reason="needs the extra: pip install 'atmc[serve]'")
import uvicorn
from PIL import Image

import atmc
from atmc.cli.serve import is_loopback
from atmc.data.image_decoding import View
from atmc.posterior import Posterior
from atmc.serve.predictor import Predictor, Rule
from atmc.serve.web import MOST_BYTES, make_app

sys.path.insert(0, str(Path(__file__).parents[1] / "cli"))
from shell import atmc as shell

TOKEN = "a-long-and-random-token"


def picture(size=(8, 8), kind="PNG", value=128):
    buffer = io.BytesIO()
    Image.new("L", size, value).save(buffer, kind)
    return buffer.getvalue()


def posterior(samples=3):
    nets = []
    for seed in range(samples):
        torch.manual_seed(seed)
        nets.append(torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 3)))
    return Posterior(nets, nets[0], mean=[0.5], std=[0.5], classes=["cat", "dog", "<b>fox</b>"], shape=[1, 8, 8])


def rows():
    nets = [torch.nn.Linear(4, 1) for _ in range(3)]
    return Posterior(nets, nets[0], likelihood=atmc.likelihoods.Gaussian(0.5), shape=[4])


class Served:
    """A real server in a thread."""

    def __init__(self, predictor, hosts=("127.0.0.1", "localhost"), token=None):
        self.socket = socket.create_server(("127.0.0.1", 0), backlog=256)
        self.port = self.socket.getsockname()[1]
        app = make_app(predictor, hosts, token)
        self.server = uvicorn.Server(uvicorn.Config(app, log_level="critical", lifespan="off", server_header=False))
        self.thread = threading.Thread(target=self.server.run, kwargs={"sockets": [self.socket]}, daemon=True)

    def __enter__(self):
        self.thread.start()
        while not self.server.started:
            time.sleep(0.01)
        return self

    def __exit__(self, *_):
        self.server.should_exit = True
        self.thread.join(20)

    @property
    def home(self):
        return f"http://127.0.0.1:{self.port}/"

    def ask(self, path, body=None, method=None, **headers):
        link = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        named = {key.replace("_", "-"): value for key, value in headers.items()}
        link.request(method or ("GET" if body is None else "POST"), path, body, named)
        answer = link.getresponse()
        text = answer.read()
        link.close()
        kind = answer.headers["content-type"]
        return answer.status, json.loads(text) if kind.startswith("application/json") else text.decode(), answer.headers


@pytest.fixture(scope="module")
def images():
    with Served(Predictor(posterior(), "animals", View(8, 8, 1), Rule(0.9, 0.01, 100), [(picture(), "cat")])) as server:
        yield server


@pytest.fixture(scope="module")
def numbers():
    with Served(Predictor(rows(), "prices")) as server:
        yield server


def test_an_image_is_answered_as_the_posterior_predicts(images):
    status, found, headers = images.ask("/api/predict", picture(), Content_Type="image/png")
    assert status == 200
    expected = posterior().predict(torch.full((1, 1, 8, 8), 128, dtype=torch.uint8))
    assert found["label"] == expected.names[0]
    assert found["confidence"] == pytest.approx(float(expected.confidence[0]), abs=1e-6)
    assert found["epistemic"] == pytest.approx(float(expected.epistemic[0]), abs=1e-5)
    assert found["aleatoric"] + found["epistemic"] == pytest.approx(found["entropy"])
    shown = [bar["probability"] for bar in found["bars"]]
    assert shown == pytest.approx(sorted(expected.probs[0].tolist(), reverse=True), abs=1e-6)
    assert len(found["samples"]) == 3
    assert found["refuse"] is True
    assert "default-src 'none'" in headers["content-security-policy"]
    assert headers["x-content-type-options"] == "nosniff"


def test_whether_to_refuse_follows_the_rule():
    lenient = Predictor(posterior(), "a", View(8, 8, 1), Rule(0.1, 10.0, 100))
    assert lenient.image(picture())["refuse"] is False
    unusual = Predictor(posterior(), "a", View(8, 8, 1), Rule(0.1, 1e-6, 100)).image(picture())
    assert unusual["refuse"] is True
    assert "disagree" in unusual["why"]
    assert Predictor(posterior(), "a", View(8, 8, 1)).image(picture())["refuse"] is None


def test_a_row_is_answered(numbers):
    status, found, _ = numbers.ask("/api/predict", json.dumps({"row": [1, 2, 3, 4.5]}), Content_Type="application/json")
    assert status == 200
    assert found["std"][0] == pytest.approx(np.hypot(found["aleatoric"][0], found["epistemic"][0]))
    assert found["aleatoric"][0] == pytest.approx(0.5)
    assert len(found["samples"]) == 3
    assert numbers.ask("/api/model")[1]["numbers"] == 4


def chunk(name, data):
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))


# A PNG that says it has 60,000 × 60,000 pixels, in 70 bytes.
HUGE = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", 60_000, 60_000, 8, 0, 0, 0, 0))
HUGE += chunk(b"IDAT", zlib.compress(b"")) + chunk(b"IEND", b"")
SVG = b'<svg xmlns="http://www.w3.org/2000/svg"><image href="file:///etc/passwd"/></svg>'


@pytest.mark.parametrize(
    ("body", "kind", "status", "said"),
    [
        (b"not an image", "image/png", 400, "not in a known image format"),
        (b"", "image/png", 400, "empty"),
        (picture()[:40], "image/png", 400, "damaged|format"),
        (HUGE, "image/png", 400, "more pixels than the limit of 100 megapixels"),
        (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n(/etc/passwd) run\n", "image/x-eps", 400, "format"),
        (SVG, "image/svg+xml", 400, "format"),
        (b"file:///etc/passwd", "application/octet-stream", 400, "format"),
        (b"/etc/passwd", "text/plain", 415, "send an image"),
        (b"a=b", "application/x-www-form-urlencoded", 415, "send an image"),
        (b'{"row": [1]}', "application/json", 400, "takes images"),
        (b"[" * 100_000, "application/json", 400, "not JSON"),
    ],
)
def test_hostile_uploads_get_one_clear_line(images, body, kind, status, said):
    found = images.ask("/api/predict", body, Content_Type=kind)
    assert found[0] == status, found
    assert list(found[1]) == ["error"]
    assert re.search(said, found[1]["error"]), found
    assert "\n" not in found[1]["error"]
    assert "Traceback" not in json.dumps(found[1])
    assert images.ask("/api/predict", picture(), Content_Type="image/png")[0] == 200, "and it goes on"


@pytest.mark.parametrize(
    "row",
    ["[]", "null", "[1,2]", '["a",1,2,3]', "[1e999,1,2,3]", "[NaN,1,2,3]", "[[1],2,3,4]", "[true,1,2,3]", '{"a":1}',
     '"/etc/passwd"', str([10**400, 1, 2, 3])],
)  # fmt: skip
def test_wrong_rows_get_one_clear_line(numbers, row):
    status, found, _ = numbers.ask("/api/predict", f'{{"row": {row}}}', Content_Type="application/json")
    assert status == 400
    assert list(found) == ["error"]


def test_an_upload_is_cut_off_at_its_limit(images):
    status, found, _ = images.ask("/api/predict", b"x" * (MOST_BYTES + 1), Content_Type="image/png")
    assert (status, found["error"]) == (413, "the upload is larger than 20 MB")

    def parts():
        for _ in range(MOST_BYTES // 1_000_000 + 2):
            yield b"x" * 1_000_000

    link = http.client.HTTPConnection("127.0.0.1", images.port, timeout=30)
    try:
        link.request("POST", "/api/predict", parts(), {"Content-Type": "image/png"}, encode_chunked=True)
        assert link.getresponse().status == 413, "also where no length was announced"
    except (BrokenPipeError, ConnectionResetError):
        pass  # it had heard enough
    assert images.ask("/api/model")[0] == 200


def test_only_its_own_pages_may_ask(images):
    post = {"body": picture(), "Content_Type": "image/png"}
    assert images.ask("/api/predict", **post, Origin="http://evil.example")[0] == 403
    assert images.ask("/api/predict", **post, Origin="null")[0] == 403
    assert images.ask("/api/predict", **post, Origin=images.home.rstrip("/"))[0] == 200
    assert images.ask("/", Host="evil.example")[0] == 403, "a name that was pointed at this machine"
    assert images.ask("/", Host=f"localhost:{images.port}")[0] == 200


ELSEWHERE = ["/etc/passwd", "/../../etc/passwd", "/%2e%2e/%2e%2e/etc/passwd", "/page.html", "/docs", "/openapi.json"]


@pytest.mark.parametrize("path", [*ELSEWHERE, "/api/predict"])
def test_there_are_no_other_pages(images, path):
    status, found, _ = images.ask(path)
    assert status in (404, 405)
    assert found == {"error": "there is nothing here; see /"}


def test_with_a_token_nothing_is_told_without_it():
    with Served(Predictor(posterior(), "animals", View(8, 8, 1)), ("*",), TOKEN) as server:
        for path in ("/", "/page.js", "/api/model"):
            assert server.ask(path)[0] == 401
        assert server.ask("/?token=wrong")[0] == 401
        assert server.ask(f"/api/model?token={TOKEN}")[0] == 401, "in an address it is for the page alone"
        assert server.ask("/api/model", Authorization=f"Bearer {TOKEN}")[0] == 200
        status, _, headers = server.ask(f"/?token={TOKEN}")
        assert status == 200
        cookie = headers["set-cookie"]
        assert "HttpOnly" in cookie
        assert "samesite=strict" in cookie.lower()
        assert server.ask("/api/model", Cookie=cookie.partition(";")[0])[0] == 200


def test_many_at_once_are_all_answered(images):
    def one(value):
        status, found, _ = images.ask("/api/predict", picture(value=value), Content_Type="image/png")
        return status, found.get("label")

    with ThreadPoolExecutor(50) as pool:
        found = list(pool.map(one, list(range(100)) * 2))
    assert [status for status, _ in found] == [200] * 200
    assert found[:100] == found[100:], "each has its own answer"


def test_other_machines_are_let_in_only_when_asked_with_a_token(tmp_path, monkeypatch):
    monkeypatch.delenv("ATMC_TOKEN", raising=False)
    folder = posterior().save(tmp_path / "p")
    for host in ("0.0.0.0", "192.168.1.5", "::", "example.org"):
        result = shell("serve", folder, "--host", host)
        assert result.code == 2
        assert "--allow-remote" in result.err
    result = shell("serve", folder, "--host", "0.0.0.0", "--allow-remote")
    assert result.code == 2
    assert "needs a token" in result.err
    assert "at least 16" in shell("serve", folder, "--host", "0.0.0.0", "--allow-remote", "--token", "short").err
    assert all(map(is_loopback, ("127.0.0.1", "::1", "localhost", "127.9.9.9")))
    assert not any(map(is_loopback, ("0.0.0.0", "::", "localhost.evil.com", "10.0.0.1")))


def test_what_cannot_be_served_is_one_line(tmp_path):
    assert shell("serve", tmp_path / "none").code == 2
    folder = posterior().save(tmp_path / "p")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        result = shell("serve", folder, "--port", str(taken.getsockname()[1]))
    assert result.code == 1
    assert "choose another --port" in result.err


def test_the_command_serves_until_it_is_stopped(tmp_path):
    folder = posterior().save(tmp_path / "p")
    words = [sys.executable, "-c", "import signal; signal.signal(signal.SIGINT, signal.default_int_handler);"
             "from atmc.cli.main import main; main()", "serve", str(folder), "--port", "0"]  # fmt: skip
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        line = process.stdout.readline()
        assert line.startswith("p, 3 samples, is at http://127.0.0.1:")
        link = http.client.HTTPConnection("127.0.0.1", int(re.search(r":(\d+)/", line)[1]), timeout=30)
        link.request("POST", "/api/predict", picture(), {"Content-Type": "image/png"})
        assert "label" in json.loads(link.getresponse().read())
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 0
        assert "Traceback" not in process.stderr.read()
