//! Builds the TLS acceptor from the settings; all certificates and keys are read before any of them is used.

use std::sync::Arc;

use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::crypto::{CryptoProvider, SupportedKxGroup, ring};
use tokio_rustls::rustls::{ServerConfig, SupportedCipherSuite, SupportedProtocolVersion, version};

use super::client_certificate::ClientPolicy;
use crate::config::{ClientAuth, Credential, TlsVersion, WebTlsConfig};
use crate::runtime::http::Pem;

/// Builds the acceptor.
///
/// # Errors
/// The certificate or key that cannot be used, and what to do.
pub(super) fn acceptor(settings: &WebTlsConfig, http2: bool) -> Result<TlsAcceptor, String> {
    let chain = pem("cert_file", settings.cert_file.as_ref())?.certificates()?;
    let key = pem("key_file", settings.key_file.as_ref())?.private_key()?;
    let provider = Arc::new(provider(settings));
    let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_protocol_versions(&versions(settings))
        .map_err(|error| format!("TLS: {error}"))?;
    let builder = match settings.client_auth_type {
        ClientAuth::None => builder.with_no_client_auth(),
        policy => {
            let authorities = match &settings.client_ca_file {
                Some(authorities) => pem("client_ca_file", Some(authorities))?.certificates()?,
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
    let protocols: &[&[u8]] = if http2 { &[HTTP2, b"http/1.1"] } else { &[b"http/1.1"] };
    config.alpn_protocols = protocols.iter().map(|name| name.to_vec()).collect();
    Ok(TlsAcceptor::from(Arc::new(config)))
}

pub(super) const HTTP2: &[u8] = b"h2";

fn versions(settings: &WebTlsConfig) -> Vec<&'static SupportedProtocolVersion> {
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
fn provider(settings: &WebTlsConfig) -> CryptoProvider {
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

/// A certificate or key, from a file or from the configuration itself.
fn pem(key: &str, credential: Option<&Credential>) -> Result<Pem, String> {
    match credential {
        Some(Credential::Inline(text)) => {
            Ok(Pem::new(key.trim_end_matches("_file"), text.clone().into_bytes()))
        }
        Some(Credential::File(path)) => Pem::read(key, path),
        None => Err(format!("{key}: is missing; give a file")),
    }
}
