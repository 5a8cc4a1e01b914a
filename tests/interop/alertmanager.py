"""A real Alertmanager with alerts/alertmanager.yml, and a receiver that keeps what it is sent."""

import json
import threading
from collections import defaultdict
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import yaml

import shortened
from harness import ROOT, free_port, get, get_json, wait_for

# A time that never comes again.
NEVER = [{"years": ["2000"]}]


class Receiver:
    """An HTTP server for webhooks; the path names the receiver. Everything else is refused, OTLP too."""

    def __init__(self):
        self.lock = threading.Lock()
        # By receiver and fingerprint: the states that an alert was sent in, and its labels.
        self.states, self.labels = defaultdict(list), {}
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):
                try:
                    receiver.take(self.path.strip("/"), json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
                    self.send_response(200)
                except ValueError:
                    self.send_response(400)
                self.end_headers()

            def log_message(self, *_):
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", free_port()), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def take(self, name, message):
        with self.lock:
            for alert in message["alerts"]:
                key = name, alert["fingerprint"]
                self.labels[key] = alert["labels"]
                if self.states[key][-1:] != [alert["status"]]:
                    self.states[key].append(alert["status"])

    def sent(self):
        """(receiver, labels, states in order) of every alert that was sent."""
        with self.lock:
            return [(key[0], self.labels[key], list(states)) for key, states in self.states.items()]


class Alertmanager:
    def __init__(self, suite, receiver):
        self.port = free_port()
        self.address = f"127.0.0.1:{self.port}"
        self.url = f"http://{self.address}"
        configuration = shortened.routes(yaml.safe_load((ROOT / "alerts/alertmanager.yml").read_text()), NEVER)
        for one in configuration["receivers"]:
            for hook in one.get("webhook_configs", []):
                hook["url"] = f"{receiver.url}/{one['name']}"
        path = suite.folder / "alertmanager.yaml"
        path.write_text(json.dumps(configuration, indent=1))
        self.program = suite.start(
            "alertmanager", "alertmanager", f"--config.file={path}", f"--web.listen-address={self.address}",
            f"--storage.path={suite.folder / 'alertmanager'}", "--cluster.listen-address=")
        wait_for("Alertmanager", 30, lambda: get(f"{self.url}/-/ready"), self.program)

    def alerts(self):
        """The alerts that have not ended: labels, receivers, and whether something silences them."""
        return [(alert["labels"], [one["name"] for one in alert["receivers"]], alert["status"]["state"])
                for alert in get_json(f"{self.url}/api/v2/alerts")]
