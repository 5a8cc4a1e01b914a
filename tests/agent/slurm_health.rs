//! `packaging/slurm/healthcheck.sh` with a fake `gpumeter health` and a fake `scontrol` that stores a node's state; and the
//! epilog of `docs/slurm-jobs.md` with a fake `systemd-run`.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::running::{Demo, wait_until};

/// Writes an executable file.
pub(crate) fn write_program(file: &Path, text: &str) {
    // Written by a process of its own: a child of another test could inherit this process's descriptor for
    // writing, and until it is closed the program cannot be run.
    let mut writer = Command::new("sh")
        .args(["-c", "cat >\"$0\" && chmod +x \"$0\""])
        .arg(file)
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    writer.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    assert!(writer.wait().unwrap().success());
}

/// A node of Slurm in a directory.
struct Cluster {
    directory: tempfile::TempDir,
}

/// Prints the node as `scontrol show node -o` does, and changes it as `scontrol update` does.
const SCONTROL: &str = r#"#!/bin/sh
cd "$(dirname "$0")"
case $1 in
    show) echo "NodeName=$4 Arch=x86_64 State=$(cat state) Reason=$(cat reason) [root@2026-11-01T00:00:00]" ;;
    update)
        echo "$*" >>calls
        case $3 in
            State=DRAIN) echo IDLE+DRAIN >state; echo "${4#Reason=}" >reason ;;
            State=RESUME) echo IDLE >state; : >reason ;;
        esac ;;
esac
"#;

impl Cluster {
    fn new() -> Self {
        let cluster = Self { directory: tempfile::tempdir().unwrap() };
        cluster.program("scontrol", SCONTROL);
        cluster.set("IDLE", "");
        cluster
    }

    fn program(&self, name: &str, text: &str) {
        write_program(&self.directory.path().join(name), text);
    }

    fn set(&self, state: &str, reason: &str) {
        fs::write(self.directory.path().join("state"), state).unwrap();
        fs::write(self.directory.path().join("reason"), reason).unwrap();
    }

    /// Runs the check while `gpumeter health` prints this and exits so; returns state and reason afterwards.
    fn check(&self, report: &str, status: i32) -> (String, String) {
        self.program("gpumeter", &format!("#!/bin/sh\ncat <<'END'\n{report}END\nexit {status}\n"));
        self.run(&[("SLURMD_NODENAME", "n7")]);
        let read =
            |name: &str| fs::read_to_string(self.directory.path().join(name)).unwrap().trim().to_owned();
        (read("state"), read("reason"))
    }

    /// Runs the check with these variables; returns its log.
    fn run(&self, variables: &[(&str, &str)]) -> String {
        // The system's log is not written.
        self.program("logger", "#!/bin/sh\nexit 1\n");
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("packaging/slurm/healthcheck.sh");
        let path = format!("{}:/usr/bin:/bin", self.directory.path().display());
        let ended = Command::new("sh")
            .arg(script)
            .env_clear()
            .env("GPUMETER_HEALTHCHECK_PATH", path)
            .envs(variables.iter().copied())
            .output()
            .unwrap();
        assert!(ended.status.success(), "a health check that fails would be reported for every node");
        String::from_utf8(ended.stderr).unwrap()
    }

    fn calls(&self) -> usize {
        fs::read_to_string(self.directory.path().join("calls")).unwrap_or_default().lines().count()
    }
}

const FAILED: &str = "\
GPU 0 GPU-a NVIDIA H100 80GB HBM3: ok
GPU 3 GPU-b NVIDIA H100 80GB HBM3: failed, action reset_gpu
  failed, reset_gpu: XID 79: fell off the bus, since 2026-11-01T00:00:00Z; ends with a reset
GPU 5 GPU-c NVIDIA H100 80GB HBM3: degraded, action drain
";
const OK: &str = "GPU 0 GPU-a NVIDIA H100 80GB HBM3: ok\n";

#[test]
fn a_failed_gpu_drains_the_node_once_and_its_recovery_resumes_it() {
    let cluster = Cluster::new();
    let drained = ("IDLE+DRAIN".to_owned(), "gpumeter: GPU 3 reset_gpu".to_owned());
    assert_eq!(cluster.check(FAILED, 1), drained);
    assert_eq!(cluster.check(FAILED, 1), drained);
    assert_eq!(cluster.calls(), 1, "a node that is drained is not drained again");
    assert_eq!(cluster.check("", 2), drained, "without an answer the GPU's health is unknown");
    assert_eq!(cluster.check(OK, 0), ("IDLE".to_owned(), String::new()));
    assert_eq!(cluster.check(OK, 0).0, "IDLE");
    assert_eq!(cluster.calls(), 2);
}

#[test]
fn a_node_drained_by_somebody_else_is_not_changed() {
    let cluster = Cluster::new();
    cluster.set("MIXED+DRAIN", "new cables");
    for (report, status) in [(FAILED, 1), (OK, 0)] {
        assert_eq!(cluster.check(report, status), ("MIXED+DRAIN".to_owned(), "new cables".to_owned()));
    }
    assert_eq!(cluster.calls(), 0);
}

#[test]
fn a_node_of_unknown_health_is_not_changed() {
    let cluster = Cluster::new();
    assert_eq!(cluster.check("", 2).0, "IDLE");
    cluster.set("DOWN", "gpumeter: not a drained node");
    assert_eq!(cluster.check(OK, 0).0, "DOWN");
    assert_eq!(cluster.calls(), 0);
}

#[test]
fn a_check_that_cannot_reach_the_agent_prints_the_reason() {
    let cluster = Cluster::new();
    cluster.program("gpumeter", "#!/bin/sh\necho '401 Unauthorized: give --user' >&2\nexit 2\n");
    let log = cluster.run(&[("SLURMD_NODENAME", "n7")]);
    assert!(
        log.contains("the health of n7 is unknown") && log.contains("ended with 2: 401 Unauthorized"),
        "{log}"
    );
    cluster.program("gpumeter", "#!/bin/sh\nexit 0\n");
    assert_eq!(cluster.run(&[("SLURMD_NODENAME", "n7")]), "", "a healthy node is not logged at every check");
}

#[test]
fn the_check_passes_options_and_the_whole_name_of_the_node() {
    let cluster = Cluster::new();
    cluster.program(
        "gpumeter",
        "#!/bin/sh\necho \"$*\" >\"$(dirname \"$0\")/asked\"\necho 'GPU 0 GPU-a: failed'\nexit 1\n",
    );
    cluster.run(&[
        ("SLURMD_NODENAME", "n7.example.com"),
        ("GPUMETER_URL", "https://n7:9855"),
        ("GPUMETER_HEALTH_OPTIONS", "--web.ca-file /etc/ca.crt --user *"),
    ]);
    let read = |name: &str| fs::read_to_string(cluster.directory.path().join(name)).unwrap();
    let asked = "health --fail-on failed --url https://n7:9855 --web.ca-file /etc/ca.crt --user *\n";
    assert_eq!(read("asked"), asked);
    assert!(read("calls").contains("NodeName=n7.example.com State=DRAIN"), "{}", read("calls"));
}

#[test]
fn the_check_asks_the_local_socket_and_never_a_port_without_tls() {
    let cluster = Cluster::new();
    let asked = cluster.directory.path().join("asked");
    let asks = |variables: &[(&str, &str)]| {
        let _ = fs::remove_file(&asked);
        let log = cluster.run(&[&[("SLURMD_NODENAME", "n7")], variables].concat());
        (fs::read_to_string(&asked).unwrap_or_default(), log)
    };
    cluster.program("gpumeter", "#!/bin/sh\necho \"$*\" >\"$(dirname \"$0\")/asked\"\nexit 0\n");
    assert_eq!(asks(&[]).0, "health --fail-on failed --socket\n");
    let other = asks(&[("GPUMETER_SOCKET", "/run/my agent.sock")]).0;
    assert_eq!(other, "health --fail-on failed --socket /run/my agent.sock\n");
    let (asked, log) = asks(&[("GPUMETER_URL", "http://127.0.0.1:9855")]);
    assert!(asked.is_empty() && log.contains("is without TLS"), "{asked}{log}");
}

#[test]
fn a_fake_answer_on_the_port_and_a_demo_change_no_node() {
    let cluster = Cluster::new();
    cluster.set("IDLE+DRAIN", "gpumeter: GPU 3 reset_gpu");
    let before =
        || ["state", "reason"].map(|name| fs::read_to_string(cluster.directory.path().join(name)).unwrap());
    let drained = before();
    let real = env!("CARGO_BIN_EXE_gpumeter");
    // The default port and socket of the real program are not there in this test, so it is given those of the test.
    let liar = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", liar.local_addr().unwrap());
    std::thread::spawn(move || {
        for stream in liar.incoming() {
            let mut stream = stream.unwrap();
            let _ = stream.read(&mut [0; 1024]);
            let body = r#"{"simulated": false, "remembered": true, "gpus": [{"gpu": 0, "uuid": "GPU-x", "model": "H100",
                "state": "ok", "action": "none", "reasons": []}]}"#;
            let head =
                format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\nConnection: close\r\n\r\n", body.len());
            let _ = stream.write_all((head + body).as_bytes());
        }
    });
    let believed = Command::new(real).args(["health", "--url", &url]).output().unwrap();
    assert!(believed.status.success(), "the answer would be believed: {believed:?}");
    cluster.program("gpumeter", &format!("#!/bin/sh\nexec {real} \"$@\"\n"));
    let nobody = cluster.directory.path().join("control.sock");
    let node = ("SLURMD_NODENAME", "n7");
    for source in [("GPUMETER_URL", &*url), ("GPUMETER_SOCKET", nobody.to_str().unwrap())] {
        let log = cluster.run(&[node, source]);
        assert!(log.contains("nothing is changed"), "{log}");
        assert_eq!(before(), drained);
    }
    let demo = Demo::start(&[]);
    demo.agent.wait_for("verdicts", |page| page.series_of("gpu_health", &["state=\"ok\""]).count() == 8);
    let socket = demo.directory.path().join("control.sock");
    let log = cluster.run(&[node, ("GPUMETER_SOCKET", socket.to_str().unwrap())]);
    assert!(log.contains("ended with 2") && log.contains("simulated"), "{log}");
    assert_eq!(before(), drained);
    // Where the made-up verdicts are accepted, the same answer resumes the node, if all GPUs have answered in time.
    wait_until("a node that is resumed", || {
        cluster.run(&[
            node,
            ("GPUMETER_SOCKET", socket.to_str().unwrap()),
            ("GPUMETER_HEALTH_OPTIONS", "--simulated"),
        ]);
        before()[0].trim() == "IDLE"
    });
}

#[test]
fn the_example_of_an_epilog_leaves_the_wait_to_systemd() {
    let cluster = Cluster::new();
    let folder = cluster.directory.path();
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/slurm-jobs.md");
    let docs = fs::read_to_string(docs).unwrap();
    let example = docs.split("```sh\n").skip(1).find(|block| block.contains("systemd-run")).unwrap();
    let example = example.split("```").next().unwrap();
    let path = |name: &str| folder.join(name).to_str().unwrap().to_owned();
    let jobs = path("jobs");
    let text =
        example.replace("/var/spool/gpumeter-jobs", &jobs).replace("/usr/bin/gpumeter", &path("gpumeter"));
    cluster.program("epilog", &text);
    cluster.program("gpumeter", "#!/bin/sh\necho \"$*\"\n");
    // Notes its options, and runs the command at once.
    cluster.program(
        "systemd-run",
        "#!/bin/sh\nwhile :; do case $1 in --*) echo \"$1\" ;; *) break ;; esac; shift; done >\"$(dirname \"$0\")/options\"\nexec \"$@\"\n",
    );
    let uid = rustix::process::geteuid().as_raw();
    let ended = Command::new(path("epilog"))
        .env("PATH", format!("{}:/usr/bin:/bin", folder.display()))
        .envs([("SLURM_JOB_ID", "211".to_owned()), ("SLURM_JOB_UID", uid.to_string())])
        .output()
        .unwrap();
    assert!(ended.status.success(), "{ended:?}");
    let options = fs::read_to_string(path("options")).unwrap();
    assert!(options.contains("--no-block") && options.contains("--on-active=180"), "{options}");
    let summary = Path::new(&jobs).join("211");
    assert_eq!(fs::read_to_string(&summary).unwrap(), "job 211 --raw\n");
    assert_eq!(fs::metadata(summary).unwrap().permissions().mode() & 0o777, 0o600);
}
