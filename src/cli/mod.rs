//! The command line: parses it, calls what it names, and turns the outcome into an exit status.
//!
//! 0 ok, 1 found something, 2 wrong use or bad configuration, 75 restart me. What is asked for goes to standard output,
//! the log to standard error.

mod agent;
mod bill;
mod doctor;
mod health;
mod interrupts;
mod inventory;
mod ledger;
mod metrics;
mod probe;
mod quiesce;
mod record;

use std::fmt::Display;
use std::io::{IsTerminal, Write};
use std::net::ToSocketAddrs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, CommandFactory, Parser, Subcommand, ValueEnum};

use crate::app::{self, Launch};
use crate::clock::{Clock, system_now};
use crate::config::{self, Config, ConfigFile, ListenAddress, Problems};
use crate::host::UserDatabase;
use crate::log::{Lines, LogWriter};
use crate::{demo, policy, resolvers};

/// Accounts for every GPU-second, joule and cent of this node's GPUs, exactly once.
#[derive(Parser, Debug)]
#[command(name = "gpumeter", version, propagate_version = true)]
struct Cli {
    /// Format of the log.
    #[arg(long, global = true, value_enum, default_value_t = LogFormat::Text)]
    log_format: LogFormat,
    #[command(subcommand)]
    command: Command,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum LogFormat {
    Text,
    Json,
}

#[derive(Subcommand, Debug)]
enum Command {
    /// Run the agent: sample, attribute, keep the ledger, serve and push.
    Run(RunCommand),
    /// Run the agent on a simulated node; needs no GPU.
    Demo(DemoCommand),
    /// Print the bill of a running agent, or of a ledger file that no agent is using.
    Bill(bill::BillCommand),
    /// Print what a Slurm job held, used and cost on this node.
    Job(bill::job::JobCommand),
    /// Print every metric with its meaning.
    Metrics(metrics::MetricsCommand),
    /// Check a configuration file and report every problem.
    CheckConfig {
        /// The file.
        file: PathBuf,
        /// Ask this node's driver too, and warn of grants on GPUs that are not there.
        #[arg(long)]
        node: bool,
        /// Check a web configuration file with it.
        #[arg(long = "web.config.file", value_name = "FILE")]
        web_file: Option<PathBuf>,
    },
    /// Record the answers of this node's driver to a file that gpumeter replay can play anywhere.
    Record(record::RecordCommand),
    /// Run the agent on a recording instead of a driver.
    Replay(record::ReplayCommand),
    /// Report what works on this node, what does not, and why.
    Doctor(doctor::DoctorCommand),
    /// Report the health of each GPU and what to do about it.
    Health(health::HealthCommand),
    /// Release the driver, so that GPUs can be reset or repartitioned (MIG) or the driver upgraded.
    Quiesce(quiesce::QuiesceCommand),
    /// Use the driver again after gpumeter quiesce.
    Resume(quiesce::AgentSocket),
    /// List the GPUs that this node is expected to have, with state and since when.
    Inventory(inventory::InventoryCommand),
    /// Ask the agent of this node whether it is healthy, for the exec probe of a container.
    Probe(probe::ProbeCommand),
    /// Put back the ledger that an upgrade saved.
    Ledger(ledger::LedgerCommand),
    /// Process of the demo's local scenario.
    #[command(name = demo::CHILD_COMMAND, hide = true)]
    Child,
}

impl Command {
    /// How long the end waits for the log's reader: an agent ends in time, a command prints all that it found.
    const fn longest_log_wait(&self) -> Duration {
        match self {
            Self::Run(_) | Self::Demo(_) | Self::Replay(_) => Duration::from_millis(100),
            _ => Duration::MAX,
        }
    }
}

#[derive(Args, Debug)]
struct RunCommand {
    /// Configuration file; without one the defaults apply.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Address to serve on, instead of the configured ones; may be repeated.
    #[arg(long, visible_alias = "web.listen-address", value_name = "ADDR")]
    listen: Vec<String>,
    #[command(flatten)]
    web: WebFlags,
    /// Path of the driver library (libnvidia-ml.so.1), instead of the one that the loader finds.
    #[arg(long, value_name = "PATH")]
    nvml_library: Option<PathBuf>,
    /// Print the default configuration with every key explained, and exit.
    #[arg(long)]
    print_default_config: bool,
}

/// How pages are served, by the names that Prometheus' exporters have for it.
#[derive(Args, Debug)]
struct WebFlags {
    /// Web configuration file: TLS, users, headers and rate limit in the form of Prometheus' exporters.
    #[arg(long = "web.config.file", value_name = "FILE")]
    file: Option<PathBuf>,
    /// Serve on the sockets of the service's systemd socket unit, instead of the configured addresses.
    #[arg(long = "web.systemd-socket", conflicts_with = "listen")]
    systemd_socket: bool,
}

impl WebFlags {
    fn options(self) -> app::WebOptions {
        app::WebOptions { file: self.file, systemd_socket: self.systemd_socket }
    }
}

#[derive(Args, Debug)]
struct DemoCommand {
    /// A built-in scenario (cluster; node, without schedulers; local, with real processes) or a file.
    #[arg(long, default_value = "cluster", value_name = "NAME|FILE")]
    scenario: String,
    /// Address to serve on, instead of web.listen or 127.0.0.1:9855; may be repeated.
    #[arg(long, visible_alias = "web.listen-address", value_name = "ADDR")]
    listen: Vec<String>,
    /// How many times faster than real time.
    #[arg(long, default_value_t = 1.0, value_name = "N")]
    speed: f64,
    /// Start from scratch: empty the demo's directory first.
    #[arg(long)]
    fresh: bool,
    /// Directory of the demo, instead of $XDG_STATE_HOME/gpumeter/demo: new, empty, or of an earlier demo.
    #[arg(long, value_name = "DIR")]
    state_dir: Option<PathBuf>,
    /// A configuration file instead of the scenario's. Where it has the default web.listen or web.control, the demo uses
    /// 127.0.0.1:9855 and control.sock in its directory; another ledger than the demo's own is refused.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Push over OTLP/HTTP to this address, e.g. http://localhost:4318; by default nothing is pushed.
    #[arg(long, value_name = "URL")]
    otlp_endpoint: Option<String>,
    #[command(flatten)]
    web: WebFlags,
}

/// A command that did not succeed, with its exit status.
#[derive(Debug)]
struct Failure {
    status: u8,
    message: String,
}

impl Failure {
    /// The command found a problem: exit status 1.
    fn found(message: impl Display) -> Self {
        Self { status: 1, message: message.to_string() }
    }

    /// The agent did not start, or is to be started anew: EX_TEMPFAIL of sysexits(3).
    fn of_agent(message: impl Display, restart: bool) -> Self {
        Self { status: if restart { 75 } else { 2 }, message: message.to_string() }
    }

    /// Wrong use or bad configuration: exit status 2.
    fn wrong(message: impl Display) -> Self {
        Self { status: 2, message: message.to_string() }
    }
}

/// Runs the command line of this process.
pub fn main() -> ExitCode {
    let cli = Cli::parse();
    let log = match LogWriter::start(cli.command.longest_log_wait()) {
        Ok(log) => log,
        Err(error) => {
            // Standard error may be closed; the status says it too.
            let _ = writeln!(std::io::stderr(), "gpumeter: {error}");
            return ExitCode::from(Failure::wrong("").status);
        }
    };
    subscribe(cli.log_format, log.lines());
    match run(cli.command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            log.say(&format!("gpumeter: {}", failure.message));
            ExitCode::from(failure.status)
        }
    }
}

/// The command line's own description, for generated documentation.
pub fn description() -> clap::Command {
    Cli::command()
}

fn run(command: Command) -> Result<(), Failure> {
    match command {
        Command::Run(run) => agent(run),
        Command::Demo(options) => simulated(options),
        Command::Bill(bill) => bill.run(),
        Command::Job(job) => job.run(),
        Command::Metrics(metrics) => metrics.run(),
        Command::CheckConfig { file, node, web_file } => check_config(&file, node, web_file.as_deref()),
        Command::Record(record) => record.run(),
        Command::Replay(replay) => replay.run(),
        Command::Doctor(doctor) => doctor.run(),
        Command::Health(health) => health.run(),
        Command::Quiesce(quiesce) => quiesce.run(),
        Command::Resume(socket) => quiesce::resume(&socket),
        Command::Inventory(inventory) => inventory.run(),
        Command::Probe(probe) => probe.run(),
        Command::Ledger(ledger) => ledger.run(),
        Command::Child => {
            demo::idle_child();
            Ok(())
        }
    }
}

fn agent(run: RunCommand) -> Result<(), Failure> {
    if run.print_default_config {
        return print(&config::default_yaml());
    }
    let (source, mut config) = match &run.config {
        Some(path) => {
            ConfigFile::open(path).map(|(source, config)| (Some(source), config)).map_err(misconfigured)?
        }
        None => (None, Config::default()),
    };
    if !run.listen.is_empty() {
        config.web.listen = addresses(&run.listen)?;
    }
    if run.nvml_library.is_some() {
        config.nvml.library = run.nvml_library;
    }
    let clock = Clock::of_library(config.nvml.library.as_deref());
    app::run(Launch { config, source, clock, root: "/".into(), simulated: false, web: run.web.options() })
        .map_err(|error| Failure::of_agent(&error, error.wants_restart()))
}

fn simulated(options: DemoCommand) -> Result<(), Failure> {
    let options = demo::Options {
        source: demo::DemoSource::Scenario(options.scenario),
        listen: addresses(&options.listen)?,
        speed: options.speed,
        fresh: options.fresh,
        directory: options.state_dir,
        config: options.config,
        web: options.web.options(),
        otlp_endpoint: options.otlp_endpoint,
    };
    demo::run(&options).map_err(|error| {
        let restart = matches!(&error, demo::DemoError::Start(error) if error.wants_restart());
        Failure::of_agent(&error, restart)
    })
}

fn configuration(path: Option<&PathBuf>) -> Result<Config, Failure> {
    path.map_or_else(|| Ok(Config::default()), |path| Config::read(path).map_err(misconfigured))
}

/// How many problems, then one to a line, each beginning with its place, as editors and scripts read them.
fn misconfigured(problems: Problems) -> Failure {
    let count = match problems.list.len() {
        1 => "1 problem".to_owned(),
        count => format!("{count} problems"),
    };
    Failure::wrong(format!("{}: {count}\n{problems}", problems.file))
}

fn check_config(file: &Path, node: bool, web_file: Option<&Path>) -> Result<(), Failure> {
    let config = Config::read(file).map_err(misconfigured)?;
    // Certificates may lie on the node alone.
    let hints = app::check_web(&config, web_file, node).map_err(Failure::wrong)?;
    let file = file.display();
    let users = UserDatabase::of_host(Path::new("/"));
    let mut warnings = resolvers::unresolved_grants(&config, &users);
    if node {
        warnings.extend(crate::doctor::unmatched_grants(&config));
    }
    warnings.extend(policy::price_warning(&config, system_now().utc));
    let mut text: String = warnings
        .iter()
        .map(|warning| {
            format!(
                "{file}: warning: {warning}
"
            )
        })
        .collect();
    text.extend(config.hints().iter().chain(&hints).map(|hint| {
        format!(
            "{file}: hint: {hint}
"
        )
    }));
    print(&format!(
        "{text}{file}: ok
"
    ))
}

/// As in the configuration, and names of this host too.
fn addresses(texts: &[String]) -> Result<Vec<ListenAddress>, Failure> {
    texts
        .iter()
        .map(|text| {
            if let Ok(address) = config::listen(text) {
                return Ok(address);
            }
            let found = text.to_socket_addrs().ok().and_then(|mut found| found.next());
            found.map(ListenAddress::Tcp).ok_or_else(|| {
                Failure::wrong(format!("--listen {text}: is not an address; write it like 127.0.0.1:9855"))
            })
        })
        .collect()
}

/// Writes to standard output; a reader that has gone is no failure.
fn print(text: &str) -> Result<(), Failure> {
    match std::io::stdout().lock().write_all(text.as_bytes()) {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => {
            Err(Failure::found(format!("standard output: {error}")))
        }
        _ => Ok(()),
    }
}

fn subscribe(format: LogFormat, lines: Lines) {
    let log = tracing_subscriber::fmt().with_writer(move || lines.clone()).with_target(false);
    match format {
        LogFormat::Text => log.with_ansi(std::io::stderr().is_terminal()).init(),
        LogFormat::Json => log.json().init(),
    }
}
