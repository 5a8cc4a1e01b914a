//! Access to the pages: TLS, users, headers, a rate limit, and the tenants of each user.
//!
//! They come from the keys of `web`, or from a web configuration file of Prometheus' exporters. Certificates are opened by
//! the server and not here.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};

use super::problem::{Complaint, FilePosition, ProblemCollector, Problems};
use super::settings::{Config, WebConfig, WebRateLimitConfig, WebTlsConfig};
use super::time::{duration, in_words};
use super::values::{one_of, path};
use super::web_file;
use crate::model::Nanoseconds;

/// A certificate, key or password hash in a file of its own, or in the configuration.
#[derive(Clone, PartialEq, Eq)]
pub enum Credential {
    File(PathBuf),
    Inline(String),
}

/// Does not print the secret.
impl fmt::Debug for Credential {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(path) => path.fmt(f),
            Self::Inline(_) => f.write_str("inline"),
        }
    }
}

/// Whether clients are asked for a certificate, and whether it is verified.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ClientAuth {
    #[default]
    None,
    /// Clients are asked for one, which is not verified.
    Request,
    /// Clients must have one, which is not verified.
    RequireAny,
    VerifyIfGiven,
    RequireAndVerify,
}

/// A version of TLS. The agent has 1.2 and 1.3; older ones are raised to 1.2.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum TlsVersion {
    Tls10,
    Tls11,
    #[default]
    Tls12,
    Tls13,
}

/// The cipher suites of TLS 1.2 that the agent has, with their names in Go.
const CIPHER_SUITES: [&str; 6] = [
    "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256",
    "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384",
    "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256",
    "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256",
    "TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384",
    "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256",
];

/// Those of TLS 1.3, which cannot be left out, as in Go.
const TLS13_SUITES: [&str; 3] =
    ["TLS_AES_128_GCM_SHA256", "TLS_AES_256_GCM_SHA384", "TLS_CHACHA20_POLY1305_SHA256"];

/// HTTP/2 requires one of these with TLS 1.2.
const HTTP2_SUITES: [&str; 2] =
    ["TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256", "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256"];

/// The curves of the key exchange that the agent has, with their names in Go.
const CURVES: [&str; 3] = ["X25519", "CurveP256", "CurveP384"];

/// The headers that may be set, each with its allowed values; empty for any value.
const HEADERS: [(&str, &[&str]); 5] = [
    ("Strict-Transport-Security", &[]),
    ("X-Content-Type-Options", &["nosniff"]),
    ("X-Frame-Options", &["deny", "sameorigin"]),
    ("X-XSS-Protection", &[]),
    ("Content-Security-Policy", &[]),
];

impl Config {
    /// The settings of the web server in force. A web configuration file replaces TLS, HTTP/2, headers, users and the rate
    /// limit of the keys of `web`, and is refused if those are given too. Use this, not [`Config::web`], for access.
    ///
    /// # Errors
    /// All problems of the file.
    pub fn web_access(&self, file: Option<&Path>) -> Result<WebConfig, Problems> {
        let access = match file {
            None => self.web.clone(),
            Some(file) => {
                self.check_single_source(file)?;
                web_file::read(file, &self.web)?
            }
        };
        match access.tenants.keys().find(|user| !access.users.contains_key(*user)) {
            Some(user) => {
                let name = file.map_or_else(|| "configuration".to_owned(), |file| file.display().to_string());
                let text = format!(
                    "web.tenants names user {user}, who has no password; add the user, or remove the entry"
                );
                Err(Problems::one(&name, None, text))
            }
            None => Ok(access),
        }
    }

    fn check_single_source(&self, file: &Path) -> Result<(), Problems> {
        let (given, none) = (&self.web, Self::default().web);
        let keys = [
            ("web.tls", given.tls != none.tls),
            ("web.users", given.users != none.users),
            ("web.headers", given.headers != none.headers),
            ("web.rate_limit", given.rate_limit != none.rate_limit),
            ("web.http2", given.http2 != none.http2),
        ];
        let Some((key, _)) = keys.into_iter().find(|(_, is_given)| *is_given) else { return Ok(()) };
        let text =
            format!("given by --web.config.file, and the configuration has {key}; keep one of the two");
        Err(Problems::one(&file.display().to_string(), None, text))
    }
}

impl WebRateLimitConfig {
    /// Whether requests are limited; an interval of 0 means no limit.
    pub const fn is_enabled(&self) -> bool {
        self.interval.0 > 0
    }
}

impl WebTlsConfig {
    /// Whether any key for TLS is given.
    pub fn is_enabled(&self) -> bool {
        self.cert_file.is_some()
            || self.key_file.is_some()
            || self.client_ca_file.is_some()
            || self.client_auth_type != ClientAuth::None
    }

    pub(super) fn check(
        &self,
        place: impl Fn(&str) -> Option<FilePosition>,
        prefix: &str,
        report: &mut ProblemCollector,
    ) {
        let path_of = |key: &str| if prefix.is_empty() { key.to_owned() } else { format!("{prefix}.{key}") };
        let mut complain = |key: &str, text: &str| {
            // A key that is missing is reported at one that requires it.
            let others = ["cert_file", "key_file", "client_ca_file", "client_auth_type"];
            let found = [key].into_iter().chain(others).find_map(|key| place(&path_of(key)));
            report.add(found, path_of(key), Complaint(text.to_owned()));
        };
        let wrong_names = match self.client_auth_type {
            ClientAuth::None => "has no effect without client_auth_type; give RequireAndVerifyClientCert",
            ClientAuth::Request | ClientAuth::RequireAny => {
                "would be compared with names in certificates that nobody verifies; give client_auth_type \
                 RequireAndVerifyClientCert, or remove it"
            }
            ClientAuth::VerifyIfGiven | ClientAuth::RequireAndVerify => "",
        };
        if !self.client_allowed_sans.is_empty() && !wrong_names.is_empty() {
            complain("client_allowed_sans", wrong_names);
        }
        if !self.is_enabled() {
            return;
        }
        if self.cert_file.is_none() {
            complain("cert_file", "is missing; give the server's certificate, or remove the other keys");
        }
        if self.key_file.is_none() {
            complain("key_file", "is missing; give the private key of the server's certificate");
        }
        if self.client_ca_file.is_some() && self.client_auth_type == ClientAuth::None {
            let text = "has no effect without client_auth_type; give RequireAndVerifyClientCert";
            complain("client_ca_file", text);
        }
        if self.min_version > self.max_version {
            complain("min_version", "is newer than max_version; give an older version");
        }
    }

    pub(super) fn check_http2(&self, http2: bool) -> Result<(), Complaint> {
        let is_met = self.cipher_suites.is_empty()
            || self.min_version >= TlsVersion::Tls13
            || self.cipher_suites.iter().any(|suite| HTTP2_SUITES.contains(&&**suite));
        if !http2 || is_met {
            return Ok(());
        }
        Err(Complaint(format!(
            "has no cipher suite that HTTP/2 requires, {}; add one of them, or switch http2 off",
            one_of(&HTTP2_SUITES)
        )))
    }
}

impl WebConfig {
    /// Warnings about accepted settings that are probably not intended.
    pub fn hints(&self) -> Vec<String> {
        let mut hints = Vec::new();
        if self.tls.is_enabled() {
            let versions = [("min_version", self.tls.min_version), ("max_version", self.tls.max_version)];
            for (key, _) in versions.into_iter().filter(|(_, version)| *version < TlsVersion::Tls12) {
                hints.push(format!("TLS {key} is raised to TLS12: the agent has no older version"));
            }
        }
        if self.rate_limit.is_enabled() && self.rate_limit.burst == 0 {
            let every = in_words(self.rate_limit.interval);
            hints.push(format!("rate_limit with interval {every} and burst 0 refuses every request"));
        }
        if !self.tenants.is_empty() {
            let blind = self.users.keys().filter(|user| !self.tenants.contains_key(*user));
            hints.extend(blind.map(|user| {
                format!(
                    "web.tenants does not name user {user}, who may not read /metrics; a scraper needs \"*\""
                )
            }));
        }
        if !self.tls.is_enabled() && !self.users.is_empty() {
            hints.push("passwords are sent in the clear without TLS".to_owned());
        }
        hints
    }

    pub fn files(&self) -> Vec<PathBuf> {
        let tls = &self.tls;
        let file = |credential: &Credential| match credential {
            Credential::File(path) => Some(path.clone()),
            Credential::Inline(_) => None,
        };
        let of_tls = [&tls.cert_file, &tls.key_file, &tls.client_ca_file].into_iter().flatten();
        of_tls.chain(self.users.values()).filter_map(file).collect()
    }
}

pub(super) fn client_auth(text: &str) -> Result<ClientAuth, Complaint> {
    const POLICIES: [(&str, ClientAuth); 5] = [
        ("NoClientCert", ClientAuth::None),
        ("RequestClientCert", ClientAuth::Request),
        ("RequireAnyClientCert", ClientAuth::RequireAny),
        ("VerifyClientCertIfGiven", ClientAuth::VerifyIfGiven),
        ("RequireAndVerifyClientCert", ClientAuth::RequireAndVerify),
    ];
    let name = match text {
        "" => "NoClientCert",
        // An old name of exporter-toolkit.
        "RequireClientCert" => "RequireAnyClientCert",
        name => name,
    };
    POLICIES.iter().find(|(known, _)| *known == name).map(|(_, policy)| *policy).ok_or_else(|| {
        let remedy = format!("give {}", one_of(&POLICIES.map(|(known, _)| known)));
        Complaint::about(text, "is not a policy for client certificates", &remedy)
    })
}

pub(super) fn tls_version(text: &str) -> Result<TlsVersion, Complaint> {
    match text {
        "TLS10" => Ok(TlsVersion::Tls10),
        "TLS11" => Ok(TlsVersion::Tls11),
        "TLS12" => Ok(TlsVersion::Tls12),
        "TLS13" => Ok(TlsVersion::Tls13),
        _ => Err(Complaint::about(text, "is not a version of TLS", "give TLS12 or TLS13")),
    }
}

/// Adds a cipher suite. Those of TLS 1.3 are always available; if none is of TLS 1.2, that version is not offered.
pub(super) fn add_cipher(list: &mut Vec<String>, text: &str) -> Result<(), Complaint> {
    let known = [&CIPHER_SUITES[..], &TLS13_SUITES[..]].concat();
    add_known(list, text, &known, "is not a cipher suite that this agent has")
}

pub(super) fn add_curve(list: &mut Vec<String>, text: &str) -> Result<(), Complaint> {
    add_known(list, text, &CURVES, "is not a curve that this agent has")
}

fn add_known(list: &mut Vec<String>, text: &str, known: &[&str], wrong: &str) -> Result<(), Complaint> {
    if !known.contains(&text) {
        return Err(Complaint::about(text, wrong, &format!("give some of {}", known.join(", "))));
    }
    if !list.iter().any(|other| other == text) {
        list.push(text.to_owned());
    }
    Ok(())
}

pub(super) fn add_header(list: &mut Vec<(String, String)>, name: &str, text: &str) -> Result<(), Complaint> {
    let names = HEADERS.map(|(name, _)| name);
    let Some((_, values)) = HEADERS.iter().find(|(known, _)| *known == name) else {
        let remedy = format!("give some of {}", names.join(", "));
        return Err(Complaint::about(name, "is not a header that can be set", &remedy));
    };
    if !values.is_empty() && !values.contains(&text) {
        return Err(Complaint::about(
            text,
            "is not a value of this header",
            &format!("give {}", one_of(values)),
        ));
    }
    if hyper::header::HeaderValue::from_str(text).is_err() {
        return Err(Complaint::about(text, "cannot stand in a header", "give printable characters"));
    }
    // An empty value means not set, as with Prometheus' exporters.
    if !text.is_empty() {
        list.push((name.to_owned(), text.to_owned()));
    }
    Ok(())
}

/// Adds a user with the file of the password's hash.
pub(super) fn add_user(
    users: &mut BTreeMap<String, Credential>,
    name: &str,
    file: &str,
) -> Result<(), Complaint> {
    users.insert(user(name)?, credential(file)?);
    Ok(())
}

pub(super) fn credential(text: &str) -> Result<Credential, Complaint> {
    path(text).map(Credential::File)
}

/// A user name that basic authentication can transmit.
pub(super) fn user(name: &str) -> Result<String, Complaint> {
    if name.is_empty() || name.contains(':') || name.chars().any(char::is_control) {
        return Err(Complaint::about(name, "is not a user's name", "give one without a colon"));
    }
    Ok(name.to_owned())
}

pub(super) fn add_tenant(
    users: &mut BTreeMap<String, Vec<String>>,
    name: &str,
    text: &str,
) -> Result<(), Complaint> {
    let tenant = super::values::name(text)?;
    let tenants = users.entry(user(name)?).or_default();
    if !tenants.contains(&tenant) {
        tenants.push(tenant);
    }
    Ok(())
}

/// An interval; 0 needs no unit.
pub(super) fn interval(text: &str) -> Result<Nanoseconds, Complaint> {
    if text == "0" {
        Ok(Nanoseconds(0))
    } else {
        duration(text, Nanoseconds(0), Nanoseconds::from_seconds(3_600))
    }
}
