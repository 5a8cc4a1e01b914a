//! A fake HTTPS server of a kubelet's `/pods`, and of an API server's resource claims.

use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use gpumeter::holders::kubelet::Address;
use serde_json::{Value, json};
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::{ServerConfig, ServerConnection, StreamOwned};

const TOKEN: &str = "token-of-the-agent";

/// The answers of the server.
#[derive(Clone, Debug, Default)]
pub(crate) struct Answers {
    pub(crate) pods: Vec<Value>,
    /// Resource claims by path; any other claim is not found.
    pub(crate) claims: BTreeMap<String, Value>,
    pub(crate) fault: Option<Fault>,
    /// The paths with queries that were requested.
    pub(crate) asked: Vec<String>,
}

/// A fault of the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// Refuses with that status.
    Status(u16),
    /// Accepts requests and never answers.
    BlackHole,
    /// Closes the connection in the middle of its answer.
    HalfAnswer,
    /// Answers with something that is not JSON.
    Garbage,
}

/// A running server, which stops when it is dropped.
pub(crate) struct Server {
    answers: Arc<Mutex<Answers>>,
    pub(crate) address: Address,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    pub(crate) fn start(answers: Answers) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = Address { host: "127.0.0.1".into(), port: listener.local_addr().unwrap().port() };
        let (answers, stop) = (Arc::new(Mutex::new(answers)), Arc::new(AtomicBool::new(false)));
        let (theirs, stopped) = (Arc::clone(&answers), Arc::clone(&stop));
        let thread = std::thread::spawn(move || {
            let tls = Arc::new(tls());
            let mut connections = Vec::new();
            for stream in listener.incoming() {
                if stopped.load(Ordering::Relaxed) {
                    break;
                }
                let (tls, answers, stopped) = (Arc::clone(&tls), Arc::clone(&theirs), Arc::clone(&stopped));
                connections.push(std::thread::spawn(move || {
                    let connection = ServerConnection::new(tls).unwrap();
                    // The client may have disconnected, or not trust this server.
                    let _ = respond(StreamOwned::new(connection, stream.unwrap()), &answers, &stopped);
                }));
            }
            for connection in connections {
                connection.join().unwrap();
            }
        });
        Self { answers, address, stop, thread: Some(thread) }
    }

    /// Changes the answers from now on.
    pub(crate) fn answer(&self, change: impl FnOnce(&mut Answers)) {
        change(&mut self.answers.lock().unwrap());
    }

    /// The paths that were requested so far.
    pub(crate) fn requested_paths(&self) -> Vec<String> {
        self.answers.lock().unwrap().asked.clone()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        // Wakes the thread that waits for a connection.
        let _ = TcpStream::connect((&*self.address.host, self.address.port));
        if let Some(thread) = self.thread.take() {
            thread.join().unwrap();
        }
    }
}

fn tls() -> ServerConfig {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/kubelet");
    let certificate = CertificateDer::from_pem_file(directory.join("kubelet.crt")).unwrap();
    let key = PrivateKeyDer::from_pem_file(directory.join("kubelet.key")).unwrap();
    ServerConfig::builder().with_no_client_auth().with_single_cert(vec![certificate], key).unwrap()
}

type Stream = StreamOwned<ServerConnection, TcpStream>;

fn respond(mut stream: Stream, answers: &Mutex<Answers>, stopped: &AtomicBool) -> io::Result<()> {
    let mut request = Vec::new();
    while !request.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte)?;
        request.push(byte[0]);
    }
    let request = String::from_utf8(request).unwrap();
    let path = request.split(' ').nth(1).unwrap().to_owned();
    let signed_in = request.to_ascii_lowercase().contains(&format!("authorization: bearer {TOKEN}\r\n"));
    let answers = {
        let mut answers = answers.lock().unwrap();
        answers.asked.push(path.clone());
        answers.clone()
    };
    let wait = || {
        while !stopped.load(Ordering::Relaxed) {
            std::thread::sleep(Duration::from_millis(5));
        }
    };
    let list = json!({ "items": answers.pods }).to_string();
    match answers.fault {
        Some(Fault::BlackHole) => wait(),
        Some(Fault::Status(status)) => whole(&mut stream, status, "{}")?,
        Some(Fault::Garbage) => whole(&mut stream, 200, "<html>")?,
        Some(Fault::HalfAnswer) => {
            let length = list.len();
            write!(stream, "HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n\r\n{}", &list[..length / 2])?;
            stream.flush()?;
        }
        None if !signed_in => whole(&mut stream, 401, "{}")?,
        None if path.contains("/resourceclaims/") => match answers.claims.get(&path) {
            Some(claim) => whole(&mut stream, 200, &claim.to_string())?,
            None => whole(&mut stream, 404, "{}")?,
        },
        None => whole(&mut stream, 200, &list)?,
    }
    Ok(())
}

fn whole(stream: &mut Stream, status: u16, body: &str) -> io::Result<()> {
    write!(stream, "HTTP/1.1 {status} x\r\nContent-Length: {}\r\n\r\n{body}", body.len())?;
    stream.flush()
}

/// Makes the directory of a service account that trusts the CA `ca` or `other-ca`.
pub(crate) fn account(directory: &Path, authority: &str) {
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/kubelet");
    std::fs::create_dir_all(directory).unwrap();
    std::fs::copy(fixtures.join(format!("{authority}.crt")), directory.join("ca.crt")).unwrap();
    std::fs::write(directory.join("token"), format!("{TOKEN}\n")).unwrap();
}

/// A running pod of a ReplicaSet with a label and one container.
pub(crate) fn described(namespace: &str, name: &str, uid: &str) -> Value {
    json!({
        "metadata": {
            "name": name, "namespace": namespace, "uid": uid,
            "labels": { "kueue.x-k8s.io/queue-name": "research", "pod-template-hash": "5d4f8c" },
            "ownerReferences": [{ "kind": "ReplicaSet", "name": "serve-5d4f8c", "controller": true }],
        },
        "spec": { "containers": [{ "name": "main" }] },
        "status": { "phase": "Running", "containerStatuses": [{ "name": "main", "containerID": "" }] },
    })
}

/// A claim as the API server writes it, with these devices and whether each is only watched.
pub(crate) fn claim(devices: &[(&str, Option<bool>)]) -> Value {
    let result = |(device, admin): &(&str, Option<bool>)| json!({"request": "gpu", "driver": "gpu.nvidia.com", "pool": "node-1", "device": device, "adminAccess": admin});
    let results: Vec<Value> = devices.iter().map(result).collect();
    json!({"metadata": {"uid": "3cae2e45-052c-4b11-80d3-4d7b2d2d3464"}, "status": {"allocation": {"devices": {"results": results}}}})
}

/// Where the API server has a claim.
pub(crate) fn claim_path(version: &str, namespace: &str, name: &str) -> String {
    format!("/apis/resource.k8s.io/{version}/namespaces/{namespace}/resourceclaims/{name}")
}
