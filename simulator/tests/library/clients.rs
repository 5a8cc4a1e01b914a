//! Clients in C: the README's example, and a stress test of loading, threads and forks.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use crate::support::{Node, SECOND};

/// Compiles a source beside the node's library; every warning is an error.
fn compiled(node: &Node, source: &str, arguments: &[&str]) -> PathBuf {
    let program = node.path("client");
    let mut compiler = Command::new("cc");
    compiler.args(["-std=gnu11", "-Wall", "-Wextra", "-Werror", "-o"]).arg(&program);
    compiler.arg(Path::new(env!("CARGO_MANIFEST_DIR")).join(source)).args(arguments);
    // Cargo needs cc too, to link this test.
    let done = compiler.current_dir(node.directory.path()).output().unwrap();
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    program
}

fn run(node: &Node, program: &Path, arguments: &[&Path]) -> Output {
    let mut command = Command::new(program);
    command.env("LD_LIBRARY_PATH", node.directory.path()).args(arguments).output().unwrap()
}

#[test]
fn the_example_in_c_reads_every_gpu() {
    let node = Node::new(
        r#"{"cycle_seconds":60,"gpus":[{"profile":"h100"},{"profile":"a100","mig":[{"profile":"3g.40gb","start":0}]}],
            "processes":[{"pid":4211,"gpu":0,"phases":[{"from":0,"to":60,"demand":1,"memory_bytes":1073741824}]}]}"#,
    );
    node.hold(30 * SECOND);
    let program = compiled(&node, "examples/reader.c", &["libnvidia-ml.so.1"]);
    let answer = run(&node, &program, &[]);
    let said = String::from_utf8_lossy(&answer.stdout);
    assert!(answer.status.success(), "{said}{}", String::from_utf8_lossy(&answer.stderr));
    let lines: Vec<&str> = said.lines().collect();
    assert_eq!(lines.first(), Some(&"driver 580.105.08, 2 GPUs"));
    // 1 GiB, and reserved memory, which the first version of the structure counts as used.
    assert!(
        lines.get(1).unwrap().starts_with("0 NVIDIA H100 80GB HBM3 (simulated): 1502 MiB used, "),
        "{said}"
    );
    assert!(lines.get(1).unwrap().ends_with(", 100 % busy"), "{said}");
    assert_eq!(lines.get(2), Some(&"  pid 4211: 1024 MiB"));
    assert!(lines.get(3).unwrap().ends_with(" W"), "{said}");
    std::fs::write(node.path("scenario"), "{").unwrap();
    let refused = run(&node, &program, &[]);
    assert_eq!(String::from_utf8_lossy(&refused.stderr), "nvmlInit: Unknown Error\n");
}

#[test]
fn the_library_survives_loading_unloading_threads_and_forks() {
    let node = Node::new(r#"{"gpus":[{"profile":"h100","count":2}]}"#);
    let program = compiled(&node, "tests/library/hard.c", &["-ldl", "-lpthread"]);
    let answer = run(&node, &program, &[&node.library()]);
    assert!(answer.status.success(), "{:?}: {}", answer.status, String::from_utf8_lossy(&answer.stderr));
}
