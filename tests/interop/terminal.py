"""`gpumeter top` in a real terminal, tmux, over the documents of the screens in tests/golden/top: it shows them cell by cell."""

import http.server
import json
import os
import pty
import subprocess
import threading
from pathlib import Path

import harness
from harness import GPUMETER, ROOT, Failed, wait_for

GOLDEN = ROOT / "tests/golden/top"
# The keys that lead to each screen, as in src/cli/top/tests.rs; without bills, so without the view of tenants.
SCREENS = {
    "gpus": ["Down", "Down", "Down", "f"], "processes": ["2"], "workloads": ["4", "Space"], "problems": ["5", "f"],
    "history": ["Down", "h"], "help": ["?"],
}
SIZES = [(80, 24), (200, 60)]


class Terminal:
    """tmux with one window of this size, in which `gpumeter top` runs."""

    def __init__(self, suite, name, url, columns, rows):
        self.socket = suite.folder / f"tmux-{name}"
        suite.end_first(self.end)
        command = f"exec env -u NO_COLOR TZ=UTC {GPUMETER} top --url {url}"
        self.tmux("-f", "/dev/null", "new-session", "-d", "-s", "top", "-x", str(columns), "-y", str(rows), command)
        # The whole window is the program's.
        self.tmux("set-option", "-g", "status", "off")
        # What it says when it ends is to be seen.
        self.tmux("set-option", "-g", "remain-on-exit", "on")
        self.tmux("resize-window", "-t", "top", "-x", str(columns), "-y", str(rows))

    def tmux(self, *arguments):
        command = ["env", "LC_ALL=C.UTF-8", "TERM=xterm-256color", "tmux", "-S", self.socket, *arguments]
        found = subprocess.run(command, capture_output=True, text=True)
        if found.returncode != 0:
            raise Failed(f"tmux {arguments}: {found.stderr}")
        return found.stdout

    def end(self):
        subprocess.run(["tmux", "-S", self.socket, "kill-server"], capture_output=True)

    def press(self, *keys):
        for key in keys:
            self.tmux("send-keys", "-t", "top", key)

    def text(self):
        """The screen, without blanks at the ends of lines."""
        return "".join(line.rstrip() + "\n" for line in self.tmux("capture-pane", "-p", "-t", "top").split("\n")[:-1])

    def coloured(self):
        """The screen with its colours, as a terminal is told of them."""
        return self.tmux("capture-pane", "-p", "-e", "-N", "-t", "top")


class Documents(http.server.BaseHTTPRequestHandler):
    documents = json.loads((GOLDEN / "documents.json").read_text())

    def do_GET(self):
        document = self.documents.get(self.path.removeprefix("/api/v1/").split("?")[0])
        body = json.dumps(document or {"error": "there is none"}).encode()
        self.send_response(200 if document else 404)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


def check(suite):
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Documents)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    url = f"http://127.0.0.1:{server.server_address[1]}"
    for columns, rows in SIZES:
        for name, keys in SCREENS.items():
            golden = f"{name}-{columns}x{rows}.txt"
            committed = (GOLDEN / golden).read_text()
            terminal = Terminal(suite, f"{name}-{columns}", url, columns, rows)
            wait_for("a node in the terminal", 30, lambda: "node-7" in terminal.text())
            terminal.press(*keys)
            try:
                wait_for(golden, 30, lambda: terminal.text() == committed)
            except Failed:
                suite.expect(False, f"{golden}: the terminal shows\n{terminal.text()}")
            suite.checks += 1
            program = Path("/proc", terminal.tmux("list-panes", "-F", "#{pane_pid}").strip(), "stat")
            terminal.end()
            wait_for(f"the end of {program} without its terminal", 30, lambda: has_ended(program))
    server.shutdown()
    terminal, standard_error = pty.openpty()
    ended = subprocess.run([GPUMETER, "health", "--url", "http://127.0.0.1:1"], stdin=subprocess.DEVNULL, stderr=standard_error)
    suite.expect(ended.returncode == 2 and b"is the agent running?" in os.read(terminal, 4096), "a command in a terminal does not say why it fails")


def has_ended(stat):
    try:
        return stat.read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


if __name__ == "__main__":
    harness.run(check)
