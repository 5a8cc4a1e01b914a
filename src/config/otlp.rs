//! The destinations of OTLP: entries of `otlp.destinations`, `otlp.endpoint`, or OpenTelemetry's environment variables.
//!
//! The variables stand for keys that the file leaves out. They never change an entry of `otlp.destinations`, so that no
//! header of theirs goes to a server that the file names. Files are opened by the sender and not here.

use std::collections::BTreeMap;
use std::path::PathBuf;

use hyper::header::{HeaderName, HeaderValue};

use super::address::Endpoint;
use super::entries::{EntryPlace, Mistake, Placed, entries_of, read_entries};
use super::problem::{Complaint, ProblemCollector};
use super::settings::{Config, OtlpConfig};
use super::time::in_words;
use super::tree::YamlNode;
use super::values::{decode_percent, path, word};
use super::web::Credential;
use crate::model::Nanoseconds;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OtlpProtocol {
    /// Protobuf over HTTP/1.1.
    #[default]
    Http,
    Grpc,
}

impl OtlpProtocol {
    const ALL: [Self; 2] = [Self::Http, Self::Grpc];
    const NAMES: [&str; 2] = ["http/protobuf", "grpc"];
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OtlpNames {
    /// Those of the page.
    #[default]
    Native,
    /// Those of OpenTelemetry's conventions for hardware, for what they name.
    Hardware,
}

impl OtlpNames {
    pub(super) const ALL: [Self; 2] = [Self::Native, Self::Hardware];
    pub(super) const NAMES: [&str; 2] = ["native", "hw"];
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OtlpCompression {
    /// gzip, which every receiver has to understand.
    #[default]
    Gzip,
    /// zstd, which Prometheus does not understand.
    Zstd,
    None,
}

impl OtlpCompression {
    const ALL: [Self; 3] = [Self::Gzip, Self::Zstd, Self::None];
    const NAMES: [&str; 3] = ["gzip", "zstd", "none"];
}

impl OtlpDestination {
    pub fn at(endpoint: Endpoint) -> Self {
        Self { endpoint, timeout: Nanoseconds::from_seconds(10), ..Self::default() }
    }
}

keys! { OtlpDestination;
"A receiver of OTLP."
pub struct OtlpDestination () {
    endpoint: Endpoint, text("http://host:port or https://host", str::parse::<Endpoint>),
        Required("https://otlp.example.com:4318"), Reload,
        "Its address; /v1/metrics and /v1/logs are added automatically.";
    protocol: OtlpProtocol, word(OtlpProtocol::NAMES, OtlpProtocol::ALL), Default("http/protobuf"), Reload,
        "How to send; usually http/protobuf on port 4318, grpc on 4317.";
    compression: OtlpCompression, word(OtlpCompression::NAMES, OtlpCompression::ALL), Default("gzip"), Reload,
        "How requests are compressed; Prometheus refuses zstd.";
    ca_file: Option<PathBuf>, text("an absolute path", path), Optional("/etc/gpumeter/otlp-ca.crt"), Reload,
        "CA certificates that verify its certificate, as PEM; by default those of the system.";
    cert_file: Option<PathBuf>, text("an absolute path", path), Optional("/etc/gpumeter/otlp.crt"), Reload,
        "The agent's client certificate, as PEM.";
    key_file: Option<PathBuf>, text("an absolute path", path), Optional("/etc/gpumeter/otlp.key"), Reload,
        "Private key of the client certificate, as PEM.";
    headers: BTreeMap<String, Credential>, pairs("headers with values", add_header),
        Optional("{X-Scope-OrgID: gpus}"), Reload,
        "Headers of each request that are no secret.";
    header_files: BTreeMap<String, Credential>, pairs("headers with files", add_header_file),
        Optional("{Authorization: /etc/gpumeter/otlp-token}"), Reload,
        "Headers, each with the file that holds its value, such as Bearer TOKEN.";
    timeout: Nanoseconds, duration(Nanoseconds::from_seconds(1), Nanoseconds::from_seconds(60)), Default("10s"), Reload,
        "How long a request may take.";
    live_first: bool, flag(), Default("false"), Reload,
        "Whether the latest points are sent first; only if it accepts samples out of order.";
    events: bool, flag(), Default("false"), Reload,
        "Whether events are sent to it too, as logs.";
    traces: bool, flag(), Default("false"), Reload,
        "Whether the agent's traces are sent to it too; otlp.traces turns them on.";
}
}

pub(crate) fn read(items: &[YamlNode], base: &str, report: &mut ProblemCollector) -> Vec<OtlpDestination> {
    let finish = |destination: OtlpDestination, at: &EntryPlace, earlier: &[Placed<OtlpDestination>]| {
        let mistake = |key, text: &str| Err(Some(Mistake::of(key, text)));
        if destination.headers.keys().any(|name| destination.header_files.contains_key(name)) {
            return mistake("header_files", "has a header that headers has too; keep one of the two");
        }
        // A missing or malformed address is reported already.
        if destination.endpoint == Endpoint::default() {
            return Err(None);
        }
        let of_tls = ["ca_file", "cert_file", "key_file"].into_iter().find(|key| at.has(key));
        if let Some(key) = of_tls.filter(|_| !destination.endpoint.tls) {
            return mistake(key, "has no effect on an http address; give https:// in endpoint, or remove it");
        }
        if destination.cert_file.is_some() != destination.key_file.is_some() {
            return mistake("cert_file", "and key_file belong together; give both, or remove the other");
        }
        let key = |one: &OtlpDestination| (one.endpoint.clone(), one.protocol);
        if let Some(first) = earlier.iter().find(|other| key(&other.entry) == key(&destination)) {
            let line = first.at.line("endpoint");
            return mistake("endpoint", &format!("is that of the entry on line {line} too; keep one"));
        }
        Ok(destination)
    };
    entries_of(read_entries(items, base, TABLE.keys, report, finish))
}

fn add_header(headers: &mut BTreeMap<String, Credential>, name: &str, text: &str) -> Result<(), Complaint> {
    let name = header_name(name)?;
    HeaderValue::from_str(text)
        .map_err(|_| Complaint::about(text, "cannot stand in a header", "give printable characters"))?;
    headers.insert(name, Credential::Inline(text.to_owned()));
    Ok(())
}

fn add_header_file(
    headers: &mut BTreeMap<String, Credential>,
    name: &str,
    file: &str,
) -> Result<(), Complaint> {
    headers.insert(header_name(name)?, Credential::File(path(file)?));
    Ok(())
}

/// The name of a header in small letters, as HTTP/2 has it.
fn header_name(name: &str) -> Result<String, Complaint> {
    const OURS: [&str; 6] =
        ["host", "content-type", "content-length", "content-encoding", "te", "connection"];
    let complain = |wrong| Complaint::about(name, wrong, "give a name such as Authorization");
    let parsed = HeaderName::from_bytes(name.as_bytes()).map_err(|_| complain("is not a header's name"))?;
    if OURS.contains(&parsed.as_str()) {
        return Err(complain("is a header that the agent sets itself"));
    }
    Ok(parsed.as_str().to_owned())
}

/// The destinations with what the environment says, and where each setting comes from.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OtlpPlan {
    pub destinations: Vec<OtlpDestination>,
    /// Attributes of the resource that the environment gives.
    pub resource: BTreeMap<String, String>,
    /// Each setting with its origin, in words and without secrets.
    pub origins: Vec<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("environment variable {variable}: {complaint}")]
pub struct BadVariable {
    variable: String,
    complaint: Complaint,
}

impl Config {
    /// The destinations by the file and the variables of the environment.
    ///
    /// # Errors
    /// A variable that cannot be used.
    pub fn otlp_plan(&self, variable: impl Fn(&str) -> Option<String>) -> Result<OtlpPlan, BadVariable> {
        let environment = Environment { get: &variable };
        let mut plan = OtlpPlan { resource: environment.resource()?, ..OtlpPlan::default() };
        if !plan.resource.is_empty() {
            let names: Vec<&str> = plan.resource.keys().map(String::as_str).collect();
            let names = names.join(", ");
            plan.origins.push(format!("resource attributes {names} by OTEL_RESOURCE_ATTRIBUTES"));
        }
        if let Some(name) = environment.value("OTEL_SERVICE_NAME") {
            plan.resource.insert("service.name".to_owned(), name);
            plan.origins.push("resource attributes service.name by OTEL_SERVICE_NAME".to_owned());
        }
        for destination in &self.otlp.destinations {
            plan.origins.push(format!("{destination} by otlp.destinations"));
        }
        plan.destinations.clone_from(&self.otlp.destinations);
        self.otlp.add_single(&environment, &mut plan)?;
        Ok(plan)
    }
}

impl OtlpConfig {
    /// Adds the destination of `otlp.endpoint` or of the environment.
    fn add_single(&self, environment: &Environment<'_>, plan: &mut OtlpPlan) -> Result<(), BadVariable> {
        if self.endpoint.is_none() && !self.destinations.is_empty() {
            return Ok(());
        }
        let protocol = environment.setting("PROTOCOL", |text| word(text, &OtlpProtocol::NAMES))?;
        let is_grpc = protocol.as_ref().is_some_and(|(place, _)| *place == OtlpProtocol::Grpc as usize);
        let endpoint = match &self.endpoint {
            Some(endpoint) => Some((endpoint.clone(), "otlp.endpoint".to_owned())),
            None => environment.endpoint(is_grpc)?,
        };
        let Some((endpoint, origin)) = endpoint else { return Ok(()) };
        let mut destination = OtlpDestination::at(endpoint);
        let mut origins = vec![origin];
        let mut apply = |what: String, variable: String| origins.push(format!("{what} by {variable}"));
        if let Some((place, variable)) = protocol {
            destination.protocol = OtlpProtocol::ALL[place];
            apply(format!("protocol {}", OtlpProtocol::NAMES[place]), variable);
        }
        let compression = environment.setting("COMPRESSION", |text| word(text, &OtlpCompression::NAMES))?;
        if let Some((place, variable)) = compression {
            destination.compression = OtlpCompression::ALL[place];
            apply(format!("compression {}", OtlpCompression::NAMES[place]), variable);
        }
        for (suffix, place) in [
            ("CERTIFICATE", &mut destination.ca_file),
            ("CLIENT_CERTIFICATE", &mut destination.cert_file),
            ("CLIENT_KEY", &mut destination.key_file),
        ] {
            if let Some((file, variable)) = environment.setting(suffix, path)? {
                apply(file.display().to_string(), variable);
                *place = Some(file);
            }
        }
        if let Some((headers, variable)) = environment.setting("HEADERS", headers)? {
            let names: Vec<&str> = headers.keys().map(String::as_str).collect();
            apply(format!("headers {} (values not shown)", names.join(", ")), variable);
            // Unlike those of the key, these may be secret.
            destination.headers = headers;
        }
        if let Some((timeout, variable)) = environment.setting("TIMEOUT", milliseconds)? {
            apply(format!("timeout {}", in_words(timeout)), variable);
            destination.timeout = timeout;
        }
        if destination.cert_file.is_some() != destination.key_file.is_some() {
            let text = "needs OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE and OTEL_EXPORTER_OTLP_CLIENT_KEY; set both, or none";
            return Err(BadVariable {
                variable: "OTEL_EXPORTER_OTLP_CLIENT_KEY".to_owned(),
                complaint: Complaint(text.to_owned()),
            });
        }
        plan.origins.push(format!("{destination} by {}", origins.join(", ")));
        plan.destinations.push(destination);
        Ok(())
    }
}

impl std::fmt::Display for OtlpDestination {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.endpoint.fmt(f)
    }
}

/// The variables of the environment; an empty one is none.
struct Environment<'a> {
    get: &'a dyn Fn(&str) -> Option<String>,
}

impl Environment<'_> {
    fn value(&self, variable: &str) -> Option<String> {
        (self.get)(variable).filter(|value| !value.is_empty())
    }

    /// The setting for metrics, or else that for all signals, with the name of its variable.
    fn setting<T>(
        &self,
        suffix: &str,
        parse: impl Fn(&str) -> Result<T, Complaint>,
    ) -> Result<Option<(T, String)>, BadVariable> {
        for prefix in ["OTEL_EXPORTER_OTLP_METRICS_", "OTEL_EXPORTER_OTLP_"] {
            let variable = format!("{prefix}{suffix}");
            if let Some(text) = self.value(&variable) {
                return match parse(&text) {
                    Ok(value) => Ok(Some((value, variable))),
                    Err(complaint) => Err(BadVariable { variable, complaint }),
                };
            }
        }
        Ok(None)
    }

    /// The address. Without a scheme it is one of gRPC, which uses TLS unless the environment says otherwise. For HTTP the
    /// variable of metrics is the whole address, as OpenTelemetry specifies.
    fn endpoint(&self, is_grpc: bool) -> Result<Option<(Endpoint, String)>, BadVariable> {
        const WHOLE: &str = "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT";
        if let Some(text) = self.value(WHOLE).filter(|_| !is_grpc) {
            let endpoint = Endpoint::whole(&text)
                .map_err(|complaint| BadVariable { variable: WHOLE.to_owned(), complaint })?;
            return Ok(Some((endpoint, format!("{WHOLE} (used as it is, without /v1/metrics added)"))));
        }
        let insecure = self.setting("INSECURE", |text| Ok(text.eq_ignore_ascii_case("true")))?;
        let scheme = if insecure.is_some_and(|(insecure, _)| insecure) { "http" } else { "https" };
        self.setting("ENDPOINT", |text| {
            if is_grpc && !text.contains("://") { format!("{scheme}://{text}").parse() } else { text.parse() }
        })
    }

    fn resource(&self) -> Result<BTreeMap<String, String>, BadVariable> {
        const VARIABLE: &str = "OTEL_RESOURCE_ATTRIBUTES";
        let Some(text) = self.value(VARIABLE) else { return Ok(BTreeMap::new()) };
        let complain = |complaint| BadVariable { variable: VARIABLE.to_owned(), complaint };
        pairs(&text).map_err(complain)
    }
}

/// `key=value` pairs between commas, with values that are percent-encoded.
fn pairs(text: &str) -> Result<BTreeMap<String, String>, Complaint> {
    let mut found = BTreeMap::new();
    for pair in text.split(',').map(str::trim).filter(|pair| !pair.is_empty()) {
        // The value may be a secret, so it is not quoted.
        let complain =
            || Complaint("is not a list of name=value between commas; correct it, or unset it".to_owned());
        let (key, value) = pair.split_once('=').ok_or_else(complain)?;
        let (key, value) = (key.trim(), decode_percent(value.trim()).ok_or_else(complain)?);
        if key.is_empty() {
            return Err(complain());
        }
        found.insert(key.to_owned(), value);
    }
    Ok(found)
}

fn headers(text: &str) -> Result<BTreeMap<String, Credential>, Complaint> {
    let mut headers = BTreeMap::new();
    for (name, value) in pairs(text)? {
        HeaderValue::from_str(&value)
            .map_err(|_| Complaint(format!("has a value that cannot stand in header {name}; correct it")))?;
        headers.insert(header_name(&name)?, Credential::Inline(value));
    }
    Ok(headers)
}

fn milliseconds(text: &str) -> Result<Nanoseconds, Complaint> {
    let milliseconds = super::values::count(text, 1, 600_000)?;
    Ok(Nanoseconds(u64::from(milliseconds) * 1_000_000))
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]
mod tests {
    use super::*;

    fn plan(file: &str, environment: &[(&str, &str)]) -> Result<OtlpPlan, String> {
        let config = Config::parse(file, "test").unwrap();
        let get = |name: &str| {
            environment.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned())
        };
        config.otlp_plan(get).map_err(|error| error.to_string())
    }

    #[test]
    fn the_standard_variables_make_a_destination_with_origins_and_without_secrets() {
        let plan = plan(
            "",
            &[
                ("OTEL_EXPORTER_OTLP_ENDPOINT", "https://c.example.com:4318"),
                ("OTEL_EXPORTER_OTLP_HEADERS", "authorization=Bearer%20hunter2,x-org=gpus"),
                ("OTEL_EXPORTER_OTLP_CERTIFICATE", "/etc/ca.crt"),
                ("OTEL_EXPORTER_OTLP_METRICS_COMPRESSION", "none"),
                ("OTEL_EXPORTER_OTLP_COMPRESSION", "gzip"),
                ("OTEL_EXPORTER_OTLP_TIMEOUT", "2500"),
                ("OTEL_RESOURCE_ATTRIBUTES", "cloud.region=eu%2Dwest,service.name=a"),
                ("OTEL_SERVICE_NAME", "gpus"),
            ],
        )
        .unwrap();
        let destination = &plan.destinations[0];
        assert_eq!(destination.endpoint.to_string(), "https://c.example.com:4318");
        assert_eq!(destination.headers["authorization"], Credential::Inline("Bearer hunter2".to_owned()));
        assert_eq!(destination.compression, OtlpCompression::None);
        assert_eq!(destination.timeout, Nanoseconds(2_500_000_000));
        assert_eq!(plan.resource["cloud.region"], "eu-west");
        assert_eq!(plan.resource["service.name"], "gpus");
        let origins = plan.origins.join("\n");
        assert!(!origins.contains("hunter2"), "{origins}");
        for words in [
            "https://c.example.com:4318 by OTEL_EXPORTER_OTLP_ENDPOINT",
            "compression none by OTEL_EXPORTER_OTLP_METRICS_COMPRESSION",
            "headers authorization, x-org (values not shown) by OTEL_EXPORTER_OTLP_HEADERS",
            "/etc/ca.crt by OTEL_EXPORTER_OTLP_CERTIFICATE",
            "service.name by OTEL_SERVICE_NAME",
        ] {
            assert!(origins.contains(words), "{words} in {origins}");
        }
    }

    #[test]
    fn the_file_beats_the_variables_and_their_headers_go_to_no_listed_destination() {
        let environment = [
            ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://other:4318"),
            ("OTEL_EXPORTER_OTLP_HEADERS", "authorization=secret"),
        ];
        let single = plan("otlp: {endpoint: \"http://mine:4318\"}", &environment).unwrap();
        assert_eq!(single.destinations[0].endpoint.host, "mine");
        assert_eq!(single.destinations[0].headers.len(), 1);
        let listed = plan("otlp: {destinations: [{endpoint: \"http://mine:4318\"}]}", &environment).unwrap();
        assert_eq!(listed.destinations.len(), 1);
        assert!(listed.destinations[0].headers.is_empty());
    }

    #[test]
    fn an_address_without_scheme_is_one_of_grpc_with_tls_unless_insecure() {
        let grpc = [("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc"), ("OTEL_EXPORTER_OTLP_ENDPOINT", "c:4317")];
        assert!(plan("", &grpc).unwrap().destinations[0].endpoint.tls);
        let insecure = [grpc[0], grpc[1], ("OTEL_EXPORTER_OTLP_INSECURE", "true")];
        assert!(!plan("", &insecure).unwrap().destinations[0].endpoint.tls);
    }

    #[test]
    fn a_variable_that_cannot_be_used_is_named_with_a_remedy() {
        let endpoint = ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://c:4318");
        let error = |variable| plan("", &[endpoint, variable]).unwrap_err();
        let text = error(("OTEL_EXPORTER_OTLP_PROTOCOL", "http/json"));
        assert!(text.contains("OTEL_EXPORTER_OTLP_PROTOCOL: \"http/json\" is not known here; "), "{text}");
        let text = error(("OTEL_EXPORTER_OTLP_HEADERS", "hunter2"));
        assert!(text.contains("name=value between commas") && !text.contains("hunter2"), "{text}");
        assert!(error(("OTEL_EXPORTER_OTLP_CLIENT_KEY", "/k")).contains("set both, or none"));
        assert!(plan("", &[("OTEL_EXPORTER_OTLP_ENDPOINT", "nowhere at all")]).unwrap_err().contains("URL"));
        let text = plan("", &[("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT", "nowhere at all")]).unwrap_err();
        assert!(text.starts_with("environment variable OTEL_EXPORTER_OTLP_METRICS_ENDPOINT: "), "{text}");
        assert_eq!(plan("", &[("OTEL_EXPORTER_OTLP_HEADERS", "a=b")]), Ok(OtlpPlan::default()));
    }
}
