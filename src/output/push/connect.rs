//! Connections to a destination, by TLS where its address says so.
//!
//! Certificates and keys are read for each connection, so that renewed ones are used without a reload.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use hyper::header::HeaderValue;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, lookup_host};
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::pki_types::ServerName;

use super::{Destination, PushFailure};
use crate::config::{Credential, OtlpDestination, OtlpProtocol};
use crate::runtime::http::{self, Pem};

pub(super) trait Connection: AsyncRead + AsyncWrite + Unpin + Send {}

impl<S: AsyncRead + AsyncWrite + Unpin + Send> Connection for S {}

pub(super) async fn connect(destination: &Destination) -> Result<Box<dyn Connection>, PushFailure> {
    let settings = &destination.settings;
    let host = settings.endpoint.host.trim_start_matches('[').trim_end_matches(']');
    let connector = settings.endpoint.tls.then(|| tls_connector(settings)).transpose();
    let connector = connector.map_err(PushFailure::Setup)?;
    let addresses: Vec<SocketAddr> = lookup_host((host, settings.endpoint.port))
        .await
        .map_err(|error| PushFailure::Unresolved(error.to_string()))?
        .collect();
    let stream =
        TcpStream::connect(&*addresses).await.map_err(|error| PushFailure::Unreachable(error.to_string()))?;
    let Some(connector) = connector else { return Ok(Box::new(stream)) };
    let name = ServerName::try_from(host.to_owned())
        .map_err(|error| PushFailure::Setup(format!("endpoint: {host}: {error}; correct the host")))?;
    let stream = connector.connect(name, stream).await;
    Ok(Box::new(stream.map_err(|error| PushFailure::Tls(error.to_string()))?))
}

fn tls_connector(settings: &OtlpDestination) -> Result<TlsConnector, String> {
    let read = |key, path: &Option<PathBuf>| path.as_ref().map(|path| Pem::read(key, path)).transpose();
    let ca = read("ca_file", &settings.ca_file)?;
    let (cert, key) = (read("cert_file", &settings.cert_file)?, read("key_file", &settings.key_file)?);
    let mut config = http::client_config(ca.as_ref(), cert.as_ref().zip(key.as_ref()))?;
    let protocol: &[u8] = match settings.protocol {
        OtlpProtocol::Http => b"http/1.1",
        OtlpProtocol::Grpc => b"h2",
    };
    config.alpn_protocols = vec![protocol.to_vec()];
    Ok(TlsConnector::from(Arc::new(config)))
}

/// The headers of a request, with those in files.
pub(super) fn headers(settings: &OtlpDestination) -> Result<Vec<(String, HeaderValue)>, String> {
    let mut headers = Vec::new();
    for (name, value) in settings.headers.iter().chain(&settings.header_files) {
        let key = format!("header {name}");
        let text = match value {
            Credential::Inline(text) => text.clone().into_bytes(),
            Credential::File(path) => http::read_file(&key, path)?.trim_ascii().to_vec(),
        };
        let mut value = HeaderValue::from_bytes(&text)
            .map_err(|_| format!("{key}: its value cannot stand in a header; give printable characters"))?;
        value.set_sensitive(true);
        headers.push((name.clone(), value));
    }
    Ok(headers)
}

/// Whether the files of a destination can be used.
///
/// # Errors
/// The first that cannot, and what to do.
pub fn check_files(settings: &OtlpDestination) -> Result<(), String> {
    headers(settings)?;
    if settings.endpoint.tls {
        tls_connector(settings)?;
    }
    Ok(())
}
