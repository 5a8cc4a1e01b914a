//! The verdicts of exporter-toolkit on its published test configurations, case by case.
//!
//! The cases are those of its `web/tls_config_test.go`, with certificates made here. Where our verdict differs, the
//! case says so, and docs/web.md has it in its table of differences.

use tokio_rustls::rustls::crypto::{CryptoProvider, ring};

use super::certificates::{Certificates, Client};
use super::{Agent, patient, status};

const PAIR: &str = "cert_file: server.crt, key_file: server.key";

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
    let certificates = Certificates::new();
    for (text, reason) in REFUSED {
        let text = text.replace("PAIR", PAIR);
        let refused = certificates.load(&text).err().unwrap_or_else(|| panic!("accepted:\n{text}"));
        assert!(refused.contains(reason), "{text}:\n{refused}");
    }
    let missing = gpumeter::config::Config::default().web_access(Some(&certificates.path().join("none")));
    assert!(missing.unwrap_err().to_string().contains("No such file"));
}

#[test]
fn a_problem_names_its_line() {
    let certificates = Certificates::new();
    let refused = certificates
        .load("tls_server_config:\n  cert_file: server.crt\n  min_version: TLS111\n")
        .err()
        .unwrap();
    assert!(refused.contains("web.yml:3:16: tls_server_config.min_version: \"TLS111\""), "{refused}");
    assert!(refused.contains("web.yml:2:3: tls_server_config.key_file: is missing"), "{refused}");
}

fn start(certificates: &Certificates, text: &str) -> Agent {
    let text = text.replace("PAIR", PAIR);
    let security = certificates.load(&text).unwrap_or_else(|error| panic!("{text}:\n{error}"));
    Agent::protected(patient(), security)
}

/// The result of a request: a status, or `None` if the handshake fails.
fn request(certificates: &Certificates, agent: &Agent, client: &Client) -> (Option<u16>, String) {
    match client.get(certificates, (agent.address, "/metrics")) {
        Ok(exchange) => (Some(status(&exchange.answer)), exchange.cipher),
        Err(_) => (None, String::new()),
    }
}

#[test]
fn web_configurations_that_exporter_toolkit_accepts_are_served() {
    let certificates = Certificates::new();
    let inline = |name: &str| certificates.text(name).replace('\n', "\n    ");
    let inline = format!(
        "tls_server_config:\n  cert: |\n    {}\n  key: |\n    {}\n",
        inline("server.crt"),
        inline("server.key")
    );
    let cases: &[(&str, Option<u16>)] = &[
        ("tls_server_config: {PAIR, client_auth_type: VerifyClientCertIfGiven}", Some(200)),
        (&inline, Some(200)),
        ("tls_server_config: {PAIR, curve_preferences: [CurveP256, CurveP384, X25519]}", Some(200)),
        (
            "tls_server_config: {PAIR, cipher_suites: [TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384], max_version: TLS12}\n\
             http_server_config: {http2: false}",
            Some(200),
        ),
        // Without a CA no client certificate is valid.
        ("tls_server_config: {PAIR, client_auth_type: RequireAndVerifyClientCert}", None),
    ];
    for (text, expected) in cases {
        let agent = start(&certificates, text);
        assert_eq!(request(&certificates, &agent, &Client::default()).0, *expected, "{text}");
    }
    for text in
        ["rate_limit: {interval: 0, burst: 0}", "basic_auth_users:\nhttp_server_config: {http2: true}"]
    {
        let agent = start(&certificates, text);
        assert!((0..10).all(|_| status(&agent.get("/metrics")) == 200), "{text}");
    }
    let agent = start(&certificates, "rate_limit: {interval: 1s, burst: 0}");
    assert_eq!(status(&agent.get("/metrics")), 429);
}

fn only(provider: &mut CryptoProvider, names: &[&str]) {
    provider.cipher_suites.retain(|suite| names.contains(&suite.suite().as_str().unwrap()));
}

#[test]
fn common_cipher_suites_and_curves_are_used_in_the_servers_order() {
    const SMALL: &str = "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256";
    const LARGE: &str = "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384";
    let certificates = Certificates::new();
    let server = |first: &str, second: &str, prefer: bool| {
        let text = format!(
            "tls_server_config: {{PAIR, cipher_suites: [{first}, {second}], min_version: TLS12, max_version: TLS12, \
             prefer_server_cipher_suites: {prefer}}}"
        );
        start(&certificates, &text)
    };
    let both = Client {
        algorithms: Some(|provider| {
            let suites = &ring::ALL_CIPHER_SUITES;
            let find = |name| *suites.iter().find(|suite| suite.suite().as_str() == Some(name)).unwrap();
            provider.cipher_suites = vec![find(SMALL), find(LARGE)];
        }),
        is_old: true,
        ..Client::default()
    };
    let chosen = |agent: &Agent| request(&certificates, agent, &both);
    assert_eq!(chosen(&server(SMALL, LARGE, true)), (Some(200), SMALL.to_owned()));
    assert_eq!(chosen(&server(LARGE, SMALL, true)), (Some(200), LARGE.to_owned()));
    assert_eq!(chosen(&server(LARGE, SMALL, false)), (Some(200), SMALL.to_owned()));
    let none_in_common = Client {
        algorithms: Some(|provider| only(provider, &["TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256"])),
        ..both.clone()
    };
    assert_eq!(request(&certificates, &server(SMALL, LARGE, true), &none_in_common).0, None);
    // With names of TLS 1.3 only, nothing of 1.2 remains, as in the toolkit.
    let text = "tls_server_config: {PAIR, cipher_suites: [TLS_AES_128_GCM_SHA256]}\nhttp_server_config: {http2: false}";
    let newest = start(&certificates, text);
    assert_eq!(request(&certificates, &newest, &both).0, None);
    assert_eq!(request(&certificates, &newest, &Client::default()).0, Some(200));
    let agent =
        start(&certificates, "tls_server_config: {PAIR, min_version: TLS13, curve_preferences: [CurveP384]}");
    let with_curve = |algorithms| {
        let client = Client { algorithms: Some(algorithms), ..Client::default() };
        request(&certificates, &agent, &client).0
    };
    assert_eq!(with_curve(|provider| provider.kx_groups = vec![ring::kx_group::SECP384R1]), Some(200));
    assert_eq!(with_curve(|provider| provider.kx_groups = vec![ring::kx_group::X25519]), None);
    let old = Client { is_old: true, ..Client::default() };
    assert_eq!(request(&certificates, &agent, &old).0, None, "TLS 1.2 is older than min_version");
}

#[test]
fn clients_need_the_certificate_that_the_policy_requires() {
    let certificates = Certificates::new();
    certificates.sign_by_itself("first", &["test3"]);
    certificates.sign_by_itself("second", &["test4"]);
    let verdicts = |policy: &str| {
        let agent = start(&certificates, &format!("tls_server_config: {{PAIR, client_auth_type: {policy}}}"));
        [None, Some("first"), Some("second")]
            .map(|certificate| request(&certificates, &agent, &Client { certificate, ..Client::default() }).0)
    };
    let (yes, no) = (Some(200), None);
    assert_eq!(verdicts("NoClientCert"), [yes, yes, yes]);
    assert_eq!(verdicts("RequestClientCert"), [yes, yes, yes]);
    assert_eq!(verdicts("RequireAnyClientCert"), [no, yes, yes]);
    assert_eq!(verdicts("RequireClientCert"), [no, yes, yes]);
    assert_eq!(verdicts("VerifyClientCertIfGiven, client_ca_file: first.crt"), [yes, yes, no]);
    assert_eq!(verdicts("RequireAndVerifyClientCert, client_ca_file: first.crt"), [no, yes, no]);
    let names = |names: &str| {
        verdicts(&format!(
            "RequireAndVerifyClientCert, client_ca_file: first.crt, client_allowed_sans: [{names}]"
        ))
    };
    assert_eq!(names("one, test3, two"), [no, yes, no]);
    assert_eq!(names("bad"), [no, no, no]);
    // The toolkit accepts these, and compares names that anybody can write into a self-signed certificate.
    for policy in ["RequestClientCert", "RequireAnyClientCert", "RequireClientCert"] {
        let text =
            format!("tls_server_config: {{PAIR, client_auth_type: {policy}, client_allowed_sans: [test3]}}");
        let error = certificates.load(&text.replace("PAIR", PAIR)).err().unwrap();
        assert!(error.contains("client_allowed_sans") && error.contains("nobody verifies"), "{error}");
    }
}

#[test]
fn users_need_the_right_password() {
    // A low cost, so that the test is quick.
    let hash = |password: &str| {
        bcrypt::hash_with_salt(password, 4, [7; 16]).unwrap().format_for_version(bcrypt::Version::TwoY)
    };
    let users = format!("basic_auth_users: {{dave: {}, carol: {}}}\n", hash("dave123"), hash("carol123"));
    let certificates = Certificates::new();
    let agent = start(&certificates, &format!("tls_server_config: {{PAIR}}\n{users}"));
    let verdict = |user| request(&certificates, &agent, &Client { user, ..Client::default() }).0;
    for (user, expected) in [
        (None, 401),
        (Some(("dave", "dave123")), 200),
        (Some(("carol", "carol123")), 200),
        (Some(("dave", "bad")), 401),
        (Some(("nonexistent", "nonexistent")), 401),
        (Some(("dave", "carol123")), 401),
        (Some(("dave", "")), 401),
        (Some(("dave", "dave123")), 200),
    ] {
        assert_eq!(verdict(user), Some(expected), "{user:?}");
    }
    let plain = start(&certificates, &users);
    let answer = plain.get("/metrics");
    assert_eq!(status(&answer), 401);
    assert!(answer.contains("www-authenticate: Basic"), "{answer}");
    assert_eq!(
        status(&plain.get("/nothing-here")),
        401,
        "unauthenticated requests get the same status everywhere"
    );
}
