//! A fake container runtime: a server of the part of Docker's API that the agent uses, on a unix socket, with faults.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use crate::running::PATIENCE;

/// How the runtime answers a request.
#[derive(Clone, Debug)]
pub(crate) enum Response {
    /// Lists containers: id, name and image of each.
    Containers(Vec<(String, String, String)>),
    /// Answers with that status and body.
    Status(u16, String),
    /// Accepts the request and never answers.
    BlackHole,
    /// Closes the connection.
    Hangup,
    /// Announces a longer body than it sends.
    Half,
}

/// A running runtime, which stops when it is dropped.
pub(crate) struct Docker {
    response: Arc<Mutex<Response>>,
    /// Method and path of each request.
    requests: Arc<Mutex<Vec<String>>>,
    thread: Option<JoinHandle<()>>,
    socket: PathBuf,
    stopped: Arc<Mutex<bool>>,
}

impl Docker {
    /// Serves at that path.
    pub(crate) fn start(socket: &Path, response: Response) -> Self {
        std::fs::create_dir_all(socket.parent().unwrap()).unwrap();
        let listener = UnixListener::bind(socket).unwrap();
        let (response, requests) = (Arc::new(Mutex::new(response)), Arc::default());
        let stopped = Arc::new(Mutex::new(false));
        let (current, received, ended) = (Arc::clone(&response), Arc::clone(&requests), Arc::clone(&stopped));
        let thread = std::thread::spawn(move || {
            // Connections that are not answered stay open.
            let mut open = Vec::new();
            for stream in listener.incoming() {
                if *ended.lock().unwrap() {
                    return;
                }
                let response = current.lock().unwrap().clone();
                open.extend(respond(stream.unwrap(), &response, &received));
            }
        });
        Self { response, requests, thread: Some(thread), socket: socket.to_owned(), stopped }
    }

    /// Changes the answer from now on.
    pub(crate) fn respond(&self, response: Response) {
        *self.response.lock().unwrap() = response;
    }

    /// Method and path of each request so far, without repetitions.
    pub(crate) fn requests(&self) -> Vec<String> {
        let mut requests = self.requests.lock().unwrap().clone();
        requests.sort();
        requests.dedup();
        requests
    }
}

impl Drop for Docker {
    fn drop(&mut self) {
        *self.stopped.lock().unwrap() = true;
        // Wakes the thread.
        let _ = UnixStream::connect(&self.socket);
        let _ = std::fs::remove_file(&self.socket);
        if let Some(thread) = self.thread.take() {
            thread.join().unwrap();
        }
    }
}

/// Answers one request; returns the connection if it is to stay open.
fn respond(stream: UnixStream, response: &Response, requests: &Mutex<Vec<String>>) -> Option<UnixStream> {
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut lines = BufReader::new(&stream).lines().map_while(Result::ok);
    let first = lines.next()?;
    requests.lock().unwrap().push(first);
    let _headers: Vec<String> = lines.take_while(|line| !line.is_empty()).collect();
    let (status, body, missing) = match response {
        Response::Containers(containers) => {
            let listed = containers.iter().map(|(id, name, image)| {
                serde_json::json!({"Id": id, "Names": [format!("/{name}")], "Image": image, "State": "running"})
            });
            (200, serde_json::Value::from(listed.collect::<Vec<_>>()).to_string(), 0)
        }
        Response::Status(status, body) => (*status, body.clone(), 0),
        Response::BlackHole => return Some(stream),
        Response::Hangup => return None,
        Response::Half => (200, "[{\"Id\":".to_owned(), 100),
    };
    let length = body.len() + missing;
    // The client may have disconnected.
    let _ = write!(
        &stream,
        "HTTP/1.1 {status} Some reason\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\
         Connection: close\r\n\r\n{body}"
    );
    None
}
