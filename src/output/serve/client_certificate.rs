//! Verifies client certificates: whether one is required, by which CAs it is signed, and which names it must have.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use tokio_rustls::rustls::client::danger::HandshakeSignatureValid;
use tokio_rustls::rustls::crypto::{
    CryptoProvider, WebPkiSupportedAlgorithms, verify_tls12_signature, verify_tls13_signature,
};
use tokio_rustls::rustls::pki_types::{CertificateDer, UnixTime};
use tokio_rustls::rustls::server::WebPkiClientVerifier;
use tokio_rustls::rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use tokio_rustls::rustls::{
    CertificateError, DigitallySignedStruct, DistinguishedName, Error, RootCertStore, SignatureScheme,
};
use x509_cert::Certificate;
use x509_cert::der::Decode;
use x509_cert::ext::pkix::SubjectAltName;
use x509_cert::ext::pkix::name::GeneralName;

use crate::config::ClientAuth;

#[derive(Debug)]
pub(super) struct ClientPolicy {
    is_mandatory: bool,
    /// Absent if certificates are not verified.
    trust: Option<Trust>,
    /// The certificate must have one of these names; any name is accepted if the list is empty.
    names: Vec<String>,
    algorithms: WebPkiSupportedAlgorithms,
}

#[derive(Debug)]
struct Trust {
    /// Absent if no CA is configured; then every certificate is refused.
    chains: Option<Arc<dyn ClientCertVerifier>>,
    /// The configured certificates. A client certificate that is one of them is accepted without a chain.
    pinned: Vec<CertificateDer<'static>>,
}

impl ClientPolicy {
    /// A policy with the certificates of the CAs.
    ///
    /// # Errors
    /// A CA whose certificate cannot be used.
    pub(super) fn new(
        policy: ClientAuth,
        authorities: Vec<CertificateDer<'static>>,
        names: Vec<String>,
        provider: &Arc<CryptoProvider>,
    ) -> Result<Self, String> {
        let is_verified = matches!(policy, ClientAuth::VerifyIfGiven | ClientAuth::RequireAndVerify);
        let is_required = matches!(policy, ClientAuth::RequireAny | ClientAuth::RequireAndVerify);
        let trust = is_verified.then(|| Trust::of(authorities, provider)).transpose()?;
        Ok(Self {
            // Without a certificate there is no name to compare.
            is_mandatory: is_required || !names.is_empty(),
            trust,
            names,
            algorithms: provider.signature_verification_algorithms,
        })
    }

    fn check_names(&self, certificate: &CertificateDer<'_>) -> Result<(), Error> {
        if self.names.is_empty() {
            return Ok(());
        }
        let names = alternative_names(certificate).ok_or(CertificateError::BadEncoding)?;
        if names.iter().any(|name| self.names.contains(name)) {
            return Ok(());
        }
        Err(CertificateError::ApplicationVerificationFailure.into())
    }
}

impl Trust {
    fn of(pinned: Vec<CertificateDer<'static>>, provider: &Arc<CryptoProvider>) -> Result<Self, String> {
        if pinned.is_empty() {
            return Ok(Self { chains: None, pinned });
        }
        let mut roots = RootCertStore::empty();
        for certificate in &pinned {
            roots.add(certificate.clone()).map_err(|error| error.to_string())?;
        }
        let chains =
            WebPkiClientVerifier::builder_with_provider(Arc::new(roots), Arc::clone(provider)).build();
        Ok(Self { chains: Some(chains.map_err(|error| error.to_string())?), pinned })
    }
}

impl ClientCertVerifier for ClientPolicy {
    fn client_auth_mandatory(&self) -> bool {
        self.is_mandatory
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        match &self.trust {
            Some(Trust { chains: Some(chains), .. }) => chains.root_hint_subjects(),
            _ => &[],
        }
    }

    fn verify_client_cert(
        &self,
        certificate: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        if let Some(Trust { chains, pinned }) = &self.trust {
            if pinned.contains(certificate) {
                is_in_force(certificate, now)?;
            } else {
                let chains = chains.as_ref().ok_or(CertificateError::UnknownIssuer)?;
                chains.verify_client_cert(certificate, intermediates, now)?;
            }
        }
        self.check_names(certificate)?;
        Ok(ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(message, certificate, signed, &self.algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, certificate, signed, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}

fn is_in_force(certificate: &CertificateDer<'_>, now: UnixTime) -> Result<(), Error> {
    let certificate = Certificate::from_der(certificate).map_err(|_| CertificateError::BadEncoding)?;
    let validity = certificate.tbs_certificate.validity;
    if now.as_secs() < validity.not_before.to_unix_duration().as_secs() {
        return Err(CertificateError::NotValidYet.into());
    }
    if now.as_secs() > validity.not_after.to_unix_duration().as_secs() {
        return Err(CertificateError::Expired.into());
    }
    Ok(())
}

/// Host names, addresses, e-mail addresses and URIs of a certificate; none if it cannot be parsed.
fn alternative_names(certificate: &CertificateDer<'_>) -> Option<Vec<String>> {
    let certificate = Certificate::from_der(certificate).ok()?;
    let Some((_, SubjectAltName(names))) = certificate.tbs_certificate.get().ok()? else {
        return Some(Vec::new());
    };
    Some(names.iter().filter_map(text_of).collect())
}

fn text_of(name: &GeneralName) -> Option<String> {
    match name {
        GeneralName::Rfc822Name(text)
        | GeneralName::DnsName(text)
        | GeneralName::UniformResourceIdentifier(text) => Some(text.as_str().to_owned()),
        GeneralName::IpAddress(bytes) => {
            let bytes = bytes.as_bytes();
            let address = <[u8; 4]>::try_from(bytes)
                .map(|bytes| IpAddr::from(Ipv4Addr::from(bytes)))
                .or_else(|_| <[u8; 16]>::try_from(bytes).map(|bytes| IpAddr::from(Ipv6Addr::from(bytes))));
            address.ok().map(|address| address.to_string())
        }
        _ => None,
    }
}
