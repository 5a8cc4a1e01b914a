//! Golden test: the location of a process for every path in `tests/golden/cgroups.txt`.
//!
//! Each line of that file is a path, or the paths of several hierarchies with ` | ` between them, then ` => ` and what
//! it is. `UPDATE=1 cargo test --lib cgroup_corpus` writes what stands behind the arrows.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::path::Path;

use super::believed_cgroups::BelievedCgroups;
use super::process_location::{LocationKind, ProcessLocation};
use super::workload_path::WorkloadPath;

const ARROW: &str = " => ";

#[test]
fn every_path_of_the_corpus_is_what_its_line_says() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/cgroups.txt");
    let committed = std::fs::read_to_string(&file).unwrap();
    let expected: String = committed.lines().map(|line| described(line) + "\n").collect();
    if std::env::var_os("UPDATE").is_some() {
        std::fs::write(&file, &expected).unwrap();
        return;
    }
    let paths = committed.lines().filter(|line| line.starts_with('/')).count();
    assert!(paths >= 40, "{paths} paths");
    for (line, expected) in committed.lines().zip(expected.lines()) {
        assert_eq!(line, expected);
    }
}

/// The line with what its paths say; comments and empty lines as they are.
fn described(line: &str) -> String {
    if !line.starts_with('/') {
        return line.to_owned();
    }
    let paths = line.split(ARROW).next().unwrap_or_default();
    let list: Vec<_> = paths.split(" | ").map(str::to_owned).collect();
    let ProcessLocation { kind, session_owner } =
        ProcessLocation::from_cgroups(&list, &BelievedCgroups::default());
    let owner = session_owner.map_or_else(|| "its user".to_owned(), |uid| format!("user {uid}"));
    let said = match kind {
        LocationKind::Unspecified => "the process's user".to_owned(),
        LocationKind::Unit { name, .. } => format!("unit {name}"),
        LocationKind::UserSession => format!("a session of {owner}"),
        LocationKind::RootlessContainer { runtime, id } => {
            let container = WorkloadPath::Container { runtime, id };
            format!("{owner}, in a {} of his own", said_of(&container))
        }
        LocationKind::Workload(workload) => said_of(&workload),
    };
    format!("{paths}{ARROW}{said}")
}

fn said_of(workload: &WorkloadPath) -> String {
    let known = |what: &str, text: &str| {
        if text.is_empty() { format!("{what} unknown") } else { format!("{what} {text}") }
    };
    match workload {
        WorkloadPath::Unknown => "nothing that is known".to_owned(),
        WorkloadPath::Vm { name } => known("vm", name),
        WorkloadPath::Container { runtime, id } => known(&format!("container of {runtime}"), id),
        WorkloadPath::Pod { uid, container } => {
            format!("{}, {}", known("pod", uid), known("container", container))
        }
        WorkloadPath::Job { node, job, step, .. } if node.is_empty() => {
            format!("{}, {}", known("job", job), known("step", step))
        }
        WorkloadPath::Job { node, job, step, .. } => {
            format!("{}, {}, {}", known("job", job), known("step", step), known("slurmd of", node))
        }
    }
}
