//! The OTLP push: requests against receivers that accept, are busy, refuse, send garbage and disappear; and the spool with
//! receivers of that kind in virtual time.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use flate2::read::GzDecoder;
use gpumeter::config::{OtlpCompression, OtlpDestination};
use gpumeter::model::{Nanoseconds, Utc};
use gpumeter::output::push::{
    Accepted, Delivery, DeliveryStep, Destination, MOST_REQUEST, PointCounts, Push, PushBatch, PushFailure,
    PushQueue, Signal, Spool, SpoolLimits, compress, run, send,
};
use opentelemetry::trace::SpanContext;
use opentelemetry_proto::tonic::collector::metrics::v1::ExportMetricsServiceRequest;
use opentelemetry_proto::tonic::metrics::v1::metric;
use prost::Message;
use rustix::net::{AddressFamily, SocketFlags, SocketType};
use tokio::sync::watch;

/// A destination that sends these responses byte for byte, each on a connection of its own.
struct Receiver {
    address: SocketAddr,
    thread: JoinHandle<Vec<(String, Vec<u8>)>>,
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
        Destination::new(&settings(self.address), Signal::Metrics)
    }

    /// The head and body of each request, once all responses are sent.
    fn requests(self) -> Vec<(String, Vec<u8>)> {
        self.thread.join().unwrap()
    }
}

fn settings(address: SocketAddr) -> OtlpDestination {
    let endpoint = format!("http://{address}").parse().unwrap();
    // Longer than anything takes on a busy machine.
    OtlpDestination { timeout: Nanoseconds::from_seconds(3_600), ..OtlpDestination::at(endpoint) }
}

/// A socket with an address, which refuses connections until it listens.
fn bound(host: [u8; 4]) -> TcpListener {
    let (family, kind) = (AddressFamily::INET, SocketType::STREAM);
    let socket = rustix::net::socket_with(family, kind, SocketFlags::CLOEXEC, None).unwrap();
    rustix::net::bind(&socket, &SocketAddr::from((host, 0))).unwrap();
    TcpListener::from(socket)
}

/// Reads a request with a body.
fn read_request(stream: &mut impl Read) -> (String, Vec<u8>) {
    let mut request = Vec::new();
    let mut buffer = [0; 4096];
    loop {
        let count = stream.read(&mut buffer).unwrap();
        assert_ne!(count, 0, "the request ended early: {:?}", String::from_utf8_lossy(&request));
        request.extend_from_slice(&buffer[..count]);
        let Some(end) = request.windows(4).position(|four| four == b"\r\n\r\n") else { continue };
        let head = String::from_utf8(request[..end + 4].to_vec()).unwrap();
        let length = head.split("content-length: ").nth(1).unwrap().split('\r').next().unwrap();
        if request.len() == end + 4 + length.parse::<usize>().unwrap() {
            return (head, request.split_off(end + 4));
        }
    }
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
    block_on(send(destination, compress(b"points")))
}

fn decompressed(body: &[u8]) -> Vec<u8> {
    let mut text = Vec::new();
    GzDecoder::new(body).read_to_end(&mut text).unwrap();
    text
}

#[test]
fn a_request_is_posted_as_otlp_specifies_with_headers_and_gzip() {
    let receiver = Receiver::answering([success()]);
    let mut settings = settings(receiver.address);
    let token = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(token.path(), "Bearer hunter2\n").unwrap();
    let file = gpumeter::config::Credential::File(token.path().to_owned());
    settings.header_files = BTreeMap::from([("authorization".to_owned(), file)]);
    assert_eq!(push(&Destination::new(&settings, Signal::Metrics)), Ok(Accepted::default()));
    let address = receiver.address;
    let (head, body) = receiver.requests().remove(0);
    assert!(head.starts_with("POST /v1/metrics HTTP/1.1\r\n"), "{head}");
    for line in [
        "content-type: application/x-protobuf",
        "content-encoding: gzip",
        "authorization: Bearer hunter2",
        &format!("host: {address}"),
    ] {
        assert!(head.contains(&format!("{line}\r\n")), "{head}");
    }
    assert_eq!(decompressed(&body), b"points");
}

#[test]
fn a_request_may_go_without_compression_and_events_have_a_path_of_their_own() {
    let receiver = Receiver::answering([answer("200 OK", "", PARTIAL)]);
    let settings = OtlpDestination { compression: OtlpCompression::None, ..settings(receiver.address) };
    let rejected = Accepted { rejected: 3, message: "old".to_owned() };
    assert_eq!(push(&Destination::new(&settings, Signal::Logs)), Ok(rejected));
    let (head, body) = receiver.requests().remove(0);
    assert!(head.starts_with("POST /v1/logs HTTP/1.1\r\n") && !head.contains("content-encoding"), "{head}");
    assert_eq!(body, b"points");
}

#[test]
fn the_variable_of_metrics_is_their_whole_address_and_that_of_all_signals_is_added_to() {
    let plan = |variable: &str, address: &str| {
        let get = |name: &str| (name == variable).then(|| address.to_owned());
        gpumeter::config::Config::default().otlp_plan(get).unwrap()
    };
    let name = |variable, address| {
        Destination::new(&plan(variable, address).destinations[0], Signal::Metrics).name().to_string()
    };
    let (all, metrics) = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT");
    assert_eq!(name(all, "http://c:4318/in/"), "http://c:4318/in/v1/metrics");
    for address in ["http://c:4318/in/", "http://c:4318/in", "http://c:4318/v1/metrics"] {
        assert_eq!(name(metrics, address), address);
    }
    assert_eq!(name(metrics, "http://c:4318"), "http://c:4318/");
    let origins = plan(metrics, "http://c:4318/in").origins.join("\n");
    assert!(
        origins.contains("http://c:4318/in by OTEL_EXPORTER_OTLP_METRICS_ENDPOINT (used as it is"),
        "{origins}"
    );
    let receiver = Receiver::answering([success()]);
    let whole = plan(metrics, &format!("http://{}/in", receiver.address));
    assert!(push(&Destination::new(&whole.destinations[0], Signal::Metrics)).is_ok());
    assert!(receiver.requests()[0].0.starts_with("POST /in HTTP/1.1\r\n"));
}

#[test]
fn zstd_is_for_receivers_that_take_it_and_whoever_does_not_is_told_what_to_do() {
    let zstd = |answer: Vec<u8>| {
        let receiver = Receiver::answering([answer]);
        let settings = OtlpDestination { compression: OtlpCompression::Zstd, ..settings(receiver.address) };
        let outcome = push(&Destination::new(&settings, Signal::Metrics));
        (outcome, receiver.requests().remove(0))
    };
    let (outcome, (head, body)) = zstd(success());
    assert_eq!(outcome, Ok(Accepted::default()));
    assert!(head.contains("content-encoding: zstd\r\n"), "{head}");
    assert_eq!(zstd::decode_all(&*body).unwrap(), b"points");
    let prometheus =
        answer("400 Bad", "", b"unsupported compression: zstd. Only \"gzip\" or no compression supported");
    for refusal in [prometheus, answer("415 Unsupported Media Type", "", b"")] {
        let failure = zstd(refusal).0.unwrap_err();
        assert!(matches!(failure, PushFailure::Refused { .. }), "{failure:?}");
        assert!(failure.to_string().contains("set its compression to gzip"), "{failure}");
    }
}

#[test]
fn each_status_has_its_consequence_and_says_what_to_do() {
    let outcome = |status: &str, headers: &str, body: &[u8]| {
        let receiver = Receiver::answering([answer(status, headers, body)]);
        push(&receiver.destination()).unwrap_err()
    };
    let busy = outcome("429 Too Many Requests", "retry-after: 7\r\n", b"\x12\x04slow");
    let (status, message) = ("429".to_owned(), "slow".to_owned());
    assert_eq!(busy, PushFailure::Busy { status, message, retry_after: Some(Duration::from_secs(7)) });
    assert!(matches!(outcome("503 Busy", "", b""), PushFailure::Busy { retry_after: None, .. }));
    assert!(matches!(outcome("500 Oops", "", b""), PushFailure::Broken { .. }));
    assert!(
        outcome("413 Large", "", b"").to_string().contains("refused the request (413 ); raise its limit")
    );
    // What it says about its reason changes nothing.
    let refused = outcome("400 Bad", "", b"request larger than max");
    assert!(matches!(refused, PushFailure::Refused { .. }), "{refused:?}");
    for status in ["302 Found", "403 No", "405 No", "407 No"] {
        let closed = outcome(status, "", b"");
        assert!(matches!(closed, PushFailure::Closed { .. }), "{closed:?}");
    }
    assert!(matches!(outcome("422 No", "", b""), PushFailure::Refused { .. }));
    let closed = outcome("404 No", "", b"").to_string();
    assert!(closed.contains("(404 ); nothing accepts OTLP at this path; correct its endpoint"), "{closed}");
    assert!(outcome("401 No", "", b"").to_string().contains("credentials"));
    assert_eq!(outcome("200 OK", "content-type: text/html\r\n", b"<!doctype html>"), PushFailure::NotOtlp);
}

#[test]
fn files_that_cannot_be_used_are_named_with_a_remedy() {
    let endpoint = "https://localhost:1".parse().unwrap();
    let mut settings = OtlpDestination::at(endpoint);
    settings.ca_file = Some("/nonexistent/ca.crt".into());
    let failure = push(&Destination::new(&settings, Signal::Metrics)).unwrap_err().to_string();
    assert!(failure.starts_with("ca_file /nonexistent/ca.crt: cannot be read"), "{failure}");
    assert_eq!(gpumeter::output::push::check_files(&settings), Err(failure));
    let empty = tempfile::NamedTempFile::new().unwrap();
    settings.ca_file = Some(empty.path().to_owned());
    assert!(gpumeter::output::push::check_files(&settings).unwrap_err().contains("give one as PEM"));
}

#[test]
fn without_a_destination_or_an_answer_a_request_fails() {
    // A lookup at a silent name server lasts longer than the usual timeout.
    let timeout = Nanoseconds::from_seconds(3_600);
    let unknown =
        OtlpDestination { timeout, ..OtlpDestination::at("http://host.invalid:4318".parse().unwrap()) };
    let failure = push(&Destination::new(&unknown, Signal::Metrics)).unwrap_err();
    assert!(matches!(failure, PushFailure::Unresolved(_)), "{failure}");
    let down = bound([127, 0, 0, 2]);
    let address = down.local_addr().unwrap();
    let failure = push(&Destination::new(&settings(address), Signal::Metrics)).unwrap_err();
    assert!(matches!(&failure, PushFailure::Unreachable(reason) if reason.contains("refused")), "{failure}");
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let timeout = Nanoseconds(50_000_000);
    let settings = OtlpDestination { timeout, ..settings(silent.local_addr().unwrap()) };
    let failure = push(&Destination::new(&settings, Signal::Metrics)).unwrap_err();
    assert_eq!(failure, PushFailure::TimedOut(Duration::from_millis(50)));
    let garbage = Receiver::answering([b"220 mail.example ESMTP\r\n".to_vec()]);
    assert_eq!(push(&garbage.destination()), Err(PushFailure::NotOtlp));
    let endless = [b"HTTP/1.1 200 OK\r\n\r\n".to_vec(), vec![b'x'; 3 << 20]].concat();
    assert_eq!(push(&Receiver::answering([endless]).destination()), Err(PushFailure::NotOtlp));
}

const LIMITS: SpoolLimits = SpoolLimits { bytes: 64 << 20, age: Nanoseconds::from_seconds(86_400) };
/// Time between two pushes.
const INTERVAL: Nanoseconds = Nanoseconds::from_seconds(15);

fn batch(at: Utc, body: &[u8]) -> PushBatch {
    PushBatch { signal: Signal::Metrics, at, body: body.to_vec(), points: POINTS, cause: SpanContext::NONE }
}

#[test]
fn the_thread_spools_and_sends_and_what_is_not_sent_waits_for_the_next_start() {
    let directory = tempfile::tempdir().unwrap();
    let start = |address: SocketAddr| {
        let destinations = [Destination::new(&settings(address), Signal::Metrics)];
        let spool = Spool::open(directory.path(), LIMITS, &destinations).unwrap();
        let delivery = Delivery::new(destinations[0].clone(), 0, Nanoseconds(1));
        let queue = Arc::new(PushQueue::default());
        let push = Push { queue: Arc::clone(&queue), spool, deliveries: vec![delivery] };
        (queue, push, destinations)
    };
    let put = |queue: &PushQueue, second: u64| {
        let at = Utc(second * 1_000_000_000);
        queue.put(PushBatch { points: 1, ..batch(at, second.to_string().as_bytes()) });
    };
    // A receiver that answers one of three requests; the name of a destination is its address, so that is the same.
    let listener = bound([127, 0, 0, 3]);
    let address = listener.local_addr().unwrap();
    let (queue, push, destinations) = start(address);
    (1..=3).for_each(|second| put(&queue, second));
    queue.close();
    block_on(run(push, watch::channel(0).1));
    assert_eq!(destinations[0].tally().counts(), PointCounts::default());
    rustix::net::listen(&listener, 8).unwrap();
    let received = std::thread::spawn(move || {
        let receive = |_| {
            let (mut stream, _) = listener.accept().unwrap();
            let (_, body) = read_request(&mut stream);
            stream.write_all(&success()).unwrap();
            String::from_utf8(decompressed(&body)).unwrap()
        };
        (0..4).map(receive).collect::<Vec<_>>()
    });
    let (queue, push, destinations) = start(address);
    put(&queue, 4);
    let sent = async {
        while destinations[0].tally().counts().sent < 4 {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        queue.close();
    };
    block_on(async { tokio::join!(run(push, watch::channel(0).1), sent) });
    assert_eq!(received.join().unwrap(), ["1", "2", "3", "4"]);
}

/// A receiver in virtual time: what it answers at each second to a request with that number.
type Answer<'a> = &'a dyn Fn(u64, u64) -> Result<Accepted, PushFailure>;

/// What a receiver got: the number of each request that it accepted, with the second.
struct Outcome {
    accepted: Vec<(u64, u64)>,
    counts: PointCounts,
}

impl Outcome {
    fn numbers(&self) -> Vec<u64> {
        self.accepted.iter().map(|(number, _)| *number).collect()
    }
}

/// Pushes a request with the points of `POINTS` every `INTERVAL` for so many seconds, then waits until nothing waits.
fn simulate(spool: &mut Spool, delivery: &mut Delivery, seconds: u64, answer: Answer<'_>) -> Outcome {
    let mut accepted = Vec::new();
    let (mut now, mut pushed) = (Nanoseconds(0), Nanoseconds(0));
    let end = Nanoseconds::from_seconds(seconds);
    loop {
        while pushed <= now && pushed < end {
            spool.append(&batch(Utc(pushed.0), &(pushed.0 / INTERVAL.0).to_le_bytes()));
            pushed += INTERVAL;
        }
        match delivery.next(spool, now) {
            DeliveryStep::Send(body) => {
                let number = u64::from_le_bytes(decompressed(&body).try_into().unwrap());
                let outcome = answer(now.0 / 1_000_000_000, number);
                if outcome.is_ok() {
                    accepted.push((number, now.0 / 1_000_000_000));
                }
                now += Nanoseconds(5_000_000);
                delivery.settle(spool, &outcome, now, 0.5);
            }
            DeliveryStep::Wait(until) if pushed < end => now = until.min(pushed).max(now + Nanoseconds(1)),
            DeliveryStep::Wait(until) => now = until,
            DeliveryStep::Idle if pushed < end => now = pushed,
            DeliveryStep::Idle => break,
        }
        assert!(now < Nanoseconds::from_seconds(20 * 86_400), "it never ends");
    }
    Outcome { accepted, counts: delivery.destination().tally().counts() }
}

const POINTS: u64 = 100;

fn destination(live_first: bool) -> Destination {
    let endpoint = "http://localhost:4318".parse().unwrap();
    Destination::new(&OtlpDestination { live_first, ..OtlpDestination::at(endpoint) }, Signal::Metrics)
}

fn run_in_memory(live_first: bool, seconds: u64, answer: Answer<'_>) -> Outcome {
    let destination = destination(live_first);
    let directory = tempfile::tempdir().unwrap();
    let mut spool = Spool::open(directory.path(), LIMITS, std::slice::from_ref(&destination)).unwrap();
    let mut delivery = Delivery::new(destination, 0, INTERVAL);
    simulate(&mut spool, &mut delivery, seconds, answer)
}

fn away() -> Result<Accepted, PushFailure> {
    Err(PushFailure::Unreachable("refused".to_owned()))
}

fn is_away(second: u64) -> bool {
    (600..4_200).contains(&second)
}

#[test]
fn an_hour_without_a_receiver_loses_nothing_and_is_caught_up_in_order_at_ten_times_the_pace() {
    let outcome =
        run_in_memory(false, 7_200, &|now, _| if is_away(now) { away() } else { Ok(Accepted::default()) });
    assert_eq!(outcome.numbers(), (0..480).collect::<Vec<_>>());
    assert_eq!(outcome.counts, PointCounts { sent: 48_000, rejected: 0, dropped: 0 });
    // 240 requests wait after the hour, and 15 s hold ten.
    let caught_up = outcome.accepted.iter().position(|(number, now)| *now > 4_200 && number * 15 + 15 > *now);
    let caught_up = outcome.accepted[caught_up.unwrap()].1;
    assert!((4_200 + 240 * 3 / 2..4_200 + 240 * 2).contains(&caught_up), "{caught_up}");
    let most = |window: u64| {
        let at = |second| {
            outcome.accepted.iter().filter(|(_, now)| (second..second + window).contains(now)).count()
        };
        (0..7_200).map(at).max().unwrap()
    };
    assert!(most(15) <= 11, "{}", most(15));
}

#[test]
fn a_backlog_of_short_steps_does_not_wait_for_a_long_interval() {
    let destination = destination(false);
    let directory = tempfile::tempdir().unwrap();
    let mut spool = Spool::open(directory.path(), LIMITS, std::slice::from_ref(&destination)).unwrap();
    let mut delivery = Delivery::new(destination, 0, Nanoseconds::from_seconds(600));
    // Three made in steps of 5 s, and one after a gap of a day.
    for at in [5, 10, 15, 86_400] {
        spool.append(&batch(Utc(Nanoseconds::from_seconds(at).0), b"points"));
    }
    let (mut now, mut pauses) = (Nanoseconds::from_seconds(100_000), Vec::new());
    for _ in 0..3 {
        assert!(matches!(delivery.next(&mut spool, now), DeliveryStep::Send(_)));
        delivery.settle(&mut spool, &Ok(Accepted::default()), now, 0.0);
        let DeliveryStep::Wait(until) = delivery.next(&mut spool, now) else { panic!("no pause") };
        pauses.push((until.0 - now.0) / 1_000_000);
        now = until;
    }
    assert_eq!(pauses, [500, 500, 60_000], "milliseconds");
}

#[test]
fn live_first_sends_what_is_new_at_once_and_the_rest_after_it() {
    let outcome =
        run_in_memory(true, 7_200, &|now, _| if is_away(now) { away() } else { Ok(Accepted::default()) });
    let mut numbers = outcome.numbers();
    numbers.sort_unstable();
    numbers.dedup();
    assert_eq!(numbers, (0..480).collect::<Vec<_>>());
    assert_eq!(outcome.counts.dropped + outcome.counts.rejected, 0);
    // From a minute after the outage on, everything new is sent within a push.
    let late = outcome.accepted.iter().filter(|(number, now)| number * 15 > 4_260 && *now > number * 15 + 15);
    assert_eq!(late.count(), 0);
}

#[test]
fn every_answer_that_may_pass_is_waited_out_and_retry_after_is_kept() {
    let failures: [fn() -> PushFailure; 6] = [
        || PushFailure::Busy {
            status: "429".into(),
            message: String::new(),
            retry_after: Some(Duration::from_secs(45)),
        },
        || PushFailure::Busy { status: "Unavailable".into(), message: String::new(), retry_after: None },
        || PushFailure::TimedOut(Duration::from_secs(10)),
        || PushFailure::NotOtlp,
        || PushFailure::Closed { status: "401".into(), message: String::new() },
        || PushFailure::Setup("no certificate".into()),
    ];
    for failure in failures {
        let tries = std::cell::RefCell::new(Vec::new());
        let outcome = run_in_memory(false, 7_200, &|now, _| {
            if is_away(now) {
                tries.borrow_mut().push(now);
                Err(failure())
            } else {
                Ok(Accepted::default())
            }
        });
        assert_eq!(outcome.numbers(), (0..480).collect::<Vec<_>>(), "{}", failure());
        assert_eq!(outcome.counts.sent, 48_000, "{}", failure());
        let tries = tries.into_inner();
        assert!((40..600).contains(&tries.len()), "{} tries of {}", tries.len(), failure());
        if let PushFailure::Busy { retry_after: Some(asked), .. } = failure() {
            assert!(tries.windows(2).all(|two| two[1] - two[0] >= asked.as_secs()), "{tries:?}");
        }
    }
}

#[test]
fn what_is_refused_for_good_is_counted_and_not_sent_again() {
    let sent = std::cell::RefCell::new(Vec::new());
    let outcome = run_in_memory(false, 600, &|_, number| {
        sent.borrow_mut().push(number);
        match number % 4 {
            0 => Err(PushFailure::Refused { status: "400".into(), message: String::new() }),
            1 => Ok(Accepted { rejected: 7, message: "old".into() }),
            // More than it was sent.
            2 => Ok(Accepted { rejected: 1_000, message: "old".into() }),
            _ => Ok(Accepted::default()),
        }
    });
    assert_eq!(sent.into_inner(), (0..40).collect::<Vec<_>>());
    assert_eq!(outcome.counts, PointCounts { sent: 10 * 93 + 10 * 100, rejected: 10 * 207, dropped: 0 });
}

#[test]
fn a_request_that_always_fails_is_tried_for_ten_minutes_and_is_lost_alone() {
    let broken = || Err(PushFailure::Broken { status: "500".into(), message: String::new() });
    for live_first in [false, true] {
        let tried = std::cell::RefCell::new(Vec::new());
        let outcome = run_in_memory(live_first, 3_600, &|now, number| {
            if number == 7 {
                tried.borrow_mut().push(now);
                return broken();
            }
            Ok(Accepted::default())
        });
        let mut numbers = outcome.numbers();
        numbers.sort_unstable();
        assert_eq!(numbers, (0..240).filter(|number| *number != 7).collect::<Vec<_>>());
        assert_eq!(outcome.counts, PointCounts { sent: 239 * 100, rejected: 0, dropped: 100 });
        let tried = tried.into_inner();
        let lasted = tried.last().unwrap() - tried[0];
        assert!((600..700).contains(&lasted), "{lasted} s");
    }
    // A time without any connection is not one in which it fails at the destination.
    let outcome = run_in_memory(false, 7_200, &|now, _| match now {
        600..1_100 | 4_200..4_300 => broken(),
        1_100..4_200 => away(),
        _ => Ok(Accepted::default()),
    });
    assert_eq!(outcome.counts, PointCounts { sent: 48_000, rejected: 0, dropped: 0 });
}

#[test]
fn kills_with_a_backlog_lose_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let mut accepted = Vec::new();
    // Each round ends as by a kill: what was sent last may not have been removed.
    for round in 0..200_u64 {
        let destination = destination(false);
        let mut spool = Spool::open(directory.path(), LIMITS, std::slice::from_ref(&destination)).unwrap();
        let mut delivery = Delivery::new(destination, 0, INTERVAL);
        for number in [2 * round, 2 * round + 1] {
            spool.append(&batch(Utc(number), &number.to_le_bytes()));
        }
        let mut now = Nanoseconds(0);
        for _ in 0..=round % 4 {
            if let DeliveryStep::Send(body) = delivery.next(&mut spool, now) {
                accepted.push(u64::from_le_bytes(decompressed(&body).try_into().unwrap()));
                // Killed between the answer and its record.
                if accepted.len() % 7 == 0 {
                    break;
                }
                delivery.settle(&mut spool, &Ok(Accepted::default()), now, 0.0);
            }
            now += INTERVAL;
        }
    }
    let in_order = accepted.windows(2).all(|two| two[1] == two[0] + 1 || two[1] == two[0]);
    assert!(in_order, "{accepted:?}");
    assert_eq!(accepted.first(), Some(&0));
    assert!(accepted.len() > 300);
}

#[test]
fn a_node_with_many_series_is_sent_in_requests_of_about_a_mebibyte() {
    use gpumeter::model::catalogue::Level;
    use gpumeter::output::render::{OtlpEncoder, OtlpResource};
    let snapshot = crate::export::fixture::node(8, 3_000);
    let mut whole = Vec::new();
    let encoder = || OtlpEncoder::new(Level::Full, &OtlpResource::new("n", ""));
    let points = crate::export::fixture::encode(&mut encoder(), &snapshot, &mut whole);
    let mut encoder = encoder();
    let requests = encoder.encode_requests(&snapshot, MOST_REQUEST / 4);
    assert!(requests.len() > 2, "{}", whole.len());
    assert_eq!(requests.iter().map(|(_, points)| points).sum::<usize>(), points);
    let decode = |body: &[u8]| ExportMetricsServiceRequest::decode(body).unwrap();
    let count = |body: &[u8]| -> usize {
        let request = decode(body);
        let metrics = &request.resource_metrics[0].scope_metrics[0].metrics;
        metrics
            .iter()
            .map(|metric| match metric.data.as_ref().unwrap() {
                metric::Data::Gauge(data) => data.data_points.len(),
                metric::Data::Sum(data) => data.data_points.len(),
                metric::Data::Histogram(data) => data.data_points.len(),
                _ => 0,
            })
            .sum()
    };
    for (body, points) in &requests {
        // The part is complete with the point that fills it; names and the resource come on top.
        assert!(body.len() < MOST_REQUEST / 4 + 4_096, "{}", body.len());
        assert_eq!(
            (count(body), &decode(body).resource_metrics[0].resource),
            (*points, &decode(&whole).resource_metrics[0].resource)
        );
    }
}

/// Certificates of a CA, and of a server and a client by that CA, as PEM files.
struct Certificates {
    directory: tempfile::TempDir,
}

impl Certificates {
    fn new() -> Self {
        use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
        let directory = tempfile::tempdir().unwrap();
        let write = |name: &str, text: String| std::fs::write(directory.path().join(name), text).unwrap();
        let mut ca = CertificateParams::new(Vec::new()).unwrap();
        ca.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().unwrap();
        write("ca.crt", ca.self_signed(&key).unwrap().pem());
        let issuer = Issuer::new(ca, key);
        for name in ["localhost", "agent"] {
            let key = KeyPair::generate().unwrap();
            let params = CertificateParams::new(vec![name.to_owned()]).unwrap();
            write(&format!("{name}.crt"), params.signed_by(&key, &issuer).unwrap().pem());
            write(&format!("{name}.key"), key.serialize_pem());
        }
        Self { directory }
    }

    fn path(&self, name: &str) -> std::path::PathBuf {
        self.directory.path().join(name)
    }

    /// A server that requires a client certificate.
    fn acceptor(&self, protocol: &[u8]) -> tokio_rustls::TlsAcceptor {
        use tokio_rustls::rustls::pki_types::pem::PemObject;
        use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
        use tokio_rustls::rustls::server::WebPkiClientVerifier;
        use tokio_rustls::rustls::{RootCertStore, ServerConfig};
        let certificate = |name: &str| CertificateDer::from_pem_file(self.path(name)).unwrap();
        let mut roots = RootCertStore::empty();
        roots.add(certificate("ca.crt")).unwrap();
        let verifier = WebPkiClientVerifier::builder(Arc::new(roots)).build().unwrap();
        let key = PrivateKeyDer::from_pem_file(self.path("localhost.key")).unwrap();
        let config = ServerConfig::builder().with_client_cert_verifier(verifier);
        let mut config = config.with_single_cert(vec![certificate("localhost.crt")], key).unwrap();
        config.alpn_protocols = vec![protocol.to_vec()];
        Arc::new(config).into()
    }

    fn settings(&self, port: u16) -> OtlpDestination {
        let endpoint = format!("https://localhost:{port}").parse().unwrap();
        OtlpDestination {
            ca_file: Some(self.path("ca.crt")),
            cert_file: Some(self.path("agent.crt")),
            key_file: Some(self.path("agent.key")),
            timeout: Nanoseconds::from_seconds(3_600),
            ..OtlpDestination::at(endpoint)
        }
    }
}

/// Answers gRPC calls with this status by TLS; returns the path, a header and the body of each.
async fn serve_grpc(
    listener: tokio::net::TcpListener,
    acceptor: tokio_rustls::TlsAcceptor,
    status: &'static str,
    calls: tokio::sync::mpsc::UnboundedSender<(String, String, Vec<u8>)>,
) {
    use http_body_util::BodyExt;
    use hyper::body::Incoming;
    use hyper::{HeaderMap, Request, Response};
    loop {
        let (stream, _) = listener.accept().await.unwrap();
        let Ok(stream) = acceptor.accept(stream).await else { continue };
        let calls = calls.clone();
        let answer = hyper::service::service_fn(move |request: Request<Incoming>| {
            let calls = calls.clone();
            async move {
                let path = request.uri().path().to_owned();
                let header =
                    request.headers().get("authorization").map(|value| value.to_str().unwrap().to_owned());
                let body = request.into_body().collect().await.unwrap().to_bytes().to_vec();
                calls.send((path, header.unwrap_or_default(), body)).unwrap();
                let mut trailers = HeaderMap::new();
                trailers.insert("grpc-status", status.parse().unwrap());
                let message = http_body_util::Full::new(bytes::Bytes::from_static(&[0; 5]));
                let body = message.with_trailers(async move { Some(Ok(trailers)) });
                let response = Response::builder().header("content-type", "application/grpc").body(body);
                Ok::<_, std::convert::Infallible>(response.unwrap())
            }
        });
        let executor = hyper_util::rt::TokioExecutor::new();
        tokio::spawn(
            hyper::server::conn::http2::Builder::new(executor)
                .serve_connection(hyper_util::rt::TokioIo::new(stream), answer),
        );
    }
}

#[test]
fn grpc_goes_by_tls_with_a_client_certificate_and_a_token_and_its_statuses_have_consequences() {
    let certificates = Certificates::new();
    let token = certificates.path("token");
    std::fs::write(&token, "Bearer hunter2").unwrap();
    let calling_with = |status: &'static str, with_certificate: bool, compression: OtlpCompression| {
        block_on(async {
            let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
            let mut settings = certificates.settings(listener.local_addr().unwrap().port());
            settings.protocol = gpumeter::config::OtlpProtocol::Grpc;
            settings.compression = compression;
            if !with_certificate {
                (settings.cert_file, settings.key_file) = (None, None);
            }
            let file = gpumeter::config::Credential::File(token.clone());
            settings.header_files = BTreeMap::from([("authorization".to_owned(), file)]);
            let (calls, mut called) = tokio::sync::mpsc::unbounded_channel();
            let server = tokio::spawn(serve_grpc(listener, certificates.acceptor(b"h2"), status, calls));
            let outcome = send(&Destination::new(&settings, Signal::Metrics), compress(b"points")).await;
            server.abort();
            (outcome, called.try_recv().ok())
        })
    };
    let calling = |status, with_certificate| calling_with(status, with_certificate, OtlpCompression::Gzip);
    let (outcome, called) = calling("0", true);
    assert_eq!(outcome, Ok(Accepted::default()));
    let (path, header, body) = called.unwrap();
    assert_eq!(path, "/opentelemetry.proto.collector.metrics.v1.MetricsService/Export");
    assert_eq!(header, "Bearer hunter2");
    assert_eq!((body[0], decompressed(&body[5..])), (1, b"points".to_vec()));
    let (outcome, called) = calling_with("0", true, OtlpCompression::Zstd);
    assert_eq!(outcome, Ok(Accepted::default()));
    let body = called.unwrap().2;
    assert_eq!((body[0], zstd::decode_all(&body[5..]).unwrap()), (1, b"points".to_vec()));
    // RESOURCE_EXHAUSTED without a delay is a request that is too large, by the specification.
    assert!(matches!(calling("8", true).0, Err(PushFailure::Refused { .. })));
    assert!(matches!(calling("14", true).0, Err(PushFailure::Busy { .. })));
    assert!(matches!(calling("15", true).0, Err(PushFailure::Busy { .. })));
    assert!(matches!(calling("16", true).0, Err(PushFailure::Closed { .. })));
    assert!(matches!(calling("3", true).0, Err(PushFailure::Refused { .. })));
    assert!(matches!(calling("13", true).0, Err(PushFailure::Broken { .. })));
    let (outcome, called) = calling("0", false);
    assert!(outcome.is_err() && called.is_none(), "{outcome:?}");
}

#[test]
fn http_goes_by_tls_with_a_client_certificate_and_an_unknown_ca_is_told() {
    let certificates = Certificates::new();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let settings = certificates.settings(listener.local_addr().unwrap().port());
    listener.set_nonblocking(true).unwrap();
    let exchange = |settings: OtlpDestination| {
        let listener = listener.try_clone().unwrap();
        let acceptor = certificates.acceptor(b"http/1.1");
        block_on(async move {
            use tokio::io::{AsyncReadExt, AsyncWriteExt};
            let listener = tokio::net::TcpListener::from_std(listener).unwrap();
            let server = async move {
                let (stream, _) = listener.accept().await.unwrap();
                let Ok(mut stream) = acceptor.accept(stream).await else { return };
                let mut request = vec![0; 65_536];
                let _ = stream.read(&mut request).await;
                let _ = stream.write_all(&success()).await;
                let _ = stream.shutdown().await;
            };
            let destination = Destination::new(&settings, Signal::Metrics);
            tokio::join!(send(&destination, compress(b"points")), server).0
        })
    };
    assert_eq!(exchange(settings.clone()), Ok(Accepted::default()));
    let unknown = OtlpDestination { ca_file: None, ..settings };
    let failure = exchange(unknown).unwrap_err();
    assert!(matches!(failure, PushFailure::Tls(_)), "{failure:?}");
}
