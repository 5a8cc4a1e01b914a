//! Certificates in a directory of the test, and clients that use TLS.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::sync::Arc;

use gpumeter::config::Config;
use gpumeter::output::serve::Security;
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair, SanType};
use tempfile::TempDir;
use tokio_rustls::rustls::crypto::{CryptoProvider, ring};
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio_rustls::rustls::{
    ClientConfig, ClientConnection, RootCertStore, StreamOwned, SupportedProtocolVersion, version,
};

/// `server.crt`, `server.key` and `ca.crt`, which signed it; `NAME.crt` and `NAME.key` of clients.
pub(crate) struct Certificates {
    directory: TempDir,
    issuer: Issuer<'static, KeyPair>,
}

impl Certificates {
    pub(crate) fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let certificate = params.self_signed(&key).unwrap();
        std::fs::write(directory.path().join("ca.crt"), certificate.pem()).unwrap();
        let certificates = Self { directory, issuer: Issuer::new(params, key) };
        certificates.sign("server", &["localhost"]);
        certificates
    }

    pub(crate) fn path(&self) -> &Path {
        self.directory.path()
    }

    /// A certificate of the CA with these host names.
    pub(crate) fn sign(&self, name: &str, names: &[&str]) {
        let key = KeyPair::generate().unwrap();
        let mut params =
            CertificateParams::new(names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>()).unwrap();
        params.subject_alt_names.push(SanType::URI("spiffe://cluster/prometheus".try_into().unwrap()));
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        self.write(name, &certificate.pem(), &key);
    }

    /// A certificate that is its own CA.
    pub(crate) fn sign_by_itself(&self, name: &str, names: &[&str]) {
        let key = KeyPair::generate().unwrap();
        let mut params =
            CertificateParams::new(names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let certificate = params.self_signed(&key).unwrap();
        self.write(name, &certificate.pem(), &key);
    }

    fn write(&self, name: &str, certificate: &str, key: &KeyPair) {
        std::fs::write(self.path().join(name).with_extension("crt"), certificate).unwrap();
        std::fs::write(self.path().join(name).with_extension("key"), key.serialize_pem()).unwrap();
    }

    pub(crate) fn text(&self, name: &str) -> String {
        std::fs::read_to_string(self.path().join(name)).unwrap()
    }

    /// A web configuration file for the directory.
    pub(crate) fn load(&self, text: &str) -> Result<Security, String> {
        let file = self.path().join("web.yml");
        std::fs::write(&file, text).unwrap();
        let access = Config::default().web_access(Some(&file)).map_err(|problems| problems.to_string())?;
        Security::load(&access).map_err(|error| error.to_string())
    }
}

/// A client that trusts the CA.
#[derive(Clone, Default)]
pub(crate) struct Client {
    /// The name of the client certificate, if it has one.
    pub(crate) certificate: Option<&'static str>,
    /// Whether it supports only TLS 1.2.
    pub(crate) is_old: bool,
    /// Cipher suites and curves that it offers, by their names in rustls.
    pub(crate) algorithms: Option<fn(&mut CryptoProvider)>,
    pub(crate) user: Option<(&'static str, &'static str)>,
    pub(crate) protocols: &'static [&'static str],
}

/// The result of a request.
pub(crate) struct Exchange {
    pub(crate) answer: String,
    pub(crate) cipher: String,
    /// The server's certificate.
    pub(crate) certificate: Vec<u8>,
}

impl Client {
    pub(crate) fn config(&self, certificates: &Certificates) -> ClientConfig {
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_file(certificates.path().join("ca.crt")).unwrap()).unwrap();
        let mut provider = ring::default_provider();
        if let Some(change) = self.algorithms {
            change(&mut provider);
        }
        let versions: &[&SupportedProtocolVersion] =
            if self.is_old { &[&version::TLS12] } else { &[&version::TLS13, &version::TLS12] };
        let builder = ClientConfig::builder_with_provider(Arc::new(provider))
            .with_protocol_versions(versions)
            .unwrap()
            .with_root_certificates(roots);
        let mut config = match self.certificate {
            None => builder.with_no_client_auth(),
            Some(name) => {
                let path = certificates.path().join(name);
                let chain = vec![CertificateDer::from_pem_file(path.with_extension("crt")).unwrap()];
                let key = PrivateKeyDer::from_pem_file(path.with_extension("key")).unwrap();
                builder.with_client_auth_cert(chain, key).unwrap()
            }
        };
        config.alpn_protocols = self.protocols.iter().map(|name| name.as_bytes().to_vec()).collect();
        config
    }

    pub(crate) fn connect(
        &self,
        certificates: &Certificates,
        address: SocketAddr,
    ) -> io::Result<StreamOwned<ClientConnection, TcpStream>> {
        let config = Arc::new(self.config(certificates));
        let name = ServerName::try_from("localhost").unwrap();
        let connection = ClientConnection::new(config, name).map_err(io::Error::other)?;
        let stream = TcpStream::connect(address)?;
        stream.set_read_timeout(Some(crate::running::PATIENCE))?;
        Ok(StreamOwned::new(connection, stream))
    }

    /// Requests a page and reads the answer to its end.
    pub(crate) fn get(
        &self,
        certificates: &Certificates,
        (address, path): (SocketAddr, &str),
    ) -> io::Result<Exchange> {
        let mut stream = self.connect(certificates, address)?;
        let authorization = self.user.map(|(user, password)| {
            use base64::Engine;
            let encoded = base64::engine::general_purpose::STANDARD.encode(format!("{user}:{password}"));
            format!("Authorization: Basic {encoded}\r\n")
        });
        let authorization = authorization.unwrap_or_default();
        write!(stream, "GET {path} HTTP/1.1\r\nHost: localhost\r\n{authorization}Connection: close\r\n\r\n")?;
        let mut answer = Vec::new();
        if let Err(error) = stream.read_to_end(&mut answer)
            && answer.is_empty()
        {
            return Err(error);
        }
        let cipher = stream.conn.negotiated_cipher_suite().map(|suite| format!("{:?}", suite.suite()));
        let certificate = stream.conn.peer_certificates().and_then(<[_]>::first).map(|first| first.to_vec());
        Ok(Exchange {
            answer: String::from_utf8(answer).unwrap(),
            cipher: cipher.unwrap_or_default(),
            certificate: certificate.unwrap_or_default(),
        })
    }
}
