//! What `packaging/slurm/summary.sh` does where something fails, with fake commands; `.ci/interop slurm` runs it in a real Slurm.

use std::fs;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use rustix::process::{Pid, Signal, kill_process_group};

use crate::running::wait_until;
use crate::slurm_health::write_program;

/// A cluster with slurmdbd in a directory, in which each command fails until it is written anew.
struct Site {
    directory: tempfile::TempDir,
}

impl Site {
    fn new() -> Self {
        let site = Self { directory: tempfile::tempdir().unwrap() };
        fs::create_dir(site.path("jobs")).unwrap();
        ["sacct", "sacctmgr", "gpumeter", "logger"].iter().for_each(|name| site.write(name, "exit 1"));
        site
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn write(&self, command: &str, text: &str) {
        write_program(&self.path(command), &format!("#!/bin/sh\n{text}\n"));
    }

    /// Runs the script with these arguments.
    fn command(&self, arguments: &[&str]) -> Command {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("packaging/slurm/summary.sh");
        let mut command = Command::new("sh");
        command
            .arg(script)
            .args(arguments)
            .env_clear()
            .env("GPUMETER_SUMMARY_PATH", format!("{}:/usr/bin:/bin", self.directory.path().display()))
            .env("GPUMETER_SUMMARIES", self.path("jobs"));
        command
    }

    /// What it logs; it always ends with 0.
    fn log(&self, arguments: &[&str]) -> String {
        let Output { status, stderr, .. } = self.command(arguments).output().unwrap();
        assert!(status.success());
        String::from_utf8(stderr).unwrap()
    }

    fn summaries(&self) -> Vec<String> {
        let files = fs::read_dir(self.path("jobs")).unwrap();
        let mut names: Vec<String> =
            files.map(|file| file.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }
}

#[test]
fn a_summary_is_written_although_slurm_kills_the_process_group_of_the_epilog_at_its_end() {
    let site = Site::new();
    site.write("gpumeter", "echo '{}'");
    let nodes: Vec<String> = (0..9).map(|number| format!("4711.n{number}.json")).collect();
    for number in 0..nodes.len() {
        let mut epilog = site.command(&[]);
        epilog.envs([("SLURM_JOB_ID", "4711"), ("GPUMETER_SUMMARY_DELAY", "0.1")]);
        let mut epilog =
            epilog.env("SLURMD_NODENAME", format!("n{number}")).process_group(0).spawn().unwrap();
        let group = Pid::from_child(&epilog);
        assert!(epilog.wait().unwrap().success());
        // There is none any more.
        let _ = kill_process_group(group, Signal::KILL);
    }
    wait_until("the summaries", || site.summaries() == nodes);
}

#[test]
fn a_job_without_gpus_and_what_is_not_known_change_nothing_and_are_logged() {
    let site = Site::new();
    // `gpumeter job` ends with status 1 where the job had no GPU.
    assert_eq!(site.log(&["write", "4713", "n1"]), "");
    assert_eq!(site.log(&["store", "4713"]), "", "nothing is there to store");
    site.write("gpumeter", "echo 'is the agent running?' >&2\nexit 2");
    let log = site.log(&["write", "4713", "n1"]);
    assert!(log.contains("job 4713: there is no summary of n1: is the agent running?"), "{log}");
    assert_eq!(site.summaries(), [""; 0]);
    site.write("gpumeter", "echo '{}'");
    site.write("sacctmgr", "touch \"$(dirname \"$0\")/stored\"");
    assert_eq!(site.log(&["write", "4711", "n1"]), "");
    let log = site.log(&["store", "4711"]);
    assert!(log.contains("job 4711: sacct does not tell its AdminComment"), "{log}");
    assert!(!site.path("stored").exists(), "it may be a foreign one");
    assert!(!site.command(&["show", "4711"]).status().unwrap().success());
    assert_eq!(site.summaries(), ["4711.n1.json"]);
}
