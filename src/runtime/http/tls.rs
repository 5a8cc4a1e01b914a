//! Certificates and keys as PEM, and the TLS configuration of a client.

use std::fmt;
use std::fs::File;
use std::io::{self, ErrorKind, Read};
use std::path::Path;

use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::{ClientConfig, RootCertStore};

use crate::runtime::file;

/// Most bytes of a file with certificates, a key or a secret.
const MAX_BYTES: u64 = 1 << 20;

/// The variable that names the file with the CAs of this machine, as for OpenSSL.
const CA_VARIABLE: &str = "SSL_CERT_FILE";

/// Certificates or a key, not yet parsed.
pub struct Pem {
    name: String,
    text: Vec<u8>,
}

/// Does not print the secret.
impl fmt::Debug for Pem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}

impl Pem {
    pub fn new(name: &str, text: Vec<u8>) -> Self {
        Self { name: name.to_owned(), text }
    }

    /// The file that a key names.
    ///
    /// # Errors
    /// It cannot be read, or is too long.
    pub fn read(key: &str, path: &Path) -> Result<Self, String> {
        Ok(Self { name: format!("{key} {}", path.display()), text: read_file(key, path)? })
    }

    /// The file that an option of a command names, which may be a pipe that the caller has opened.
    ///
    /// # Errors
    /// It cannot be read, or is too long.
    pub fn read_argument(option: &str, path: &Path) -> Result<Self, String> {
        Ok(Self {
            name: format!("{option} {}", path.display()),
            text: read_opened(option, path, file::open)?,
        })
    }

    /// Its certificates, at least one.
    ///
    /// # Errors
    /// It has none, or one that is damaged.
    pub fn certificates(&self) -> Result<Vec<CertificateDer<'static>>, String> {
        let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&self.text).collect();
        let found = found.map_err(|error| format!("{}: {error}; give certificates as PEM", self.name))?;
        if found.is_empty() {
            return Err(format!("{}: has no certificate; give one as PEM", self.name));
        }
        Ok(found)
    }

    /// Its first private key.
    ///
    /// # Errors
    /// It has none that can be used.
    pub fn private_key(&self) -> Result<PrivateKeyDer<'static>, String> {
        PrivateKeyDer::from_pem_slice(&self.text)
            .map_err(|_| format!("{}: has no private key; give one as PEM, without a passphrase", self.name))
    }
}

/// The bytes of the regular file that a key names.
///
/// # Errors
/// It cannot be read, or is too long.
pub fn read_file(key: &str, path: &Path) -> Result<Vec<u8>, String> {
    read_opened(key, path, file::open_regular)
}

fn read_opened(key: &str, path: &Path, open: fn(&Path) -> io::Result<File>) -> Result<Vec<u8>, String> {
    let unreadable = |error: io::Error| {
        format!("{key} {}: cannot be read: {error}; check that it exists and may be read", path.display())
    };
    let mut text = Vec::new();
    let file = open(path).map_err(unreadable)?;
    let length = file.take(MAX_BYTES + 1).read_to_end(&mut text).map_err(unreadable)?;
    if length as u64 > MAX_BYTES {
        return Err(format!("{key} {}: is longer than 1 MiB; name a smaller file", path.display()));
    }
    Ok(text)
}

/// A client's configuration: the CAs that it trusts, by default those of this machine, and its certificate and key, if it
/// shows one.
///
/// # Errors
/// The certificate or key that cannot be used, and what to do.
pub fn client_config(ca: Option<&Pem>, identity: Option<(&Pem, &Pem)>) -> Result<ClientConfig, String> {
    let mut roots = RootCertStore::empty();
    match ca {
        Some(ca) => {
            for certificate in ca.certificates()? {
                roots
                    .add(certificate)
                    .map_err(|error| format!("{}: {error}; give certificates of CAs", ca.name))?;
            }
        }
        // If this machine has none, the handshake refuses every server.
        None => {
            // Here, since the loader would wait for a writer to a pipe. The null device says that there are none.
            if let Some(file) = std::env::var_os(CA_VARIABLE).filter(|file| file != "/dev/null")
                && let Err(error) = file::check(Path::new(&file))
                && error.kind() == ErrorKind::InvalidInput
            {
                return Err(format!(
                    "{CA_VARIABLE} {}: cannot be read: {error}; give a file, or unset it",
                    file.display()
                ));
            }
            roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        }
    }
    let builder = ClientConfig::builder().with_root_certificates(roots);
    let Some((certificate, key)) = identity else { return Ok(builder.with_no_client_auth()) };
    builder.with_client_auth_cert(certificate.certificates()?, key.private_key()?).map_err(|error| {
        format!("{}: {error}; give a certificate and key that belong together", certificate.name)
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_is_too_long_is_refused_and_never_cut() {
        let file = tempfile::NamedTempFile::new().unwrap();
        for (length, is_accepted) in [(MAX_BYTES, true), (MAX_BYTES + 1, false)] {
            file.as_file().set_len(length).unwrap();
            let found = read_file("key_file", file.path());
            assert_eq!(found.as_ref().map(|text| text.len() as u64).ok(), is_accepted.then_some(length));
            assert!(is_accepted || found.unwrap_err().ends_with("is longer than 1 MiB; name a smaller file"));
        }
    }

    #[test]
    fn a_text_without_what_is_wanted_is_named_and_never_printed() {
        let pem = Pem::new("key", b"secret".to_vec());
        assert_eq!(pem.certificates().unwrap_err(), "key: has no certificate; give one as PEM");
        let problem = "key: has no private key; give one as PEM, without a passphrase";
        assert_eq!(
            (pem.private_key().unwrap_err(), format!("{pem:?}")),
            (problem.to_owned(), "key".to_owned())
        );
    }
}
