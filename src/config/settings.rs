//! The structs of the configuration, and every key, declared once: type, accepted values, default, effect of a change,
//! help. Parsing, the printed default file and the documentation follow from it.

use std::collections::BTreeMap;
use std::path::PathBuf;

use super::address::{Endpoint, ListenAddress, external_url};
use super::classes::{self, dismissal};
use super::dcgm_counters::{self, CounterLine};
use super::ignored_pods;
use super::key::KeyDescription;
use super::otlp::{self, OtlpDestination, OtlpNames};
use super::prices;
use super::standing;
use super::tenants::{self, TenantAttributes};
use super::terms;
use super::time::moment;
use super::values::{add_label, cgroup_path, flag, name, path, path_or_off, resource, service, time_zone};
use super::web::{
    ClientAuth, Credential, TlsVersion, add_cipher, add_curve, add_header, add_tenant, add_user, client_auth,
    credential, tls_version,
};
use jiff::tz::TimeZone;

use crate::accounting::advice::Dismissal;
use crate::accounting::billing::{PriceBook, Rate, Terms};
use crate::accounting::tenants::{ClassRule, TenantRule};
use crate::model::catalogue::Level;
use crate::model::{Money, Nanoseconds, PodPattern, StandingGrant, Utc};

/// A validated configuration; [`Config::default`] applies without a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    pub node: NodeConfig,
    pub sampling: SamplingConfig,
    pub nvml: NvmlConfig,
    pub attribution: AttributionConfig,
    /// What GPUs, their energy and emissions cost, and the terms of tenants.
    pub prices: PriceBook,
    pub tenants: TenantsConfig,
    pub advice: AdviceConfig,
    pub billing: BillingConfig,
    pub ledger: LedgerConfig,
    pub otlp: OtlpConfig,
    pub limits: LimitsConfig,
    pub web: WebConfig,
    /// The lines of the file that `web.dcgm_counters` names, else the built-in ones.
    pub dcgm_counters: Vec<CounterLine>,
}

/// A configuration while it is read.
pub(crate) struct ConfigDraft {
    /// The sections that are complete.
    pub(crate) config: Config,
    /// Becomes [`Config::prices`] once all its keys are read, with the next two.
    pub(crate) prices: PricesConfig,
    pub(crate) carbon: CarbonConfig,
    pub(crate) terms: TermsConfig,
}

impl ConfigDraft {
    /// An empty draft; the defaults of the keys make it [`Config::default`].
    pub(super) fn blank() -> Self {
        let config = Config {
            node: NodeConfig::default(),
            sampling: SamplingConfig::default(),
            nvml: NvmlConfig::default(),
            attribution: AttributionConfig::default(),
            prices: PriceBook::default(),
            tenants: TenantsConfig::default(),
            advice: AdviceConfig::default(),
            billing: BillingConfig::default(),
            ledger: LedgerConfig::default(),
            otlp: OtlpConfig::default(),
            limits: LimitsConfig::default(),
            web: WebConfig::default(),
            dcgm_counters: dcgm_counters::built_in(),
        };
        let (prices, carbon, terms) = Default::default();
        Self { config, prices, carbon, terms }
    }
}

const LEVELS: [&str; 3] = [Level::Lean.name(), Level::Standard.name(), Level::Full.name()];
/// The label with the name of the node, of dcgm-exporter 3 and of 4 up to 4.8.2, and of later ones.
const HOST_LABELS: [&str; 2] = ["Hostname", "hostname"];
const TENTH: Nanoseconds = Nanoseconds(100_000_000);

const fn seconds(number: u64) -> Nanoseconds {
    Nanoseconds::from_seconds(number)
}

const fn days(number: u64) -> Nanoseconds {
    seconds(number * 86_400)
}

keys! { ConfigDraft;
"Name of this node in gpumeter_node_info, the API, bills and the OTLP resource; no other series has it as a label."
pub struct NodeConfig (config node) {
    name: Option<String>, text("a name", name), Optional("gpu-node-7"), Restart,
        "Name of the node on pages, bills and in OTLP; by default $NODE_NAME, else the host name.";
    cluster: Option<String>, text("a name", name), Optional("zurich-1"), Restart,
        "Name of its cluster in gpumeter_node_info, API, bills, OTLP (k8s.cluster.name).";
    pool: Option<String>, text("a name", name), Optional("a100-spot"), Restart,
        "Its node pool, for rates with pool; by default the value in labels_file.";
    instance_type: Option<String>, text("a name", name), Optional("p4d.24xlarge"), Restart,
        "Its instance type, for rates with instance_type; by default the value in labels_file.";
    spot: Option<bool>, text("true or false", flag), Optional("true"), Restart,
        "true for a spot node, for rates with spot; by default the value in labels_file.";
    labels_file: Option<PathBuf>, text("an absolute path", path), Optional("/etc/gpumeter/node-labels"), Restart,
        "File with the labels of its Kubernetes node, one as key=value on each line.";
}

"How often readings are taken, and how many."
pub struct SamplingConfig (config sampling) {
    interval: Nanoseconds, duration(TENTH, seconds(60)), Default("1s"), Reload,
        "The tick: how often the readings are taken from which usage and bills are computed.";
    medium: Nanoseconds, duration(TENTH, seconds(600)), Default("5s"), Reload,
        "How often readings that change within seconds are taken; not shorter than the tick.";
    slow: Nanoseconds, duration(TENTH, seconds(3600)), Default("60s"), Reload,
        "How often readings that hardly change are taken; not shorter than the tick.";
    driver_share: u32, count(100, 1_000_000), Default("5000"), Reload, in "millionths",
        "Target share of time in driver calls; above it, readings without use for health are rarer.";
    level: Level, word(LEVELS, Level::ALL), Default(Level::Standard.name()), Reload,
        "Which metrics: lean (for alerts), standard (for dashboards too) or full (all).";
    workload_counters: bool, flag(), Default("false"), Reload,
        "Whether level standard counts time, energy and cost by workload too.";
}

"The driver library."
pub struct NvmlConfig (config nvml) {
    library: Option<PathBuf>, text("an absolute path", path),
        Optional("/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1"), Restart,
        "Path of libnvidia-ml.so.1; by default found by the loader or in the usual directories.";
}

"Who holds GPUs, and so who pays for them while they are idle."
pub struct AttributionConfig (config attribution) {
    presence: Option<bool>, word(["auto", "true", "false"], [None, Some(true), Some(false)]), Default("auto"), Reload,
        "Whether a process holds a GPU that nothing grants; auto: only on a node without grants.";
    standing: Vec<StandingGrant>, entries(standing::read, standing::TABLE), Optional(""), Reload,
        "Grants written by hand: each gives a tenant a share of some GPUs.";
    runtimes: Vec<String>, texts("the name of a service", service), Optional("my-runtime.service"), Restart,
        "More services that run containers; a * at the end matches any ending.";
    container_nodes: Vec<String>, texts("the cgroup path of a container", cgroup_path),
        Optional("/lxc.payload.slurm"), Restart,
        "Containers that run a kubelet or slurmd; pods and jobs below them are attributed.";
} + { kubernetes: KubernetesConfig, slurm: SlurmConfig, containers: ContainersConfig }

"Pods of Kubernetes."
pub struct KubernetesConfig (config attribution.kubernetes) {
    socket: Option<PathBuf>, text("an absolute path, or off", path_or_off),
        Default("/var/lib/kubelet/pod-resources/kubelet.sock"), Restart,
        "Socket of the kubelet's pod-resources API (which containers hold GPUs), or off.";
    resources: Vec<String>, texts("the name of an extended resource", resource), Default("nvidia.com/*"), Reload,
        "Extended resources that are GPUs; a * at the end matches any ending.";
    replicas: u32, count(1, 1_000), Optional("4"), Reload, in "replicas",
        "Replicas of each time-sliced GPU, for kubelets before 1.23, which do not report them.";
    ignore: Vec<PodPattern>, entries(ignored_pods::read, ignored_pods::TABLE), Optional(""), Reload,
        "Pods that hold nothing, such as those that only watch GPUs or reserve them for others.";
    labels: Vec<String>, list("the name of a label", add_label), Optional("kueue.x-k8s.io/queue-name"), Reload,
        "Labels of pods that gpu_workload_info shows as k8s_pod_label_<name>; at most 12.";
    pods_socket: Option<PathBuf>, text("an absolute path, or off", path_or_off),
        Default("/var/lib/kubelet/pods-api/pods-api.sock"), Restart,
        "Socket of the kubelet's pods API (from 1.37: labels, owners of pods), or off.";
    kubelet_port: u32, count(1, 65_535), Default("10250"), Restart, in "port",
        "HTTPS port of the kubelet on $NODE_IP, used where pods_socket does not respond.";
}

"Jobs of Slurm."
pub struct SlurmConfig (config attribution.slurm) {
    records: Option<PathBuf>, text("an absolute path, or off", path_or_off), Default("/run/gpumeter-slurm"), Restart,
        "Directory in which the prolog of Slurm records jobs, or off.";
    job_mapping_dir: Option<PathBuf>, text("an absolute path", path), Optional("/run/gpustat"), Restart,
        "Directory of job mapping files of jobstats or dcgm-exporter, for jobs without a record.";
}

"Containers of Docker or Podman."
pub struct ContainersConfig (config attribution.containers) {
    socket: Option<PathBuf>, text("an absolute path", path), Optional("/run/docker.sock"), Restart,
        "Docker or Podman socket for container names; access to it is equivalent to root.";
}

"What a GPU-hour costs; without prices there are hours and joules, and no money anywhere."
pub(crate) struct PricesConfig (draft prices) {
    book: bool, word(["example"], [true]), Optional("example"), Reload,
        "Use the built-in example prices, for demonstrations only, instead of your own.";
    currency: Option<String>, text("a currency code", prices::currency), Optional("USD"), Reload,
        "Currency of your rates.";
    rates: Vec<Rate>, entries(prices::read, prices::TABLE), Optional(""), Reload,
        "Your rates; the most specific one applies, then the latest.";
} + { energy: EnergyConfig }

"What the energy of GPUs costs, where it is not included in the rates."
pub(crate) struct EnergyConfig (draft prices.energy) {
    kwh: Option<i64>, text("a decimal number", prices::price), Optional("0.21"), Reload, in "currency per kWh",
        "Price of a kilowatt-hour; by default energy is included in the rates.";
    pue: Option<i64>, text("a number from 1 to 5", prices::pue), Optional("1.3"), Reload,
        "PUE: site energy divided by computer energy; multiplies kwh.";
    from: Option<Utc>, text("a time in UTC on the 15-minute grid", moment), Optional("2026-01-01T00:00:00Z"), Reload,
        "Start of the price, also in the past; by default the next quarter hour.";
}

"What the energy of GPUs emits."
pub(crate) struct CarbonConfig (draft carbon) {
    grams_per_kwh: Option<i64>, text("a decimal number", prices::price), Optional("380"), Reload, in "g CO2e per kWh",
        "Grams of CO2e per kilowatt-hour; without it bills have no emissions.";
    pue: Option<i64>, text("a number from 1 to 5", prices::pue), Optional("1.3"), Reload,
        "PUE: site energy divided by computer energy; multiplies grams_per_kwh.";
    source: Option<String>, text("a text", name), Optional("ENTSO-E 2025, yearly mean"), Reload,
        "Source of the number, printed on bills.";
    from: Option<Utc>, text("a time in UTC on the 15-minute grid", moment), Optional("2026-01-01T00:00:00Z"), Reload,
        "Start of the number, also in the past; by default the next quarter hour.";
}

"Who pays: by default a pod's namespace, a job's account, a unit or a user."
pub struct TenantsConfig (config tenants) {
    rules: Vec<TenantRule>, entries(tenants::read, tenants::TABLE), Optional(""), Reload,
        "Rules in order; the first that matches a holder says which tenant pays.";
    attributes: TenantAttributes, nested_pairs("tenants with attributes", tenants::add_attribute),
        Optional("{ml: {cost_center: \"4711\", owner: ada}}"), Reload,
        "Facts about a tenant that bills show, such as its cost center or owner.";
    budgets: BTreeMap<String, Money>, pairs("tenants with amounts", tenants::add_budget),
        Optional("{ml: 5000}"), Reload, in "currency per month",
        "Budget of a tenant per calendar month of billing.time_zone, over all nodes.";
}

"What workloads are for, so that advice knows which idle time is meant to be."
pub struct AdviceConfig (config advice) {
    classes: Vec<ClassRule>, entries(classes::read, classes::TABLE), Optional(""), Reload,
        "Rules in order; the first that matches a holder gives its class, else its kind does.";
    dismiss: Vec<Dismissal>, texts("the dismissal of a finding", dismissal), Optional("A2-1f3c9a2b:31h"), Reload,
        "Findings to leave out until their evidence changes, each as its finding names it.";
}

"Terms of tenants that do not pay the full rate for held time."
pub(crate) struct TermsConfig (list terms) {
    terms: Vec<Terms>, entries(terms::read, terms::TABLE), Optional(""), Reload,
        "Terms of tenants; those with a tenant's own name come before those with a pattern.";
}

"How bills are made."
pub struct BillingConfig (config billing) {
    time_zone: Option<TimeZone>, text("a time zone", time_zone), Optional("Europe/Zurich"), Restart,
        "Time zone of dates and months in bills; by default that of the machine.";
    account: Option<String>, text("a name", name), Optional("gpu-platform"), Restart,
        "The account that the costs belong to: BillingAccountId and BillingAccountName of FOCUS.";
    invoice_issuer: Option<String>, text("a name", name), Optional("Example Research Computing"), Restart,
        "The organisation that charges for the GPUs: InvoiceIssuerName and providers of FOCUS.";
}

"Where the account is stored, so a restart loses nothing."
pub struct LedgerConfig (config ledger) {
    enabled: bool, flag(), Default("true"), Restart,
        "Whether usage is accounted for; without it there are no bills and no tenant metrics.";
    path: PathBuf, text("an absolute path", path), Default("/var/lib/gpumeter/ledger.db"), Restart,
        "Path of the ledger, the database behind the bills.";
} + { retention: RetentionConfig, export: ExportConfig }

"How long the rows of the ledger are kept; counters and statements stay."
pub struct RetentionConfig (config ledger.retention) {
    minutes: Nanoseconds, duration(days(1), days(3_650)), Default("35d"), Reload,
        "Age at which minutes are summed up to quarter hours.";
    quarter_hours: Nanoseconds, duration(days(62), days(3_650)), Default("400d"), Reload,
        "Age at which quarter hours are deleted; not less than minutes.";
}

"Files of the closed account, one per day, for bills over many nodes."
pub struct ExportConfig (config ledger.export) {
    directory: Option<PathBuf>, text("an absolute path", path), Optional("/var/lib/gpumeter/exports"), Restart,
        "Directory of the files; it must exist. Without it nothing is exported.";
    interval: Nanoseconds, duration(seconds(1), seconds(3_600)), Default("15m"), Restart,
        "How often the file of the day is written again.";
    on_stop: Nanoseconds, duration(Nanoseconds(0), seconds(300)), Default("10s"), Restart,
        "How long the last files may take when the agent stops.";
}

"Push by OpenTelemetry; its environment variables apply to keys that are missing here."
pub struct OtlpConfig (config otlp) {
    endpoint: Option<Endpoint>, text("http://host:port or https://host", str::parse::<Endpoint>), Optional("http://127.0.0.1:4318"), Restart,
        "Address of a receiver without more settings; by default $OTEL_EXPORTER_OTLP_ENDPOINT.";
    interval: Nanoseconds, duration(TENTH, seconds(600)), Default("15s"), Reload,
        "How often to push; a multiple of sampling.interval.";
    names: OtlpNames, word(OtlpNames::NAMES, OtlpNames::ALL), Default("native"), Reload,
        "Names of metrics; hw: OpenTelemetry's name for hardware, if there is one.";
    traces: u32, count(0, 1_000_000), Default("0"), Restart, in "millionths",
        "Share of ticks, pushes and rounds that are traced, for destinations with traces.";
    destinations: Vec<OtlpDestination>, entries(otlp::read, otlp::TABLE), Optional(""), Restart,
        "Receivers with their own settings.";
} + { spool: SpoolConfig }

"What waits for receivers that do not answer, on disk."
pub struct SpoolConfig (config otlp.spool) {
    directory: PathBuf, text("an absolute path", path), Default("/var/lib/gpumeter/otlp"), Restart,
        "Directory of the files.";
    size: u32, count(8, 1_048_576), Default("256"), Restart, in "MiB",
        "Maximum size of waiting data; beyond it the oldest is dropped and counted.";
    age: Nanoseconds, duration(seconds(60), days(30)), Default("24h"), Restart,
        "Maximum age of waiting data; older data is dropped and counted.";
}

"Limits on exported series."
pub struct LimitsConfig (config limits) {
    birth_delay: Nanoseconds, duration(Nanoseconds(0), seconds(600)), Default("60s"), Reload,
        "How long a new counter is exported as 0 first, so that rate() sees its first increase.";
    processes: u32, count(0, 10_000), Default("200"), Reload, in "processes",
        "How many processes per GPU get their own series at level full, largest first.";
    series: u32, count(500, 1_000_000), Default("20000"), Reload, in "series",
        "Most series on /metrics; series of processes are left out first, new tenants last.";
}

"The HTTP server: /metrics, health, API and web pages."
pub struct WebConfig (config web) {
    listen: Vec<ListenAddress>, texts("IP:port or unix:/path", str::parse), Default("[::]:9855"), Restart,
        "Addresses to serve on; :9855 is all interfaces. Not used while gpumeter.socket is enabled.";
    control: Option<PathBuf>, text("an absolute path, or off", path_or_off),
        Default("/run/gpumeter/control.sock"), Restart,
        "Local socket for quiesce, resume and inventory (root and the agent's user), or off.";
    external_url: Option<String>, text("http://host or https://host, with a path if there is one", external_url),
        Optional("https://gpu-node-7.example.com/gpumeter"), Restart,
        "URL by which users reach this agent, for links: that of its proxy, if there is one.";
    created: bool, flag(), Default("false"), Reload,
        "Whether /metrics has a _created line with the start time of each counter.";
    users: BTreeMap<String, Credential>, pairs("users with files", add_user), Optional("{alice: /etc/gpumeter/alice.bcrypt}"), Reload,
        "Users, each with the file that holds the bcrypt hash of the password.";
    tenants: BTreeMap<String, Vec<String>>, pairs("users with tenants", add_tenant), Optional("{alice: team-a}"), Reload,
        "Tenants that each user sees, or \"*\" for all; without this key all users see all tenants.";
    local_readers: Vec<String>, texts("a user, group:NAME or \"*\"", name), Optional("group:gpu-admins"), Reload,
        "Users of this host who see every line without a password; others see what they run.";
    open_probes: bool, flag(), Default("false"), Reload,
        "Whether /-/healthy and /-/ready need no password.";
    headers: Vec<(String, String)>, pairs("headers with values", add_header), Optional("{X-Frame-Options: deny}"), Reload,
        "Headers added to every response; those that exporter-toolkit allows.";
    http2: bool, flag(), Default("true"), Reload,
        "Whether HTTP/2 is offered over TLS.";
    dcgm_listen: Vec<ListenAddress>, texts("IP:port or unix:/path", str::parse), Optional(":9400"), Restart,
        "Addresses on which /metrics has dcgm-exporter's names, as /metrics?profile=dcgm has.";
    dcgm_counters: Option<PathBuf>, text("an absolute path", path),
        Optional("/etc/dcgm-exporter/default-counters.csv"), Reload,
        "File of dcgm-exporter with the counters of that page; by default its own defaults.";
    dcgm_labels: &'static str, word(["v3", "v4"], HOST_LABELS), Default("v3"), Reload,
        "Labels of that page: v3 (Hostname, up to dcgm-exporter 4.8.2) or v4 (hostname).";
    dcgm_corrected: bool, flag(), Default("false"), Reload,
        "Whether that page has a MIG GPU's own values once, instead of with each instance.";
} + { tls: WebTlsConfig, rate_limit: WebRateLimitConfig }

"TLS of the pages; --web.config.file says the same in the form of Prometheus' exporters."
pub struct WebTlsConfig (config web.tls) {
    cert_file: Option<Credential>, text("an absolute path", credential), Optional("/etc/gpumeter/tls.crt"), Reload,
        "Server certificate with intermediate certificates, as PEM.";
    key_file: Option<Credential>, text("an absolute path", credential), Optional("/etc/gpumeter/tls.key"), Reload,
        "Private key of the certificate, as PEM.";
    client_ca_file: Option<Credential>, text("an absolute path", credential), Optional("/etc/gpumeter/clients.crt"), Reload,
        "CA certificates that verify client certificates, as PEM.";
    client_auth_type: ClientAuth, text("a policy of exporter-toolkit", client_auth),
        Optional("RequireAndVerifyClientCert"), Reload,
        "Whether clients must have a certificate; every other policy is insecure.";
    client_allowed_sans: Vec<String>, texts("an alternative name", name), Optional("prometheus.example.com"), Reload,
        "A client's certificate must have one of these names (SAN).";
    min_version: TlsVersion, text("TLS12 or TLS13", tls_version), Default("TLS12"), Reload,
        "Oldest version of TLS.";
    max_version: TlsVersion, text("TLS12 or TLS13", tls_version), Default("TLS13"), Reload,
        "Newest version of TLS.";
    cipher_suites: Vec<String>, list("a cipher suite of TLS 1.2", add_cipher),
        Optional("TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256"), Reload,
        "Cipher suites of TLS 1.2, best first; by default all that the agent has.";
    prefer_server_cipher_suites: bool, flag(), Default("true"), Reload,
        "Whether the order of cipher_suites applies, not the client's.";
    curve_preferences: Vec<String>, list("a curve", add_curve), Optional("X25519"), Reload,
        "Curves of the key exchange, best first; by default X25519, CurveP256, CurveP384.";
}

"Rate limit of requests."
pub struct WebRateLimitConfig (config web.rate_limit) {
    interval: Nanoseconds, duration(Nanoseconds(0), seconds(3600)), Default("0s"), Reload,
        "Interval after which one more request is allowed; 0s means no limit.";
    burst: u32, count(0, 1_000_000), Default("0"), Reload, in "requests",
        "Most requests that are allowed at once.";
}
}

/// The description of every key, in the order of the printed file.
pub fn key_descriptions() -> Vec<KeyDescription> {
    TABLE.keys.iter().flat_map(|key| key.rows("")).collect()
}

/// The sections in order, each with one sentence.
pub fn sections() -> impl Iterator<Item = (&'static str, &'static str)> {
    TABLE.mappings.iter().copied().filter(|(path, _)| !path.contains('.'))
}
