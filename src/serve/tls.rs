//! Builds the TLS acceptor from the settings; all certificates and keys are read before any of them is used.

use std::fs::File;
use std::io::Read;
use std::sync::Arc;

use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::crypto::{CryptoProvider, SupportedKxGroup, ring};
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::{ServerConfig, SupportedCipherSuite, SupportedProtocolVersion, version};

use super::client_certificate::ClientPolicy;
use crate::config::{ClientAuth, Credential, TlsSettings, TlsVersion};

/// Longest accepted file.
const MOST_BYTES: u64 = 1 << 20;

/// Builds the acceptor.
///
/// # Errors
/// The certificate or key that cannot be used, and what to do.
pub(super) fn acceptor(settings: &TlsSettings, http2: bool) -> Result<TlsAcceptor, String> {
    let chain = certificates("cert_file", settings.cert.as_ref())?;
    let key = private_key(settings.key.as_ref())?;
    let provider = Arc::new(provider(settings));
    let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_protocol_versions(&versions(settings))
        .map_err(|error| format!("TLS: {error}"))?;
    let builder = match settings.client_auth {
        ClientAuth::None => builder.with_no_client_auth(),
        policy => {
            let authorities = match &settings.client_ca {
                Some(authorities) => certificates("client_ca_file", Some(authorities))?,
                None => Vec::new(),
            };
            let names = settings.client_allowed_sans.clone();
            let policy = ClientPolicy::new(policy, authorities, names, &provider)
                .map_err(|error| format!("client_ca_file: {error}; give certificates of CAs"))?;
            builder.with_client_cert_verifier(Arc::new(policy))
        }
    };
    let mut config = builder.with_single_cert(chain, key).map_err(|error| {
        format!("the certificate and its key cannot be used: {error}; give a pair that belongs together")
    })?;
    config.ignore_client_order = settings.prefer_server_cipher_suites;
    config.alpn_protocols = protocols(http2);
    Ok(TlsAcceptor::from(Arc::new(config)))
}

fn protocols(http2: bool) -> Vec<Vec<u8>> {
    let names: &[&[u8]] = if http2 { &[HTTP2, b"http/1.1"] } else { &[b"http/1.1"] };
    names.iter().map(|name| name.to_vec()).collect()
}

/// The name of HTTP/2 in ALPN.
pub(super) const HTTP2: &[u8] = b"h2";

fn versions(settings: &TlsSettings) -> Vec<&'static SupportedProtocolVersion> {
    let mut versions = Vec::new();
    if settings.max_version >= TlsVersion::Tls13 {
        versions.push(&version::TLS13);
    }
    if settings.min_version <= TlsVersion::Tls12 {
        versions.push(&version::TLS12);
    }
    versions
}

/// The algorithms of ring, restricted to the configured ones in their order.
fn provider(settings: &TlsSettings) -> CryptoProvider {
    let all = ring::default_provider();
    let suites = if settings.cipher_suites.is_empty() {
        all.cipher_suites
    } else {
        let is_new = |suite: &SupportedCipherSuite| suite.tls13().is_some();
        let wanted = settings.cipher_suites.iter().filter_map(|name| suite(name));
        all.cipher_suites.iter().copied().filter(is_new).chain(wanted).collect()
    };
    let curves = if settings.curve_preferences.is_empty() {
        all.kx_groups
    } else {
        settings.curve_preferences.iter().filter_map(|name| curve(name)).collect()
    };
    CryptoProvider { cipher_suites: suites, kx_groups: curves, ..ring::default_provider() }
}

fn suite(name: &str) -> Option<SupportedCipherSuite> {
    let all = ring::ALL_CIPHER_SUITES.iter();
    all.copied().find(|suite| suite.suite().as_str() == Some(name))
}

fn curve(name: &str) -> Option<&'static dyn SupportedKxGroup> {
    match name {
        "X25519" => Some(ring::kx_group::X25519),
        "CurveP256" => Some(ring::kx_group::SECP256R1),
        "CurveP384" => Some(ring::kx_group::SECP384R1),
        _ => None,
    }
}

fn certificates(key: &str, credential: Option<&Credential>) -> Result<Vec<CertificateDer<'static>>, String> {
    let text = text_of(key, credential)?;
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&text).collect();
    let found =
        found.map_err(|error| format!("{}: {error}; give certificates as PEM", name_of(key, credential)))?;
    if found.is_empty() {
        return Err(format!("{}: has no certificate; give one as PEM", name_of(key, credential)));
    }
    Ok(found)
}

fn private_key(credential: Option<&Credential>) -> Result<PrivateKeyDer<'static>, String> {
    let text = text_of("key_file", credential)?;
    PrivateKeyDer::from_pem_slice(&text).map_err(|_| {
        format!(
            "{}: has no private key; give one as PEM, without a passphrase",
            name_of("key_file", credential)
        )
    })
}

/// The name in error messages.
fn name_of(key: &str, credential: Option<&Credential>) -> String {
    match credential {
        Some(Credential::File(path)) => format!("{key} {}", path.display()),
        _ => key.trim_end_matches("_file").to_owned(),
    }
}

/// The text of a file, or the text in the configuration itself.
pub(super) fn text_of(key: &str, credential: Option<&Credential>) -> Result<Vec<u8>, String> {
    match credential {
        Some(Credential::Inline(text)) => Ok(text.clone().into_bytes()),
        Some(Credential::File(path)) => {
            let unreadable = |error: std::io::Error| {
                format!("{}: cannot be read: {error}; name a file that can be read", name_of(key, credential))
            };
            let mut text = Vec::new();
            let file = File::open(path).map_err(unreadable)?;
            file.take(MOST_BYTES).read_to_end(&mut text).map_err(unreadable)?;
            Ok(text)
        }
        None => Err(format!("{key}: is missing; give a file")),
    }
}
