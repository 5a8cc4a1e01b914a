//! The local control socket: release of the driver (quiesce), probes, and the inventory of expected GPUs.
//!
//! A request is one line of JSON, and so is the reply; then the connection is closed. Requests are answered one after the
//! other, except that a probe waits for none of them. Only root and the agent's own user may send requests: the mode of
//! the socket and the credentials of the peer are both checked. A request calls no driver: it orders the thread that
//! owns the driver, and waits for it with a limit.

use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::mpsc::TrySendError;
use std::sync::{Arc, mpsc};
use std::time::Duration;

use rustix::net::sockopt::{Timeout, set_socket_timeout, socket_peercred};
use serde::{Deserialize, Serialize};

use crate::clock::{Stop, system_now};
use crate::export::LatestSnapshot;
use crate::host::agent_usage;
use crate::ledger::{InventoryRow, Reader};
use crate::meter::SamplerNews;
use crate::model::{Attachment, Nanoseconds};
use crate::serve::Liveness;
use crate::session::DriverSessions;
use crate::thread::{self, Thread};

/// A request.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq, Eq)]
#[serde(tag = "do", rename_all = "snake_case")]
pub enum ControlRequest {
    /// Release the driver for that many nanoseconds from now on.
    Quiesce {
        /// How long.
        nanoseconds: u64,
    },
    /// Use the driver again.
    Resume,
    /// Say whether the agent is healthy.
    Probe {
        /// Whether it must be ready, too.
        ready: bool,
    },
    /// List the GPUs that this node ever had.
    Inventory,
    /// Do not expect the GPU of that UUID any more.
    Forget {
        /// Which.
        uuid: String,
    },
}

/// The reply: an error, or the result.
#[derive(Clone, Debug, Default, Serialize, Deserialize, PartialEq, Eq)]
pub struct ControlReply {
    /// What did not work, and what to do.
    pub error: Option<String>,
    /// The inventory, where that was asked for.
    pub inventory: Option<Vec<InventoryLine>>,
    /// Of `resume`: whether the driver was released.
    pub was_released: Option<bool>,
}

/// A GPU of the inventory.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq, Eq)]
pub struct InventoryLine {
    /// The index under which it was last seen.
    pub index: u32,
    /// UUID.
    pub uuid: String,
    /// Product name, "" if it never said it.
    pub model: String,
    /// PCI address, "" if not known.
    pub bus: String,
    /// Where it is ([`Attachment::name`]).
    pub state: String,
    /// Since when, RFC 3339.
    pub since: String,
}

impl InventoryLine {
    fn of(listed: &InventoryRow) -> Self {
        let since = jiff::Timestamp::from_nanosecond(i128::from(listed.expected.since.0));
        Self {
            index: listed.gpu.index,
            uuid: listed.gpu.uuid.to_string(),
            model: listed.model.to_string(),
            bus: listed.expected.bus.to_string(),
            state: listed.expected.attachment.name().to_owned(),
            since: since.map(|at| format!("{at:.0}")).unwrap_or_default(),
        }
    }
}

/// The GPUs that a ledger knows.
pub fn inventory(ledger: &Path) -> Result<Vec<InventoryLine>, crate::ledger::Error> {
    Ok(Reader::open(ledger)?.inventory()?.iter().map(InventoryLine::of).collect())
}

/// The longest time for which one request may release the driver.
pub const LONGEST: Nanoseconds = Nanoseconds::from_seconds(24 * 3_600);

/// The most bytes of a request.
const MAX_REQUEST_BYTES: usize = 4_096;

/// Requests that may wait for another one.
const WAITING: usize = 8;

/// A request with the connection that awaits its reply, and the id of the user who sent it.
type PendingRequest = (UnixStream, ControlRequest, u32);

/// How long a client may take to send its request.
const IDLE_TIMEOUT: Duration = Duration::from_secs(5);

/// How often the thread checks whether the agent stops while no client connects; its end is not waited for.
const ACCEPT_TIMEOUT: Duration = Duration::from_secs(60);

/// How long it waits after a failed accept.
const ACCEPT_RETRY: Duration = Duration::from_secs(1);

/// The socket while the agent runs, or until its start has failed.
pub(crate) struct Control {
    path: PathBuf,
}

impl Drop for Control {
    /// Takes the name of the socket away.
    fn drop(&mut self) {
        // Where it is gone already, nothing is left to do.
        let _ = std::fs::remove_file(&self.path);
    }
}

/// What the socket's threads read and change.
pub(crate) struct ControlServer {
    pub(crate) stop: Stop,
    pub(crate) sessions: Arc<DriverSessions>,
    pub(crate) liveness: Arc<Liveness>,
    pub(crate) pages: Arc<LatestSnapshot>,
    /// The ledger file, if one is kept.
    pub(crate) ledger: Option<PathBuf>,
    /// The configured driver library.
    pub(crate) library: Option<PathBuf>,
}

/// Opens the socket and starts its thread. An agent without one runs all the same, and says why it has none.
pub(crate) fn start(path: Option<&Path>, server: ControlServer) -> Result<Option<Control>, thread::Error> {
    let Some(path) = path else { return Ok(None) };
    let listener = match bind(path) {
        Ok(listener) => listener,
        Err(error) => {
            let path = path.display();
            tracing::warn!(%path, %error, "no local socket, so no quiesce: see web.control");
            return Ok(None);
        }
    };
    let server = Arc::new(server);
    let (orders, pending) = mpsc::sync_channel(WAITING);
    let worker = Arc::clone(&server);
    Thread::start("orders", move || {
        for (stream, ask, user) in pending {
            worker.reply(&stream, worker.answer(ask, user));
        }
    })?;
    Thread::start("control", move || {
        while !server.stop.is_called() {
            match listener.accept() {
                Ok((stream, _)) => server.handle(stream, &orders),
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {}
                Err(error) => {
                    tracing::warn!(%error, "the local socket");
                    server.stop.wait(ACCEPT_RETRY);
                }
            }
        }
    })?;
    Ok(Some(Control { path: path.into() }))
}

/// The socket under its name, for its owner alone from the first moment on. One that another agent answers on
/// is left to it, and so is a file that is no socket: a path that was meant otherwise costs nobody a file.
fn bind(path: &Path) -> std::io::Result<UnixListener> {
    if let Some(directory) = path.parent() {
        std::fs::create_dir_all(directory)?;
    }
    if UnixStream::connect(path).is_ok() {
        return Err(std::io::Error::new(ErrorKind::AddrInUse, "another agent answers there"));
    }
    if std::fs::symlink_metadata(path).is_ok_and(|there| !there.file_type().is_socket()) {
        return Err(std::io::Error::new(ErrorKind::AlreadyExists, "a file that is not a socket is there"));
    }
    let new = path.with_extension(format!("{}.new", std::process::id()));
    // An agent in a container always has the same number; one that was killed here may have left its name.
    let _ = std::fs::remove_file(&new);
    let listener = UnixListener::bind(&new)?;
    std::fs::set_permissions(&new, std::fs::Permissions::from_mode(0o600))?;
    std::fs::rename(&new, path)?;
    // accept(2) keeps to the time-out of receiving.
    set_socket_timeout(&listener, Timeout::Recv, Some(ACCEPT_TIMEOUT))?;
    Ok(listener)
}

/// Reads a line, or what arrives before the end of the stream. One time limit covers the whole line, however slowly it
/// arrives.
fn read_line(mut stream: &UnixStream, patience: Duration) -> std::io::Result<Vec<u8>> {
    let begun = system_now();
    let (mut line, mut piece) = (Vec::new(), [0; 512]);
    while !line.contains(&b'\n') && line.len() < MAX_REQUEST_BYTES {
        let left = patience.saturating_sub(system_now().since(begun).duration());
        if left.is_zero() {
            return Err(ErrorKind::TimedOut.into());
        }
        stream.set_read_timeout(Some(left))?;
        match stream.read(&mut piece) {
            Ok(0) => break,
            Ok(count) => line.extend(piece.iter().take(count)),
            Err(error) if matches!(error.kind(), ErrorKind::Interrupted | ErrorKind::WouldBlock) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(line)
}

impl ControlServer {
    /// Answers a probe at once and queues any other request, so that a slow request fails no probe.
    fn handle(&self, stream: UnixStream, orders: &mpsc::SyncSender<PendingRequest>) {
        match self.receive_request(&stream) {
            Err(problem) => self.reply(&stream, Err(problem)),
            Ok((ControlRequest::Probe { ready }, _)) => self.reply(&stream, self.probe(ready)),
            Ok((ask, user)) => {
                if let Err(TrySendError::Full((stream, ..)) | TrySendError::Disconnected((stream, ..))) =
                    orders.try_send((stream, ask, user))
                {
                    self.reply(&stream, Err("too many requests are waiting; try again".to_owned()));
                }
            }
        }
    }

    /// As `/-/healthy` and `/-/ready` say it.
    fn probe(&self, ready: bool) -> Result<ControlReply, String> {
        if !self.liveness.is_alive() {
            let seconds = self.liveness.since_last_tick().0 / Nanoseconds::SECOND.0;
            return Err(format!("the tick loop has been still for {seconds} s; restart the agent"));
        }
        if ready && self.pages.get().is_none() {
            return Err("the first snapshot is not there yet; try again in a second".to_owned());
        }
        Ok(ControlReply::default())
    }

    fn reply(&self, stream: &UnixStream, reply: Result<ControlReply, String>) {
        let reply =
            reply.unwrap_or_else(|error| ControlReply { error: Some(error), ..ControlReply::default() });
        let Ok(mut line) = serde_json::to_vec(&reply) else { return };
        line.push(b'\n');
        let mut stream = stream;
        // Who asked may have gone.
        let _ = stream.write_all(&line);
    }

    fn receive_request(&self, stream: &UnixStream) -> Result<(ControlRequest, u32), String> {
        let asker =
            socket_peercred(stream).map_err(|error| format!("the asking process is unknown: {error}"))?;
        if !asker.uid.is_root() && asker.uid != rustix::process::geteuid() {
            return Err("only root and the agent's own user may ask".to_owned());
        }
        let silent = |error: std::io::Error| format!("no request came: {error}");
        stream.set_write_timeout(Some(IDLE_TIMEOUT)).map_err(silent)?;
        let line = read_line(stream, IDLE_TIMEOUT).map_err(silent)?;
        let ask = serde_json::from_slice(&line).map_err(|error| format!("not a valid request: {error}"))?;
        Ok((ask, asker.uid.as_raw()))
    }

    fn answer(&self, ask: ControlRequest, user: u32) -> Result<ControlReply, String> {
        match ask {
            ControlRequest::Quiesce { nanoseconds } => self
                .release_driver(Nanoseconds(nanoseconds).min(LONGEST), user)
                .map(|()| ControlReply::default()),
            ControlRequest::Resume => {
                let was_released = self.sessions.orders.resume();
                Ok(ControlReply { was_released: Some(was_released), ..ControlReply::default() })
            }
            ControlRequest::Probe { ready } => self.probe(ready),
            ControlRequest::Inventory => {
                let lines = inventory(self.ledger()?).map_err(|error| error.to_string())?;
                Ok(ControlReply { inventory: Some(lines), ..ControlReply::default() })
            }
            ControlRequest::Forget { uuid } => self.forget(&uuid).map(|()| ControlReply::default()),
        }
    }

    fn release_driver(&self, span: Nanoseconds, user: u32) -> Result<(), String> {
        self.sessions.orders.release_driver(span, user)?;
        let left = self.leftovers().map_err(|error| format!("/proc/self cannot be read: {error}"))?;
        if left.is_empty() {
            tracing::info!(
                seconds = span.0 / Nanoseconds::SECOND.0,
                user,
                "the driver was released on request"
            );
            return Ok(());
        }
        self.sessions.orders.resume();
        let left: Vec<String> = left.iter().map(|path| path.display().to_string()).collect();
        Err(format!(
            "the driver was closed, but these of its files stay open, so the agent uses it again: {}",
            left.join(", ")
        ))
    }

    /// Files of the driver that are still open or mapped.
    fn leftovers(&self) -> std::io::Result<Vec<PathBuf>> {
        let simulated = self.library.as_deref().and_then(Path::parent);
        let is_device = |path: &Path| {
            let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
            path.starts_with("/dev") && path.to_string_lossy().starts_with("/dev/nvidia")
                || name.starts_with("nvidia") && simulated.is_some() && path.parent() == simulated
        };
        let is_library = |path: &Path| {
            let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
            name.contains("libnvidia-ml") || Some(path) == self.library.as_deref()
        };
        let open = agent_usage::open_files()?.into_iter().filter(|path| is_device(path));
        let mapped =
            agent_usage::mapped_files()?.into_iter().filter(|path| is_device(path) || is_library(path));
        Ok(open.chain(mapped).collect())
    }

    fn forget(&self, uuid: &str) -> Result<(), String> {
        let known = inventory(self.ledger()?).map_err(|error| error.to_string())?;
        let line = known.iter().find(|line| line.uuid == uuid);
        match line.map(|line| Attachment::parse(&line.state)) {
            None => Err(format!(
                "{uuid}: not in the inventory; `gpumeter inventory` lists the GPUs that this node had"
            )),
            Some(Some(Attachment::Present)) => {
                Err(format!("{uuid}: the driver lists it; only an absent GPU can be forgotten"))
            }
            Some(_) => {
                // The receiver is gone once the tick loop has ended.
                let _ = self.sessions.news.send(SamplerNews::Forget(uuid.into()));
                Ok(())
            }
        }
    }

    fn ledger(&self) -> Result<&Path, String> {
        self.ledger.as_deref().ok_or_else(|| "no ledger is kept: see ledger.enabled".to_owned())
    }
}

/// Asks a running agent, and waits for its answer.
pub fn ask(socket: &Path, ask: &ControlRequest) -> std::io::Result<ControlReply> {
    /// Longer than letting go may take.
    const ANSWER: Duration = Duration::from_secs(30);
    let mut stream = UnixStream::connect(socket)?;
    stream.set_read_timeout(Some(ANSWER))?;
    stream.set_write_timeout(Some(IDLE_TIMEOUT))?;
    let mut line = serde_json::to_vec(ask)?;
    line.push(b'\n');
    stream.write_all(&line)?;
    let mut answer = Vec::new();
    BufReader::new(stream).read_until(b'\n', &mut answer)?;
    if answer.is_empty() {
        return Err(std::io::Error::new(ErrorKind::UnexpectedEof, "the agent ended before it answered"));
    }
    Ok(serde_json::from_slice(&answer)?)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]
mod tests {
    use super::*;

    #[test]
    fn a_question_is_one_line_of_json() {
        let told = |ask: &ControlRequest| serde_json::to_string(ask).unwrap();
        assert_eq!(told(&ControlRequest::Resume), r#"{"do":"resume"}"#);
        assert_eq!(told(&ControlRequest::Quiesce { nanoseconds: 7 }), r#"{"do":"quiesce","nanoseconds":7}"#);
        assert_eq!(
            serde_json::from_str::<ControlRequest>(r#"{"do":"inventory"}"#).unwrap(),
            ControlRequest::Inventory
        );
        assert!(serde_json::from_str::<ControlRequest>(r#"{"do":"reboot"}"#).is_err());
    }

    #[test]
    fn the_socket_is_its_owners_and_a_living_ones_is_not_taken() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("run/control.sock");
        let first = bind(&path).unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(bind(&path).unwrap_err().kind(), ErrorKind::AddrInUse);
        drop(first);
        bind(&path).unwrap();
    }

    #[test]
    fn an_agent_that_ends_before_it_answers_is_told_in_words() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("control.sock");
        let listener = bind(&path).unwrap();
        std::thread::scope(|scope| {
            let asked = scope.spawn(|| ask(&path, &ControlRequest::Resume));
            let (stream, _) = listener.accept().unwrap();
            read_line(&stream, IDLE_TIMEOUT).unwrap();
            drop(stream);
            let told = asked.join().unwrap().unwrap_err().to_string();
            assert!(told.contains("ended before it answered"), "{told}");
        });
    }

    #[test]
    fn a_file_that_is_no_socket_is_left_alone() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("ledger.db");
        std::fs::write(&path, "precious").unwrap();
        assert_eq!(bind(&path).unwrap_err().kind(), ErrorKind::AlreadyExists);
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "precious");
    }

    #[test]
    fn a_name_that_a_killed_agent_left_is_no_obstacle() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("control.sock");
        drop(UnixListener::bind(path.with_extension(format!("{}.new", std::process::id()))).unwrap());
        bind(&path).unwrap();
    }

    #[test]
    fn who_asks_a_letter_at_a_time_is_not_waited_for_without_end() {
        let (mut asker, asked) = UnixStream::pair().unwrap();
        std::thread::scope(|scope| {
            let heard = scope.spawn(move || read_line(&asked, Duration::from_millis(300)));
            while asker.write_all(b"x").is_ok() && !heard.is_finished() {
                std::thread::sleep(Duration::from_millis(20));
            }
            assert_eq!(heard.join().unwrap().unwrap_err().kind(), ErrorKind::TimedOut);
        });
        let (mut asker, asked) = UnixStream::pair().unwrap();
        asker.write_all(&[b'x'; 5_000]).unwrap();
        assert!(
            (MAX_REQUEST_BYTES..MAX_REQUEST_BYTES + 512)
                .contains(&read_line(&asked, IDLE_TIMEOUT).unwrap().len())
        );
    }
}
