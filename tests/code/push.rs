//! The OTLP sender against destinations that accept, are busy, refuse, send garbage and disappear.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use bytes::Bytes;
use gpumeter::push::{
    Accepted, Destination, PointCounts, PushBatch, PushFailure, PushLimits, PushQueue, Tally, run, send,
};
use tokio::sync::watch;

/// A destination that sends these responses byte for byte, each on a connection of its own.
struct Receiver {
    address: SocketAddr,
    thread: JoinHandle<Vec<String>>,
}

impl Receiver {
    fn answering<const N: usize>(answers: [Vec<u8>; N]) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let thread = std::thread::spawn(move || {
            let answer_one = |answer: Vec<u8>| {
                let (mut stream, _) = listener.accept().unwrap();
                let request = read_request(&mut stream);
                // The sender may give up on a response that is too long.
                let _ = stream.write_all(&answer);
                request
            };
            answers.into_iter().map(answer_one).collect()
        });
        Self { address, thread }
    }

    fn destination(&self) -> Destination {
        destination(self.address)
    }

    /// The posted requests, once all responses are sent.
    fn requests(self) -> Vec<String> {
        self.thread.join().unwrap()
    }
}

fn destination(address: SocketAddr) -> Destination {
    let mut destination = Destination::parse(&format!("http://{address}")).unwrap();
    destination.limits.pause = Duration::from_millis(1);
    // Longer than anything takes on a busy machine.
    destination.limits.total = Duration::from_secs(3_600);
    destination
}

/// Reads a request whose body is "points".
fn read_request(stream: &mut impl Read) -> String {
    let mut request = Vec::new();
    let mut buffer = [0; 1024];
    while !request.ends_with(b"\r\n\r\npoints") {
        let count = stream.read(&mut buffer).unwrap();
        assert_ne!(count, 0, "the request ended early: {:?}", String::from_utf8_lossy(&request));
        request.extend_from_slice(&buffer[..count]);
    }
    String::from_utf8(request).unwrap()
}

fn answer(status: &str, headers: &str, body: &[u8]) -> Vec<u8> {
    let head = format!("HTTP/1.1 {status}\r\n{headers}content-length: {}\r\n\r\n", body.len());
    [head.as_bytes(), body].concat()
}

fn success() -> Vec<u8> {
    answer("200 OK", "content-type: application/x-protobuf\r\n", b"")
}

/// 3 points rejected, "old".
const PARTIAL: &[u8] = b"\x0a\x07\x08\x03\x12\x03old";

fn block_on<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(future)
}

fn push(destination: &Destination) -> Result<Accepted, PushFailure> {
    block_on(send(destination, Bytes::from_static(b"points")))
}

/// Runs the sender until all of these points are sent or dropped.
fn run_with(destination: Destination, batches: &[u64]) -> Arc<Tally> {
    let tally = Arc::clone(destination.tally());
    let queue = Arc::new(PushQueue::new(4, Arc::clone(&tally)));
    let (shutdown, stop) = watch::channel(false);
    for &points in batches {
        queue.put(PushBatch { body: Bytes::from_static(b"points"), points });
    }
    let total: u64 = batches.iter().sum();
    let settled = async {
        while counts(&tally).iter().sum::<u64>() < total {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        shutdown.send_replace(true);
    };
    block_on(async { tokio::join!(run(queue, destination, stop), settled) });
    tally
}

fn counts(tally: &Tally) -> [u64; 3] {
    let PointCounts { sent, rejected, dropped } = tally.counts();
    [sent, rejected, dropped]
}

#[test]
fn a_batch_is_posted_as_otlp_specifies() {
    let receiver = Receiver::answering([success()]);
    assert_eq!(push(&receiver.destination()), Ok(Accepted::default()));
    let address = receiver.address;
    let request = receiver.requests().remove(0);
    assert!(request.starts_with("POST /v1/metrics HTTP/1.1\r\n"), "{request}");
    assert!(request.contains("content-type: application/x-protobuf\r\n"), "{request}");
    assert!(request.contains(&format!("host: {address}\r\n")), "{request}");
}

#[test]
fn a_busy_destination_is_retried() {
    let receiver = Receiver::answering([answer("503 Busy", "retry-after: 0\r\n", b""), success()]);
    assert_eq!(push(&receiver.destination()), Ok(Accepted::default()));
    assert_eq!(receiver.requests().len(), 2);
}

#[test]
fn a_broken_connection_is_reopened() {
    let receiver = Receiver::answering([Vec::new(), success()]);
    assert_eq!(push(&receiver.destination()), Ok(Accepted::default()));
}

#[test]
fn a_destination_that_stays_busy_is_given_up_after_the_last_retry() {
    let busy = || answer("429 Too Many Requests", "", b"\x12\x04slow");
    let receiver = Receiver::answering([busy(), busy(), busy()]);
    let failure = push(&receiver.destination()).unwrap_err();
    assert_eq!(failure, PushFailure::Busy { status: 429, message: "slow".to_owned(), retry_after: None });
    assert_eq!(receiver.requests().len(), 3);
}

#[test]
fn a_destination_may_ask_for_a_longer_pause() {
    let receiver = Receiver::answering([answer("429 Busy", "retry-after: 86400\r\n", b""), success()]);
    let mut destination = receiver.destination();
    destination.limits.longest_pause = Duration::from_millis(150);
    let begun = Instant::now();
    push(&destination).unwrap();
    assert!(begun.elapsed() >= Duration::from_millis(150));
}

#[test]
fn rejected_points_are_counted_separately_from_sent_ones() {
    let receiver = Receiver::answering([answer("200 OK", "", PARTIAL), answer("200 OK", "", PARTIAL)]);
    let rejected = Accepted { rejected: 3, message: "old".to_owned() };
    assert_eq!(push(&receiver.destination()), Ok(rejected));
    let tally = run_with(receiver.destination(), &[10]);
    assert_eq!(counts(&tally), [7, 3, 0]);
}

#[test]
fn a_count_of_rejected_points_above_those_sent_is_ignored() {
    let receiver = Receiver::answering([answer("200 OK", "", PARTIAL)]);
    assert_eq!(counts(&run_with(receiver.destination(), &[2])), [0, 2, 0]);
}

#[test]
fn a_batch_that_is_refused_is_not_sent_again() {
    let receiver = Receiver::answering([answer("400 Bad Request", "", b"what?"), success()]);
    let tally = run_with(receiver.destination(), &[5, 7]);
    assert_eq!(counts(&tally), [7, 5, 0]);
    assert_eq!(receiver.requests().len(), 2);
}

#[test]
fn an_error_of_the_destination_says_what_to_do() {
    let failure = |status: u16| PushFailure::Refused { status, message: "no".to_owned() }.to_string();
    assert!(failure(404).contains("(404 no); nothing accepts OTLP at this path"), "{}", failure(404));
    assert!(failure(401).contains("credentials"), "{}", failure(401));
    let unknown = Destination::parse("http://host.invalid:4318").unwrap();
    let failure = push(&unknown).unwrap_err();
    assert!(matches!(failure, PushFailure::Unresolved(_)), "{failure}");
}

#[test]
fn without_a_destination_points_are_dropped_and_counted() {
    // Nobody else uses this host, so that nobody takes the port.
    let address = TcpListener::bind("127.0.0.2:0").unwrap().local_addr().unwrap();
    let failure = push(&destination(address)).unwrap_err();
    assert!(matches!(&failure, PushFailure::Unreachable(reason) if reason.contains("refused")), "{failure}");
    assert_eq!(counts(&run_with(destination(address), &[5, 7])), [0, 0, 12]);
}

#[test]
fn garbage_is_not_a_valid_response() {
    let endless = [b"HTTP/1.1 200 OK\r\n\r\n".to_vec(), vec![b'x'; 3 << 20]].concat();
    let receiver = Receiver::answering([
        b"220 mail.example ESMTP\r\n".to_vec(),
        answer("200 OK", "content-type: text/html\r\n", b"<!doctype html>"),
        endless,
        success(),
    ]);
    let mut destination = receiver.destination();
    destination.limits.tries = 1;
    let tally = run_with(destination, &[1, 20, 300, 4000]);
    assert_eq!(counts(&tally), [4000, 0, 321]);
}

#[test]
fn a_destination_that_never_answers_is_given_up() {
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut destination = destination(silent.local_addr().unwrap());
    let total = Duration::from_millis(50);
    destination.limits = PushLimits { total, ..destination.limits };
    assert_eq!(push(&destination), Err(PushFailure::TimedOut(total)));
}

#[test]
fn stopping_waits_a_moment_and_drops_what_is_left() {
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let destination = destination(silent.local_addr().unwrap());
    let tally = Arc::clone(destination.tally());
    let queue = Arc::new(PushQueue::new(2, Arc::clone(&tally)));
    let (shutdown, stop) = watch::channel(false);
    queue.put(PushBatch { body: Bytes::new(), points: 5 });
    queue.put(PushBatch { body: Bytes::new(), points: 7 });
    // Its own limit is an hour, so that only the stop can end the sending.
    shutdown.send_replace(true);
    block_on(run(queue, destination, stop));
    assert_eq!(counts(&tally), [0, 0, 12]);
}
