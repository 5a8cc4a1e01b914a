//! TLS over real sockets: client certificates, handshake timeouts, and what a reload changes.

use std::io::{Read, Write};
use std::time::{Duration, Instant};

use gpumeter::output::serve::ServerLimits;

use super::certificates::{Certificates, Client};
use super::{Agent, body, patient, rest, status};
use crate::running::PATIENCE;

const SERVER: &str = "tls_server_config: {cert_file: server.crt, key_file: server.key";

/// The hash of the password "secret".
const HASH: &str = "$2y$04$WvSm6pXVbbH21f0PsZDZsO0VSZCvQeBCLDRlCWSdlTKPYxR3xbD2G";

fn start(certificates: &Certificates, text: &str, limits: ServerLimits) -> Agent {
    let security = certificates.load(text).unwrap();
    Agent::protected(limits, security)
}

#[test]
fn pages_are_served_over_tls_only() {
    let certificates = Certificates::new();
    let agent = start(&certificates, &format!("{SERVER}}}\n"), patient());
    let exchange = Client::default().get(&certificates, (agent.address, "/metrics")).unwrap();
    assert_eq!((status(&exchange.answer), body(&exchange.answer)), (200, &*agent.page_text()));
    assert!(!exchange.certificate.is_empty());
    let plain = agent.get("/metrics");
    assert!(!plain.starts_with("HTTP/"), "{plain}");
}

#[test]
fn a_client_needs_a_certificate_of_the_ca_with_an_allowed_name() {
    let certificates = Certificates::new();
    certificates.sign("good", &["one.example", "two.example"]);
    certificates.sign("bad", &["three.example"]);
    certificates.sign_by_itself("stranger", &["one.example"]);
    let text = format!(
        "{SERVER}, client_auth_type: RequireAndVerifyClientCert, client_ca_file: ca.crt, \
         client_allowed_sans: [zero.example, two.example]}}\n"
    );
    let agent = start(&certificates, &text, patient());
    let ask = |certificate| {
        Client { certificate, ..Client::default() }.get(&certificates, (agent.address, "/metrics"))
    };
    assert_eq!(status(&ask(Some("good")).unwrap().answer), 200);
    for certificate in [None, Some("bad"), Some("stranger")] {
        assert!(ask(certificate).is_err(), "{certificate:?} was let in");
    }
    assert_eq!(agent.count(200), 1);
}

#[test]
fn an_allowed_name_may_be_a_uri() {
    let certificates = Certificates::new();
    certificates.sign("good", &["one.example"]);
    let text = format!(
        "{SERVER}, client_auth_type: RequireAndVerifyClientCert, client_ca_file: ca.crt, \
         client_allowed_sans: [\"spiffe://cluster/prometheus\"]}}\n"
    );
    let agent = start(&certificates, &text, patient());
    let client = Client { certificate: Some("good"), ..Client::default() };
    assert_eq!(status(&client.get(&certificates, (agent.address, "/metrics")).unwrap().answer), 200);
}

#[test]
fn an_endless_tls_handshake_is_cut_off() {
    let certificates = Certificates::new();
    let limits = ServerLimits { head: Duration::from_millis(500), ..patient() };
    let agent = start(&certificates, &format!("{SERVER}}}\n"), limits);
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
    let agent = start(&certificates, &format!("{SERVER}}}\n"), limits);
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
    let agent = start(&certificates, &format!("{SERVER}}}\n"), patient());
    let mut sender = speak_http2(&certificates, &agent, 65_535).await;
    for path in ["/metrics", "/metrics", "/api/v1/snapshot"] {
        let answer = sender.send_request(ask_over_http2(path)).await.unwrap();
        assert_eq!((answer.status().as_u16(), answer.version()), (200, hyper::Version::HTTP_2), "{path}");
        let body = answer.into_body().collect().await.unwrap().to_bytes();
        assert!(body == agent.page_text() || body.starts_with(b"{"));
    }
    let without = format!("{SERVER}}}\nhttp_server_config: {{http2: false}}\n");
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
    let security = certificates.load(&format!("{SERVER}}}\n")).unwrap();
    let agent = Agent::protected(limits, security);
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
    let agent = start(&certificates, &format!("{SERVER}}}\nbasic_auth_users: {{a: {HASH}}}\n"), limits);
    let mut sender = speak_http2(&certificates, &agent, 65_535).await;
    let answer = sender.send_request(ask_over_http2("/metrics")).await.unwrap();
    assert_eq!(answer.status().as_u16(), 401);
    drop(answer);
    await_end(&sender).await;
}
