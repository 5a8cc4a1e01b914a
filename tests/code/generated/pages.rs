//! `packaging/man` and `packaging/completions`: manual pages and shell completions, from the command line's own description
//! and the table of configuration keys.

use std::path::Path;
use std::{env, fs};

use clap_complete::Shell;
use clap_mangen::Man;
use clap_mangen::roff::{Roff, bold, italic, roman};
use gpumeter::config::{self, KeyDescription};

use super::check::{Outcome, check};

const VERSION: &str = concat!("gpumeter ", env!("CARGO_PKG_VERSION"));

/// The documented commands, each with the name of its page.
fn commands() -> Vec<(String, clap::Command)> {
    let mut all = gpumeter::cli::description().disable_help_subcommand(true);
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

/// The page of one command.
fn command_page(name: &str, command: clap::Command) -> Result<String, Box<dyn std::error::Error>> {
    let mut page = Vec::new();
    Man::new(command)
        .title(name)
        .section("1")
        .manual("gpumeter")
        .source(VERSION)
        .date("")
        .render(&mut page)?;
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
        let below = format!("{section}.");
        for row in config::key_descriptions().iter().filter(|row| row.path.starts_with(&below)) {
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
fn the_configuration_page_has_every_key() {
    let page = config_page().replace("\\-", "-");
    for row in config::key_descriptions() {
        assert!(page.contains(&format!("\\fB{}\\fR", row.path)), "{} is missing", row.path);
    }
}

/// The command line without hidden commands.
fn shown_command_line() -> clap::Command {
    let all = gpumeter::cli::description();
    let shown = clap::Command::new("gpumeter").args(all.get_arguments().cloned());
    shown.subcommands(all.get_subcommands().filter(|command| !command.is_hide_set()).cloned())
}

#[test]
fn bash_zsh_and_fish_complete_the_command_line() -> Outcome {
    let files = [(Shell::Bash, "gpumeter.bash"), (Shell::Zsh, "_gpumeter"), (Shell::Fish, "gpumeter.fish")];
    for (shell, name) in files {
        let mut text = Vec::new();
        clap_complete::generate(shell, &mut shown_command_line(), "gpumeter", &mut text);
        check(&format!("packaging/completions/{name}"), &String::from_utf8(text)?)?;
    }
    check_folder("packaging/completions", &files.map(|(_, name)| name.to_owned()))
}
