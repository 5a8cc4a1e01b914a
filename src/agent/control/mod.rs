//! The local control socket: release of the driver (quiesce), probes, health, the inventory of expected GPUs, and statements.
//!
//! A request is one line of JSON, and so is the reply; then the connection is closed. Requests are handled one after the
//! other, except that probes and health wait for none of them. Only root and the agent's own user may send requests: the mode of
//! the socket and the credentials of the peer are both checked. A request calls no driver: the thread that owns the driver
//! is told to release it, and waited for with a limit.

use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::mpsc::TrySendError;
use std::sync::{Arc, mpsc};
use std::time::Duration;

use rustix::net::sockopt::{Timeout, set_socket_timeout, socket_peercred};
use serde::{Deserialize, Serialize};

use crate::accounting::billing::BillRequest;
use crate::accounting::ledger::{
    ClosedBill, InventoryRow, PendingOrder, Reader, RecordedDocument, RecordedDocuments, StatementOrder,
    close_period,
};
use crate::agent::session::DriverSessions;
use crate::config::BillingConfig;
use crate::holders::host::agent_usage;
use crate::meter::SamplerNews;
use crate::model::{Attachment, Nanoseconds, Utc, VisibleAccount};
use crate::output::render;
use crate::output::serve::{AgentStatus, NO_SNAPSHOT};
use crate::runtime::clock::{Stop, system_now, system_zone};
use crate::runtime::thread::{self, Thread};

#[derive(Clone, Debug, Serialize, Deserialize, PartialEq, Eq)]
#[serde(tag = "do", rename_all = "snake_case")]
pub enum ControlRequest {
    Quiesce {
        nanoseconds: u64,
    },
    Resume,
    Probe {
        ready: bool,
    },
    Health,
    /// List the GPUs that this node ever had.
    Inventory,
    ClosePeriod {
        /// The begin of the period, a date in the time zone.
        from: String,
        /// Its end, not included.
        to: String,
        /// The time zone; none is that of the agent's bills.
        time_zone: Option<String>,
        by: String,
    },
    RecordDocument {
        document: RecordedDocument,
    },
    Documents,
    Forget {
        uuid: String,
    },
}

#[derive(Clone, Debug, Default, Serialize, Deserialize, PartialEq, Eq)]
pub struct ControlReply {
    /// What failed, and what to do.
    pub error: Option<String>,
    pub inventory: Option<Vec<InventoryLine>>,
    /// Of `resume`: whether the driver was released.
    pub was_released: Option<bool>,
    /// The body of `/api/v1/health`, if that was requested.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub health: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub closed: Option<ClosedBill>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub documents: Option<RecordedDocuments>,
}

#[derive(Clone, Debug, Serialize, Deserialize, PartialEq, Eq)]
pub struct InventoryLine {
    pub index: u32,
    pub uuid: String,
    /// Product name, "" if it is not known.
    pub model: String,
    /// PCI address, "" if not known.
    pub bus: String,
    pub state: String,
    /// Since when, RFC 3339.
    pub since: String,
}

impl InventoryLine {
    fn of(listed: &InventoryRow) -> Self {
        Self {
            index: listed.gpu.index,
            uuid: listed.gpu.uuid.to_string(),
            model: listed.model.to_string(),
            bus: listed.expected.bus.to_string(),
            state: listed.expected.attachment.name().to_owned(),
            since: format!("{:.0}", listed.expected.since),
        }
    }
}

pub fn inventory(ledger: &Path) -> Result<Vec<InventoryLine>, crate::accounting::ledger::Error> {
    Ok(Reader::open(ledger)?.inventory()?.iter().map(InventoryLine::of).collect())
}

/// The longest time for which one request may release the driver.
pub const LONGEST: Nanoseconds = Nanoseconds::from_seconds(24 * 3_600);

/// The most bytes of a request.
const MAX_REQUEST_BYTES: u64 = 4_096;

const QUEUE_LENGTH: usize = 8;

struct PendingRequest {
    stream: UnixStream,
    request: ControlRequest,
    user: u32,
}

/// How long a client may pause within its request.
const IDLE_TIMEOUT: Duration = Duration::from_secs(5);

/// How often the thread checks whether the agent stops while no client connects; nothing waits for the thread to end.
const ACCEPT_TIMEOUT: Duration = Duration::from_secs(60);

const ACCEPT_RETRY: Duration = Duration::from_secs(1);

/// The socket while the agent runs, or until its start has failed.
pub(crate) struct Control {
    path: PathBuf,
}

impl Drop for Control {
    fn drop(&mut self) {
        // If it does not exist, there is nothing to do.
        let _ = std::fs::remove_file(&self.path);
    }
}

pub(crate) struct ControlServer {
    pub(crate) stop: Stop,
    pub(crate) sessions: Arc<DriverSessions>,
    pub(crate) status: Arc<AgentStatus>,
    pub(crate) ledger: Option<PathBuf>,
    pub(crate) billing: BillingConfig,
    pub(crate) statements: mpsc::Sender<PendingOrder>,
    pub(crate) library: Option<PathBuf>,
}

/// Opens the socket and starts its threads; an agent that cannot open it runs without one.
pub(crate) fn start(path: Option<&Path>, server: ControlServer) -> Result<Option<Control>, thread::Error> {
    let Some(path) = path else { return Ok(None) };
    let listener = match bind(path) {
        Ok(listener) => listener,
        Err(error) => {
            let path = path.display();
            tracing::warn!(%path, %error, "the local socket (web.control) cannot be opened; quiesce, inventory, probe and health --socket do not work");
            return Ok(None);
        }
    };
    let server = Arc::new(server);
    let (orders, pending) = mpsc::sync_channel(QUEUE_LENGTH);
    let worker = Arc::clone(&server);
    Thread::start("orders", move || {
        for PendingRequest { stream, request, user } in pending {
            reply(&stream, worker.execute(request, user));
        }
    })?;
    Thread::start("control", move || {
        while !server.stop.is_called() {
            match listener.accept() {
                Ok((stream, _)) => server.handle(stream, &orders),
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {}
                Err(error) => {
                    tracing::warn!(%error, "accepting a connection on the local socket failed");
                    server.stop.wait(ACCEPT_RETRY);
                }
            }
        }
    })?;
    Ok(Some(Control { path: path.into() }))
}

/// Binds the socket, which only its owner can ever open. Fails if another agent listens on it, or if the path is a file of
/// another kind, which is not overwritten.
fn bind(path: &Path) -> std::io::Result<UnixListener> {
    if let Some(directory) = path.parent() {
        std::fs::create_dir_all(directory)?;
    }
    if UnixStream::connect(path).is_ok() {
        return Err(std::io::Error::new(ErrorKind::AddrInUse, "another agent listens there"));
    }
    if std::fs::symlink_metadata(path).is_ok_and(|there| !there.file_type().is_socket()) {
        return Err(std::io::Error::new(ErrorKind::AlreadyExists, "a file that is not a socket is there"));
    }
    let new = path.with_extension(format!("{}.new", std::process::id()));
    // In a container the pid is always the same, so a killed agent may have left this file.
    let _ = std::fs::remove_file(&new);
    let listener = UnixListener::bind(&new)?;
    std::fs::set_permissions(&new, std::fs::Permissions::from_mode(0o600))?;
    std::fs::rename(&new, path)?;
    // accept(2) uses the receive timeout.
    set_socket_timeout(&listener, Timeout::Recv, Some(ACCEPT_TIMEOUT))?;
    Ok(listener)
}

impl ControlServer {
    /// Replies to a probe or a request for health at once and queues any other, so that a slow request delays neither.
    fn handle(&self, stream: UnixStream, orders: &mpsc::SyncSender<PendingRequest>) {
        match receive_request(&stream) {
            Err(problem) => reply(&stream, Err(problem)),
            Ok((request @ (ControlRequest::Probe { .. } | ControlRequest::Health), user)) => {
                reply(&stream, self.execute(request, user));
            }
            Ok((request, user)) => {
                let sent = orders.try_send(PendingRequest { stream, request, user });
                if let Err(TrySendError::Full(refused) | TrySendError::Disconnected(refused)) = sent {
                    reply(&refused.stream, Err("too many requests are waiting; try again".to_owned()));
                }
            }
        }
    }

    fn execute(&self, request: ControlRequest, user: u32) -> Result<ControlReply, String> {
        match request {
            ControlRequest::Quiesce { nanoseconds } => self
                .release_driver(Nanoseconds(nanoseconds).min(LONGEST), user)
                .map(|()| ControlReply::default()),
            ControlRequest::Resume => {
                let was_released = self.sessions.orders.resume();
                Ok(ControlReply { was_released: Some(was_released), ..ControlReply::default() })
            }
            // The same as `/-/healthy` and `/-/ready`.
            ControlRequest::Probe { ready } => {
                self.status.check_health()?;
                if ready {
                    self.status.check_readiness()?;
                }
                Ok(ControlReply::default())
            }
            // The same as `/api/v1/health`.
            ControlRequest::Health => {
                let published = self.status.pages.get().ok_or(NO_SNAPSHOT)?;
                let release = self.sessions.orders.release();
                let health = render::health(&published.snapshot, release, &VisibleAccount::Everything);
                let health = String::from_utf8(health).ok();
                Ok(ControlReply { health, ..ControlReply::default() })
            }
            ControlRequest::Inventory => {
                let lines = inventory(self.ledger()?).map_err(|error| error.to_string())?;
                Ok(ControlReply { inventory: Some(lines), ..ControlReply::default() })
            }
            ControlRequest::Forget { uuid } => self.forget(&uuid).map(|()| ControlReply::default()),
            ControlRequest::ClosePeriod { from, to, time_zone, by } => {
                let mut parameters = vec![("from", from), ("to", to), ("by", "day".to_owned())];
                parameters.extend(time_zone.map(|name| ("time_zone", name)));
                let zone = self.billing.time_zone.clone().unwrap_or_else(system_zone);
                let request = BillRequest::parse(parameters, zone, system_now().utc)?;
                let mut closed = close_period(self.ledger()?, &request, by, |order| self.order(order))?;
                closed.bill.billing_account.clone_from(&self.billing.account);
                closed.bill.invoice_issuer.clone_from(&self.billing.invoice_issuer);
                Ok(ControlReply { closed: Some(closed), ..ControlReply::default() })
            }
            ControlRequest::Documents => {
                let documents = Reader::open(self.ledger()?).and_then(|reader| reader.documents());
                let documents = documents.map_err(|error| error.to_string())?;
                Ok(ControlReply { documents: Some(documents), ..ControlReply::default() })
            }
            ControlRequest::RecordDocument { document } => {
                self.order(StatementOrder::Record(document)).map(|_| ControlReply::default())
            }
        }
    }

    fn release_driver(&self, span: Nanoseconds, user: u32) -> Result<(), String> {
        self.sessions.orders.release_driver(span, user)?;
        let left = self.open_driver_files().map_err(|error| format!("/proc/self cannot be read: {error}"))?;
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
            "the driver was closed, but these files of it are still open, so the agent uses it again: {}",
            left.join(", ")
        ))
    }

    fn open_driver_files(&self) -> std::io::Result<Vec<PathBuf>> {
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
                // Fails if the tick loop has ended.
                let _ = self.sessions.news.send(SamplerNews::Forget(uuid.into()));
                Ok(())
            }
        }
    }

    fn order(&self, order: StatementOrder) -> Result<Utc, String> {
        /// The ledger thread may wait for the disk.
        const LEDGER_TIMEOUT: Duration = Duration::from_secs(10);
        let (reply, answer) = mpsc::channel();
        // Fails if the ledger thread has ended.
        let sent = self.statements.send(PendingOrder { order, reply });
        let answer = sent.ok().and_then(|()| answer.recv_timeout(LEDGER_TIMEOUT).ok());
        answer.unwrap_or_else(|| Err("the ledger does not answer; the agent's log says why".to_owned()))
    }

    fn ledger(&self) -> Result<&Path, String> {
        self.ledger.as_deref().ok_or_else(|| "the agent keeps no ledger: set ledger.enabled".to_owned())
    }
}

fn receive_request(stream: &UnixStream) -> Result<(ControlRequest, u32), String> {
    let peer = socket_peercred(stream).map_err(|error| format!("the peer's user is unknown: {error}"))?;
    if !peer.uid.is_root() && peer.uid != rustix::process::geteuid() {
        return Err("only root and the agent's own user may send requests".to_owned());
    }
    let failed = |error: std::io::Error| format!("no request was received: {error}");
    stream.set_write_timeout(Some(IDLE_TIMEOUT)).map_err(failed)?;
    stream.set_read_timeout(Some(IDLE_TIMEOUT)).map_err(failed)?;
    let mut line = Vec::new();
    BufReader::new(stream).take(MAX_REQUEST_BYTES).read_until(b'\n', &mut line).map_err(failed)?;
    let request = serde_json::from_slice(&line).map_err(|error| format!("not a valid request: {error}"))?;
    Ok((request, peer.uid.as_raw()))
}

fn reply(mut stream: &UnixStream, reply: Result<ControlReply, String>) {
    let reply = reply.unwrap_or_else(|error| ControlReply { error: Some(error), ..ControlReply::default() });
    let Ok(mut line) = serde_json::to_vec(&reply) else { return };
    line.push(b'\n');
    // The client may have left.
    let _ = stream.write_all(&line);
}

pub fn send_request(socket: &Path, request: &ControlRequest) -> std::io::Result<ControlReply> {
    /// Longer than the release of the driver may take.
    const REPLY_TIMEOUT: Duration = Duration::from_secs(30);
    let mut stream = UnixStream::connect(socket)?;
    stream.set_read_timeout(Some(REPLY_TIMEOUT))?;
    stream.set_write_timeout(Some(IDLE_TIMEOUT))?;
    let mut line = serde_json::to_vec(request)?;
    line.push(b'\n');
    stream.write_all(&line)?;
    let mut reply = Vec::new();
    BufReader::new(stream).read_until(b'\n', &mut reply)?;
    if reply.is_empty() {
        return Err(std::io::Error::new(ErrorKind::UnexpectedEof, "the agent ended before it replied"));
    }
    Ok(serde_json::from_slice(&reply)?)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_one_line_of_json() {
        let json = |request: &ControlRequest| serde_json::to_string(request).unwrap();
        assert_eq!(json(&ControlRequest::Resume), r#"{"do":"resume"}"#);
        assert_eq!(json(&ControlRequest::Quiesce { nanoseconds: 7 }), r#"{"do":"quiesce","nanoseconds":7}"#);
        assert_eq!(
            serde_json::from_str::<ControlRequest>(r#"{"do":"inventory"}"#).unwrap(),
            ControlRequest::Inventory
        );
        assert!(serde_json::from_str::<ControlRequest>(r#"{"do":"reboot"}"#).is_err());
    }

    #[test]
    fn only_its_owner_opens_the_socket_and_that_of_a_running_agent_is_not_replaced() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("run/control.sock");
        let first = bind(&path).unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(bind(&path).unwrap_err().kind(), ErrorKind::AddrInUse);
        // A child that another test is starting has a copy until it executes, which would go on listening.
        rustix::net::shutdown(&first, rustix::net::Shutdown::Both).unwrap();
        drop(first);
        bind(&path).unwrap();
    }

    #[test]
    fn an_agent_that_ends_before_it_replies_is_named_in_the_error() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("control.sock");
        let listener = bind(&path).unwrap();
        std::thread::scope(|scope| {
            let sent = scope.spawn(|| send_request(&path, &ControlRequest::Resume));
            let (stream, _) = listener.accept().unwrap();
            receive_request(&stream).unwrap();
            drop(stream);
            let error = sent.join().unwrap().unwrap_err().to_string();
            assert!(error.contains("ended before it replied"), "{error}");
        });
    }

    #[test]
    fn a_file_that_is_not_a_socket_is_not_overwritten() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("ledger.db");
        std::fs::write(&path, "precious").unwrap();
        assert_eq!(bind(&path).unwrap_err().kind(), ErrorKind::AlreadyExists);
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "precious");
    }

    #[test]
    fn the_file_of_a_killed_agent_is_replaced() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("control.sock");
        drop(UnixListener::bind(path.with_extension(format!("{}.new", std::process::id()))).unwrap());
        bind(&path).unwrap();
    }
}
