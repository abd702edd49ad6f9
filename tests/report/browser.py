"""A headless Chromium driven over its debugging pipe: enough to load a page as a person would and ask what happened.

The pipe (`--remote-debugging-pipe`, file descriptors 3 and 4, JSON ended by NUL) needs no driver and no open port.
"""

import base64
import json
import os
import select
import shutil
import subprocess
import time
from pathlib import Path

BINARY = next(
    (found for name in ("chromium", "chromium-browser", "google-chrome") if (found := shutil.which(name))), None
)


class Browser:
    """One browser with one page; use as a context manager."""

    def __init__(self, home: Path, timeout: float = 60.0):
        to_child, self._write = os.pipe()
        self._read, from_child = os.pipe()
        flags = ["--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--no-first-run"]
        flags += ["--remote-debugging-pipe", f"--user-data-dir={home}", "--disable-dev-shm-usage", "about:blank"]
        # The shell puts the two ends where Chromium expects them, whatever numbers they have here.
        command = f'exec "$0" "$@" 3<&{to_child} 4>&{from_child}'
        self._process = subprocess.Popen(
            ["bash", "-c", command, BINARY, *flags],
            pass_fds=(to_child, from_child),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(to_child)
        os.close(from_child)
        self._buffer, self._id, self._timeout, self.events = b"", 0, timeout, []
        self._session = None
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        os.close(self._write)
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        os.close(self._read)

    def call(self, method, **params):
        """Send one command and wait for its answer; whatever else arrives meanwhile is kept in `events`."""
        self._id += 1
        message = {"id": self._id, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._receive()
            if answer.get("id") == self._id:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                return answer["result"]
            self.events.append(answer)

    def _receive(self):
        end = time.monotonic() + self._timeout
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._read], [], [], max(0.0, end - time.monotonic()))
            data = os.read(self._read, 1 << 20) if ready else b""
            if not data:
                raise TimeoutError("the browser did not answer")
            self._buffer += data
        message, _, self._buffer = self._buffer.partition(b"\0")
        return json.loads(message)

    def open(self, page: Path | str, width: int, dark: bool = False, media: str = ""):
        """Load a file or an address at a given width and wait until it is there."""
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=width < 600
        )
        scheme = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self.call("Emulation.setEmulatedMedia", media=media, features=scheme)
        self.events.clear()
        self.call("Page.navigate", url=page if isinstance(page, str) else page.resolve().as_uri())
        while not any(event.get("method") == "Page.loadEventFired" for event in self.events):
            self.events.append(self._receive())

    def ask(self, expression: str):
        """The value of a JavaScript expression on the page (the debugger may, though the page itself may not)."""
        return self.call("Runtime.evaluate", expression=expression, returnByValue=True)["result"].get("value")

    def wait(self, expression: str, seconds: float = 20.0):
        """Ask until the value is true, and return it."""
        end = time.monotonic() + seconds
        while not (found := self.ask(expression)):
            if time.monotonic() > end:
                raise TimeoutError(f"never true: {expression}; the page says {self.ask('document.body.innerText')!r}")
            time.sleep(0.02)
        return found

    def choose_files(self, selector: str, *files: Path):
        """Choose files in an input, as a person would in the dialog."""
        node = self.call("Runtime.evaluate", expression=f"document.querySelector({selector!r})")["result"]["objectId"]
        self.call("DOM.setFileInputFiles", files=[str(file) for file in files], objectId=node)

    def complaints(self, *homes: str):
        """Console errors, exceptions, and anything requested from elsewhere than this file and `homes`."""
        found = []
        for event in self.events:
            method, params = event.get("method", ""), event.get("params", {})
            if method == "Log.entryAdded" and params["entry"]["level"] in ("error", "warning"):
                found.append(params["entry"]["text"])
            elif method in ("Runtime.exceptionThrown", "Network.loadingFailed"):
                found.append(json.dumps(params)[:300])
            elif method == "Runtime.consoleAPICalled":
                found.append(str(params["args"])[:300])
            elif method == "Network.requestWillBeSent" and not params["request"]["url"].startswith(
                ("file:", "data:", "blob:", *homes)
            ):
                found.append("asks the network for " + params["request"]["url"])
        return found

    def screenshot(self, path: Path):
        """The whole page, not only what fits the window."""
        data = self.call("Page.captureScreenshot", captureBeyondViewport=True, format="png")["data"]
        path.write_bytes(base64.b64decode(data))
