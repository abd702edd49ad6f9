"""Download one file, with a timeout."""

from __future__ import annotations

import http.client
import urllib.request
from pathlib import Path

from atmc.common.atomic_files import write_all, writing
from atmc.common.errors import RunError
from atmc.data.checked_files import Progress, silent

CHUNK = 1 << 20
LARGEST = 1 << 30  # several times the largest archive fetched here; a page that never ends is left


def download(
    url: str, directory: Path, *, timeout: float = 20.0, largest: int = LARGEST, progress: Progress = silent
) -> Path:
    """Fetch `url` into `directory`; the file appears only when complete.

    The caller checks its content. `timeout` bounds every wait for the server, not the whole transfer.
    """
    target = directory / url.rpartition("/")[2]
    try:
        request = urllib.request.Request(url, headers={"User-Agent": "atmc"})
        with urllib.request.urlopen(request, timeout=timeout) as answer, writing(target) as file:
            announced = answer.headers.get("Content-Length")
            total = int(announced) if announced and announced.isdecimal() else None
            done = 0
            while chunk := answer.read(CHUNK):
                write_all(file, chunk)
                done += len(chunk)
                progress(f"download {target.name}", done, total)
                if done > largest:
                    raise RunError(f"{url}: more than {largest:,} bytes")
            if total is not None and done != total:
                raise RunError(f"{url}: half-finished, {done:,} of {total:,} bytes")
    except (OSError, ValueError, http.client.HTTPException) as error:  # URLError and timeouts are OSErrors
        reason = getattr(error, "reason", None) or error
        raise RunError(f"{url}: {reason}") from error
    return target
