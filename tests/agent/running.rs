//! A running agent, its directory, and what a test can do to both.

use std::cell::Cell;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use gpumeter::model::{DAY, Nanoseconds, Utc};
use gpumeter::runtime::clock::{ClockPage, PageState, REAL_TIME, system_now};
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use crate::scrape::{Scrape, nano};

/// The longest time that anything may take before a test fails; generous, since nothing is measured here.
pub(crate) const PATIENCE: Duration = Duration::from_secs(120);

/// When demos begin: at noon of yesterday, or of the day before it where yesterday was the last of its month. So neither
/// ends during a test, whose bills may be of the current month, and commands that count days back from now find the account.
pub(crate) static BEGIN: LazyLock<Utc> = LazyLock::new(|| {
    let today = system_now().utc.floor(DAY);
    let noon = |days_ago: u64| Utc(today.0 - days_ago * DAY.0 + DAY.0 / 2);
    let month = |at: Utc| at.to_string()[..7].to_owned();
    if month(noon(1)) == month(noon(0)) { noon(1) } else { noon(2) }
});

pub(crate) fn program() -> Command {
    Command::new(env!("CARGO_BIN_EXE_gpumeter"))
}

/// Runs a command to its end; one that hangs is killed and fails the test with its output.
pub(crate) fn output(arguments: &[&str]) -> Output {
    let mut command = program();
    command.args(arguments).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    // Its output is read while it runs, or a full pipe would block it.
    let [stdout, stderr] = [drain(child.stdout.take().unwrap()), drain(child.stderr.take().unwrap())];
    let status = wait(&mut child, Instant::now());
    if status.is_none() {
        child.kill().unwrap();
        child.wait().unwrap();
    }
    let [stdout, stderr] = [stdout, stderr].map(|reader| reader.join().unwrap());
    let said = String::from_utf8_lossy(&stderr);
    let status = status.unwrap_or_else(|| panic!("gpumeter {arguments:?} does not end; it said\n{said}"));
    Output { status, stdout, stderr }
}

fn drain(mut pipe: impl Read + Send + 'static) -> JoinHandle<Vec<u8>> {
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        pipe.read_to_end(&mut bytes).unwrap();
        bytes
    })
}

/// The exit status of a child; `None` if it did not exit in time.
fn wait(child: &mut Child, begun: Instant) -> Option<ExitStatus> {
    while begun.elapsed() < PATIENCE {
        if let Some(status) = child.try_wait().unwrap() {
            return Some(status);
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    None
}

/// Lets a demo that has no clock in that directory yet begin at [`BEGIN`].
pub(crate) fn set_first_clock(directory: &Path) {
    if !directory.join("driver/clock").exists() {
        set_clock(directory, *BEGIN);
    }
}

/// Gives a demo that does not run another clock, that of a node which was booted 1,000 s before.
pub(crate) fn set_clock(directory: &Path, utc: Utc) {
    let driver = directory.join("driver");
    std::fs::create_dir_all(&driver).unwrap();
    // Otherwise the demo would refuse a directory that is not empty.
    std::fs::write(directory.join(".gpumeter-demo"), "").unwrap();
    let (origin, boottime) = (system_now().boottime, Nanoseconds::from_seconds(1_000));
    let state = PageState { held: false, origin, elapsed: Nanoseconds(0), speed: REAL_TIME, utc, boottime };
    ClockPage::create(&driver.join("clock"), state).unwrap();
}

/// A demo on a free port of loopback.
pub(crate) struct Demo {
    pub(crate) directory: TempDir,
    pub(crate) agent: Agent,
}

/// A running process of the agent.
pub(crate) struct Agent {
    child: Child,
    pub(crate) address: String,
    log: Receiver<String>,
    /// What it logged before it listened.
    pub(crate) first_lines: String,
}

impl Demo {
    pub(crate) fn start(arguments: &[&str]) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let agent = Self::launch(directory.path(), arguments);
        Self { directory, agent }
    }

    fn launch(directory: &Path, arguments: &[&str]) -> Agent {
        set_first_clock(directory);
        Agent::start(Self::command(directory, arguments))
    }

    /// The command that starts a demo in that directory.
    pub(crate) fn command(directory: &Path, arguments: &[&str]) -> Command {
        let mut command = program();
        command.args(["demo", "--listen", "127.0.0.1:0", "--state-dir"]).arg(directory).args(arguments);
        if !arguments.contains(&"--scenario") {
            command.args(["--scenario", "node"]);
        }
        command
    }

    /// Kills the agent as a power cut would and starts it again.
    pub(crate) fn kill_and_restart(&mut self, arguments: &[&str]) {
        self.agent.kill();
        self.agent = Self::launch(self.directory.path(), arguments);
    }

    pub(crate) fn driver(&self, name: &str) -> PathBuf {
        self.directory.path().join("driver").join(name)
    }

    /// Replaces the state file of the hardware; the library reads it again by itself.
    pub(crate) fn state(&self, state: &str) {
        let new = self.driver("state.new");
        std::fs::write(&new, state).unwrap();
        std::fs::rename(new, self.driver("state")).unwrap();
    }

    /// Replaces the faults file; the library reads it again by itself.
    pub(crate) fn faults(&self, script: &str) {
        let new = self.driver("faults.new");
        std::fs::write(&new, script).unwrap();
        std::fs::rename(new, self.driver("faults")).unwrap();
    }
}

impl Agent {
    pub(crate) fn start(mut command: Command) -> Self {
        let mut child = command.stderr(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
        let lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let (sender, log) = channel();
        std::thread::spawn(move || {
            lines.map_while(Result::ok).for_each(|line| sender.send(line).unwrap_or(()))
        });
        let mut seen = Vec::new();
        let address = loop {
            let Ok(line) = log.recv_timeout(PATIENCE) else {
                panic!("the agent did not listen:\n{}", seen.join("\n"))
            };
            if let Some((_, address)) = line.split_once("address=") {
                break address.split_whitespace().next().unwrap().to_owned();
            }
            seen.push(line);
        };
        Self { child, address, log, first_lines: seen.join("\n") }
    }

    /// An agent whose log is not read: the other end of its standard error is closed.
    pub(crate) fn start_without_log(mut command: Command, address: String) -> Self {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        command.stderr(writer);
        Self::start_with_own_log(command, address)
    }

    /// An agent whose log goes where the command sends it, so that the test cannot wait for lines of it.
    pub(crate) fn start_with_own_log(mut command: Command, address: String) -> Self {
        let child = command.stdout(Stdio::null()).spawn().unwrap();
        Self { child, address, log: channel().1, first_lines: String::new() }
    }

    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Status and body of a request; status 0 if the agent does not answer.
    pub(crate) fn get(&self, path: &str) -> (u16, String) {
        self.get_as(path, "text/plain")
    }

    pub(crate) fn get_as(&self, path: &str, accept: &str) -> (u16, String) {
        self.get_with(path, &format!("Accept: {accept}\r\n"))
    }

    /// The same with additional header lines.
    pub(crate) fn get_with(&self, path: &str, headers: &str) -> (u16, String) {
        Self::ask(&self.address, path, headers)
    }

    /// The same at another address.
    pub(crate) fn get_at(&self, address: &str, path: &str) -> (u16, String) {
        Self::ask(address, path, "")
    }

    /// Posts JSON with additional header lines.
    pub(crate) fn post_with(&self, path: &str, headers: &str, json: &str) -> (u16, String) {
        let address = &self.address;
        let head = format!("POST {path} HTTP/1.1\r\nHost: {address}\r\n{headers}Connection: close\r\n");
        let length = json.len();
        let kind = "Content-Type: application/json; charset=utf-8";
        Self::exchange(address, &format!("{head}{kind}\r\nContent-Length: {length}\r\n\r\n{json}"))
    }

    fn ask(address: &str, path: &str, headers: &str) -> (u16, String) {
        let head = format!("GET {path} HTTP/1.1\r\nHost: {address}\r\n{headers}Connection: close\r\n\r\n");
        Self::exchange(address, &head)
    }

    fn exchange(address: &str, request: &str) -> (u16, String) {
        let Ok(mut stream) = TcpStream::connect(address) else { return (0, String::new()) };
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut answer = Vec::new();
        if stream.write_all(request.as_bytes()).is_err() || stream.read_to_end(&mut answer).is_err() {
            return (0, String::new());
        }
        let answer = String::from_utf8(answer).unwrap();
        let Some((head, body)) = answer.split_once("\r\n\r\n") else { return (0, answer) };
        (head.split(' ').nth(1).unwrap().parse().unwrap(), body.to_owned())
    }

    /// Scrapes until the page is as expected.
    pub(crate) fn wait_for(&self, what: &str, wanted: impl Fn(&Scrape) -> bool) -> Scrape {
        let begun = Instant::now();
        loop {
            let (status, page) = self.get("/metrics");
            if status == 200 {
                let scrape = Scrape::parse(&page);
                if wanted(&scrape) {
                    return scrape;
                }
            }
            assert!(begun.elapsed() < PATIENCE, "{what} did not come; the page is\n{page}");
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    pub(crate) fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    pub(crate) fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(self.child.id().try_into().unwrap()).unwrap();
        kill_process(pid, signal).unwrap();
    }

    /// Stops the agent with SIGTERM.
    pub(crate) fn terminate(&mut self) -> ExitStatus {
        self.signal(Signal::TERM);
        self.wait_for_end()
    }

    /// Waits until the agent exits by itself.
    pub(crate) fn wait_for_end(&mut self) -> ExitStatus {
        wait(&mut self.child, Instant::now()).expect("the agent does not end")
    }

    /// Waits for a log line; returns all that was logged since the last call.
    pub(crate) fn wait_for_log(&self, words: &str) -> String {
        let (mut said, deadline) = (String::new(), Instant::now() + PATIENCE);
        while !said.contains(words) {
            let left = deadline.saturating_duration_since(Instant::now());
            let Ok(line) = self.log.recv_timeout(left) else { panic!("no {words:?} in\n{said}") };
            said += &line;
            said.push('\n');
        }
        said
    }

    /// What has been logged since the last call; the agent may still write lines about what a page already shows.
    pub(crate) fn log_so_far(&self) -> String {
        self.log.try_iter().collect::<Vec<_>>().join("\n")
    }

    /// What an agent that has ended logged since the last call, to its last line.
    pub(crate) fn log_to_end(&self) -> String {
        let mut said = Vec::new();
        loop {
            match self.log.recv_timeout(PATIENCE) {
                Ok(line) => said.push(line),
                Err(RecvTimeoutError::Disconnected) => return said.join("\n"),
                Err(RecvTimeoutError::Timeout) => panic!("the log does not end:\n{}", said.join("\n")),
            }
        }
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        // It may have exited already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A loopback address on which nobody listens, and which no other test uses meanwhile: its host is of this test alone.
pub(crate) fn free_address() -> SocketAddr {
    static COUNT: AtomicU8 = AtomicU8::new(1);
    let [.., high, low] = std::process::id().to_be_bytes();
    let host = Ipv4Addr::new(127, COUNT.fetch_add(1, Ordering::Relaxed), high, low);
    TcpListener::bind((host, 0)).unwrap().local_addr().unwrap()
}

/// Waits for a condition that is not on the page.
pub(crate) fn wait_until(what: &str, mut holds: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !holds() {
        assert!(begun.elapsed() < PATIENCE, "{what} did not come");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// The whole answer to a request on a connection of any kind.
pub(crate) fn exchange(mut stream: impl Read + Write, path: &str) -> String {
    write!(stream, "GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

/// The lines of the bill, which must be balanced.
pub(crate) fn bill_lines(agent: &Agent) -> Vec<serde_json::Value> {
    let (status, body) = agent.get("/api/v1/bill");
    assert_eq!(status, 200, "{body}");
    let bill: serde_json::Value = serde_json::from_str(&body).unwrap();
    assert_eq!(bill["reconciliation"]["imbalance_ns"], "0");
    bill["lines"].as_array().unwrap().clone()
}

/// Whole seconds of a tenant in a family.
pub(crate) fn seconds(page: &Scrape, family: &str, tenant: &str) -> i128 {
    let label = format!("tenant=\"{tenant}\"");
    page.series_of(family, &[&label]).map(|(_, value)| nano(value)).sum::<i128>() / 1_000_000_000
}

/// The reserved tenants of time that nobody held.
pub(crate) const UNHELD: [&str; 2] = ["__unallocated__", "__unobserved__"];

/// Nanoseconds that these tenants have held of the first GPU.
pub(crate) fn held_on_first_gpu(page: &Scrape, tenants: &[&str]) -> i128 {
    let of_tenant = |tenant: &&str| {
        let tenant = format!("tenant=\"{tenant}\"");
        page.nano_sum("gpu_tenant_held_seconds_total", &[&tenant, "gpu=\"0\""])
    };
    tenants.iter().map(of_tenant).sum()
}

/// The time that nobody held the first GPU, which must not grow over a restart.
pub(crate) struct Unheld {
    before: i128,
    /// The GPU's time in the account before the restart.
    time: i128,
    recovered: Cell<bool>,
}

impl Unheld {
    /// Reads it from a page before the restart.
    pub(crate) fn of(page: &Scrape) -> Self {
        let before = held_on_first_gpu(page, &UNHELD);
        assert!(before > 0, "nobody held it at first");
        Self { before, time: time_of_first_gpu(page), recovered: Cell::new(false) }
    }

    /// Asserts that it has not changed. There are no series before the account is loaded, and none of a tenant whose account
    /// has not changed for ten minutes, of which the page's account may be up to five minutes behind on a busy machine.
    pub(crate) fn assert_stays(&self, page: &Scrape) {
        const FIVE_MINUTES: i128 = 300_000_000_000;
        let (now, time) = (held_on_first_gpu(page, &UNHELD), time_of_first_gpu(page));
        let may_be_absent = time == 0 || time >= self.time + FIVE_MINUTES;
        assert!(
            now == self.before || now == 0 && may_be_absent,
            "all is held through the restart: {now} after {}",
            self.before
        );
        self.recovered.set(self.recovered.get() || now == self.before);
    }

    /// Asserts that a page after the restart had it.
    pub(crate) fn assert_recovered(&self) {
        assert!(self.recovered.get(), "no page had the {} ns from before the restart", self.before);
    }
}

/// Nanoseconds of the first GPU in the account.
pub(crate) fn time_of_first_gpu(page: &Scrape) -> i128 {
    page.nano_sum("gpu_slot_seconds_total", &["gpu=\"0\""])
}
