"""Server of the page, and its access rules. It only reads.

A web page elsewhere must not read runs through a visitor's browser: requests under a foreign host
name (DNS rebinding) or from a foreign origin are refused, and the headers forbid the page to load
or send anything beyond this server.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Iterable
from pathlib import Path
from urllib.parse import urlsplit

from dash import Dash
from dash.exceptions import DependencyException
from flask import Flask, Response, abort, request, send_file
from werkzeug.serving import BaseWSGIServer, WSGIRequestHandler, make_server

from slm_lab.dashboard.curves import CurveStore
from slm_lab.dashboard.page import REFRESH_SECONDS, build_app
from slm_lab.dashboard.run_files import VIDEO_TYPES, videos
from slm_lab.error import LabError
from slm_lab.runs.catalog import RunCatalog

VIDEO_RULE = "/video/<path:key>/<name>"
# Dash has more routes than this page needs, one of them for any path; others give 404.
RULES = frozenset(
    {
        "/",
        "/_favicon.ico",
        "/_dash-layout",
        "/_dash-dependencies",
        "/_dash-update-component",
        "/_dash-component-suites/<string:package_name>/<path:fingerprinted_path>",
        "/assets/<path:filename>",
        VIDEO_RULE,
    }
)
METHODS = frozenset({"GET", "HEAD", "POST"})
LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "::1"})
MOST_REQUEST_BYTES = 4_000_000
IDLE_SECONDS = 60.0  # the page asks every two seconds; a connection that does not is closed


class DashboardError(LabError):
    """The page cannot be served as asked."""


def make_app(
    root: str | Path, *, host: str = "127.0.0.1", refresh_seconds: float = REFRESH_SECONDS
) -> Flask:
    """The page on a data folder as a WSGI application, for requests to `host`."""
    catalog = RunCatalog(root)
    app = build_app(catalog, CurveStore(), refresh_seconds)
    server: Flask = app.server
    server.config["MAX_CONTENT_LENGTH"] = MOST_REQUEST_BYTES
    _guard(server, host, app)
    _add_headers(server, app)

    def video(key: str, name: str) -> Response:
        """Send a video found among those of the run: a request never names a path."""
        run = catalog.get(key)
        known = videos(run) if run is not None else []
        path = next((path for path in known if path.name == name), None)
        if path is None:
            return abort(404)
        return send_file(path, mimetype=VIDEO_TYPES[path.suffix], conditional=True)

    server.add_url_rule(VIDEO_RULE, view_func=video)
    return server


def open_server(root: str | Path, *, host: str = "127.0.0.1", port: int = 8050) -> BaseWSGIServer:
    """Open a listening server; `serve_forever` serves. Port 0 takes a free one."""
    if not Path(root).is_dir():
        raise DashboardError(f"DIR: no folder {root}. Expected one that holds runs, such as data.")
    app = make_app(root, host=host)
    try:
        return make_server(host, port, app, threaded=True, request_handler=_QuietHandler)
    except (OSError, SystemExit) as error:  # werkzeug exits where the port is taken
        reason = getattr(error, "strerror", None) or "the port is taken"
        raise DashboardError(
            f"--host {host} --port {port}: cannot listen there ({reason}). Try --port {port + 1}."
        ) from None


def is_loopback(host: str) -> bool:
    address = _ip(host)
    return host == "localhost" or (address is not None and address.is_loopback)


def _ip(name: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(name)
    except ValueError:
        return None


class _QuietHandler(WSGIRequestHandler):  # type: ignore[misc]
    protocol_version = "HTTP/1.1"  # one connection for many requests
    timeout = IDLE_SECONDS  # each holds a thread

    def log_request(self, *_: object) -> None:
        """Log nothing: a page that asks every two seconds would fill the terminal."""


def _guard(server: Flask, host: str, app: Dash) -> None:
    def refuse_strangers() -> None:
        name = _host_name(request.host)
        if not _is_our_name(name, host):
            abort(403, "This page answers only under the name of this machine.")
        origin = request.headers.get("Origin")
        if origin is not None and _address(origin) != request.host:
            abort(403, "This page answers only itself.")
        if request.method not in METHODS:
            abort(405)
        if request.url_rule is not None and request.url_rule.rule not in RULES:
            abort(404)
        is_callback = request.path == "/_dash-update-component" and request.method == "POST"
        if is_callback and not _is_of_the_page(request.get_json(silent=True), app):
            abort(400, "This is no request of the page.")

    server.before_request(refuse_strangers)
    server.register_error_handler(DependencyException, lambda _: ("Not found", 404))


def _is_of_the_page(body: object, app: Dash) -> bool:
    """Whether a body names a callback of the server with its own outputs, inputs and states.

    Dash believes what it says there. The values may be anything.
    """
    if not isinstance(body, dict) or not isinstance(body.get("output"), str):
        return False
    callback = app.callback_map.get(body["output"])
    if callback is None or "callback" not in callback:  # others run in the browser
        return False
    outputs = callback["output"]
    outputs = outputs if isinstance(outputs, list | tuple) else [outputs]
    expected = [(one.component_id, one.component_property) for one in outputs]
    found, changed = body.get("outputs"), body.get("changedPropIds", [])
    return (
        _places(found if isinstance(found, list) else [found]) == expected
        and _places(body.get("inputs")) == _places(callback["inputs"])
        and _places(body.get("state", [])) == _places(callback["state"])
        and isinstance(changed, list)
        and all(isinstance(name, str) for name in changed)
    )


def _places(items: object) -> list[tuple[object, object]] | None:
    """The component and property that each item names; None if they are no such items."""
    if not isinstance(items, list) or not all(isinstance(item, dict) for item in items):
        return None
    return [(item.get("id"), item.get("property")) for item in items]


def _address(origin: str) -> str:
    """Host and port of an origin; empty if it is none."""
    try:
        return urlsplit(origin).netloc
    except ValueError:
        return ""


def _host_name(host: str) -> str:
    """`name:8050`, `[::1]:8050` -> the name alone."""
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0]


def _is_our_name(name: str, host: str) -> bool:
    if is_loopback(host):
        return name in LOOPBACK_NAMES
    # A foreign site can point its own name here, but cannot make a browser send an address.
    ours = {*LOOPBACK_NAMES, host, socket.gethostname(), socket.getfqdn()}
    return name in ours or _ip(name) is not None


def _add_headers(server: Flask, app: Dash) -> None:
    headers = {
        "Content-Security-Policy": content_security_policy(app.csp_hashes()),
        "X-Content-Type-Options": "nosniff",
        "X-Frame-Options": "DENY",
        "Referrer-Policy": "no-referrer",
        "Cross-Origin-Resource-Policy": "same-origin",
        "Cross-Origin-Opener-Policy": "same-origin",
    }

    def add(response: Response) -> Response:
        response.headers.update(headers)
        return response

    server.after_request(add)


def content_security_policy(script_hashes: Iterable[str]) -> str:
    """Policy that loads nothing from elsewhere; plotly and the grid write inline styles."""
    rules = {
        "default-src": "'none'",
        "script-src": " ".join(["'self'", *script_hashes]),
        "style-src": "'self' 'unsafe-inline'",
        "img-src": "'self' data: blob:",
        "font-src": "'self' data:",
        "media-src": "'self'",
        "connect-src": "'self'",
        "base-uri": "'none'",
        "form-action": "'none'",
        "frame-ancestors": "'none'",
    }
    return "; ".join(f"{name} {value}" for name, value in rules.items())
