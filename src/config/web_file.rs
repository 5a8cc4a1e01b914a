//! Reads a web configuration file of Prometheus' exporters (exporter-toolkit).

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::problem::{Complaint, ProblemCollector, Problems};
use super::read_mapping::{self, KeyPositions};
use super::settings::{WebConfig, WebRateLimitConfig, WebTlsConfig};
use super::tree;
use super::web::{
    ClientAuth, Credential, TlsVersion, add_cipher, add_curve, add_header, client_auth, interval,
    tls_version, user,
};
use crate::model::Nanoseconds;

keys! { WebFile;
"TLS."
pub(crate) struct FileTls (draft tls_server_config) {
    cert: Option<String>, text("a certificate as PEM", text), Optional(""), Reload;
    key: Option<String>, text("a private key as PEM", text), Optional(""), Reload;
    client_ca: Option<String>, text("certificates as PEM", text), Optional(""), Reload;
    cert_file: Option<PathBuf>, text("a path", path), Optional(""), Reload;
    key_file: Option<PathBuf>, text("a path", path), Optional(""), Reload;
    client_ca_file: Option<PathBuf>, text("a path", path), Optional(""), Reload;
    client_auth_type: ClientAuth, text("a policy", client_auth), Default("NoClientCert"), Reload;
    client_allowed_sans: Vec<String>, list("an alternative name", add_name), Optional(""), Reload;
    min_version: TlsVersion, text("TLS12 or TLS13", tls_version), Default("TLS12"), Reload;
    max_version: TlsVersion, text("TLS12 or TLS13", tls_version), Default("TLS13"), Reload;
    cipher_suites: Vec<String>, list("a cipher suite", add_cipher), Optional(""), Reload;
    prefer_server_cipher_suites: bool, flag(), Default("true"), Reload;
    curve_preferences: Vec<String>, list("a curve", add_curve), Optional(""), Reload;
}

"HTTP."
pub(crate) struct FileHttp (draft http_server_config) {
    http2: bool, flag(), Default("true"), Reload;
    headers: Vec<(String, String)>, pairs("headers with values", add_header), Optional(""), Reload;
}

"A rate limit."
pub(crate) struct FileRate (draft rate_limit) {
    interval: Nanoseconds, text("a duration", interval), Default("0"), Reload;
    burst: u32, count(0, 1_000_000), Default("0"), Reload;
}

"The file."
pub(crate) struct WebFile () {
    basic_auth_users: BTreeMap<String, String>, pairs("users with bcrypt hashes", add_user), Optional(""), Reload;
} + { tls_server_config: FileTls, http_server_config: FileHttp, rate_limit: FileRate }
}

/// A text; an empty one means none, as in exporter-toolkit.
fn text(text: &str) -> Result<Option<String>, Complaint> {
    Ok((!text.is_empty()).then(|| text.to_owned()))
}

fn path(text: &str) -> Result<Option<PathBuf>, Complaint> {
    Ok((!text.is_empty()).then(|| text.into()))
}

fn add_name(list: &mut Vec<String>, text: &str) -> Result<(), Complaint> {
    list.push(text.to_owned());
    Ok(())
}

fn add_user(users: &mut BTreeMap<String, String>, name: &str, hash: &str) -> Result<(), Complaint> {
    users.insert(user(name)?, hash.to_owned());
    Ok(())
}

/// Reads the file; settings that it cannot have are taken from `base`.
pub(super) fn read(file: &Path, base: &WebConfig) -> Result<WebConfig, Problems> {
    let name = file.display().to_string();
    let tree = tree::read(&super::read_argument(file)?, &name)?;
    let (mut report, mut draft) = (ProblemCollector::default(), WebFile::default());
    let places = read_mapping::read_mapping(&tree, "", TABLE.keys, &mut draft, &mut report);
    if places.as_ref().is_some_and(KeyPositions::is_empty) {
        // As after a write that a full disk cut off. Without a key it would protect nothing.
        let text = "has no key with a value; give tls_server_config or basic_auth_users, or start without --web.config.file";
        report.add(None, "", Complaint(text.to_owned()));
    }
    let place = |key: &str| places.as_ref().and_then(|places| places.get(key));
    let FileTls { cert, key, client_ca, cert_file, key_file, client_ca_file, .. } = &draft.tls_server_config;
    for (name, inline, path) in
        [("cert", cert, cert_file), ("key", key, key_file), ("client_ca", client_ca, client_ca_file)]
    {
        if inline.is_some() && path.is_some() {
            let path = format!("tls_server_config.{name}");
            let text = format!("{name}_file is given too; keep one of the two");
            report.add(place(&path), path, Complaint(text));
        }
    }
    let tls = tls_settings(draft.tls_server_config, file.parent().unwrap_or(Path::new(".")));
    tls.check(place, "tls_server_config", &mut report);
    if let Err(complaint) = tls.check_http2(draft.http_server_config.http2) {
        let path = "tls_server_config.cipher_suites";
        report.add(place(path), path, complaint);
    }
    report.finish(&name)?;
    let users = draft.basic_auth_users.into_iter();
    let WebFile { rate_limit: FileRate { interval, burst }, .. } = draft;
    Ok(WebConfig {
        tls,
        http2: draft.http_server_config.http2,
        headers: draft.http_server_config.headers,
        users: users.map(|(name, hash)| (name, Credential::Inline(hash))).collect(),
        rate_limit: WebRateLimitConfig { interval, burst },
        ..base.clone()
    })
}

/// The settings; relative paths start at the directory of the file.
fn tls_settings(keys: FileTls, directory: &Path) -> WebTlsConfig {
    let credential = |inline: Option<String>, path: Option<PathBuf>| {
        inline.map(Credential::Inline).or_else(|| path.map(|path| Credential::File(directory.join(path))))
    };
    WebTlsConfig {
        cert_file: credential(keys.cert, keys.cert_file),
        key_file: credential(keys.key, keys.key_file),
        client_ca_file: credential(keys.client_ca, keys.client_ca_file),
        client_auth_type: keys.client_auth_type,
        client_allowed_sans: keys.client_allowed_sans,
        min_version: keys.min_version,
        max_version: keys.max_version,
        cipher_suites: keys.cipher_suites,
        prefer_server_cipher_suites: keys.prefer_server_cipher_suites,
        curve_preferences: keys.curve_preferences,
    }
}
