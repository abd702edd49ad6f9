"""`atmc serve RUN`: a local web page and JSON API to try a posterior on."""

from __future__ import annotations

import ipaddress
import socket
from contextlib import suppress
from pathlib import Path

from atmc.cli.console import printable, say, working
from atmc.common.errors import InputError, RunError
from atmc.common.text import plural

LEAST_TOKEN = 16  # characters
LOCAL = ("localhost", "127.0.0.1", "::1")
BACKLOG, AT_ONCE = 256, 512  # connections waiting, and open


def serve(run: Path, *, host: str, port: int, allow_remote: bool, token: str | None) -> int:
    """The command; returns the exit code when it is stopped."""
    local = is_loopback(host)
    check_host(host, local, allow_remote, token)
    if not 0 <= port < 65536:
        raise InputError(f"--port {port}: must be from 0 (any that is free) to 65535")
    try:
        import uvicorn

        from atmc.serve.web import make_app
    except ModuleNotFoundError as error:
        raise InputError(f"atmc serve needs the Python package {error.name}: pip install 'atmc[serve]'") from None
    from atmc.cli.open_runs import threads_of

    with working(f"opening {run}"):
        from atmc.serve.predictor import open_predictor

        predictor = open_predictor(run)
    with _bound(host, port) as bound, threads_of(run):
        number = bound.getsockname()[1]
        names = (*LOCAL, host.lower()) if local else ("*",)
        app = make_app(predictor, names, token)
        shown = f"[{host}]" if ":" in host else host
        where = f"http://{shown}:{number}/" + ("?token=…" if token else "")
        many = plural(len(predictor.posterior), "sample")
        say(f"{printable(predictor.name)}, {many}, is at {printable(where)}", where)
        say("Ctrl-C stops it.")
        settings = uvicorn.Config(
            app,
            log_level="warning",
            access_log=False,
            server_header=False,
            limit_concurrency=AT_ONCE,
            timeout_keep_alive=15,
            lifespan="off",
            proxy_headers=False,
        )
        with suppress(KeyboardInterrupt):  # which is how it is stopped
            uvicorn.Server(settings).run(sockets=[bound])
    return 0


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach a server at `host`."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def check_host(host: str, local: bool, allow_remote: bool, token: str | None) -> None:
    """Refuse to be seen from elsewhere unless that was asked for, with a token."""
    if token is not None and len(token) < LEAST_TOKEN:
        raise InputError(f"the token has {len(token)} characters; it needs at least {LEAST_TOKEN}")
    if local:
        return
    if not allow_remote:
        raise InputError(
            f"--host {host} can be reached by other machines: add --allow-remote and a token if you mean it"
        )
    if token is None:
        raise InputError("--allow-remote needs a token: set ATMC_TOKEN to a long random word, or use --token")


def _bound(host: str, port: int) -> socket.socket:
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        return socket.create_server((host, port), family=family, backlog=BACKLOG)
    except OSError as error:
        raise RunError(f"cannot listen at {host}:{port}: {error.strerror or error}; choose another --port") from None
