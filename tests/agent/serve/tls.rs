//! TLS and users over real sockets: what exporter-toolkit accepts is served as by that, and misbehaving clients are cut off.
//! Configurations that are refused: `tests/code/web_access.rs`.

use std::io::{Read, Write};
use std::time::{Duration, Instant};

use gpumeter::output::serve::ServerLimits;
use tokio_rustls::rustls::crypto::{CryptoProvider, ring};

use super::certificates::{Certificates, Client};
use super::{Agent, patient, rest, status};
use crate::running::PATIENCE;

const PAIR: &str = "cert_file: server.crt, key_file: server.key";
const SERVER: &str = "tls_server_config: {PAIR}\n";

/// The hash of the password "secret".
const HASH: &str = "$2y$04$WvSm6pXVbbH21f0PsZDZsO0VSZCvQeBCLDRlCWSdlTKPYxR3xbD2G";

fn start(certificates: &Certificates, text: &str, limits: ServerLimits) -> Agent {
    let text = text.replace("PAIR", PAIR);
    let security = certificates.load(&text).unwrap_or_else(|error| panic!("{text}:\n{error}"));
    Agent::protected(limits, security)
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
        let agent = start(&certificates, text, patient());
        assert_eq!(request(&certificates, &agent, &Client::default()).0, *expected, "{text}");
    }
    for text in
        ["rate_limit: {interval: 0, burst: 0}", "basic_auth_users:\nhttp_server_config: {http2: true}"]
    {
        let agent = start(&certificates, text, patient());
        assert!((0..10).all(|_| status(&agent.get("/metrics")) == 200), "{text}");
    }
    let agent = start(&certificates, "rate_limit: {interval: 1s, burst: 0}", patient());
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
        start(&certificates, &text, patient())
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
    let newest = start(&certificates, text, patient());
    assert_eq!(request(&certificates, &newest, &both).0, None);
    assert_eq!(request(&certificates, &newest, &Client::default()).0, Some(200));
    let agent = start(
        &certificates,
        "tls_server_config: {PAIR, min_version: TLS13, curve_preferences: [CurveP384]}",
        patient(),
    );
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
    certificates.sign("third", &["test5"]);
    let verdicts = |policy: &str| {
        let agent = start(
            &certificates,
            &format!("tls_server_config: {{PAIR, client_auth_type: {policy}}}"),
            patient(),
        );
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
    // A certificate of the CA, whose name is a URI.
    let agent = start(
        &certificates,
        "tls_server_config: {PAIR, client_auth_type: RequireAndVerifyClientCert, client_ca_file: ca.crt, \
         client_allowed_sans: [\"spiffe://cluster/prometheus\"]}",
        patient(),
    );
    let of_ca = Client { certificate: Some("third"), ..Client::default() };
    assert_eq!(request(&certificates, &agent, &of_ca).0, yes);
}

#[test]
fn users_need_the_right_password() {
    // A low cost, so that the test is quick.
    let hash = |password: &str| {
        bcrypt::hash_with_salt(password, 4, [7; 16]).unwrap().format_for_version(bcrypt::Version::TwoY)
    };
    let users = format!("basic_auth_users: {{dave: {}, carol: {}}}\n", hash("dave123"), hash("carol123"));
    let certificates = Certificates::new();
    let agent = start(&certificates, &format!("{SERVER}{users}"), patient());
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
    let plain = start(&certificates, &users, patient());
    let answer = plain.get("/metrics");
    assert_eq!(status(&answer), 401);
    assert!(answer.contains("www-authenticate: Basic"), "{answer}");
    assert_eq!(
        status(&plain.get("/nothing-here")),
        401,
        "unauthenticated requests get the same status everywhere"
    );
}

#[test]
fn an_endless_tls_handshake_is_cut_off() {
    let certificates = Certificates::new();
    let limits = ServerLimits { head: Duration::from_millis(500), ..patient() };
    let agent = start(&certificates, SERVER, limits);
    let mut silent = agent.connect();
    let mut dripping = agent.connect();
    // A handshake record of 16 KiB that is never completed.
    let writer = dripping.try_clone().unwrap();
    let drip = std::thread::spawn(move || {
        let mut writer = writer;
        let mut bytes = [22, 3, 1, 0x40, 0].iter().chain(std::iter::repeat(&1));
        while writer.write_all(&[*bytes.next().unwrap()]).is_ok() {
            std::thread::sleep(Duration::from_millis(20));
        }
    });
    assert_eq!((rest(&mut silent), rest(&mut dripping)), (String::new(), String::new()));
    drip.join().unwrap();
    assert_eq!(agent.count(200), 0);
}

#[test]
fn an_idle_tls_connection_is_closed() {
    let certificates = Certificates::new();
    let limits = ServerLimits { head: Duration::from_millis(500), ..patient() };
    let agent = start(&certificates, SERVER, limits);
    // On a busy machine the limit may pass during the handshake; then there is another connection.
    let connect = || {
        let mut stream = Client::default().connect(&certificates, agent.address).unwrap();
        write!(stream, "GET /metrics HTTP/1.1\r\n").ok().map(|()| stream)
    };
    let mut stream = (0..100).find_map(|_| connect()).expect("a handshake within its limit");
    let end = stream.read(&mut [0; 16]);
    let is_timeout = |error: &std::io::Error| error.kind() == std::io::ErrorKind::WouldBlock;
    assert!(matches!(&end, Ok(0)) || end.as_ref().is_err_and(|error| !is_timeout(error)), "{end:?}");
}

#[test]
fn configured_headers_are_sent() {
    let certificates = Certificates::new();
    let text = "http_server_config:\n  headers:\n    X-Frame-Options: sameorigin\n    X-XSS-Protection: 1\n";
    let agent = start(&certificates, text, patient());
    for path in ["/", "/metrics", "/nothing"] {
        let answer = agent.get(path);
        assert_eq!(answer.matches("x-frame-options: sameorigin\r\n").count(), 1, "{answer}");
        assert!(
            answer.contains("x-xss-protection: 1\r\n") && !answer.contains("x-frame-options: deny"),
            "{answer}"
        );
    }
}

/// An HTTP/2 connection that reads this many bytes of each answer and sends a PING ten times a second.
async fn speak_http2(
    certificates: &Certificates,
    agent: &Agent,
    window: u32,
) -> hyper::client::conn::http2::SendRequest<http_body_util::Empty<bytes::Bytes>> {
    use hyper_util::rt::{TokioExecutor, TokioIo};
    let config = Client { protocols: &["h2", "http/1.1"], ..Client::default() }.config(certificates);
    let stream = tokio::net::TcpStream::connect(agent.address).await.unwrap();
    let connector = tokio_rustls::TlsConnector::from(std::sync::Arc::new(config));
    let stream = connector.connect("localhost".try_into().unwrap(), stream).await.unwrap();
    assert_eq!(stream.get_ref().1.alpn_protocol(), Some(&b"h2"[..]));
    let (sender, connection) = hyper::client::conn::http2::Builder::new(TokioExecutor::new())
        .initial_stream_window_size(window)
        .timer(hyper_util::rt::TokioTimer::new())
        .keep_alive_interval(Duration::from_millis(100))
        .keep_alive_timeout(PATIENCE)
        .keep_alive_while_idle(true)
        .handshake(TokioIo::new(stream))
        .await
        .unwrap();
    tokio::spawn(async move {
        let _ = connection.await;
    });
    sender
}

fn ask_over_http2(path: &str) -> hyper::Request<http_body_util::Empty<bytes::Bytes>> {
    hyper::Request::get(format!("https://localhost{path}")).body(http_body_util::Empty::new()).unwrap()
}

#[tokio::test]
async fn http2_is_used_if_client_and_configuration_allow_it() {
    use http_body_util::BodyExt;
    let certificates = Certificates::new();
    let agent = start(&certificates, SERVER, patient());
    let mut sender = speak_http2(&certificates, &agent, 65_535).await;
    for path in ["/metrics", "/metrics", "/api/v1/snapshot"] {
        let answer = sender.send_request(ask_over_http2(path)).await.unwrap();
        assert_eq!((answer.status().as_u16(), answer.version()), (200, hyper::Version::HTTP_2), "{path}");
        let body = answer.into_body().collect().await.unwrap().to_bytes();
        assert!(body == agent.page_text() || body.starts_with(b"{"));
    }
    let without = format!("{SERVER}http_server_config: {{http2: false}}\n");
    let agent = start(&certificates, &without, patient());
    let client = Client { protocols: &["h2", "http/1.1"], ..Client::default() };
    let mut stream = client.connect(&certificates, agent.address).unwrap();
    write!(stream, "GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").unwrap();
    assert_eq!(stream.conn.alpn_protocol(), Some(&b"http/1.1"[..]));
}

#[tokio::test]
async fn an_http2_client_that_does_not_read_is_cut_off() {
    use http_body_util::BodyExt;
    let certificates = Certificates::new();
    let limits = ServerLimits { response: Duration::from_secs(1), ..patient() };
    let agent = start(&certificates, SERVER, limits);
    agent.publish(100_000);
    let mut sender = speak_http2(&certificates, &agent, 10).await;
    let answer = sender.send_request(ask_over_http2("/metrics")).await.unwrap();
    // Its window stays closed: the body is not read until the connection has ended.
    await_end(&sender).await;
    assert!(answer.into_body().collect().await.is_err());
}

async fn await_end(sender: &hyper::client::conn::http2::SendRequest<http_body_util::Empty<bytes::Bytes>>) {
    let begun = Instant::now();
    while !sender.is_closed() {
        assert!(begun.elapsed() < PATIENCE, "the connection stays");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test]
async fn http2_pings_do_not_keep_an_idle_connection_open() {
    let certificates = Certificates::new();
    let limits = ServerLimits { idle: Duration::from_secs(3), ..patient() };
    let agent = start(&certificates, &format!("{SERVER}basic_auth_users: {{a: {HASH}}}\n"), limits);
    let mut sender = speak_http2(&certificates, &agent, 65_535).await;
    let answer = sender.send_request(ask_over_http2("/metrics")).await.unwrap();
    assert_eq!(answer.status().as_u16(), 401);
    drop(answer);
    await_end(&sender).await;
}
