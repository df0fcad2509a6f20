"""The FastAPI application of `resemblance serve`: its routes, and the static files of its page.

Data are JSON under /api. Ids in URLs are hexadecimal and looked up among the entries before
anything else; queries about recordings go to the worker pool, and answers are cached. The page's
files are read once at start, so no path of a request is ever looked up on the disk; style sheet and
charts are those of the report, and parts of the report's page are inserted into this one.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import lru_cache, partial
from pathlib import Path as FilePath
from typing import Annotated, Any

from anyio import CapacityLimiter
from anyio.to_thread import run_sync
from fastapi import FastAPI, Path, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from .. import __version__
from ..errors import ResemblanceError
from ..views import report
from ..views.report import fill_page, page_asset
from ..zoo.entry import Entry, validate_tags
from ..zoo.signature import SearchKernel
from ..zoo.zoo import Zoo, damaged_rows_message
from . import MEBIBYTE, UPLOAD_LIMIT_MIB
from .cache import (
    AnswerCache,
    EntryCache,
    SortKey,
    entry_summary,
    hide_zoo_path,
    json_safe,
)
from .worker_pool import WorkerPool, busy_error

_ASSETS = {  # by package
    report.__package__: ("report.css", "charts.js", "pair.js"),
    __package__: ("zoo.css", "zoo.js"),
}
_MEDIA_TYPES = {"css": "text/css", "js": "text/javascript"}


@lru_cache(maxsize=1)
def load_page_files() -> dict[str, Response]:
    """The page by its name "page", and the files that it loads by theirs, as they are sent."""
    texts = {name: page_asset(name, room) for room, names in _ASSETS.items() for name in names}
    kinds = {name: _MEDIA_TYPES[name.rpartition(".")[2]] for name in texts}
    texts["page"], kinds["page"] = fill_page(page_asset("zoo.html", __package__), {}), "text/html"
    found = {name: Response(text, media_type=kinds[name]) for name, text in texts.items()}
    for file in found.values():
        tag = hashlib.sha256(file.body).hexdigest()[:24]  # by which a browser asks for changes
        file.headers.update({"etag": f'"{tag}"', "cache-control": "no-cache"})
    return found


_MIN_BYTES_PER_SECOND = 16 * 1024  # bytes a second, on the whole
_MAX_SEARCH_TEXT = 200  # characters of what is searched for
_MAX_UPLOAD_TAGS = 16  # of an upload
_WAITING = 128  # requests that wait for a worker, at most; more are refused
_MAX_UPLOADS = 4  # at a time
_STATUSES = (401, 403, 404, 408, 413, 415, 421, 422, 429, 503, 507)
_ERROR_RESPONSES: dict[int | str, dict[str, Any]] = {
    status: {"description": "What is wrong, as {error: text}"} for status in _STATUSES
}

Id = Annotated[str, Path(pattern=r"^[0-9a-f]{64}$")]
IdQuery = Annotated[str, Query(pattern=r"^[0-9a-f]{64}$")]
Group = Annotated[str, Query(pattern=r"^[0-9a-f]{16}$")]
Limit = Annotated[int, Query(ge=1, le=50)]


def application(
    zoo: Zoo,
    workers: WorkerPool,
    *,
    name: str = "zoo",
    read_only: bool = False,
    upload_limit: int = UPLOAD_LIMIT_MIB * MEBIBYTE,  # bytes
) -> FastAPI:
    """The server of a zoo, without what decides who may ask it (`security`)."""
    app = FastAPI(
        title="Resemblance",
        version=__version__,
        openapi_url="/api/openapi.json",
        docs_url=None,  # whose pages load scripts from elsewhere
        redoc_url=None,
        responses=_ERROR_RESPONSES,
    )
    app.router.redirect_slashes = False

    async def show_error(_: Request, error: Exception) -> JSONResponse:
        return _error_response(error, zoo.store.where)

    for kind in (HTTPException, RequestValidationError, ResemblanceError, ClientDisconnect):
        app.add_exception_handler(kind, show_error)
    app.add_exception_handler(Exception, show_error)
    desk, limit = _QueryService(zoo, workers), 0 if read_only else upload_limit
    facts = {"version": __version__, "read_only": read_only, "upload_limit": limit}
    _add_page_routes(app)
    _add_listing_routes(app, desk, {"name": name, **facts})
    _add_query_routes(app, desk)
    if not read_only:
        _add_upload_route(app, desk, upload_limit)
    return app


class _QueryService:
    """Where requests are answered: the shelf, the workers, and answers given before."""

    def __init__(self, zoo: Zoo, workers: WorkerPool) -> None:
        self.shelf, self.workers, self.kept = EntryCache(zoo), workers, AnswerCache()

    def entry(self, id: str) -> Entry:
        found = self.shelf.now().by_id.get(id)
        if found is None:
            raise HTTPException(404, f"this zoo has no entry {id[:12]}…")
        return found

    def answer(self, what: str, of_all: bool = True, **of: Any) -> bytes:
        """A worker's answer as it came; one `of_all` entries goes by what the zoo holds."""
        for name in of.keys() & {"id", "a", "b"}:
            self.entry(of[name])
        state = self.shelf.now().state if of_all else ""
        question = (what, state, *sorted(of.items()))
        return self.kept.of(question, lambda: _encode_json(self.workers.ask(what, **of)))


def _encode_json(content: Any) -> bytes:
    return json.dumps(content, separators=(",", ":")).encode()


_json_response = partial(Response, media_type="application/json")


# -- errors -------------------------------------------------------------------------------------


def _error_response(error: Exception, where: str) -> JSONResponse:
    """Every error as JSON with a message, which does not say where the zoo is."""
    status, headers = 422, {}
    if isinstance(error, HTTPException):
        status, why, headers = error.status_code, str(error.detail), dict(error.headers or {})
    elif isinstance(error, RequestValidationError):
        first = error.errors()[0]
        part = ".".join(str(part) for part in first["loc"][1:])
        why = f"{part or 'the request'}: {first['msg']}"
    elif isinstance(error, ResemblanceError):
        why = hide_zoo_path(error, where)
    elif isinstance(error, ClientDisconnect):
        status, why = 400, "the client disconnected"  # and nobody reads this
    else:
        status = 500
        why = f"internal server error ({type(error).__name__}); see the server's log"
    return JSONResponse({"error": why}, status, headers)


# -- the page -----------------------------------------------------------------------------------


def _add_page_routes(app: FastAPI) -> None:
    def send_file(request: Request, file: Response) -> Response:
        if request.headers.get("if-none-match") != file.headers["etag"]:
            return file
        kept = {name: file.headers[name] for name in ("etag", "cache-control")}
        return Response(status_code=304, headers=kept)

    for name, file in load_page_files().items():
        path = "/" if name == "page" else f"/static/{name}"
        endpoint = partial(send_file, file=file)
        app.add_route(path, endpoint, methods=["GET"], include_in_schema=False)


# -- what is known without reading recordings ----------------------------------------------------


def _add_listing_routes(app: FastAPI, desk: _QueryService, facts: dict[str, Any]) -> None:
    @app.get("/api/zoo")
    def zoo() -> Response:
        """The zoo: how many entries, which groups and tags."""
        held = desk.shelf.now()
        counts = {"entries": len(held.entries), "groups": held.groups, "tags": held.tags[:200]}
        damaged = damaged_rows_message(held.damaged) if held.damaged else None
        return _json_response(_encode_json({**facts, **counts, "damaged": damaged}))

    @app.get("/api/entries")
    def entries(
        find: Annotated[str, Query(max_length=_MAX_SEARCH_TEXT)] = "",
        tag: Annotated[str | None, Query(max_length=_MAX_SEARCH_TEXT)] = None,
        group: Annotated[str | None, Query(pattern=r"^[0-9a-f]{16}$")] = None,
        sort: SortKey = "added",
        offset: Annotated[int, Query(ge=0, le=10_000_000)] = 0,
        limit: Annotated[int, Query(ge=1, le=5000)] = 100,
    ) -> Response:
        """Entries by words in their name, tags, probe or id."""
        held = desk.shelf.now()
        asked = ("entries", held.state, find, tag, group, sort, offset, limit)

        def make() -> bytes:
            found = held.found(find, tag, group, sort)
            some = [entry_summary(entry) for entry in found[offset : offset + limit]]
            return _encode_json({"total": len(found), "entries": some})

        return _json_response(desk.kept.of(asked, make))

    @app.get("/api/entries/{id}")
    def entry(id: Id) -> Response:
        """All that is known of an entry without reading its recording."""
        found = desk.entry(id)
        linked = desk.shelf.now().by_id.get(found.trained_on or "")
        name = None if linked is None else linked.name
        facts = {**found.to_dict(), "trained_on_name": name}
        return _json_response(_encode_json(json_safe(facts)))


# -- what workers answer --------------------------------------------------------------------------


def _add_query_routes(app: FastAPI, desk: _QueryService) -> None:
    """Questions wait in threads of their own, so that lists never wait for them."""
    waiting = CapacityLimiter(_WAITING)

    async def told(what: str, of_all: bool = True, **of: Any) -> Response:
        if not waiting.available_tokens:
            raise busy_error("the server is busy")
        act = partial(desk.answer, what, of_all, **of)
        return _json_response(await run_sync(act, limiter=waiting))

    @app.get("/api/map")
    async def zoo_map(group: Group, kernel: SearchKernel = "features") -> Response:
        """Where the networks of a group lie on a plane, near each other if they are alike."""
        return await told("zoo_map", group=group, kernel=kernel)

    @app.get("/api/pair")
    async def pair(a: IdQuery, b: IdQuery) -> Response:
        """Two networks layer by layer: scores, standard errors, chance, behaviour, coordinates."""
        first, second = sorted((a, b))  # either way is one answer
        return await told("pair", of_all=False, a=first, b=second)

    @app.get("/api/entries/{id}/nearest")
    async def nearest(id: Id, kernel: SearchKernel = "features", limit: Limit = 10) -> Response:
        """The networks most like one, among those recorded on the same samples."""
        return await told("nearest", id=id, kernel=kernel, limit=limit)

    @app.get("/api/entries/{id}/relatives")
    async def relatives(id: Id, limit: Limit = 10) -> Response:
        """Which entries were made from a network, or it from them."""
        return await told("relatives", id=id, limit=limit)

    @app.get("/api/families")
    async def families(group: Group) -> Response:
        """Which entries of a group were made from which."""
        return await told("families", group=group)

    @app.get("/api/recommend")
    async def recommend(query: IdQuery, limit: Limit = 10) -> Response:
        """Which entries to look at for the data of a recording; no network is run."""
        return await told("recommend", id=query, limit=limit)


# -- uploads --------------------------------------------------------------------------------------


def _add_upload_route(app: FastAPI, desk: _QueryService, limit: int) -> None:
    body = {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}
    schema = {"requestBody": {"required": True, "content": body}}
    slots = CapacityLimiter(_MAX_UPLOADS)

    @app.post("/api/recordings", status_code=201, openapi_extra=schema)
    async def upload(
        request: Request,
        tag: Annotated[list[str] | None, Query(max_length=_MAX_UPLOAD_TAGS)] = None,
    ) -> Response:
        """Add a recording, sent as it is (application/octet-stream)."""
        tags = list(validate_tags(tag or ()))
        _check_upload_headers(request, limit)
        if not slots.available_tokens:
            raise HTTPException(429, "the server is busy with other uploads; try again in a moment")
        async with slots, receive_upload(request.stream(), limit=limit) as path:
            found = await run_in_threadpool(_add_recording, desk.workers, str(path), tags)
        desk.shelf.forget()
        return _json_response(_encode_json(found), 201)


def _add_recording(workers: WorkerPool, path: str, tags: list[str]) -> Any:
    try:
        return workers.ask("add", upload=True, path=path, tags=tags)
    except HTTPException as error:
        if error.status_code == 500:  # whatever a file does to its reader is the file's fault
            raise HTTPException(422, error.detail) from error
        raise


def _check_upload_headers(request: Request, limit: int) -> None:
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/octet-stream":
        # which a page of another origin cannot send without asking first
        raise HTTPException(415, "expected the file itself, as application/octet-stream")
    announced = request.headers.get("content-length", "0")
    if announced.isdecimal() and int(announced) > limit:
        raise HTTPException(413, too_large_message(limit))


@asynccontextmanager
async def receive_upload(
    chunks: AsyncIterator[bytes], *, limit: int = UPLOAD_LIMIT_MIB * MEBIBYTE, idle: float = 30.0
) -> AsyncIterator[FilePath]:
    """The path of what a client sends, in a temporary folder, until the end of the block.

    No more than the limit is ever stored, and little of it is in memory.

    Args:
        limit: bytes that are taken at most.
        idle: seconds that a sender may be silent, or behind `_MIN_BYTES_PER_SECOND`.
    """
    with tempfile.TemporaryDirectory(prefix="resemblance-") as folder:  # of this user alone
        path = FilePath(folder, "recording.rsm")
        await _write_chunks(chunks, path, limit, idle)
        yield path


async def _write_chunks(
    chunks: AsyncIterator[bytes], path: FilePath, limit: int, idle: float
) -> None:
    came, began = 0, time.monotonic()
    with path.open("wb", buffering=0) as file:
        while True:
            left = began + idle + came / _MIN_BYTES_PER_SECOND - time.monotonic()
            try:
                chunk = await asyncio.wait_for(anext(chunks), min(idle, max(left, 0)))
                came += len(chunk)
                if came > limit:
                    raise HTTPException(413, too_large_message(limit))
                file.write(chunk)
            except StopAsyncIteration:
                break
            except asyncio.TimeoutError as error:
                why = f"the upload stalled for {idle:g} seconds; send it again"
                raise HTTPException(408, why) from error
            except OSError as error:
                why = "the server has no disk space for the file; contact its operator"
                raise HTTPException(507, why) from error
    if not came:
        raise HTTPException(
            422, "expected a recording of `resemblance record`; found an empty file"
        )


def too_large_message(limit: int) -> str:
    """Why a file is not taken."""
    return (
        f"expected a file of at most {limit / MEBIBYTE:,.4g} MiB, found a larger one; start the "
        "server with a larger --upload-limit, or add the file with `resemblance zoo add`"
    )
