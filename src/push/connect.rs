//! Connections to a destination, by TLS where its address says so.
//!
//! Certificates and keys are read for each connection, so that renewed ones are used without a reload.

use std::fs::File;
use std::io::Read;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;

use hyper::header::HeaderValue;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, lookup_host};
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, RootCertStore};

use super::{Destination, PushFailure};
use crate::config::{Credential, OtlpDestination, OtlpProtocol};

/// Most bytes of a file with certificates, a key or a header.
const MOST_BYTES: u64 = 1 << 20;

/// A connection.
pub(super) trait Connection: AsyncRead + AsyncWrite + Unpin + Send {}

impl<S: AsyncRead + AsyncWrite + Unpin + Send> Connection for S {}

/// Opens a connection.
pub(super) async fn connect(destination: &Destination) -> Result<Box<dyn Connection>, PushFailure> {
    let settings = &destination.settings;
    let host = settings.endpoint.host.trim_start_matches('[').trim_end_matches(']');
    let connector = if settings.endpoint.tls { Some(tls_connector(settings)?) } else { None };
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

/// Reads certificates and keys.
fn tls_connector(settings: &OtlpDestination) -> Result<TlsConnector, PushFailure> {
    let mut roots = RootCertStore::empty();
    match &settings.ca_file {
        Some(path) => {
            for certificate in certificates("ca_file", path)? {
                roots.add(certificate).map_err(|error| {
                    let text = format!("ca_file {}: {error}; give certificates of CAs", path.display());
                    PushFailure::Setup(text)
                })?;
            }
        }
        None => {
            roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        }
    }
    let builder = ClientConfig::builder().with_root_certificates(roots);
    let mut config = match (&settings.cert_file, &settings.key_file) {
        (Some(cert), Some(key)) => {
            let chain = certificates("cert_file", cert)?;
            let text = read("key_file", key)?;
            let private = PrivateKeyDer::from_pem_slice(&text).map_err(|_| {
                let remedy = "has no private key; give one as PEM, without a passphrase";
                PushFailure::Setup(format!("key_file {}: {remedy}", key.display()))
            })?;
            builder.with_client_auth_cert(chain, private).map_err(|error| {
                let remedy = "give a certificate and key that belong together";
                PushFailure::Setup(format!("cert_file {}: {error}; {remedy}", cert.display()))
            })?
        }
        _ => builder.with_no_client_auth(),
    };
    let protocol: &[u8] = match settings.protocol {
        OtlpProtocol::Http => b"http/1.1",
        OtlpProtocol::Grpc => b"h2",
    };
    config.alpn_protocols = vec![protocol.to_vec()];
    Ok(TlsConnector::from(Arc::new(config)))
}

fn certificates(key: &str, path: &Path) -> Result<Vec<CertificateDer<'static>>, PushFailure> {
    let text = read(key, path)?;
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&text).collect();
    match found {
        Ok(found) if !found.is_empty() => Ok(found),
        _ => Err(PushFailure::Setup(format!(
            "{key} {}: has no certificate that can be read; give one as PEM",
            path.display()
        ))),
    }
}

fn read(key: &str, path: &Path) -> Result<Vec<u8>, PushFailure> {
    let unreadable = |error: std::io::Error| {
        let remedy = "name a file that can be read";
        PushFailure::Setup(format!("{key} {}: cannot be read: {error}; {remedy}", path.display()))
    };
    let mut text = Vec::new();
    let file = File::open(path).map_err(unreadable)?;
    file.take(MOST_BYTES).read_to_end(&mut text).map_err(unreadable)?;
    Ok(text)
}

/// The headers of a request, with those in files.
pub(super) fn headers(settings: &OtlpDestination) -> Result<Vec<(String, HeaderValue)>, PushFailure> {
    let mut headers = Vec::new();
    for (name, value) in &settings.headers {
        let key = format!("header {name}");
        let text = match value {
            Credential::Inline(text) => text.clone().into_bytes(),
            Credential::File(path) => read(&key, path)?.trim_ascii().to_vec(),
        };
        let mut value = HeaderValue::from_bytes(&text).map_err(|_| {
            PushFailure::Setup(format!(
                "{key}: its value cannot stand in a header; give printable characters"
            ))
        })?;
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
    headers(settings).map_err(|failure| failure.to_string())?;
    if settings.endpoint.tls {
        tls_connector(settings).map_err(|failure| failure.to_string())?;
    }
    Ok(())
}
