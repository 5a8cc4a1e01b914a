"""A real Prometheus scrapes over TLS with a client certificate and a password, and a client that lacks one of them is refused.

Web configuration files get the verdict that exporter-toolkit gives them (`promtool check web-config`), but for the
differences that docs/web.md names.
"""

import subprocess

import harness
from harness import GPUMETER, Prometheus, free_port, wait_for

# Of "secret", at a low cost so that the suite is quick.
HASH = "$2y$06$abcdefghijklmnopqrstuuxLa0AkDDSrQ9VwNnETzOsObiucpMYgC"

CONFIG = f"""
tls_server_config:
  cert_file: server.crt
  key_file: server.key
  client_auth_type: RequireAndVerifyClientCert
  client_ca_file: ca.crt
  client_allowed_sans: [prometheus.example]
basic_auth_users:
  prometheus: {HASH}
"""

PAIR = "cert_file: server.crt, key_file: server.key"

# A web configuration, and whether the verdict is that of exporter-toolkit.
VERDICTS = [
    # A file that says nothing would switch everything off.
    ("", False),
    ("junk", True),
    ("tls_server_config: {cert_filse: server.crt}", True),
    ("tls_server_config: {cert_file: '', key_file: server.key}", True),
    ("tls_server_config: {cert: '', key_file: server.key}", True),
    ("tls_server_config: {cert_file: server.crt, key_file: ''}", True),
    ("tls_server_config: {cert_file: server.crt, key: ''}", True),
    ("tls_server_config: {cert_file: '', key_file: '', client_auth_type: x}", True),
    ("tls_server_config: {cert_file: somefile, key_file: server.key}", True),
    ("tls_server_config: {cert_file: server.crt, key_file: somefile}", True),
    (f"tls_server_config: {{{PAIR}, client_ca_file: ca.crt}}", True),
    (f"tls_server_config: {{{PAIR}, client_ca_file: somefile, client_auth_type: RequireAndVerifyClientCert}}", True),
    (f"tls_server_config: {{{PAIR}, client_auth_type: RequireAndVerifyClientCert}}", True),
    (f"tls_server_config: {{{PAIR}, client_auth_type: VerifyClientCertIfGiven}}", True),
    (f"tls_server_config: {{{PAIR}}}\nbasic_auth_users: {{john: doe}}", True),
    (f"tls_server_config: {{{PAIR}, cipher_suites: [TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA2048]}}", True),
    (f"tls_server_config: {{{PAIR}, cipher_suites: [TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256]}}", True),
    (f"tls_server_config: {{{PAIR}, cipher_suites: [TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA]}}", False),
    (f"tls_server_config: {{{PAIR}, curve_preferences: [CurveP257]}}", True),
    (f"tls_server_config: {{{PAIR}, curve_preferences: [CurveP256, CurveP384, X25519]}}", True),
    (f"tls_server_config: {{{PAIR}, curve_preferences: [CurveP521]}}", False),
    (f"tls_server_config: {{{PAIR}, min_version: TLS111}}", True),
    (f"tls_server_config: {{{PAIR}, min_version: TLS10}}", True),
    ("http_server_config: {headers: {X-Content-Type-Options: sniff}}", True),
    ("http_server_config: {headers: {Content-Type: foo}}", True),
    ("http_server_config: {headers: {X-Frame-Options: deny, X-XSS-Protection: 1}}", True),
    ("rate_limit: {interval: 0, burst: 0}", True),
    ("rate_limit: {interval: 1s, burst: 20}", True),
    (f"basic_auth_users: {{alice: {HASH}}}", True),
    # Without a policy the toolkit ignores the names.
    (f"tls_server_config: {{{PAIR}, client_allowed_sans: [a]}}", False),
]


def openssl(folder, *arguments):
    subprocess.run(["openssl", *arguments], cwd=folder, check=True, capture_output=True)


def make_certificates(folder):
    """A CA and what it signed: the server, Prometheus, and a client of another name."""
    curve = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    openssl(folder, "req", "-x509", *curve, "-days", "2", "-subj", "/CN=test CA", "-keyout", "ca.key", "-out", "ca.crt")
    for name, names in [("server", "IP:127.0.0.1"), ("client", "DNS:prometheus.example"), ("other", "DNS:other.example")]:
        openssl(folder, "req", *curve, "-subj", f"/CN={name}", "-keyout", f"{name}.key", "-out", f"{name}.csr")
        (folder / "extensions").write_text(f"subjectAltName={names}\n")
        openssl(folder, "x509", "-req", "-in", f"{name}.csr", "-CA", "ca.crt", "-CAkey", "ca.key", "-CAcreateserial",
                "-days", "2", "-extfile", "extensions", "-out", f"{name}.crt")


def compare_verdicts(suite):
    empty = suite.folder / "empty.yaml"
    empty.write_text("")
    for text, is_same in VERDICTS:
        file = suite.folder / "verdict.yml"
        file.write_text(text + "\n")
        theirs = subprocess.run(["promtool", "check", "web-config", file], capture_output=True, text=True)
        ours = subprocess.run([GPUMETER, "check-config", empty, "--node", "--web.config.file", file], capture_output=True, text=True)
        same = (theirs.returncode == 0) == (ours.returncode == 0)
        suite.expect(same == is_same, f"{text}\npromtool: {theirs.stdout}{theirs.stderr}\ngpumeter: {ours.stderr}")


def scrape_job(suite, name, port, client, password):
    return {
        "job_name": name,
        "scheme": "https",
        "static_configs": [{"targets": [f"127.0.0.1:{port}"]}],
        "tls_config": {
            "ca_file": str(suite.folder / "ca.crt"),
            "cert_file": str(suite.folder / f"{client}.crt"),
            "key_file": str(suite.folder / f"{client}.key"),
        },
        "basic_auth": {"username": "prometheus", "password": password},
    }


def check(suite):
    make_certificates(suite.folder)
    compare_verdicts(suite)
    web = suite.folder / "web.yml"
    web.write_text(CONFIG)
    port, state = free_port(), suite.folder / "demo"
    demo = suite.start(
        "demo", GPUMETER, "demo", "--scenario", "node", "--listen", f"127.0.0.1:{port}", "--state-dir", state,
        "--web.config.file", web)
    probe = [GPUMETER, "probe", "--ready", "--socket", state / "control.sock"]
    wait_for("readiness over the local socket", 60, lambda: subprocess.run(probe, capture_output=True).returncode == 0, demo)
    jobs = [
        scrape_job(suite, "good", port, "client", "secret"),
        scrape_job(suite, "name", port, "other", "secret"),
        scrape_job(suite, "password", port, "client", "guess"),
    ]
    prometheus = Prometheus(suite, config={"scrape_configs": jobs})

    def state_of(job):
        found = prometheus.query(f'up{{job="{job}"}}')
        return found and found[0]["value"][1]

    wait_for("a scrape over mTLS with a password", 30, lambda: state_of("good") == "1", prometheus.program)
    wait_for("all GPUs", 30, lambda: len(prometheus.query('gpu_up{job="good"} == 1')) == 8, prometheus.program)
    for job in ["name", "password"]:
        wait_for(f"the refusal of {job}", 30, lambda: state_of(job) == "0", prometheus.program)
    wait_for("wrong passwords to be counted", 30,
             lambda: prometheus.query('gpumeter_http_requests_total{code="401"} > 0'), prometheus.program)


if __name__ == "__main__":
    harness.run(check)
