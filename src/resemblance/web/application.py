"""The application: which address gives what. Data are JSON under /api, the page is fixed files.

Ids in addresses are hexadecimal digits that are looked up among the entries before anything is
done with them; questions about recordings go to `workers`, and answers are kept.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from typing import Annotated, Any, Literal

from anyio import CapacityLimiter
from anyio.to_thread import run_sync
from fastapi import FastAPI, HTTPException, Path, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException as StarletteError
from starlette.requests import ClientDisconnect

from .. import __version__
from ..errors import ResemblanceError
from ..zoo.collection import Zoo
from ..zoo.entry import Entry, checked_tags
from .kept_answers import KeptAnswers
from .page_files import PageFile, page_files
from .shelf import Holding, Shelf, in_a_list, spelt_out, without_place
from .uploads import LIMIT, UploadError, received, too_large
from .workers import BusyError, FaultError, UnansweredError, Workers

_MEBIBYTE = 2**20
_LONGEST = 200  # characters of what is searched for
_TAGS = 16  # of an upload
_WAITING = 128  # requests that wait for a worker, at most; more are told to come again
_STATUSES = (401, 403, 404, 408, 413, 415, 421, 422, 429, 503, 507)
_ERRORS: dict[int | str, dict[str, Any]] = {
    status: {"description": "What is wrong, as {error: text}"} for status in _STATUSES
}

Id = Annotated[str, Path(pattern=r"^[0-9a-f]{64}$")]
IdAsked = Annotated[str, Query(pattern=r"^[0-9a-f]{64}$")]
Group = Annotated[str, Query(pattern=r"^[0-9a-f]{16}$")]
Kernel = Literal["features", "gradients", "product"]
Sorted = Literal["added", "name", "parameters", "samples", "layers"]
Limit = Annotated[int, Query(ge=1, le=50)]


def application(
    zoo: Zoo,
    workers: Workers,
    *,
    name: str = "zoo",
    read_only: bool = False,
    upload_limit: int = LIMIT * _MEBIBYTE,  # bytes
) -> FastAPI:
    """The server of a zoo, without what decides who may ask it (`admission`)."""
    app = FastAPI(
        title="Resemblance",
        version=__version__,
        openapi_url="/api/openapi.json",
        docs_url=None,  # whose pages load scripts from elsewhere
        redoc_url=None,
        responses=_ERRORS,
    )
    app.router.redirect_slashes = False
    desk = _Desk(zoo, workers)
    _add_errors(app, zoo)
    _add_page(app)
    _add_lists(app, desk, _About(name, read_only, upload_limit))
    _add_answers(app, desk)
    if not read_only:
        _add_uploads(app, desk, upload_limit)
    return app


class _Desk:
    """Where requests are answered: the shelf, the workers, and answers given before."""

    def __init__(self, zoo: Zoo, workers: Workers) -> None:
        self.shelf, self.workers, self.kept = Shelf(zoo), workers, KeptAnswers()

    def entry(self, id: str) -> Entry:
        found = self.shelf.now().by_id.get(id)
        if found is None:
            raise HTTPException(404, f"this zoo has no entry {id[:12]}…")
        return found

    def answer(self, what: str, of_all: bool = True, **of: Any) -> bytes:
        """A worker's answer as it came; one `of_all` entries goes by what the zoo holds."""
        state = self.shelf.now().state if of_all else ""

        def make() -> bytes:
            return _encoded(self.workers.ask(what, **of))

        return self.kept.of((what, state, *sorted(of.items())), make)


class _About:
    """What the page is told about the server."""

    def __init__(self, name: str, read_only: bool, limit: int) -> None:
        self.facts = {"name": name, "version": __version__, "read_only": read_only}
        self.facts |= {"upload_limit": 0 if read_only else limit}

    def of(self, held: Holding) -> dict[str, Any]:
        counts = {"entries": len(held.entries), "groups": held.groups, "tags": held.tags[:200]}
        return {**self.facts, **counts}


def _encoded(content: Any) -> bytes:
    return json.dumps(content, separators=(",", ":")).encode()


def _json(content: bytes) -> Response:
    return Response(content, media_type="application/json")


# -- errors -------------------------------------------------------------------------------------


def _add_errors(app: FastAPI, zoo: Zoo) -> None:
    """Every error as JSON with a message."""

    def said(status: int, why: str, headers: dict[str, str] | None = None) -> JSONResponse:
        return JSONResponse({"error": why}, status, headers)

    @app.exception_handler(StarletteError)
    async def of_http(_: Request, error: StarletteError) -> JSONResponse:
        return said(error.status_code, str(error.detail), dict(error.headers or {}))

    @app.exception_handler(RequestValidationError)
    async def of_request(_: Request, error: RequestValidationError) -> JSONResponse:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"][1:])
        return said(422, f"{where or 'the request'}: {first['msg']}")

    @app.exception_handler(ResemblanceError)
    async def of_package(_: Request, error: ResemblanceError) -> JSONResponse:
        if isinstance(error, BusyError):
            return said(503, str(error), {"retry-after": "5"})
        if isinstance(error, FaultError):
            return said(500, str(error))
        status = error.status if isinstance(error, UploadError) else 422
        return said(status, without_place(error, zoo))

    @app.exception_handler(ClientDisconnect)
    async def of_sender(_: Request, error: ClientDisconnect) -> JSONResponse:
        return said(400, "the sender went away")  # and nobody reads this

    @app.exception_handler(Exception)
    async def of_program(_: Request, error: Exception) -> JSONResponse:
        return said(500, f"a fault of the server ({type(error).__name__}); its log has more")


# -- the page -----------------------------------------------------------------------------------


def _add_page(app: FastAPI) -> None:
    files = page_files()

    def given(file: PageFile, request: Request) -> Response:
        headers = {"etag": file.tag, "cache-control": "no-cache"}
        if request.headers.get("if-none-match") == file.tag:
            return Response(status_code=304, headers=headers)
        return Response(file.content, media_type=file.kind, headers=headers)

    def giver(file: PageFile) -> Callable[[Request], Response]:
        return lambda request: given(file, request)

    for name, file in files.items():
        path = "/" if name == "page" else f"/static/{name}"
        app.add_route(path, giver(file), methods=["GET"], include_in_schema=False)


# -- what is known without reading recordings ----------------------------------------------------


def _add_lists(app: FastAPI, desk: _Desk, about: _About) -> None:
    @app.get("/api/zoo")
    def zoo() -> Response:
        """The zoo: how many entries, which groups and tags."""
        held = desk.shelf.now()
        made = desk.kept.of(("zoo", held.state), lambda: _encoded(about.of(held)))
        return _json(made)

    @app.get("/api/entries")
    def entries(
        find: Annotated[str, Query(max_length=_LONGEST)] = "",
        tag: Annotated[str | None, Query(max_length=_LONGEST)] = None,
        group: Annotated[str | None, Query(pattern=r"^[0-9a-f]{16}$")] = None,
        sort: Sorted = "added",
        offset: Annotated[int, Query(ge=0, le=10_000_000)] = 0,
        limit: Annotated[int, Query(ge=1, le=5000)] = 100,
    ) -> Response:
        """Entries by words in their name, tags, probe or id."""
        held = desk.shelf.now()
        asked = ("entries", held.state, find, tag, group, sort, offset, limit)

        def make() -> bytes:
            found = held.found(find, tag, group, sort)
            some = [in_a_list(entry) for entry in found[offset : offset + limit]]
            return _encoded({"total": len(found), "entries": some})

        return _json(desk.kept.of(asked, make))

    @app.get("/api/entries/{id}")
    def entry(id: Id) -> Response:
        """All that is known of an entry without reading its recording."""
        found = desk.entry(id)
        facts = spelt_out(found.to_dict())
        linked = desk.shelf.now().by_id.get(found.trained_on or "")
        facts["trained_on_name"] = None if linked is None else spelt_out(linked.name)
        return _json(_encoded(facts))


# -- what workers answer --------------------------------------------------------------------------


def _add_answers(app: FastAPI, desk: _Desk) -> None:
    """Questions wait in threads of their own, so that lists never wait for them."""
    waiting = CapacityLimiter(_WAITING)

    async def waited_for(act: Callable[[], bytes]) -> Response:
        if not waiting.available_tokens:
            raise BusyError("too many others are asking; try again in a moment")
        return _json(await run_sync(act, limiter=waiting))

    async def told(what: str, of_all: bool = True, **of: Any) -> Response:
        return await waited_for(partial(desk.answer, what, of_all, **of))

    @app.get("/api/map")
    async def zoo_map(group: Group, kernel: Kernel = "features") -> Response:
        """Where the networks of a group lie on a plane, near each other if they are alike."""
        return await told("zoo_map", group=group, kernel=kernel)

    @app.get("/api/pair")
    async def pair(a: IdAsked, b: IdAsked) -> Response:
        """Two networks layer by layer: scores, standard errors, chance, behaviour, coordinates."""
        found = [await run_in_threadpool(desk.entry, id) for id in (a, b)]
        first, second = sorted(entry.id for entry in found)  # either way is one answer
        return await told("pair", of_all=False, a=first, b=second)

    @app.get("/api/entries/{id}/nearest")
    async def nearest(id: Id, kernel: Kernel = "features", limit: Limit = 10) -> Response:
        """The networks most like one, among those recorded on the same samples."""
        entry = await run_in_threadpool(desk.entry, id)
        return await told("nearest", id=entry.id, kernel=kernel, limit=limit)

    @app.get("/api/entries/{id}/relatives")
    async def relatives(id: Id, limit: Limit = 10) -> Response:
        """Which entries were made from a network, or it from them."""
        entry = await run_in_threadpool(desk.entry, id)
        return await told("relatives", id=entry.id, limit=limit)

    @app.get("/api/families")
    async def families(group: Group) -> Response:
        """Which entries of a group were made from which."""
        return await told("families", group=group)

    @app.get("/api/recommend")
    async def recommend(query: IdAsked, limit: Limit = 10) -> Response:
        """Which entries to look at for the data of a recording; no network is run."""
        entry = await run_in_threadpool(desk.entry, query)
        return await waited_for(partial(_advice, desk, entry, limit))


def _advice(desk: _Desk, entry: Entry, limit: int) -> bytes:
    """By how like data are, and by how like networks treat them."""
    found = json.loads(desk.answer("by_data", id=entry.id, limit=limit))
    kernel = "product" if "gradients" in entry.kinds else "features"
    try:
        alike, why = desk.answer("nearest", id=entry.id, kernel=kernel, limit=limit), None
    except UnansweredError as error:
        alike, why = b"null", str(error)
    told = {"query": in_a_list(entry), **found, "alike": json.loads(alike), "alike_why": why}
    return _encoded(told)


# -- uploads --------------------------------------------------------------------------------------


def _add_uploads(app: FastAPI, desk: _Desk, limit: int) -> None:
    body = {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}
    schema = {"requestBody": {"required": True, "content": body}}
    coming = _Turns(4)

    @app.post("/api/recordings", status_code=201, openapi_extra=schema)
    async def upload(
        request: Request, tag: Annotated[list[str] | None, Query(max_length=_TAGS)] = None
    ) -> Response:
        """Add a recording, sent as it is (application/octet-stream)."""
        tags = list(checked_tags(tag or ()))
        _check_announced(request, limit)
        with coming.one():
            async with received(request.stream(), limit=limit) as path:
                found = await run_in_threadpool(_added, desk.workers, str(path), tags)
        desk.shelf.forget()
        return Response(_encoded(found), 201, media_type="application/json")


def _added(workers: Workers, path: str, tags: list[str]) -> Any:
    try:
        return workers.ask_once("add", path=path, tags=tags)
    except FaultError as error:  # whatever a stranger's file does to its reader is the file's fault
        raise UnansweredError(str(error)) from error


class _Turns:
    """No more than so many at once."""

    def __init__(self, most: int) -> None:
        self.left = most

    def one(self) -> _Turns:
        if not self.left:
            raise UploadError(429, "others are sending files; try again in a moment")
        return self

    def __enter__(self) -> None:
        self.left -= 1

    def __exit__(self, *_: object) -> None:
        self.left += 1


def _check_announced(request: Request, limit: int) -> None:
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/octet-stream":
        # which a page of another origin cannot send without asking first
        raise UploadError(415, "expected the file itself, as application/octet-stream")
    announced = request.headers.get("content-length", "0")
    if announced.isdecimal() and int(announced) > limit:
        raise UploadError(413, too_large(limit))
