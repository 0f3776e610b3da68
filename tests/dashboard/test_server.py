"""The page answers this machine, under its own name, about its folder, and nothing else."""

from __future__ import annotations

import json
import socket
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from perf.synthetic_runs import SyntheticRun, write_run

pytest.importorskip("dash")
from slm_lab.dashboard.server import DashboardError, is_loopback, make_app, open_server

SMALL = SyntheticRun(sessions=1, rows=5, max_frame=100)
HERE = {"Host": "localhost:8050"}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    layout = write_run(tmp_path / "data", SMALL)
    video = layout.predir / "video"
    video.mkdir()
    (video / "best.mp4").write_bytes(b"0123456789")
    (tmp_path / "secret.mp4").write_bytes(b"secret")
    (video / "linked.mp4").symlink_to(tmp_path / "secret.mp4")
    return tmp_path / "data"


@pytest.fixture
def client(root):
    client = make_app(root).test_client()
    client.get("/_dash-layout", headers=HERE)  # the first look at the folder
    return client


def test_the_page_and_its_parts_are_served_from_here(client):
    page = client.get("/", headers=HERE)
    assert page.status_code == 200
    assert "http://" not in page.text.replace("http://localhost", "")
    layout = client.get("/_dash-layout", headers=HERE)
    assert "ppo_cartpole_2026_01_01_000000" in layout.text


def test_the_headers_forbid_other_origins_frames_and_guesses(client):
    headers = client.get("/", headers=HERE).headers
    policy = headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy
    assert "connect-src 'self'" in policy
    assert "frame-ancestors 'none'" in policy
    assert "unsafe-eval" not in policy
    assert "http" not in policy
    scripts = next(rule for rule in policy.split("; ") if rule.startswith("script-src"))
    assert "unsafe-inline" not in scripts
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert "Access-Control-Allow-Origin" not in headers


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:8050", "127.0.0.1.evil.example", ""]
)
def test_a_foreign_host_name_is_refused(client, host):
    assert client.get("/", headers={"Host": host}).status_code in (400, 403)
    assert client.post("/_dash-update-component", headers={"Host": host}).status_code in (400, 403)


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1:8050", "[::1]:8050"])
def test_the_names_of_this_machine_are_known(client, host):
    assert client.get("/", headers={"Host": host}).status_code == 200


def test_on_an_open_address_an_ip_or_the_machine_itself_is_fine_and_a_foreign_name_is_not(root):
    client = make_app(root, host="0.0.0.0").test_client()
    assert client.get("/", headers={"Host": "192.168.1.7:8050"}).status_code == 200
    assert client.get("/", headers={"Host": "evil.example:8050"}).status_code == 403


def test_a_request_from_a_page_of_another_origin_is_refused(client):
    stranger = {**HERE, "Origin": "http://evil.example"}
    assert client.get("/_dash-layout", headers=stranger).status_code == 403
    own = {**HERE, "Origin": "http://localhost:8050"}
    assert client.get("/_dash-layout", headers=own).status_code == 200


@pytest.mark.parametrize(
    "path", ["/_reload-hash", "/_alive_x", "/mcp", "/static/x", "/health", "/anything", "/_dash-x"]
)
def test_what_the_page_does_not_need_is_not_there(client, path):
    assert client.get(path, headers=HERE).status_code == 404


@pytest.mark.parametrize("method", ["PUT", "DELETE", "PATCH", "OPTIONS", "POST"])
def test_other_methods_are_refused(client, method):
    assert client.open("/", method=method, headers=HERE).status_code == 405


def test_a_video_of_a_run_is_served_in_parts_if_asked(client):
    path = "/video/ppo_cartpole_2026_01_01_000000/best.mp4"
    with client.get(path, headers=HERE) as whole:
        assert (whole.data, whole.mimetype) == (b"0123456789", "video/mp4")
    with client.get(path, headers={**HERE, "Range": "bytes=2-4"}) as part:
        assert (part.status_code, part.data) == (206, b"234")


@pytest.mark.parametrize(
    "path",
    [
        "ppo_cartpole_2026_01_01_000000/linked.mp4",
        "ppo_cartpole_2026_01_01_000000/../ppo_cartpole_spec.json",
        "ppo_cartpole_2026_01_01_000000/%2e%2e%2fppo_cartpole_spec.json",
        "ppo_cartpole_2026_01_01_000000/video/best.mp4",
        "ppo_cartpole_2026_01_01_000000/../../secret.mp4",
        "../secret.mp4",
        "..%2fsecret.mp4",
        "%2e%2e/secret.mp4",
        "/etc/passwd",
        "x/..%00/secret.mp4",
        "./ppo_cartpole_2026_01_01_000000/best.mp4",
    ],
)
def test_no_path_leads_out_of_the_videos(client, path):
    answer = client.get(f"/video/{path}", headers=HERE)
    assert answer.status_code in (308, 404)
    assert b"secret" not in answer.data


@pytest.mark.parametrize(
    "path",
    [
        "/assets/../server.py",
        "/assets/%2e%2e/server.py",
        "/_dash-component-suites/dash/../../slm_lab/dashboard/server.py",
        "/_dash-component-suites/dash/%2e%2e/flask/app.py",
        "/_dash-component-suites/dash/dash.py",
    ],
)
def test_scripts_and_styles_are_those_of_the_page(client, path):
    assert client.get(path, headers=HERE).status_code == 404


def callback(client: Any, output: str, inputs: dict[str, Any]) -> dict[str, Any]:
    """Ask a callback of the page as the browser does."""
    known = client.get("/_dash-dependencies", headers=HERE).json
    (entry,) = [
        item for item in known if output in item["output"] and item["clientside_function"] is None
    ]
    outputs = entry["output"].strip(".").split("...")
    body = {
        "output": entry["output"],
        "outputs": [dict(zip(("id", "property"), o.rsplit(".", 1), strict=True)) for o in outputs],
        "inputs": [{**item, "value": inputs.get(item["id"])} for item in entry["inputs"]],
        "state": [{**item, "value": inputs.get(item["id"])} for item in entry["state"]],
        "changedPropIds": [],
    }
    answer = client.post("/_dash-update-component", json=body, headers=HERE)
    assert answer.status_code in (200, 204), answer.text
    return answer.json["response"] if answer.status_code == 200 else {}


def shown(*keys: str) -> dict[str, Any]:
    return {"keys": keys, "stamps": [], "places": {key: i for i, key in enumerate(keys)}}


HOSTILE = "</script><img src=x onerror=alert(1)><a href='javascript:alert(2)'>x</a>"


def test_a_figure_escapes_what_plotly_would_take_for_markup(tmp_path):
    name = "<a href=x>evil<b>"
    layout = write_run(tmp_path, replace(SMALL, name=name, sessions=2))
    client = make_app(tmp_path).test_client()
    client.get("/_dash-layout", headers=HERE)
    inputs = {"shown": shown(layout.predir.name), "y": "total_reward", "x": "frame"}
    drawn = callback(client, "graph.figure", {**inputs, "theme": "light", "with-sessions": ["yes"]})
    text = json.dumps(drawn["graph"]["figure"])
    assert "&lt;a href=x&gt;evil&lt;b&gt;" in text
    assert "<" not in text


def test_hostile_text_in_specs_and_logs_stays_text(tmp_path):
    layout = write_run(tmp_path, replace(SMALL, values={"agent.note": HOSTILE}, env=HOSTILE))
    layout.log_path(0).write_text(f"{HOSTILE}\n")
    client = make_app(tmp_path).test_client()
    client.get("/_dash-layout", headers=HERE)
    inputs = {"shown": shown(layout.predir.name), "log-name": layout.log_path(0).name}
    for tab in ("spec", "log", "details"):
        panel = callback(client, "panel.children", {**inputs, "tab": tab})["panel"]["children"]
        assert HOSTILE[:20] in json.dumps(panel, ensure_ascii=False)
        # Components are drawn by React, which makes text nodes of strings: no raw HTML anywhere.
        assert "dangerously" not in json.dumps(panel).lower()
        assert "Markdown" not in json.dumps(panel)
    # Dash puts the first layout into the page as JSON; a browser must not see markup in it.
    first = client.get("/", headers=HERE).text
    assert "<img" not in first
    assert r"\u003cimg src=x" in first


@pytest.mark.parametrize("key", ["../outside", "/etc", "..", "nothing", "", "a/../../b"])
def test_a_run_that_is_not_in_the_folder_cannot_be_asked_for(root, key):
    write_run(
        root.parent / "outside", replace(SMALL, name="outside", values={"agent.x": "private"})
    )
    client = make_app(root).test_client()
    client.get("/_dash-layout", headers=HERE)
    panel = callback(client, "panel.children", {"tab": "spec", "shown": shown(key)})
    assert "private" not in json.dumps(panel)


def test_news_are_sent_only_when_there_are_any(root):
    client = make_app(root).test_client()
    layout = client.get("/_dash-layout", headers=HERE).json
    stores = {
        part["props"]["id"]: part["props"].get("data")
        for part in layout["props"]["children"]
        if part["type"] == "Store"
    }
    inputs = {"version": stores["version"], "shown": stores["shown"], "grid": []}
    assert callback(client, "grid.rowData", inputs) == {}
    write_run(root, replace(SMALL, name="dqn", ts="2026_02_01_000000"))
    news = callback(client, "grid.rowData", inputs)
    assert [row["label"] for row in news["grid"]["rowData"]] == ["dqn", "ppo_cartpole"]
    assert news["shown"]["data"]["keys"] == ["dqn_2026_02_01_000000"]


def test_a_folder_that_is_not_there_and_a_port_that_is_taken_are_told(root):
    with pytest.raises(DashboardError, match="DIR: no folder"):
        open_server(root / "nothing")
    server = open_server(root, port=0)
    try:
        with pytest.raises(DashboardError, match=f"--port {server.server_port}: cannot listen"):
            open_server(root, port=server.server_port)
    finally:
        server.server_close()


def test_loopback_is_told_from_the_rest():
    assert all(is_loopback(host) for host in ("127.0.0.1", "localhost", "::1", "127.8.8.8"))
    assert not any(is_loopback(host) for host in ("0.0.0.0", "::", "192.168.0.1", "example.org"))


def request_of(client: Any, output: str, value: object) -> dict[str, Any]:
    """The request of a callback where every input and state has that value."""
    entries = client.get("/_dash-dependencies", headers=HERE).get_json()
    entry = next(item for item in entries if output in item["output"])
    outputs = entry["output"].strip(".").split("...")
    return {
        "output": entry["output"],
        "outputs": [
            dict(zip(("id", "property"), name.rsplit(".", 1), strict=True)) for name in outputs
        ],
        "inputs": [{**item, "value": value} for item in entry["inputs"]],
        "state": [{**item, "value": value} for item in entry["state"]],
        "changedPropIds": [],
    }


def ask(client: Any, output: str, value: object) -> int:
    body = request_of(client, output, value)
    status: int = client.post("/_dash-update-component", json=body, headers=HERE).status_code
    return status


@pytest.mark.parametrize("output", ["grid.rowData", "graph.figure", "panel.children"])
@pytest.mark.parametrize("value", [None, 3, "x", [None], {"keys": None, "places": [1]}, {}])
def test_whatever_a_request_says_the_page_remembers_is_answered(client, output, value):
    assert ask(client, output, value) in (200, 204)


@pytest.mark.parametrize(
    "body", [None, [], "x", {}, {"inputs": None}, {"inputs": [None]}, {"inputs": [], "state": None}]
)
def test_a_body_that_is_no_request_of_the_page_is_refused(client, body):
    answer = client.post("/_dash-update-component", json=body, headers=HERE)
    assert answer.status_code == 400


@pytest.mark.parametrize(
    "change",
    [
        {"output": "theme.data"},  # of a callback that runs in the browser
        {"output": "nothing.data"},
        {"output": ["graph.figure"]},
        {"outputs": []},
        {"outputs": [{"id": "graph"}]},
        {"inputs": [{"id": "shown", "property": "data", "value": None}]},
        {"state": [{"id": "shown", "property": "data", "value": None}]},
        {"changedPropIds": 3},
        {"changedPropIds": [{}]},
    ],
)
def test_a_request_that_differs_from_the_callback_it_names_is_refused(client, change):
    body = request_of(client, "graph.figure", None)
    assert client.post("/_dash-update-component", json=body, headers=HERE).status_code == 200
    answer = client.post("/_dash-update-component", json=body | change, headers=HERE)
    assert answer.status_code == 400


def test_an_origin_that_is_no_address_is_refused(client):
    stranger = {**HERE, "Origin": "http://["}
    assert client.get("/_dash-layout", headers=stranger).status_code == 403


def test_an_idle_connection_is_closed(root, monkeypatch):
    monkeypatch.setattr("slm_lab.dashboard.server._QuietHandler.timeout", 0.2)
    server = open_server(root, port=0)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        with socket.create_connection(("127.0.0.1", server.server_port), timeout=20) as idle:
            assert idle.recv(1) == b""
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
