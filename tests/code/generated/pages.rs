//! `packaging/man` and `packaging/completions`: manual pages and shell completions, from the command line's own description
//! and the table of configuration keys.

use std::path::Path;
use std::{env, fs};

use clap_complete::Shell;
use clap_mangen::Man;
use clap_mangen::roff::{Roff, bold, italic, roman};
use gpumeter::cli;
use gpumeter::config::{self, KeyDescription};

use super::check::{Outcome, check};

const VERSION: &str = concat!("gpumeter ", env!("CARGO_PKG_VERSION"));

/// The documented commands, each with the name of its page.
fn commands() -> Vec<(String, clap::Command)> {
    let mut all = cli::description().disable_help_subcommand(true);
    // Sets each command's full name and its inherited options.
    all.build();
    let mut pages = vec![("gpumeter".to_owned(), all.clone())];
    add_subcommands(&all, "gpumeter", &mut pages);
    pages
}

fn add_subcommands(command: &clap::Command, name: &str, pages: &mut Vec<(String, clap::Command)>) {
    let shown = |command: &&clap::Command| !command.is_hide_set() && command.get_name() != "help";
    for command in command.get_subcommands().filter(shown) {
        let name = format!("{name}-{}", command.get_name());
        add_subcommands(command, &name, pages);
        pages.push((name, command.clone()));
    }
}

/// Examples of a command, by the name of its page: the command line and what it is for.
const EXAMPLES: &[(&str, &str, &str)] = &[
    ("gpumeter", "gpumeter demo", "Shows the agent on a simulated node, at http://127.0.0.1:9855."),
    ("gpumeter", "gpumeter doctor", "Says what works on this node, what does not, and why."),
    ("gpumeter-run", "gpumeter run", "Runs with the defaults, without a configuration file."),
    (
        "gpumeter-run",
        "gpumeter run --config /etc/gpumeter/config.yaml --listen 0.0.0.0:9855",
        "Runs by a file, and serves on all interfaces.",
    ),
    ("gpumeter-run", "gpumeter run --print-default-config", "Prints every key with its default."),
    (
        "gpumeter-demo",
        "gpumeter demo --speed 60 --fresh",
        "Starts anew; an hour of the account passes in a minute.",
    ),
    (
        "gpumeter-fleet",
        "gpumeter fleet --exports /srv/exports",
        "Serves the costs of all nodes at http://127.0.0.1:9856/costs.",
    ),
    (
        "gpumeter-fleet",
        "gpumeter fleet --exports /srv/exports --statements /srv/statements --config /etc/gpumeter/fleet.yaml",
        "With certificates and users, and closed months beside their statements.",
    ),
    ("gpumeter-top", "gpumeter top", "Shows the agent of this node, or looks at the GPUs where none runs."),
    ("gpumeter-top", "gpumeter top --once --url http://127.0.0.1:9855", "Prints the node once, as text."),
    ("gpumeter-bill", "gpumeter bill --month 2026-11", "The bill of a month by tenant."),
    ("gpumeter-bill", "gpumeter bill --by slurm_user --csv", "One line for each Slurm user, as CSV."),
    (
        "gpumeter-bill",
        "gpumeter bill --url https://gpus.example.com/node7 --web.user alice --web.password-file secret",
        "From an agent with TLS behind a proxy.",
    ),
    (
        "gpumeter-bill",
        "gpumeter bill --ledger ledger.db --json",
        "From a ledger file that no agent is using, exact.",
    ),
    (
        "gpumeter-bill",
        "gpumeter bill --against sacct.txt --month 2026-11",
        "Each Slurm job beside what sacct --parsable2 printed of it.",
    ),
    (
        "gpumeter-bill",
        "gpumeter bill --month 2026-11 --focus november.parquet",
        "The rows of FOCUS, for a tool that reads the bills of clouds too.",
    ),
    (
        "gpumeter-statement",
        "gpumeter statement close --month 2026-11 --statements /srv/statements",
        "Closes November on the node of the running agent.",
    ),
    (
        "gpumeter-statement-close",
        "gpumeter statement close --month 2026-11 --time-zone Europe/Zurich --ledger ledger.db --statements statements",
        "Closes November in a ledger file that no agent is using.",
    ),
    (
        "gpumeter-statement-show",
        "gpumeter statement show statements/statement-0001.json --html",
        "The statement to send on.",
    ),
    (
        "gpumeter-statement-verify",
        "gpumeter statement verify statements/statement-0001.json statements/credit-0002.json",
        "Whether the documents are as they were written.",
    ),
    (
        "gpumeter-statement-credit",
        "gpumeter statement credit statements/statement-0001.json --tenant ml --amount 12.50 --reason maintenance --statements statements",
        "Gives a tenant 12.50 back, below the total of the next statement.",
    ),
    (
        "gpumeter-job",
        "gpumeter job 4711",
        "What a Slurm job, or a whole array, held, used and cost, and what to change.",
    ),
    ("gpumeter-job", "gpumeter job 4711_3 --json", "A task of a job array, exact."),
    (
        "gpumeter-job",
        "gpumeter job ml/RayCluster/train --exports fleet",
        "The pods of a RayCluster on all nodes.",
    ),
    (
        "gpumeter-job",
        "gpumeter job --user ada --last 7d --url http://fleet:9856",
        "The jobs of a user in the last week, a line each.",
    ),
    (
        "gpumeter-job",
        "gpumeter job --sum node1.json node2.json",
        "A job on two nodes, from what each printed with --json.",
    ),
    (
        "gpumeter-advise",
        "gpumeter advise --tenant physics",
        "What one tenant may change in order to spend less.",
    ),
    (
        "gpumeter-advise",
        "gpumeter advise --exports /srv/exports --expect nodes.csv",
        "Of a whole fleet, also which nodes nobody needs.",
    ),
    ("gpumeter-advise", "gpumeter advise --explain A3-1f3c9a2b", "The times that a finding is made of."),
    (
        "gpumeter-fit",
        "gpumeter fit ml/Deployment/web ml/Deployment/rank",
        "Whether two services would have fitted on one GPU.",
    ),
    (
        "gpumeter-fit",
        "gpumeter fit ml/Deployment/mail --on 1g.10gb",
        "Whether a service would have fitted on an instance.",
    ),
    ("gpumeter-demand", "gpumeter demand --pool h100", "How many GPUs of a pool are wanted at which hours."),
    ("gpumeter-explain", "gpumeter explain 4711", "Why a Slurm job costs what it costs."),
    (
        "gpumeter-explain",
        "gpumeter explain tenant=lab+1 --month 2026-10",
        "A line of the bill of that month, by its id in the CSV.",
    ),
    ("gpumeter-explain", "gpumeter explain gpu:3 --json", "All lines of a GPU, exact."),
    ("gpumeter-metrics", "gpumeter metrics --format markdown", "The catalogue as a table."),
    (
        "gpumeter-check-config",
        "gpumeter check-config /etc/gpumeter/config.yaml --node",
        "Checks a file for this node.",
    ),
    ("gpumeter-record", "gpumeter record node7.rec", "Records the driver of this node."),
    ("gpumeter-replay", "gpumeter replay node7.rec", "Runs the agent on the recording."),
    ("gpumeter-doctor", "gpumeter doctor --json", "The findings for a program."),
    (
        "gpumeter-health",
        "gpumeter health --fail-on failed",
        "Status 1 if a GPU has failed, for the health check of a scheduler.",
    ),
    (
        "gpumeter-quiesce",
        "gpumeter quiesce -- nvidia-smi --gpu-reset -i 3",
        "Resets a GPU while the agent lets go of it.",
    ),
    ("gpumeter-quiesce", "gpumeter quiesce --for 10m", "Lets go of the driver for ten minutes."),
    ("gpumeter-resume", "gpumeter resume", "Uses the driver again at once."),
    ("gpumeter-inventory", "gpumeter inventory", "The GPUs that this node should have."),
    (
        "gpumeter-inventory-forget",
        "gpumeter inventory forget GPU-255e81d8-42b3-916c-9252-615ea3abceeb",
        "A board was taken out for good.",
    ),
    ("gpumeter-probe", "gpumeter probe --ready", "Whether the agent is ready, for a readiness probe."),
    ("gpumeter-ledger", "gpumeter ledger restore", "Puts back the ledger as it was before an upgrade."),
    (
        "gpumeter-ledger-snapshot",
        "gpumeter ledger snapshot /backup/ledger-2026-11.db",
        "Copies the ledger while the agent runs.",
    ),
    ("gpumeter-ledger-compact", "gpumeter ledger compact", "Shrinks the ledger of a stopped agent."),
    (
        "gpumeter-ledger-restore",
        "gpumeter ledger restore",
        "Puts back the ledger as it was before an upgrade.",
    ),
    (
        "gpumeter-completion",
        "gpumeter completion bash >~/.local/share/bash-completion/completions/gpumeter",
        "Completes the command line in bash, for one user.",
    ),
];

/// The exit statuses of a command, by the name of its page.
fn exit_statuses(name: &str) -> &'static [(&'static str, &'static str)] {
    const WRONG: (&str, &str) = ("2", "Wrong use or a bad configuration.");
    const AGENT: &[(&str, &str)] = &[
        ("0", "The agent was told to stop."),
        ("2", "Wrong use or a bad configuration, or the agent could not start."),
        ("75", "The agent is to be started again, because the driver library under it was replaced."),
    ];
    match name {
        "gpumeter-run" | "gpumeter-demo" | "gpumeter-replay" => AGENT,
        "gpumeter-fleet" => &[
            ("0", "The server was told to stop."),
            ("2", "Wrong use or a bad configuration, or the server could not start."),
            ("75", "The server is to be started again, because a part of it failed."),
        ],
        "gpumeter-health" => &[
            ("0", "No GPU is in the state of --fail-on or worse."),
            ("1", "At least one GPU is."),
            ("2", "Wrong use, or the verdict is unknown."),
        ],
        _ => &[("0", "Success."), ("1", "The command found or met a problem."), WRONG],
    }
}

/// The page of one command.
fn command_page(name: &str, command: clap::Command) -> Result<String, Box<dyn std::error::Error>> {
    let has_subcommands = command.has_subcommands();
    let man = Man::new(command).title(name).section("1").manual("gpumeter").source(VERSION).date("");
    let mut page = Vec::new();
    man.render_title(&mut page)?;
    man.render_name_section(&mut page)?;
    man.render_synopsis_section(&mut page)?;
    man.render_description_section(&mut page)?;
    man.render_options_section(&mut page)?;
    if has_subcommands {
        man.render_subcommands_section(&mut page)?;
    }
    let mut end = Roff::new();
    end.control("SH", ["EXIT STATUS"]);
    for (status, meaning) in exit_statuses(name) {
        end.control("TP", []);
        end.text([bold(*status)]);
        end.text([roman(*meaning)]);
    }
    end.control("SH", ["EXAMPLES"]);
    for (_, line, purpose) in EXAMPLES.iter().filter(|(page, ..)| *page == name) {
        end.control("TP", []);
        end.text([bold(*line)]);
        end.text([roman(*purpose)]);
    }
    end.to_writer(&mut page)?;
    man.render_version_section(&mut page)?;
    Ok(String::from_utf8(page)?)
}

/// gpumeter-config(5): every key of the configuration file.
fn config_page() -> String {
    let mut page = Roff::new();
    page.control("TH", ["gpumeter-config", "5", "", VERSION, "gpumeter"]);
    page.control("SH", ["NAME"]);
    page.text([roman("gpumeter-config - configuration file of gpumeter")]);
    page.control("SH", ["SYNOPSIS"]);
    page.text([bold("/etc/gpumeter/config.yaml")]);
    page.control("SH", ["DESCRIPTION"]);
    page.text([roman(
        "A file in YAML. Every key is optional, and so is the file. A changed file is read again within seconds, or at \
         once on SIGHUP; a file with a mistake changes nothing. Check a file with",
    )]);
    page.text([bold("gpumeter check-config FILE"), roman(".")]);
    for (section, help) in config::sections() {
        page.control("SH", [section.to_uppercase().as_str()]);
        page.text([roman(help)]);
        let is_below = |path: &str| {
            path.strip_prefix(section).is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[']))
        };
        for row in config::key_descriptions().iter().filter(|row| is_below(&row.path)) {
            add_key(&mut page, row);
        }
    }
    page.control("SH", ["SEE ALSO"]);
    page.text([bold("gpumeter-run"), roman("(1), "), bold("gpumeter-check-config"), roman("(1)")]);
    page.render()
}

fn add_key(page: &mut Roff, row: &KeyDescription) {
    page.control("TP", []);
    page.text([bold(&row.path), roman(": "), italic(&row.accepts)]);
    let unit = if row.unit.is_empty() { String::new() } else { format!(" In {}.", row.unit) };
    let otherwise = match (row.default, row.required) {
        (Some(default), _) => format!(" Default: {default}."),
        (None, true) => " Required.".to_owned(),
        (None, false) => String::new(),
    };
    let restart = if row.needs_restart { " A change needs a restart." } else { "" };
    page.text([roman(format!("{}{unit}{otherwise}{restart}", row.help))]);
}

/// The folder has no other files, so that a renamed command leaves no old page.
fn check_folder(folder: &str, names: &[String]) -> Outcome {
    for entry in fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join(folder))? {
        let name = entry?.file_name().to_string_lossy().into_owned();
        if !names.contains(&name) {
            return Err(format!("{folder}/{name} is not generated any more; remove it").into());
        }
    }
    Ok(())
}

#[test]
fn each_command_and_the_configuration_file_have_a_manual_page() -> Outcome {
    let mut names = vec!["gpumeter-config.5".to_owned()];
    check("packaging/man/gpumeter-config.5", &config_page())?;
    for (name, command) in commands() {
        check(&format!("packaging/man/{name}.1"), &command_page(&name, command)?)?;
        names.push(format!("{name}.1"));
    }
    check_folder("packaging/man", &names)
}

#[test]
fn every_manual_page_has_examples_that_the_command_line_takes() {
    for (name, _) in commands() {
        assert!(EXAMPLES.iter().any(|(page, ..)| *page == name), "{name}");
    }
    for (name, line, _) in EXAMPLES {
        assert!(line.replace(' ', "-").starts_with(name), "{name}: {line}");
        // Up to what is the shell's.
        let words = line.split(" >").next().unwrap().split(' ');
        let matches = cli::description().try_get_matches_from(words);
        assert!(matches.is_ok(), "{line}: {}", matches.unwrap_err());
    }
}

#[test]
fn every_help_text_fits_100_columns() {
    for (name, command) in commands() {
        let mut command = command.term_width(100);
        for help in [command.render_help(), command.render_long_help()] {
            for line in help.to_string().lines() {
                assert!(line.chars().count() <= 100, "{name}: {line}");
            }
        }
    }
}

#[test]
fn the_configuration_page_has_every_key() {
    let page = config_page().replace("\\-", "-");
    for row in config::key_descriptions() {
        assert!(page.contains(&format!("\\fB{}\\fR", row.path)), "{} is missing", row.path);
    }
}

#[test]
fn bash_zsh_and_fish_complete_the_command_line() -> Outcome {
    let files = [(Shell::Bash, "gpumeter.bash"), (Shell::Zsh, "_gpumeter"), (Shell::Fish, "gpumeter.fish")];
    for (shell, name) in files {
        check(&format!("packaging/completions/{name}"), &cli::completions(shell))?;
    }
    check_folder("packaging/completions", &files.map(|(_, name)| name.to_owned()))
}
