//! The agent while nobody reads its log or its notify socket.

use std::io::{ErrorKind, PipeReader, Read, Write};
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::process::Command;

use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};

use crate::running::{Agent, Demo, free_address};
use crate::scrape::Scrape;

/// The command of a demo, and its address. The test chooses a free port, since it cannot read a port from the log.
fn command(directory: &Path) -> (Command, String) {
    let address = free_address().to_string();
    let mut command = Demo::command(&directory.join("state"), &[]);
    command.args(["--listen", &address]);
    (command, address)
}

/// An agent whose standard error is a full pipe, and the pipe's other end.
fn start_unread(mut command: Command, address: String) -> (Agent, PipeReader) {
    let (reader, mut writer) = std::io::pipe().unwrap();
    let flags = fcntl_getfl(&writer).unwrap();
    fcntl_setfl(&writer, flags | OFlags::NONBLOCK).unwrap();
    let full = loop {
        if let Err(error) = writer.write(&[b'\n'; 4_096]) {
            break error;
        }
    };
    assert_eq!(full.kind(), ErrorKind::WouldBlock);
    fcntl_setfl(&writer, flags).unwrap();
    command.stderr(writer);
    (Agent::start_with_own_log(command, address), reader)
}

fn up(page: &Scrape) -> usize {
    page.series_of("gpu_up", &[]).filter(|(_, up)| *up == "1").count()
}

fn assert_account_grows(agent: &Agent) {
    let slot = |page: &Scrape| page.nano_sum("gpu_slot_seconds_total", &[]);
    let before = slot(&agent.wait_for("all GPUs", |page| up(page) == 8));
    agent.wait_for("closed windows", |page| up(page) == 8 && slot(page) > before);
}

#[test]
fn a_full_log_pipe_blocks_no_thread_and_no_shutdown() {
    let directory = tempfile::tempdir().unwrap();
    let (command, address) = command(directory.path());
    let (mut agent, reader) = start_unread(command, address);
    assert_account_grows(&agent);
    let status = agent.terminate();
    assert!(status.success(), "{status}");
    drop(reader);
}

#[test]
fn queued_log_lines_arrive_in_order() {
    let directory = tempfile::tempdir().unwrap();
    let (command, address) = command(directory.path());
    let (mut agent, mut reader) = start_unread(command, address);
    agent.wait_for("all GPUs", |page| up(page) == 8);
    let said = std::thread::spawn(move || {
        let mut said = Vec::new();
        reader.read_to_end(&mut said).unwrap();
        String::from_utf8(said).unwrap()
    });
    assert!(agent.terminate().success());
    let said = said.join().unwrap();
    let places = ["listening", "first snapshot", "stopping"].map(|words| said.find(words));
    assert!(places[0].is_some() && places.is_sorted(), "{places:?} in\n{}", said.trim_start());
}

#[test]
fn a_blocked_notify_socket_blocks_no_thread() {
    let directory = tempfile::tempdir().unwrap();
    let _deaf = UnixDatagram::bind(directory.path().join("notify")).unwrap();
    let mut command = Demo::command(&directory.path().join("state"), &[]);
    command.env("NOTIFY_SOCKET", directory.path().join("notify"));
    // The watchdog is notified at every tick, so its queue is full within seconds.
    command.env("WATCHDOG_USEC", "2").env_remove("WATCHDOG_PID");
    let mut agent = Agent::start(command);
    assert_account_grows(&agent);
    let status = agent.terminate();
    assert!(status.success(), "{status}");
}
