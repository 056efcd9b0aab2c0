"""Skills that need a socket or a package: pages from a local server, environments of their own, the text of a PDF."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
import zipfile
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.support import clean_environment
from tests.unit.skillfolders import a_skill
from workers.skills.loader import load_skills
from workers.skills.runner import SkillRun, SkillRunner
from workers.skills.venvs import Venvs

SKILLS = load_skills([])
PAGE = """<html><head><title>标 题</title><style>p {}</style><script>alert("no")</script></head>
<body><h1>Head</h1><p>First&nbsp;line
goes on</p><a href="/next">next</a> <a href="mailto:a@b">mail</a><script>var x = "</p>"</script>
<p>第二段</p><pre>a
b</pre></body></html>"""


class Pages(BaseHTTPRequestHandler):
    """The pages of these tests; ``seen`` counts requests by path."""

    seen: dict[str, int]

    def do_GET(self) -> None:
        self.seen[self.path] = self.seen.get(self.path, 0) + 1
        path = self.path.removeprefix(f"http://{self.headers['Host']}")
        if path == "/page":
            self.reply(200, "text/html; charset=utf-8", PAGE.encode())
        elif path == "/plain":
            self.reply(200, "text/plain; charset=gb18030", "汉字".encode("gb18030"))
        elif path == "/picture":
            self.reply(200, "image/png", b"\x89PNG")
        elif path == "/large":
            self.reply(200, "text/plain", b"x" * 3_000_000)
        elif path == "/gone":
            self.reply(404, "text/html", b"<title>no</title>not here")
        elif path == "/busy":
            self.reply(503 if self.seen[self.path] < 3 else 200, "text/plain", b"at last")
        elif path.startswith("/to/"):
            self.send_response(302)
            self.send_header("Location", path.removeprefix("/to/"))
            self.end_headers()
        elif path == "/loop":
            self.send_response(302)
            self.send_header("Location", f"/loop?{self.seen[self.path]}")
            self.end_headers()
        elif path.startswith("/loop?"):
            self.send_response(302)
            self.send_header("Location", f"/loop?{int(path[6:]) + 1}")
            self.end_headers()
        else:
            self.reply(200, "text/plain", b"other")

    def reply(self, status: int, kind: str, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        try:
            self.wfile.write(body)
        except OSError:  # the reader had enough
            self.close_connection = True

    def log_message(self, *_: Any) -> None:
        pass


class Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, *_: Any) -> None:  # a reader that left early is part of these tests
        pass


@pytest.fixture
def site() -> Iterator[tuple[str, dict[str, int]]]:
    """``(address, requests by path)`` of a local server."""
    seen: dict[str, int] = {}
    server = Server(("127.0.0.1", 0), type("Mine", (Pages,), {"seen": seen}))
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}", seen
    server.shutdown()
    thread.join()
    server.server_close()


async def _at_once(_: float) -> None:
    pass


async def fetch(tmp_path: Path, url: str, *, private: str = "127.0.0.1", env: Any = None, **more: Any) -> SkillRun:
    given = {"PATH": os.environ["PATH"], "FETCH_PAGE_PRIVATE": private, **(env or {})}
    runner = SkillRunner(env=given, root=tmp_path, sleep=_at_once)
    return await runner.run(SKILLS.need("fetch-page"), {"url": url, **more})


async def test_a_page_is_its_words(tmp_path: Path, site: Any) -> None:
    address, _ = site
    run = await fetch(tmp_path, f"{address}/page", links=True)
    assert run.output == {
        "url": f"{address}/page", "status": 200, "type": "text/html", "title": "标 题", "more": False,
        "text": "Head\n\nFirst line goes on\nnext mail\n第二段\n\na\nb", "links": [f"{address}/next"],
    }, run.error  # fmt: skip
    assert (await fetch(tmp_path, f"{address}/plain")).output["text"] == "汉字"


async def test_limits_and_kinds(tmp_path: Path, site: Any) -> None:
    address, _ = site
    large = (await fetch(tmp_path, f"{address}/large", max_characters=200_000)).output
    assert (len(large["text"]), large["more"]) == (200_000, True)
    picture = await fetch(tmp_path, f"{address}/picture")
    assert (picture.attempts, "is of type image/png" in picture.error) == (1, True)
    gone = (await fetch(tmp_path, f"{address}/gone")).output
    assert (gone["status"], gone["title"]) == (404, "no")


async def test_a_busy_page_is_asked_again(tmp_path: Path, site: Any) -> None:
    address, seen = site
    run = await fetch(tmp_path, f"{address}/busy")
    assert (run.attempts, run.output["text"], seen["/busy"]) == (3, "at last", 3)


async def test_redirects_are_followed_but_not_for_ever_and_not_inside(tmp_path: Path, site: Any) -> None:
    address, seen = site
    followed = await fetch(tmp_path, f"{address}/to//plain")
    assert followed.output["url"] == f"{address}/plain"
    assert (await fetch(tmp_path, f"{address}/loop")).status == "failed"
    assert sum(count for path, count in seen.items() if path.startswith("/loop")) < 30
    for inside in (f"http://localhost:{address.rpartition(':')[2]}/hit", "file:///etc/passwd", "http://[::1]/hit"):
        run = await fetch(tmp_path, f"{address}/to/{inside}")
        assert run.error.startswith("BadInput: "), inside
    assert "/hit" not in seen


async def test_the_local_network_is_reached_only_where_the_operator_says_so(tmp_path: Path, site: Any) -> None:
    address, seen = site
    run = await fetch(tmp_path, f"{address}/page", private="")
    assert run.error.startswith("BadInput: '127.0.0.1' is on this machine")
    assert seen == {}


async def test_a_proxy_of_the_operator_is_used(tmp_path: Path, site: Any) -> None:
    address, seen = site
    run = await fetch(tmp_path, "http://pages.example/x", private="", env={"http_proxy": address})
    assert run.output["text"] == "other", run.error
    assert seen == {"http://pages.example/x": 1}


# --- environments of their own ----------------------------------------------------------------------------------------


def wheel(folder: Path, version: str) -> str:
    """A tiny package that is nowhere else."""
    name = f"rctiny-{version}-py3-none-any.whl"
    info = f"rctiny-{version}.dist-info"
    folder.mkdir(exist_ok=True)
    with zipfile.ZipFile(folder / name, "w") as file:
        file.writestr("rctiny.py", f"VERSION = {version!r}\n")
        file.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: rctiny\nVersion: {version}\n")
        file.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: t\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        file.writestr(f"{info}/RECORD", "")
    return name


async def test_requirements_go_to_an_environment_of_the_skill(tmp_path: Path) -> None:
    code = """
        import sys, rctiny
        def run():
            try:
                import redis
            except ImportError:
                return [rctiny.VERSION, sys.prefix, "alone"]
            return [rctiny.VERSION, sys.prefix, "sees the fleet's packages"]
    """
    skill = a_skill(tmp_path / "skills", code)
    (skill.folder / "requirements.txt").write_text(f"./wheels/{wheel(skill.folder / 'wheels', '1.0')}\n")
    data = tmp_path / "data"
    runners = [SkillRunner(env=dict(os.environ), data_dir=data, root=tmp_path) for _ in range(2)]
    first, second = await asyncio.gather(*(runner.run(skill, {}) for runner in runners))
    assert first.output == second.output, first.error
    version, prefix, alone = first.output
    assert (version, alone) == ("1.0", "alone")
    assert Path(prefix).parent == data / "skills"
    assert Path(prefix).name.startswith("demo-")
    assert subprocess.run([sys.executable, "-c", "import rctiny"], capture_output=True, check=False).returncode == 1

    again = await runners[0].run(skill, {})
    assert again.output == first.output
    venvs = Venvs(data, os.environ)
    assert venvs.place(skill) == Path(prefix)
    (skill.folder / "requirements.txt").write_text(f"./wheels/{wheel(skill.folder / 'wheels', '2.0')}\n")
    assert venvs.place(skill) != Path(prefix)


async def test_requirements_that_can_not_be_had_are_a_failure_in_words(tmp_path: Path) -> None:
    skill = a_skill(tmp_path / "skills", max_retries=2)
    (skill.folder / "requirements.txt").write_text("./wheels/missing-1.0-py3-none-any.whl\n")
    run = await SkillRunner(env=dict(os.environ), data_dir=tmp_path / "data", root=tmp_path).run(skill, {})
    assert (run.status, run.kind, run.attempts) == ("failed", "environment", 1)
    assert "the requirements of skill 'demo' can't be installed: " in run.error
    nowhere = await SkillRunner(env=dict(os.environ), root=tmp_path).run(skill, {})
    assert "set ROLECALL_DATA" in nowhere.error


def pdf(pages: list[str]) -> bytes:
    """A PDF with one line of text a page."""
    objects = ["<< /Type /Catalog /Pages 2 0 R >>"]
    kids = " ".join(f"{4 + 2 * number} 0 R" for number in range(len(pages)))
    objects.append(f"<< /Type /Pages /Kids [{kids}] /Count {len(pages)} >>")
    objects.append("<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>")
    for number, text in enumerate(pages):
        stream = f"BT /F1 24 Tf 72 700 Td ({text}) Tj ET"
        objects.append(
            "<< /Type /Page /Parent 2 0 R /MediaBox [0 0 612 792] /Resources << /Font << /F1 3 0 R >> >>"
            f" /Contents {5 + 2 * number} 0 R >>"
        )
        objects.append(f"<< /Length {len(stream)} >>\nstream\n{stream}\nendstream")
    out, places = b"%PDF-1.4\n", []
    for number, body in enumerate(objects, start=1):
        places.append(len(out))
        out += f"{number} 0 obj\n{body}\nendobj\n".encode()
    table = "".join(f"{place:010d} 00000 n \n" for place in places)
    end = f"xref\n0 {len(objects) + 1}\n0000000000 65535 f \n{table}"
    return out + f"{end}trailer << /Size {len(objects) + 1} /Root 1 0 R >>\nstartxref\n{len(out)}\n%%EOF\n".encode()


@pytest.mark.slow
async def test_pdf_text_by_pages(tmp_path: Path) -> None:
    root = tmp_path / "root"
    root.mkdir()
    (root / "a.pdf").write_bytes(pdf(["Page one", "Page two", "Page three"]))
    (root / "b.pdf").write_text("no pdf at all")
    (tmp_path / "outside.pdf").write_bytes(pdf(["secret"]))
    runner = SkillRunner(env=clean_environment(os.environ), data_dir=tmp_path / "data", root=root)
    skill = SKILLS.need("pdf-text")
    run = await runner.run(skill, {"path": "a.pdf", "first_page": 2, "pages": 1})
    if run.kind == "environment" and "No matching distribution" in run.log + run.error:
        pytest.skip(f"pypdf can't be had here: {run.error}")
    assert run.output == {
        "path": "a.pdf", "page_count": 3, "more": True, "pages": [{"page": 2, "text": "Page two"}],
    }, run.error  # fmt: skip
    assert (await runner.run(skill, {"path": "a.pdf"})).output["more"] is False
    for path in ("b.pdf", "../outside.pdf", "missing.pdf", "."):
        bad = await runner.run(skill, {"path": path})
        assert (bad.attempts, bad.error.startswith("BadInput: ")) == (1, True), (path, bad.error)
    past = await runner.run(skill, {"path": "a.pdf", "first_page": 4})
    assert "has 3 pages" in past.error
