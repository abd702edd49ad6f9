"""The web application: a page, its script and style, and a JSON API.

    GET  /                 the page
    GET  /api/model        what it predicts
    POST /api/predict      an image file as the body, or {"row": [1.5, 2]} as application/json

Every answer is JSON; one that failed is {"error": "one line"}. Bodies are limited while they arrive. A request must
name this host (a page elsewhere whose name points here does not) and, if it has an origin, come from this page. With a
token every request needs it: as `Authorization: Bearer TOKEN`, or as the cookie that `/?token=TOKEN` sets.
"""

from __future__ import annotations

import asyncio
import json
import secrets
from importlib import resources
from typing import Any
from urllib.parse import urlsplit

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response
from starlette.concurrency import run_in_threadpool

from atmc.common.errors import InputError
from atmc.serve.predictor import Predictor

MOST_BYTES = 20_000_000
MOST_JSON = 2_000_000
PATIENCE = 30.0  # seconds for a body to arrive
COOKIE = "atmc_token"
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob: data:; "
    "connect-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}


class Refused(Exception):
    """A request that gets an error: its status and one line."""

    def __init__(self, status: int, line: str) -> None:
        super().__init__(line)
        self.status, self.line = status, line


def make_app(predictor: Predictor, hosts: tuple[str, ...], token: str | None = None) -> FastAPI:
    """The application; `hosts` are the names that requests may use for it, in small letters and without a port."""
    app = FastAPI(title="atmc", docs_url=None, redoc_url=None, openapi_url=None)
    files = {
        "/": ("page.html", "text/html"),
        "/page.js": ("page.js", "text/javascript"),
        "/page.css": ("page.css", "text/css"),
    }
    texts = {path: (_text(name), kind) for path, (name, kind) in files.items()}

    async def page(request: Request) -> Response:
        text, kind = texts[request.url.path]
        answer = Response(text, media_type=f"{kind}; charset=utf-8")
        if token is not None and secrets.compare_digest(request.query_params.get("token", "").encode(), token.encode()):
            answer.set_cookie(COOKIE, token, httponly=True, samesite="strict")
        return answer

    async def model(request: Request) -> Response:
        return JSONResponse(predictor.about)

    async def predict(request: Request) -> Response:
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind == "application/json":
            row = _row(await body(request, MOST_JSON))
            return JSONResponse(await run_in_threadpool(predictor.row, row))
        if not (kind.startswith("image/") or kind == "application/octet-stream"):
            raise Refused(415, "send an image file as the body, or a row of numbers as application/json")
        return JSONResponse(await run_in_threadpool(predictor.image, await body(request, MOST_BYTES)))

    async def guard(request: Request, go_on: Any) -> Response:
        try:
            _check(request, hosts, token)
            answer: Response = await go_on(request)
        except Refused as error:
            answer = JSONResponse({"error": error.line}, error.status)
        except InputError as error:
            answer = JSONResponse({"error": str(error)}, 400)
        except Exception:  # nothing of the inside is told
            answer = JSONResponse({"error": "the prediction failed"}, 500)
        if answer.status_code in (404, 405):
            answer = JSONResponse({"error": "there is nothing here; see /"}, answer.status_code)
        answer.headers.update(HEADERS)
        return answer

    for path in files:
        app.add_api_route(path, page, methods=["GET"])
    app.add_api_route("/api/model", model, methods=["GET"])
    app.add_api_route("/api/predict", predict, methods=["POST"])
    app.middleware("http")(guard)
    return app


async def body(request: Request, most: int) -> bytes:
    """The whole body, up to `most` bytes and PATIENCE seconds."""
    too_large = Refused(413, f"the upload is larger than {most // 1_000_000} MB")
    length = request.headers.get("content-length", "")
    if length.isdecimal() and int(length) > most:
        raise too_large

    async def read() -> bytes:
        parts, size = [], 0
        async for part in request.stream():
            size += len(part)
            if size > most:
                raise too_large
            parts.append(part)
        return b"".join(parts)

    try:
        found = await asyncio.wait_for(read(), PATIENCE)
    except TimeoutError:
        raise Refused(408, "the upload took too long") from None
    if not found:
        raise Refused(400, "the upload is empty")
    return found


def _row(data: bytes) -> Any:
    try:
        found = json.loads(data)
    except (ValueError, RecursionError):
        raise Refused(400, "that is not JSON") from None
    if not isinstance(found, dict) or "row" not in found:
        raise Refused(400, 'send {"row": [1.5, 2, 0.3]}')
    return found["row"]


def _check(request: Request, hosts: tuple[str, ...], token: str | None) -> None:
    """Refuse requests by another name, from another page, or without the token."""
    host = urlsplit(f"//{request.headers.get('host', '')}")
    if "*" not in hosts and (host.hostname or "") not in hosts:
        raise Refused(403, "this server does not go by that name")
    origin = request.headers.get("origin")
    if origin is not None and origin != "null" and urlsplit(origin).netloc != host.netloc:
        raise Refused(403, "requests from other pages are refused")
    if origin == "null":
        raise Refused(403, "requests from other pages are refused")
    if token is None:
        return
    given = [request.cookies.get(COOKIE, ""), request.headers.get("authorization", "").removeprefix("Bearer ")]
    if request.url.path == "/":
        given.append(request.query_params.get("token", ""))
    if not any(secrets.compare_digest(one.encode(), token.encode()) for one in given):
        raise Refused(401, "a token is needed: open /?token=TOKEN, or send it as Authorization: Bearer TOKEN")


def _text(name: str) -> str:
    return (resources.files("atmc.serve") / name).read_text(encoding="utf-8")
