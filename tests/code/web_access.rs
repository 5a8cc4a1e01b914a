//! Web configuration files that are refused, as by exporter-toolkit: the cases of its `web/tls_config_test.go`. Where our
//! verdict differs, the case says so, and docs/web.md has it in its table of differences. Those that are accepted are served
//! in `tests/agent/serve/tls.rs`.

use std::path::Path;

use gpumeter::config::Config;
use gpumeter::output::serve::Security;

const PAIR: &str = "cert_file: server.crt, key_file: server.key";

/// Reads a web configuration file beside a certificate and its key.
fn load(text: &str) -> Result<Security, String> {
    let directory = tempfile::tempdir().unwrap();
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/kubelet");
    for end in ["crt", "key"] {
        let of_server = directory.path().join("server").with_extension(end);
        std::fs::copy(fixtures.join("kubelet").with_extension(end), of_server).unwrap();
    }
    let file = directory.path().join("web.yml");
    std::fs::write(&file, text).unwrap();
    let access = Config::default().web_access(Some(&file)).map_err(|problems| problems.to_string())?;
    Security::load(&access).map_err(|error| error.to_string())
}

/// A configuration, and words of the error with which it is refused.
const REFUSED: &[(&str, &str)] = &[
    ("hWkNKCp3fvIx3jKnsaBI\nTuEjdwNS8A2vYdFbiKqr\n", "not a mapping"),
    ("tls_server_config: {cert_filse: server.crt}", "unknown key; did you mean `cert_file`?"),
    ("tls_server_config: {cert_file: \"\", key_file: server.key}", "cert_file: is missing"),
    ("tls_server_config: {cert: \"\", key_file: server.key}", "cert_file: is missing"),
    ("tls_server_config: {cert_file: server.crt, key_file: \"\"}", "key_file: is missing"),
    ("tls_server_config: {cert_file: server.crt, key: \"\"}", "key_file: is missing"),
    ("tls_server_config: {cert_file: \"\", key_file: \"\", client_auth_type: x}", "\"x\" is not a policy"),
    (
        "tls_server_config: {cert_file: somefile, key_file: server.key}",
        "somefile: cannot be read: No such file",
    ),
    (
        "tls_server_config: {cert_file: server.crt, key_file: somefile}",
        "somefile: cannot be read: No such file",
    ),
    (
        "tls_server_config: {cert_file: somefile, key_file: somefile}",
        "somefile: cannot be read: No such file",
    ),
    ("tls_server_config: {PAIR, client_ca_file: /dev/null}", "has no effect without client_auth_type"),
    ("tls_server_config: {PAIR, client_ca_file: somefile}", "has no effect without client_auth_type"),
    ("tls_server_config: {PAIR}\nbasic_auth_users: {john: doe}", "user john: is not a bcrypt hash"),
    (
        "tls_server_config: {PAIR, cipher_suites: [TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA2048]}",
        "is not a cipher suite",
    ),
    ("tls_server_config: {PAIR, curve_preferences: [CurveP257]}", "is not a curve"),
    ("tls_server_config: {PAIR, min_version: TLS111}", "is not a version of TLS"),
    (
        "tls_server_config: {PAIR, cipher_suites: [TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384], max_version: TLS12}",
        "has no cipher suite that HTTP/2 requires",
    ),
    (
        "http_server_config: {headers: {X-Content-Type-Options: sniff}}",
        "is not a value of this header; give nosniff",
    ),
    (
        "http_server_config: {headers: {X-Frame-Options: foo}}",
        "is not a value of this header; give deny or sameorigin",
    ),
    ("http_server_config: {headers: {Content-Type: foo}}", "is not a header that can be set"),
    // Accepted by the toolkit, which then serves everybody: half a write must not.
    ("", "has no key with a value; give tls_server_config or basic_auth_users"),
    ("# basic_auth_users: {}\n", "has no key with a value"),
    ("basic_auth_users:\nhttp_server_config: {headers: {}}", "has no key with a value"),
    // Accepted by the toolkit, but rustls has no CBC suites and with ring no P-521.
    (
        "tls_server_config: {PAIR, cipher_suites: [TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA]}",
        "give some of TLS_ECDHE_ECDSA",
    ),
    (
        "tls_server_config: {PAIR, curve_preferences: [CurveP256, CurveP521]}",
        "give some of X25519, CurveP256, CurveP384",
    ),
];

#[test]
fn web_configurations_are_refused_as_by_exporter_toolkit() {
    for (text, reason) in REFUSED {
        let text = text.replace("PAIR", PAIR);
        let refused = load(&text).err().unwrap_or_else(|| panic!("accepted:\n{text}"));
        assert!(refused.contains(reason), "{text}:\n{refused}");
    }
    let missing = Config::default().web_access(Some(Path::new("/nonexistent/web.yml")));
    assert!(missing.unwrap_err().to_string().contains("No such file"));
}

#[test]
fn a_problem_names_its_line() {
    let refused = load("tls_server_config:\n  cert_file: server.crt\n  min_version: TLS111\n").err().unwrap();
    assert!(refused.contains("web.yml:3:16: tls_server_config.min_version: \"TLS111\""), "{refused}");
    assert!(refused.contains("web.yml:2:3: tls_server_config.key_file: is missing"), "{refused}");
}

#[test]
fn names_of_clients_that_nobody_verifies_are_refused() {
    // The toolkit accepts these, and compares names that anybody can write into a self-signed certificate.
    for policy in ["RequestClientCert", "RequireAnyClientCert", "RequireClientCert"] {
        let text = format!(
            "tls_server_config: {{{PAIR}, client_auth_type: {policy}, client_allowed_sans: [test3]}}"
        );
        let error = load(&text).err().unwrap();
        assert!(error.contains("client_allowed_sans") && error.contains("nobody verifies"), "{error}");
    }
}
