//! `packaging/slurm/summary.sh` with a fake `sacct` and a fake `sacctmgr` that keep one job's AdminComment in a file.

use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use base64::Engine;
use serde_json::json;

use crate::running::PATIENCE;
use crate::slurm_health::write_program;

/// A cluster with slurmdbd in a directory.
struct Site {
    directory: tempfile::TempDir,
}

/// Prints what is stored, as `sacct -nPX -o AdminComment` does.
const SACCT: &str = "#!/bin/sh\ncd \"$(dirname \"$0\")\" && cat comment && echo\n";

/// Stores what `sacctmgr modify job where jobid=4711 set AdminComment=TEXT` is given.
const SACCTMGR: &str = r#"#!/bin/sh
cd "$(dirname "$0")" || exit 1
case "$*" in
    "--immediate --quiet modify job where jobid=4711 set AdminComment="*)
        for last; do :; done
        printf '%s' "${last#AdminComment=}" >comment ;;
    *) echo "$*" >&2; exit 1 ;;
esac
"#;

/// Prints the summary of the node that the file `node` names; the sum is that of the real program.
const GPUMETER: &str = r#"#!/bin/sh
case $2 in
    --sum) exec REAL "$@" ;;
    *) [ "$*" = "job 4711 --raw --json --brief --cluster alpha" ] || { echo "unknown: $*" >&2; exit 2; }
       exec cat "$(dirname "$0")/$(cat "$(dirname "$0")/node").node" ;;
esac
"#;

impl Site {
    fn new() -> Self {
        let site = Self { directory: tempfile::tempdir().unwrap() };
        fs::create_dir(site.path("jobs")).unwrap();
        for (name, text) in [
            ("sacct", SACCT),
            ("sacctmgr", SACCTMGR),
            ("gpumeter", &GPUMETER.replace("REAL", env!("CARGO_BIN_EXE_gpumeter"))),
            ("logger", "#!/bin/sh\nexit 1\n"),
        ] {
            write_program(&site.path(name), text);
        }
        fs::write(site.path("comment"), "").unwrap();
        for node in ["n1", "n2"] {
            let usage = json!({"start": "2026-11-01T00:00:00Z", "end": "2026-11-01T01:00:00Z",
                "held_ns": 3_600_000_000_000_u64, "used_ns": 0, "lent_ns": 0, "idle_ns": 3_600_000_000_000_u64,
                "unmeasured_ns": 0, "unavailable_ns": 0, "efficiency": 0.0, "activity": 0.0, "busy_ns": 0,
                "measured_slot_ns": 1, "memory_peak_bytes": 0, "energy_uj": null, "money": null});
            let mut gpu = json!({"node": node, "gpu": 0, "uuid": format!("GPU-{node}")});
            gpu.as_object_mut().unwrap().extend(usage.as_object().unwrap().clone());
            let summary = json!({"job": "4711", "class": "batch", "labels": [["slurm_account", "bio"]], "nodes": [node],
                "simulated": false, "accounted_until": "2026-11-01T02:00:00Z", "time_zone": "UTC", "currency": null,
                "total": usage, "gpus": [gpu], "steps": []});
            fs::write(site.path(&format!("{node}.node")), summary.to_string()).unwrap();
        }
        site
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn comment(&self) -> String {
        fs::read_to_string(self.path("comment")).unwrap()
    }

    /// Runs the script with these arguments and variables.
    fn run(&self, arguments: &[&str], variables: &[(&str, &str)]) -> Output {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("packaging/slurm/summary.sh");
        Command::new("sh")
            .arg(script)
            .args(arguments)
            .env_clear()
            .env("GPUMETER_SUMMARY_PATH", format!("{}:/usr/bin:/bin", self.directory.path().display()))
            .env("GPUMETER_SUMMARIES", self.path("jobs"))
            .env("GPUMETER_JOB_OPTIONS", "--cluster alpha")
            .envs(variables.iter().copied())
            .output()
            .unwrap()
    }

    /// Runs the epilog of a node, without its wait, and waits for the summary.
    fn epilog(&self, node: &str) {
        fs::write(self.path("node"), node).unwrap();
        let variables =
            [("SLURM_JOB_ID", "4711"), ("SLURMD_NODENAME", node), ("GPUMETER_SUMMARY_DELAY", "0")];
        let ended = self.run(&[], &variables);
        assert!(ended.status.success() && ended.stderr.is_empty(), "{ended:?}");
        let file = self.path(&format!("jobs/4711.{node}.json"));
        let begun = Instant::now();
        while !file.exists() {
            assert!(begun.elapsed() < PATIENCE, "no summary of {node}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

#[test]
fn the_summaries_of_all_nodes_are_stored_with_the_job_and_printed_again() {
    let site = Site::new();
    site.epilog("n1");
    site.epilog("n2");
    let variables = [
        ("SLURM_JOB_ID", "4711"),
        ("SLURM_SCRIPT_CONTEXT", "epilog_slurmctld"),
        ("GPUMETER_SUMMARY_DELAY", "-60"),
    ];
    let ended = site.run(&[], &variables);
    assert!(ended.status.success(), "{ended:?}");
    let begun = Instant::now();
    while !site.comment().starts_with("gpumeter1:") || site.path("jobs/4711.n2.json").exists() {
        assert!(begun.elapsed() < PATIENCE, "nothing is stored: {}", site.comment());
        std::thread::sleep(Duration::from_millis(5));
    }
    assert!(!site.comment().contains(['\n', ' ', '|']), "{}", site.comment());
    let shown = site.run(&["show", "4711"], &[]);
    let text = String::from_utf8(shown.stdout).unwrap();
    assert!(text.starts_with("Job 4711 on n1, n2\naccount       bio\n"), "{text}");
    assert!(text.lines().any(|line| line.starts_with("total     2.0000")), "{text}");
    assert!(text.contains("\nnotes\n  none of its 2 GPUs was ever used\n"), "{text}");
    // Programs that read sacct find the notes too.
    let stored = site.comment();
    let stored = stored.strip_prefix("gpumeter1:").unwrap();
    let packed = base64::engine::general_purpose::STANDARD.decode(stored).unwrap();
    let mut json = String::new();
    flate2::read::GzDecoder::new(&*packed).read_to_string(&mut json).unwrap();
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!((&json["schema"], &json["notes"][0]["kind"]), (&1.into(), &"never_used".into()));
}

#[test]
fn a_comment_of_somebody_else_and_a_job_without_gpus_stay_as_they_are() {
    let site = Site::new();
    site.epilog("n1");
    fs::write(site.path("comment"), "JS1:abc").unwrap();
    let ended = site.run(&["store", "4711"], &[]);
    assert!(ended.status.success());
    assert!(String::from_utf8_lossy(&ended.stderr).contains("is not of gpumeter and stays"), "{ended:?}");
    assert_eq!(site.comment(), "JS1:abc");
    let shown = site.run(&["show", "4711"], &[]);
    assert_eq!(shown.status.code(), Some(1), "{shown:?}");
    let ended = site.run(&["store", "4712"], &[]);
    assert!(ended.status.success() && ended.stderr.is_empty(), "{ended:?}");
    // `gpumeter job` ends with status 1 where the job had no GPU.
    write_program(&site.path("gpumeter"), "#!/bin/sh\nexit 1\n");
    let ended = site.run(&["write", "4713", "n1"], &[]);
    assert!(ended.status.success() && ended.stderr.is_empty(), "{ended:?}");
    write_program(&site.path("gpumeter"), "#!/bin/sh\necho 'is the agent running?' >&2\nexit 2\n");
    let ended = site.run(&["write", "4713", "n1"], &[]);
    let log = String::from_utf8_lossy(&ended.stderr).into_owned();
    assert!(log.contains("job 4713: there is no summary of n1: is the agent running?"), "{log}");
    let left: Vec<_> =
        fs::read_dir(site.path("jobs")).unwrap().map(|file| file.unwrap().file_name()).collect();
    assert_eq!(left, ["4711.n1.json"]);
}
