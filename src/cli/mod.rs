//! The command line: parses it, runs the command, and returns its exit status.
//!
//! 0 ok, 1 the command found a problem, 2 wrong use or bad configuration, 75 the agent is to be restarted. Results go to
//! standard output, the log to standard error. Does not know: what a command computes; it asks the folders above and prints.
//!
//! - [`demo`]: the agent on a simulated node, and the replay of a recording.
//! - [`doctor`]: examines a node as the agent would find it.

pub mod demo;
pub mod doctor;

mod agent;
mod bill;
mod doctor_command;
mod fleet;
mod health;
mod interrupts;
mod ledger;
mod record;
mod report;
mod socket;
mod statement;
mod top;

use std::fmt::Display;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, CommandFactory, Parser, Subcommand, ValueEnum};
use clap_complete::Shell;

use crate::agent::app::{self, Launch, WebFlags, listen_address};
use crate::config::{self, Config, ConfigFile, ListenAddress, Problems};
use crate::holders::host::UserDatabase;
use crate::model::catalogue::reference;
use crate::model::{HowHeld, printable_lines};
use crate::output::serve::Security;
use crate::runtime::clock::{Clock, system_now};
use crate::runtime::log::{Lines, LogWriter, printable_fields};
use crate::{agent::policy, agent::resolvers, holders, output::push};

const HELP_WIDTH: usize = 100;

/// Accounts for every GPU-second, joule and cent of this node's GPUs, exactly once.
#[derive(Parser, Debug)]
#[command(name = "gpumeter", version, propagate_version = true, max_term_width = HELP_WIDTH)]
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

#[derive(Clone, Copy, Debug, ValueEnum)]
enum MetricsFormat {
    Text,
    Markdown,
    Json,
}

#[derive(Subcommand, Debug)]
enum Command {
    /// Run the agent: sample, attribute, keep the ledger, serve and push.
    Run(RunCommand),
    /// Run the agent on a simulated node; needs no GPU.
    Demo(demo::DemoCommand),
    /// Serve what all nodes of a fleet cost, from a directory of their exports: page, bills and API.
    Fleet(fleet::FleetCommand),
    /// Show the node live: GPUs, MIG instances, processes, tenants, workloads, and what needs attention.
    Top(top::TopCommand),
    /// Print the bill of a running agent, or of a ledger file that no agent is using.
    Bill(bill::BillCommand),
    /// Print what a Slurm job held, used and cost on this node.
    Job(bill::job::JobCommand),
    /// Explain a line of a bill, a job, a pod or a GPU: who held what from when to when, at which rate, by which rule.
    Explain(bill::explain::ExplainCommand),
    /// Say what tenants may change to spend less, with the evidence; say nothing where it is not sure.
    Advise(bill::advise::AdviseCommand),
    /// Say whether workloads would have fitted together on one GPU or instance, from their past.
    Fit(bill::fit::FitCommand),
    /// Say how many GPUs were held, used and free by hour of the week, and what the next week may be like.
    Demand(bill::demand::DemandCommand),
    /// Close a month with a document that never changes, show and verify such documents, and give credits.
    Statement(statement::StatementCommand),
    /// Print every metric with its meaning.
    Metrics {
        /// Output format.
        #[arg(long, value_enum, default_value_t = MetricsFormat::Text)]
        format: MetricsFormat,
    },
    /// Check a configuration file and report every problem.
    CheckConfig {
        /// Configuration file to check.
        file: PathBuf,
        /// Also read this node's certificates and ask its driver: print which rate each GPU and which tenant each workload has,
        /// and warn of GPUs without a rate and of grants on GPUs that it does not have.
        #[arg(long)]
        node: bool,
        /// Web configuration file to check as well.
        #[arg(long = "web.config.file", value_name = "FILE")]
        web_file: Option<PathBuf>,
    },
    /// Record the answers of this node's driver to a file that gpumeter replay can play anywhere.
    Record(record::RecordCommand),
    /// Run the agent on a recording instead of a driver.
    Replay(record::ReplayCommand),
    /// Report what works on this node, what does not, and why.
    Doctor(doctor_command::DoctorCommand),
    /// Report the health of each GPU and what to do about it.
    Health(health::HealthCommand),
    /// Release the driver, so that GPUs can be reset or repartitioned (MIG) or the driver upgraded.
    Quiesce(socket::QuiesceCommand),
    /// Use the driver again after gpumeter quiesce.
    Resume(socket::AgentSocket),
    /// List the GPUs that this node is expected to have, with state and since when.
    Inventory(socket::InventoryCommand),
    /// Ask the agent of this node whether it is healthy, for the exec probe of a container.
    Probe(socket::ProbeCommand),
    /// Copy the ledger, shrink it, or restore what an upgrade saved.
    Ledger(ledger::LedgerCommand),
    /// Print the completions of a shell, to be loaded by it.
    Completion {
        /// Shell that they are for.
        shell: Shell,
    },
    /// Process of the demo's local scenario.
    #[command(name = demo::CHILD_COMMAND, hide = true)]
    Child,
}

impl Command {
    /// How long to wait at the end for standard error to be read: an agent ends in time, a command prints everything.
    const fn log_timeout(&self) -> Duration {
        match self {
            Self::Run(_) | Self::Demo(_) | Self::Replay(_) | Self::Fleet(_) => Duration::from_secs(1),
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
    #[arg(long, visible_alias = "web.listen-address", value_name = "ADDR", value_parser = listen_address)]
    listen: Vec<ListenAddress>,
    #[command(flatten)]
    web: WebFlags,
    /// Path of the driver library (libnvidia-ml.so.1), instead of the one that the loader finds.
    #[arg(long, value_name = "PATH")]
    nvml_library: Option<PathBuf>,
    /// Print the default configuration with every key explained, and exit.
    #[arg(long)]
    print_default_config: bool,
}

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

    /// The agent did not start (2), or is to be restarted (75, EX_TEMPFAIL of sysexits(3)).
    fn of_agent(message: impl Display, restart: bool) -> Self {
        Self { status: if restart { 75 } else { 2 }, message: message.to_string() }
    }

    /// Wrong use or bad configuration: exit status 2.
    fn wrong(message: impl Display) -> Self {
        Self { status: 2, message: message.to_string() }
    }
}

pub fn main() -> ExitCode {
    let cli = Cli::parse();
    let log = match LogWriter::start(cli.command.log_timeout()) {
        Ok(log) => log,
        Err(error) => {
            // Standard error may be closed; the exit status remains.
            let _ = writeln!(std::io::stderr(), "gpumeter: {error}");
            return ExitCode::from(Failure::wrong("").status);
        }
    };
    // Lines of the log would stand in the middle of the screen.
    if !matches!(cli.command, Command::Top(_)) {
        subscribe(cli.log_format, log.lines());
    }
    match run(cli.command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            log.write_last(&printable_lines(&format!("gpumeter: {}", failure.message)));
            ExitCode::from(failure.status)
        }
    }
}

/// The command line's own description, for generated documentation.
pub fn description() -> clap::Command {
    Cli::command()
}

/// The completions of a shell, without hidden commands.
pub fn completions(shell: Shell) -> String {
    let all = description();
    let shown = clap::Command::new("gpumeter").args(all.get_arguments().cloned());
    let mut shown =
        shown.subcommands(all.get_subcommands().filter(|command| !command.is_hide_set()).cloned());
    let mut text = Vec::new();
    clap_complete::generate(shell, &mut shown, "gpumeter", &mut text);
    String::from_utf8_lossy(&text).into_owned()
}

fn run(command: Command) -> Result<(), Failure> {
    match command {
        Command::Run(run) => run_agent(run),
        Command::Demo(demo) => run_demo(&demo),
        Command::Fleet(fleet) => fleet.run(),
        Command::Top(top) => top.run(),
        Command::Bill(bill) => bill.run(),
        Command::Job(job) => job.run(),
        Command::Explain(explain) => explain.run(),
        Command::Advise(advise) => advise.run(),
        Command::Fit(fit) => fit.run(),
        Command::Demand(demand) => demand.run(),
        Command::Statement(statement) => statement.run(),
        Command::Metrics { format } => print_data(&match format {
            MetricsFormat::Text => reference::text(),
            MetricsFormat::Markdown => reference::markdown(),
            MetricsFormat::Json => reference::json(),
        }),
        Command::CheckConfig { file, node, web_file } => check_config(&file, node, web_file.as_deref()),
        Command::Record(record) => record.run(),
        Command::Replay(replay) => replay.run(),
        Command::Doctor(doctor) => doctor.run(),
        Command::Health(health) => health.run(),
        Command::Quiesce(quiesce) => quiesce.run(),
        Command::Resume(socket) => socket::resume(&socket),
        Command::Inventory(inventory) => inventory.run(),
        Command::Probe(probe) => probe.run(),
        Command::Ledger(ledger) => ledger.run(),
        Command::Completion { shell } => print_data(&completions(shell)),
        Command::Child => {
            demo::idle_child();
            Ok(())
        }
    }
}

fn run_agent(run: RunCommand) -> Result<(), Failure> {
    if run.print_default_config {
        return print_data(&config::default_yaml());
    }
    let (source, mut config) = match &run.config {
        Some(path) => {
            ConfigFile::open(path).map(|(source, config)| (Some(source), config)).map_err(misconfigured)?
        }
        None => (None, Config::default()),
    };
    if !run.listen.is_empty() {
        config.web.listen = run.listen;
    }
    run.web.apply(&mut config);
    if run.nvml_library.is_some() {
        config.nvml.library = run.nvml_library;
    }
    let clock = Clock::of_library(config.nvml.library.as_deref());
    app::run(Launch {
        config,
        source,
        clock,
        root: "/".into(),
        simulated: false,
        observes: false,
        web_file: run.web.file,
        systemd_socket: run.web.systemd_socket,
    })
    .map_err(|error| Failure::of_agent(&error, error.wants_restart()))
}

fn run_demo(demo: &demo::DemoCommand) -> Result<(), Failure> {
    demo::run(demo).map_err(|error| {
        let restart = matches!(&error, demo::DemoError::Start(error) if error.wants_restart());
        Failure::of_agent(&error, restart)
    })
}

fn read_config(path: Option<&PathBuf>) -> Result<Config, Failure> {
    path.map_or_else(|| Ok(Config::default()), |path| Config::read(path).map_err(misconfigured))
}

/// The number of problems, then one per line, each starting with its position as editors and scripts read it.
fn misconfigured(problems: Problems) -> Failure {
    let count = match problems.list.len() {
        1 => "1 problem".to_owned(),
        count => format!("{count} problems"),
    };
    Failure::wrong(format!("{}: {count}\n{problems}", problems.file))
}

fn check_config(file: &Path, node: bool, web_file: Option<&Path>) -> Result<(), Failure> {
    let mut config = Config::read(file).map_err(misconfigured)?;
    // It may exist on the node only, as certificates may.
    if node || config.web.dcgm_counters.as_ref().is_some_and(|path| path.exists()) {
        config.read_dcgm_counters().map_err(misconfigured)?;
    }
    if node {
        config.read_node_labels().map_err(misconfigured)?;
    }
    let access = config.web_access(web_file).map_err(Failure::wrong)?;
    // As an agent with this environment would.
    let plan = policy::otlp_plan(&config).map_err(Failure::wrong)?;
    let users = UserDatabase::of_host(Path::new("/"));
    let (mut warnings, mut notes) = (resolvers::unresolved_grants(&config, &users), Vec::new());
    if node {
        // Certificates may exist on the node only.
        Security::load(&access).map_err(Failure::wrong)?;
        for destination in &plan.destinations {
            push::check_files(destination)
                .map_err(|problem| Failure::wrong(format!("otlp: destination {destination}: {problem}")))?;
        }
        let check = doctor::check_on_node(&config);
        warnings.extend(check.warnings);
        notes = check.notes;
    } else {
        notes.push(describe_holding(&config));
    }
    warnings.extend(policy::price_warning(&config, system_now().utc));
    warnings.extend(policy::refused_counters(&config));
    let nodes = config.attribution.container_nodes.iter().filter(|node| holders::names_every_pod(node));
    warnings.extend(nodes.map(|node| {
        format!(
            "attribution.container_nodes: {node} names the containers of every pod; whoever is root in one of them may \
             name its cgroups like those of another pod, or of a job whose record names a GPU of that pod; name the \
             pods that run a kubelet or slurmd"
        )
    }));
    let hints = config.hints().into_iter().chain(access.hints());
    let warnings = warnings.into_iter().map(|text| ("warning", text));
    let file = file.display();
    let lines =
        warnings.chain(hints.map(|text| ("hint", text))).chain(notes.into_iter().map(|text| ("note", text)));
    let page: String = lines.map(|(kind, text)| format!("{file}: {kind}: {text}\n")).collect();
    print(&format!("{page}{file}: ok\n"))
}

/// How GPUs are held by the configuration, away from the node.
fn describe_holding(config: &Config) -> String {
    let how_held = policy::how_held(config, None);
    if how_held == HowHeld::NothingGrants {
        return "attribution.presence: auto is decided on the node, when the agent starts: where it finds no kubelet and no \
                Slurm, who has a process on a GPU holds it; gpumeter check-config --node says what it finds"
            .to_owned();
    }
    format!("{}; {}", how_held.describe(), how_held.advice())
}

const WIDTH: usize = 100;

/// A text after its head; further lines begin below it.
fn wrap(head: &str, text: &str) -> String {
    let below = format!("\n{}", " ".repeat(head.len()));
    head.to_owned() + &fold(text, WIDTH.saturating_sub(head.len())).join(&below) + "\n"
}

/// A text in lines of at most `width` characters, where its words are no longer.
fn fold(text: &str, width: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in text.split_inclusive(' ') {
        let used = lines.last().map_or(0, |line| line.chars().count());
        if used > 0 && used + word.trim_end().chars().count() > width {
            lines.push(String::new());
        }
        if let Some(line) = lines.last_mut() {
            line.push_str(word);
        }
    }
    lines.iter().map(|line| line.trim_end().to_owned()).collect()
}

/// Writes a page for people to standard output. Names are cut where they are put into it; here nothing that a terminal would
/// act upon is left.
fn print(page: &str) -> Result<(), Failure> {
    print_data(&printable_lines(page))
}

/// Writes what programs read, as JSON, CSV or HTML, to standard output; a reader that has closed it is no failure.
fn print_data(text: &str) -> Result<(), Failure> {
    match std::io::stdout().lock().write_all(text.as_bytes()) {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => {
            Err(Failure::found(format!("standard output: {error}")))
        }
        _ => Ok(()),
    }
}

fn subscribe(format: LogFormat, lines: Lines) {
    let log = tracing_subscriber::fmt().with_target(false);
    match format {
        LogFormat::Text => {
            log.fmt_fields(printable_fields()).with_writer(move || lines.clone()).init();
        }
        LogFormat::Json => log.json().with_writer(move || lines.clone()).init(),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]
mod tests {
    use super::*;

    /// Compares with a file below `tests/golden`; `UPDATE=1 cargo test --lib cli` writes it.
    pub(super) fn compare_golden(name: &str, shown: &str) {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name);
        if std::env::var_os("UPDATE").is_some() {
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(&path, shown).unwrap();
        }
        let committed = std::fs::read_to_string(&path).unwrap_or_default();
        assert_eq!(committed, shown, "{}", path.display());
    }

    #[test]
    fn a_long_text_goes_on_below_its_begin() {
        let text = wrap("  tenant     ", "word ".repeat(30).trim_end());
        assert!(text.lines().all(|line| line.len() <= WIDTH), "{text}");
        assert!(text.lines().skip(1).all(|line| line.starts_with("             word")), "{text}");
        assert_eq!(text.split_whitespace().count(), 31);
    }
}
