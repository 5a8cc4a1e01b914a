//! The notifications that a service manager gets, received on a socket of the test.

use std::net::TcpListener;
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::running::{Agent, Demo, PATIENCE, program, wait_until};

/// A service manager that only receives.
struct Manager {
    socket: UnixDatagram,
}

impl Manager {
    fn listen(directory: &Path) -> Self {
        let socket = UnixDatagram::bind(directory.join("notify")).unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        Self { socket }
    }

    fn start(directory: &Path, arguments: &[&str]) -> Agent {
        let mut command = Demo::command(&directory.join("state"), arguments);
        command.env("NOTIFY_SOCKET", directory.join("notify"));
        // The agent is given half a second, so it notifies four times a second.
        command.env("WATCHDOG_USEC", "500000").env_remove("WATCHDOG_PID");
        Agent::start(command)
    }

    fn receive(&self) -> String {
        let mut buffer = [0; 4096];
        let count = self.socket.recv(&mut buffer).expect("no notification arrived");
        String::from_utf8(buffer[..count].to_vec()).unwrap()
    }

    /// Discards the notifications that have arrived so far.
    fn discard_received(&self) {
        self.socket.set_nonblocking(true).unwrap();
        while self.socket.recv(&mut [0; 4096]).is_ok() {}
        self.socket.set_nonblocking(false).unwrap();
    }

    /// The next notification that is not of the watchdog.
    fn receive_other(&self) -> String {
        loop {
            let message = self.receive();
            if message.trim() != "WATCHDOG=1" {
                return message;
            }
        }
    }
}

/// The state of the agent's process as a letter, as in /proc.
fn state(agent: &Agent) -> char {
    let status = std::fs::read_to_string(format!("/proc/{}/status", agent.id())).unwrap();
    let state = status.lines().find_map(|line| line.strip_prefix("State:")).unwrap();
    state.trim().chars().next().unwrap()
}

fn monotonic_microseconds() -> i128 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    i128::from(now.tv_sec) * 1_000_000 + i128::from(now.tv_nsec) / 1_000
}

#[test]
fn systemd_is_notified_of_readiness_reloads_and_stop() {
    let directory = tempfile::tempdir().unwrap();
    let manager = Manager::listen(directory.path());
    let config = directory.path().join("c.yaml");
    std::fs::write(&config, "sampling: {interval: 1s}").unwrap();
    let mut agent = Manager::start(directory.path(), &["--config", config.to_str().unwrap()]);
    assert!(manager.receive_other().starts_with("READY=1\nSTATUS="));
    let begun = monotonic_microseconds();
    agent.signal(Signal::HUP);
    let reloading = manager.receive_other();
    let (word, since) = reloading.trim().split_once('\n').unwrap();
    let since: i128 = since.strip_prefix("MONOTONIC_USEC=").unwrap().parse().unwrap();
    assert_eq!(word, "RELOADING=1");
    // systemd accepts only a time that is not before its signal.
    assert!((begun..=monotonic_microseconds()).contains(&since), "{since} after {begun}");
    let ready = manager.receive_other();
    assert!(ready.starts_with("READY=1\nSTATUS=configuration reloaded"), "{ready}");
    std::fs::write(&config, "sampling: {interval: soon}").unwrap();
    agent.signal(Signal::HUP);
    assert!(manager.receive_other().starts_with("RELOADING=1"));
    let ready = manager.receive_other();
    assert!(ready.contains("READY=1") && ready.contains("not reloaded"), "{ready}");
    // Read before its end: the socket holds only a few signs of life.
    agent.signal(Signal::TERM);
    assert_eq!(manager.receive_other().trim(), "STOPPING=1");
    assert!(agent.wait_for_end().success());
}

#[test]
fn systemd_is_told_of_readiness_while_the_port_is_taken() {
    let directory = tempfile::tempdir().unwrap();
    let manager = Manager::listen(directory.path());
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let config = directory.path().join("c.yaml");
    let ledger = directory.path().join("ledger.db");
    std::fs::write(&config, format!("ledger: {{path: {}}}\nweb: {{control: off}}\n", ledger.display()))
        .unwrap();
    let mut command = program();
    command.args(["run", "--nvml-library", "libc.so.6", "--listen", &address, "--config"]).arg(config);
    command.env("NOTIFY_SOCKET", directory.path().join("notify"));
    let mut agent = Agent::start_with_own_log(command, address.clone());
    let ready = manager.receive_other();
    assert!(ready.starts_with("READY=1\nSTATUS=not ready: ") && ready.contains("already in use"), "{ready}");
    drop(taken);
    assert_eq!(manager.receive_other(), "STATUS=running\n");
    agent.wait_for("a page", |page| page.has("gpumeter_build_info", &[]));
    assert!(agent.terminate().success());
}

#[test]
fn the_watchdog_is_notified_while_the_tick_loop_runs() {
    let directory = tempfile::tempdir().unwrap();
    let manager = Manager::listen(directory.path());
    let agent = Manager::start(directory.path(), &[]);
    let begun = Instant::now();
    manager.discard_received();
    for _ in 0..12 {
        while manager.receive().trim() != "WATCHDOG=1" {}
    }
    let took = begun.elapsed();
    assert!(took > Duration::from_secs(2), "twice in half a second is enough: {took:?}");
    // Stopped with SIGSTOP it sends nothing, and with SIGCONT it goes on.
    agent.signal(Signal::STOP);
    wait_until("a stopped agent", || state(&agent) == 'T');
    manager.discard_received();
    agent.signal(Signal::CONT);
    for _ in 0..3 {
        while manager.receive().trim() != "WATCHDOG=1" {}
    }
}

/// The settings of the packaged unit, without its comments.
fn unit() -> Vec<(&'static str, &'static str)> {
    const UNIT: &str = include_str!("../../packaging/systemd/gpumeter.service");
    UNIT.lines().filter(|line| !line.starts_with('#')).filter_map(|line| line.split_once('=')).collect()
}

/// The last value of a setting of the packaged unit.
fn value(key: &str) -> Option<&'static str> {
    unit().into_iter().rev().find(|(name, _)| *name == key).map(|(_, value)| value)
}

#[test]
fn the_unit_can_see_gpus_processes_and_clock_synchronisation() {
    for key in
        ["ProtectClock", "PrivateDevices", "PrivateUsers", "ProtectProc", "ProcSubset", "PrivateNetwork"]
    {
        assert_eq!(value(key), None, "{key}");
    }
    assert_eq!((value("DevicePolicy"), value("DeviceAllow")), (Some("closed"), Some("char-nvidia* rw")));
    let filters: Vec<&str> =
        unit().into_iter().filter(|(name, _)| *name == "SystemCallFilter").map(|(_, value)| value).collect();
    let [allowed, denied, clock] = filters[..] else { panic!("{filters:?}") };
    assert_eq!((allowed, denied), ("@system-service", "~@privileged @resources"));
    assert!(clock.split(' ').any(|call| call == "clock_adjtime"), "the last filter wins: {clock}");
    assert_eq!(value("RuntimeDirectoryPreserve"), Some("yes"), "the prolog of Slurm reads and writes there");
    assert!(value("After").unwrap().split(' ').any(|unit| unit == "time-sync.target"));
}

#[test]
fn the_unit_has_no_extra_privileges_and_restarts_after_status_75() {
    assert_eq!((value("User"), value("CapabilityBoundingSet")), (Some("gpumeter"), Some("")));
    assert_eq!((value("NoNewPrivileges"), value("UMask")), (Some("yes"), Some("0077")));
    assert_eq!(value("AmbientCapabilities"), None);
    assert_eq!(value("RestartForceExitStatus"), Some("75"));
    const USERS: &str = include_str!("../../packaging/sysusers.d/gpumeter.conf");
    assert!(USERS.lines().any(|line| line.starts_with("u gpumeter ")), "{USERS}");
}

#[test]
fn a_drop_in_adds_only_capabilities_that_it_also_bounds() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("packaging/systemd/gpumeter.service.d");
    let mut with_capability = 0;
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let text = std::fs::read_to_string(&path).unwrap();
        let get = |key: &str| text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix('='));
        assert_eq!(get("AmbientCapabilities"), get("CapabilityBoundingSet"), "{}", path.display());
        with_capability += usize::from(get("AmbientCapabilities").is_some());
        assert!(text.starts_with("# "), "{} does not say what it is for", path.display());
    }
    assert!(with_capability >= 4, "{with_capability}");
}
