//! The HTTP server over real sockets on loopback: its answers, and its treatment of misbehaving clients.

pub(crate) mod certificates;
mod tls;

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{JoinHandle, sleep};
use std::time::Duration;

use gpumeter::model::catalogue::Level;
use gpumeter::model::snapshot::{AgentEntry, AgentNumber, HourlyUse, Roster, Snapshot};
use gpumeter::model::{HowHeld, Nanoseconds, Stamp, Utc, VisibleAccount};
use gpumeter::output::render::{PageCache, PageFormat, PublishedSnapshot};
use gpumeter::output::serve::{
    Access, AgentSite, AgentStatus, BillJob, BillQueue, BillRefusal, LedgerQuestion, LivePage, MetricNames,
    OwnerRequest, Passwords, Security, Served, ServerLimits, Site, bind, run,
};
use hyper::body::Bytes;
use jiff::tz::TimeZone;
use tokio::sync::{mpsc, watch};

use crate::running::{PATIENCE, wait_until};

const TEXT: &str = "text/plain; version=0.0.4; charset=utf-8";
const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// A server on its own thread, and the channels that the rest of the agent would hold.
struct Agent {
    address: SocketAddr,
    status: Arc<AgentStatus>,
    clock: Arc<AtomicU64>,
    bills: mpsc::Receiver<BillJob>,
    /// While this is locked, no owner of a connection is found.
    owners: Arc<Mutex<()>>,
    shutdown: watch::Sender<bool>,
    thread: Option<JoinHandle<()>>,
}

/// The queue of a thread for which every connection is root's.
fn find_owners(gate: Arc<Mutex<()>>) -> mpsc::Sender<OwnerRequest> {
    let (sender, mut requests) = mpsc::channel::<OwnerRequest>(OWNERS_WAITING);
    std::thread::spawn(move || {
        while let Some(request) = requests.blocking_recv() {
            let _gate = gate.lock().unwrap();
            let _ = request.reply.send(Some(0));
        }
    });
    sender
}

/// The most requests that wait for that thread.
const OWNERS_WAITING: usize = 16;

impl Agent {
    fn start(limits: ServerLimits) -> Self {
        Self::with_page(limits, 10)
    }

    /// A server with a page of at least that many bytes.
    fn with_page(limits: ServerLimits, bytes: usize) -> Self {
        let agent = Self::without_page(limits, Security::default());
        agent.publish(bytes);
        agent
    }

    fn protected(limits: ServerLimits, security: Security) -> Self {
        let agent = Self::without_page(limits, security);
        agent.publish(10);
        agent
    }

    fn without_page(limits: ServerLimits, security: Security) -> Self {
        Self::without_snapshot(limits, security, LivePage::new(None))
    }

    fn without_snapshot(limits: ServerLimits, security: Security, page: LivePage) -> Self {
        let listeners = bind(&["127.0.0.1:0".parse().unwrap()], MetricNames::Native).unwrap().listeners;
        let address = listeners[0].socket_address().unwrap();
        let clock = Arc::new(AtomicU64::new(0));
        let (questions, bills) = mpsc::channel(1);
        let owners = Arc::<Mutex<()>>::default();
        let (shutdown, stop) = watch::channel(false);
        let now = Arc::clone(&clock);
        let status = Arc::new(AgentStatus::new(move || clock_at(now.load(Ordering::Relaxed))));
        let site = Site {
            served: Served::Agent(AgentSite { status: Arc::clone(&status), release: Box::new(|| None) }),
            page,
            owners: find_owners(Arc::clone(&owners)),
            local_reader: Box::new(|_| Some(VisibleAccount::Everything)),
            bills: BillQueue::new(questions),
            zone: TimeZone::UTC,
            access: Arc::new(Access::new(security, passwords())),
            limits,
        };
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(run(listeners, mpsc::channel(1).1, site, stop)).unwrap();
        });
        Self { address, status, clock, bills, owners, shutdown, thread: Some(thread) }
    }

    /// Publishes a snapshot whose page has at least that many bytes.
    fn publish(&self, bytes: usize) {
        let labels = vec![("version", "#".repeat(bytes).into())];
        let entry = AgentEntry { family: "gpumeter_build_info", labels };
        let snapshot = Snapshot {
            sequence: 1,
            at: Stamp { boottime: Nanoseconds(1), utc: Utc(1) },
            roster: Arc::new(Roster { agent: [entry].into(), ..Roster::default() }),
            started: Utc(1),
            ledger_started: None,
            gpus: Vec::new(),
            how_held: HowHeld::Grants,
            last_hour: HourlyUse::default(),
            conflicts: Vec::new(),
            sxids: Vec::new(),
            processes_listed: true,
            processes: Vec::new(),
            accounts: Arc::default(),
            workload_accounts: Arc::default(),
            unattributed: Arc::default(),
            holdings: Vec::new(),
            month_costs: Arc::default(),
            agent: vec![AgentNumber::Integer(1)],
        };
        let press = Arc::new(PageCache::new(Level::Lean, false, Arc::default()));
        self.status.pages.publish(Arc::new(PublishedSnapshot::new(Arc::new(snapshot), press)));
        // Rendering a large page takes a while.
        self.page();
    }

    fn page(&self) -> Bytes {
        self.status.pages.get().unwrap().page(PageFormat::Text)
    }

    /// The text of the page of metrics.
    fn page_text(&self) -> String {
        String::from_utf8(self.page().to_vec()).unwrap()
    }

    fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream
    }

    /// A connection that has had one answer. On a busy machine a limit may pass before its request is written; then there
    /// is another connection.
    fn answered_connection(&self) -> TcpStream {
        for _ in 0..1_000 {
            let mut stream = self.connect();
            let request = stream.write_all(b"GET /-/ready HTTP/1.1\r\nHost: a\r\n\r\n");
            if request.is_ok() && stream.read(&mut [0; 4096]).is_ok_and(|count| count > 0) {
                return stream;
            }
        }
        panic!("no connection was answered before its limit");
    }

    /// Sends a request on a connection of its own and returns the whole answer.
    fn send(&self, request: &str) -> String {
        let mut stream = self.connect();
        stream.write_all(request.as_bytes()).unwrap();
        rest(&mut stream)
    }

    fn get(&self, path: &str) -> String {
        self.send(&format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"))
    }

    fn count(&self, code: u16) -> u64 {
        self.status.server.requests.by_code().find(|(known, _)| *known == code).unwrap().1
    }

    fn stop(&mut self) {
        self.shutdown.send_replace(true);
        self.thread.take().unwrap().join().unwrap();
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        if self.thread.is_some() {
            self.stop();
        }
    }
}

/// Passwords, verified as in the agent.
fn passwords() -> Passwords {
    let (sender, mut questions) = mpsc::channel::<gpumeter::output::serve::VerifyRequest>(16);
    std::thread::spawn(move || {
        while let Some(question) = questions.blocking_recv() {
            let is_right = bcrypt::verify(question.password, &question.hash).unwrap();
            let _ = question.reply.send(is_right);
        }
    });
    Passwords::new(sender)
}

/// A timestamp whose clock panics when it is read.
const PANIC_AT: u64 = u64::MAX;

fn clock_at(moment: u64) -> Nanoseconds {
    assert_ne!(moment, PANIC_AT, "reading the clock panics, as the test wants");
    Nanoseconds(moment)
}

/// Everything that a peer sends until it closes or resets the connection.
fn rest(stream: &mut TcpStream) -> String {
    let mut bytes = Vec::new();
    if let Err(error) = stream.read_to_end(&mut bytes) {
        assert_ne!(error.kind(), ErrorKind::WouldBlock, "the connection stays open");
    }
    // A compressed body is not text.
    String::from_utf8_lossy(&bytes).into_owned()
}

/// One answer with a short body on a connection that stays open.
fn one(stream: &mut TcpStream) -> String {
    let mut buffer = [0; 4096];
    let count = stream.read(&mut buffer).unwrap();
    String::from_utf8(buffer[..count].to_vec()).unwrap()
}

fn status(answer: &str) -> u16 {
    answer.get(9..12).and_then(|code| code.parse().ok()).unwrap_or_else(|| panic!("no status in {answer:?}"))
}

fn body(answer: &str) -> &str {
    answer.split_once("\r\n\r\n").unwrap().1
}

/// Waits until another thread has made it true.
fn eventually(what: impl FnMut() -> bool) {
    wait_until("the condition", what);
}

/// Limits that pass in no test, however busy the machine is: a test sets the one that it is about. A stop is as usual.
fn patient() -> ServerLimits {
    const HOUR: Duration = Duration::from_secs(3_600);
    ServerLimits { head: HOUR, idle: HOUR, response: HOUR, bill: HOUR, ..ServerLimits::default() }
}

#[test]
fn a_scraper_gets_the_format_that_it_prefers() {
    let agent = Agent::start(patient());
    let text = agent.get("/metrics");
    assert!(text.starts_with("HTTP/1.1 200 OK\r\n"), "{text}");
    assert!(text.contains(&format!("content-type: {TEXT}\r\n")), "{text}");
    assert_eq!(body(&text), agent.page_text());
    let open = agent.send(
        "GET /metrics HTTP/1.1\r\nHost: node7\r\nConnection: close\r\nAccept: application/openmetrics-text\r\n\r\n",
    );
    assert!(open.contains(&format!("content-type: {OPEN_METRICS}\r\n")), "{open}");
    assert_eq!(agent.count(200), 2);
}

#[test]
fn unknown_metric_names_are_refused_and_other_parameters_are_ignored() {
    let agent = Agent::start(patient());
    for query in ["", "?", "?profile=native", "?profile=dcgm", "?name[]=gpu_up", "?collect[]=gpu&x"] {
        assert_eq!(status(&agent.get(&format!("/metrics{query}"))), 200, "{query}");
    }
    let refused = agent.get("/metrics?profile=nvidia_smi");
    assert_eq!(status(&refused), 400);
    assert_eq!(body(&refused), "profile=nvidia_smi is not served; ask for profile=native or profile=dcgm\n");
}

#[test]
fn gzip_is_sent_to_clients_that_accept_it() {
    let agent = Agent::start(patient());
    let ask = |codings: &str| {
        agent.send(&format!(
            "GET /metrics HTTP/1.1\r\nHost: a\r\nAccept-Encoding: {codings}\r\nConnection: close\r\n\r\n"
        ))
    };
    for taken in ["gzip", "deflate, gzip;q=0.5", "GZIP"] {
        assert!(ask(taken).contains("content-encoding: gzip\r\n"), "{taken}");
    }
    for not in ["identity", "gzip;q=0", "zstd"] {
        assert!(!ask(not).contains("content-encoding"), "{not}");
    }
}

#[test]
fn a_head_request_gets_the_length_but_no_body() {
    let agent = Agent::start(patient());
    let answer = agent.send("HEAD /metrics HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
    assert!(answer.contains(&format!("content-length: {}\r\n", agent.page_text().len())), "{answer}");
    assert_eq!(body(&answer), "");
}

#[test]
fn unknown_paths_and_methods_get_an_explanation() {
    let agent = Agent::start(patient());
    let missing = agent.get("/metric");
    assert_eq!((status(&missing), body(&missing).ends_with('\n')), (404, true));
    assert!(body(&agent.get("/api/v1/bil")).starts_with(r#"{"error":"no such page;"#));
    let post =
        agent.send("POST /metrics HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\nConnection: close\r\n\r\nhi");
    assert_eq!(status(&post), 405);
    assert!(post.contains("allow: GET, HEAD\r\n"), "{post}");
    let large = agent.send("GET /metrics HTTP/1.1\r\nHost: a\r\nContent-Length: 99999999\r\n\r\n");
    assert_eq!(status(&large), 413);
    let name = "a".repeat(20_000);
    assert_eq!(status(&agent.send(&format!("GET / HTTP/1.1\r\nHost: a\r\nX: {name}\r\n\r\n"))), 431);
    assert_eq!(status(&agent.send("\u{1}\u{2}\u{3} / HTTP/1.1\r\n\r\n")), 400);
    eventually(|| agent.count(431) == 1 && agent.count(400) == 1);
}

#[test]
fn only_local_requests_with_a_local_host_name_read_more_than_metrics() {
    let agent = Agent::start(patient());
    let documents = ["/api/v1/summary", "/api/v1/history", "/api/v1/processes"];
    let others =
        ["/", "/page/page.js", "/api/v1/snapshot", "/api/v1/health", "/api/v1/bill", "/api/v1/explain"];
    for path in others.into_iter().chain(documents) {
        for host in ["node7:9855", "rebind.evil.example"] {
            let answer =
                agent.send(&format!("GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n"));
            assert_eq!(status(&answer), 403, "{path} {host}");
            assert!(body(&answer).contains("loopback only"), "{answer}");
        }
    }
    assert!(body(&agent.get("/")).contains("<a href=\"metrics\">"));
    assert!(body(&agent.get("/api/v1/snapshot")).starts_with('{'));
}

#[test]
fn a_document_of_the_live_page_is_sent_once_per_snapshot_and_compressed_on_request() {
    let agent = Agent::start(patient());
    let ask = |path: &str, headers: &str| {
        agent.send(&format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n{headers}Connection: close\r\n\r\n"))
    };
    for path in ["/api/v1/summary", "/api/v1/history", "/api/v1/processes"] {
        let answer = ask(path, "");
        assert_eq!((status(&answer), body(&answer).starts_with("{\"at\":")), (200, true), "{answer}");
        let tag = answer.split_once("etag: ").unwrap().1.split_once("\r\n").unwrap().0;
        assert_eq!(tag, "\"1-1\"", "start of the agent and number of the snapshot");
        assert!(answer.contains("cache-control: private, no-cache\r\n"), "{answer}");
        let again = ask(path, &format!("If-None-Match: {tag}\r\n"));
        assert_eq!((status(&again), body(&again)), (304, ""), "{again}");
        let other = ask(path, "If-None-Match: \"1-2\"\r\n");
        assert_eq!(status(&other), 200);
        assert!(ask(path, "Accept-Encoding: gzip\r\n").contains("content-encoding: gzip\r\n"));
    }
    eventually(|| agent.count(304) == 3);
    let wrong = ask("/api/v1/summary?x=1", "");
    assert_eq!((status(&wrong), body(&wrong)), (400, "{\"error\":\"this document has no parameters\"}\n"));
    let wrong = ask("/api/v1/processes?pid=1", "");
    assert_eq!(status(&wrong), 400);
    assert!(body(&wrong).contains("use gpu=UUID or none"), "{wrong}");
    assert_eq!(status(&ask("/api/v1/processes?gpu=GPU-1", "")), 200);
}

/// The texts in double quotes after an attribute or a word such as `from `.
fn quoted<'a>(text: &'a str, before: &'a str) -> impl Iterator<Item = &'a str> {
    text.split(before).skip(1).filter_map(|rest| rest.strip_prefix('"')?.split('"').next())
}

#[test]
fn every_file_of_the_pages_is_served_by_relative_links_under_its_policy() {
    let agent = Agent::start(patient());
    let html = ["/", "/costs"].map(|path| agent.get(path)).concat();
    let mut files: Vec<String> = ["src=", "href="]
        .iter()
        .flat_map(|attribute| quoted(&html, attribute).map(str::to_owned).collect::<Vec<_>>())
        .filter(|link| !link.starts_with('#'))
        .collect();
    assert!(files.iter().all(|link| !link.starts_with('/') && !link.contains("://")), "{files:?}");
    files.extend(["page/uplot.js".to_owned(), "page/uplot.css".to_owned()]);
    for script in ["/page/page.js", "/page/costs.js", "/page/costs-details.js"] {
        let script = agent.get(script);
        files.extend(quoted(&script, "from ").map(|module| module.replace("./", "page/")));
    }
    files.retain(|file| file != "./");
    assert!(files.len() > 30, "{files:?}");
    for file in files.iter().filter(|file| !file.starts_with("api/") && *file != "metrics") {
        let answer = agent.get(&format!("/{file}"));
        assert_eq!(status(&answer), 200, "{file}");
        assert!(
            answer.contains("content-security-policy: default-src 'none'; script-src 'self'; "),
            "{answer}"
        );
        assert!(
            answer.contains("\r\netag: \"") && answer.contains("\r\nx-frame-options: deny\r\n"),
            "{file}"
        );
    }
    assert!(
        agent.get("/page/uplot.js").contains("Copyright (c) 2022 Leon Sorokin"),
        "the licence comes with the file"
    );
    assert_eq!(status(&agent.get("/page/")), 404);
}

#[test]
fn each_page_names_its_external_url() {
    let agent =
        |url: Option<&str>| Agent::without_snapshot(patient(), Security::default(), LivePage::new(url));
    let (own, proxied) = (agent(None), agent(Some("https://node7.example/gpus&more")));
    for path in ["/", "/costs"] {
        assert!(!own.get(path).contains("canonical"));
        let link = format!("<link rel=\"canonical\" href=\"https://node7.example/gpus&amp;more{path}\">");
        assert!(proxied.get(path).contains(&link), "{path}");
    }
}

#[test]
fn before_the_first_snapshot_the_agent_is_healthy_but_not_ready() {
    let agent = Agent::without_page(patient(), Security::default());
    for path in ["/metrics", "/-/ready", "/api/v1/snapshot", "/api/v1/health", "/api/v1/summary"] {
        let answer = agent.get(path);
        assert_eq!(status(&answer), 503, "{path}");
        assert!(answer.contains("retry-after: 1\r\n"), "{answer}");
    }
    assert_eq!(body(&agent.get("/-/healthy")), "healthy\n");
    agent.publish(10);
    assert_eq!(body(&agent.get("/-/ready")), "ready\n");
    agent.clock.store(11_000_000_000, Ordering::Relaxed);
    let answer = agent.get("/-/healthy");
    assert_eq!((status(&answer), body(&answer)), (503, "the last tick was 11 s ago; restart the agent\n"));
}

#[test]
fn scrapes_and_probes_do_not_wait_for_owners_of_connections_and_a_full_queue_is_refused() {
    const ASKERS: usize = 40;
    let agent = Agent::start(patient());
    let gate = agent.owners.lock().unwrap();
    let ask = || {
        let mut stream = agent.connect();
        let request = "GET /api/v1/snapshot HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
        stream.write_all(request.as_bytes()).unwrap();
        stream
    };
    let askers: Vec<TcpStream> = (0..ASKERS).map(|_| ask()).collect();
    for path in ["/metrics", "/-/healthy", "/-/ready"] {
        assert_eq!(status(&agent.get(path)), 200, "{path}");
    }
    // One has left the queue, once the thread runs.
    let least_refused = (ASKERS - OWNERS_WAITING - 1) as u64;
    wait_until("the others are refused", || agent.count(503) >= least_refused);
    drop(gate);
    let is_served = |mut stream: TcpStream| {
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        assert_eq!(status(&answer), if answer.contains("retry-after: 1") { 503 } else { 200 }, "{answer}");
        status(&answer) == 200
    };
    let served = askers.into_iter().map(is_served).filter(|served| *served).count();
    assert!((OWNERS_WAITING..=OWNERS_WAITING + 1).contains(&served), "{served} of {ASKERS}");
}

#[test]
fn a_bill_comes_from_the_ledger_with_its_errors() {
    let mut agent = Agent::start(patient());
    let mut stream = agent.connect();
    let mut ask = |query: &str, reply: Result<String, BillRefusal>| {
        write!(stream, "GET /api/v1/bill{query} HTTP/1.1\r\nHost: 127.0.0.1:1\r\n\r\n").unwrap();
        let job = agent.bills.blocking_recv().unwrap();
        let LedgerQuestion::Bill(request) = job.question else { panic!("{:?}", job.question) };
        job.reply.send(reply);
        ([request.from, request.to], one(&mut stream))
    };
    let (asked, answer) = ask("?from=2026-10-01&to=2026%2D11%2D01", Ok(r#"{"rows":[]}"#.to_owned()));
    assert_eq!(asked, [1_790_812_800, 1_793_491_200].map(|second| Some(Utc(second * 1_000_000_000))));
    assert_eq!(body(&answer), r#"{"rows":[]}"#);
    let refusal = |is_of_request| BillRefusal { is_of_request, text: "why".to_owned() };
    for (refusal, expected) in [(refusal(true), 400), (refusal(false), 503)] {
        let (_, answer) = ask("", Err(refusal));
        assert_eq!((status(&answer), body(&answer)), (expected, "{\"error\":\"why\"}\n"));
    }
    let answer = agent.get("/api/v1/bill?from=x");
    assert_eq!(status(&answer), 400);
    assert!(body(&answer).starts_with(r#"{"error":"from: \"x\" is not a valid time; "#), "{answer}");
    for wrong in [
        "bill?form=1",
        "bill?job=7",
        "explain?form=1",
        "explain?job=x",
        "explain?gpu=1&gpu=2",
        "explain?by=day",
        "costs?from=2026-10-01",
        "costs?group=team",
    ] {
        assert_eq!(status(&agent.get(&format!("/api/v1/{wrong}"))), 400, "{wrong}");
    }
    let asked = "/api/v1/explain?job=7.0&slurm_user=a%20b&from=2026-10-01";
    write!(stream, "GET {asked} HTTP/1.1\r\nHost: 127.0.0.1:1\r\n\r\n").unwrap();
    let job = agent.bills.blocking_recv().unwrap();
    let parameters = [("job", "7.0".to_owned()), ("slurm_user", "a b".to_owned())];
    let LedgerQuestion::Explanation(request) = job.question else { panic!("{:?}", job.question) };
    assert_eq!(request.filter.parameters(), parameters);
    assert!(request.from.is_some());
    let asked = "/api/v1/costs?period=2026-10&attribute%3Aowner=ada%20b&node=n1&node=n2";
    let mut stream = agent.connect();
    write!(stream, "GET {asked} HTTP/1.1\r\nHost: 127.0.0.1:1\r\n\r\n").unwrap();
    let job = agent.bills.blocking_recv().unwrap();
    let LedgerQuestion::Costs(request) = job.question else { panic!("{:?}", job.question) };
    let filters: Vec<_> =
        request.filters.asked().into_iter().map(|(name, values)| (name, values.len())).collect();
    assert_eq!(filters, [("attribute:owner".to_owned(), 1), ("node".to_owned(), 2)]);
    job.reply.send(Ok("{}".to_owned()));
    let answer = one(&mut stream);
    assert!(answer.contains("cache-control: no-store"), "{answer}");
}

/// The head of a request that bills with a book of that length.
fn book_head(length: usize) -> String {
    format!(
        "POST /api/v1/bill HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n"
    )
}

const BOOK: &str =
    r#"{"rates":[{"kind":"gpu_hour","selector":{},"nano":2000000000,"currency":"EUR","class":"spot"}]}"#;

#[test]
fn a_bill_with_a_book_is_made_one_at_a_time() {
    let mut agent = Agent::start(patient());
    let mut first = agent.connect();
    write!(first, "{}{BOOK}", book_head(BOOK.len())).unwrap();
    let job = agent.bills.blocking_recv().unwrap();
    let LedgerQuestion::Bill(request) = &job.question else { panic!("{:?}", job.question) };
    assert_eq!(request.book.as_ref().unwrap().rates[0].nano, 2_000_000_000);
    let second = agent.send(&format!("{}{BOOK}", book_head(BOOK.len())));
    assert_eq!(status(&second), 503);
    assert!(body(&second).contains("another bill with other prices is being made"), "{second}");
    // One without prices waits for its turn.
    let mut other = agent.connect();
    write!(other, "GET /api/v1/bill HTTP/1.1\r\nHost: localhost\r\nAccept-Encoding: gzip\r\n\r\n").unwrap();
    let waiting = agent.bills.blocking_recv().unwrap();
    job.reply.send(Ok("{}".to_owned()));
    assert_eq!(body(&rest(&mut first)), "{}");
    waiting.reply.send(Ok("{}".to_owned()));
    let mut compressed = vec![0; 4096];
    let length = other.read(&mut compressed).unwrap();
    let compressed = &compressed[..length];
    let head = String::from_utf8_lossy(compressed);
    assert!(
        head.contains("content-encoding: gzip\r\n") && head.contains("vary: accept-encoding\r\n"),
        "{head}"
    );
    let begin = compressed.windows(4).position(|four| four == b"\r\n\r\n").unwrap() + 4;
    let mut text = String::new();
    flate2::read::GzDecoder::new(&compressed[begin..]).read_to_string(&mut text).unwrap();
    assert_eq!(text, "{}");
    // The first one is over, also for one whose client left.
    let mut third = agent.connect();
    write!(third, "{}{BOOK}", book_head(BOOK.len())).unwrap();
    let job = agent.bills.blocking_recv().unwrap();
    drop(third);
    eventually(|| job.reply.is_closed());
    let mut fourth = agent.connect();
    write!(fourth, "{}{BOOK}", book_head(BOOK.len())).unwrap();
    assert!(agent.bills.blocking_recv().is_some());
}

#[test]
fn a_book_is_json_of_64_kib_at_most_that_arrives_in_time() {
    let agent = Agent::start(patient());
    let told = |request: &str| {
        let answer = agent.send(request);
        (status(&answer), body(&answer).to_owned())
    };
    let form = "Content-Type: application/json";
    for (kind, expected) in
        [("", 415), ("Content-Type: text/plain", 415), ("Content-Type: application/json-seq", 415)]
    {
        let head = book_head(BOOK.len()).replace(form, if kind.is_empty() { "X: y" } else { kind });
        assert_eq!(told(&format!("{head}{BOOK}")).0, expected, "{kind}");
    }
    for (book, words) in [
        ("{", "the book is not JSON: "),
        ("", "the book is not JSON: "),
        (r#"{"rates":[],"paths":["/etc"]}"#, "the unknown field paths"),
        (r#"{"rates":[]}"#, "the book has no prices"),
    ] {
        let (code, answer) = told(&format!("{}{book}", book_head(book.len())));
        assert!(code == 400 && answer.contains(words), "{book}: {code} {answer}");
    }
    let (code, answer) = told(&book_head(64 * 1024 + 1));
    assert!(code == 413 && answer.contains("longer than 64 KiB"), "{code} {answer}");
    // The length is counted while it is read, if none is said.
    let mut chunked = agent.connect();
    let head = book_head(0).replace("Content-Length: 0", "Transfer-Encoding: chunked");
    write!(chunked, "{head}10001\r\n").unwrap();
    let _ = chunked.write_all(&[b' '; 0x10001]);
    assert_eq!(status(&one(&mut chunked)), 413);
    // A spaced book of just that length is read.
    let spaced = format!("{}{}", " ".repeat(64 * 1024 - 1), "[");
    let (code, answer) = told(&format!("{}{spaced}", book_head(spaced.len())));
    assert!(code == 400 && answer.contains("not JSON"), "{code} {answer}");
    // On a busy machine the limit may pass before the head is read; then nothing is answered.
    let hasty = Agent::start(ServerLimits { head: Duration::from_millis(300), ..patient() });
    let mut late = String::new();
    eventually(|| {
        let mut stream = hasty.connect();
        late = match write!(stream, "{}{{", book_head(2)) {
            Ok(()) => rest(&mut stream),
            Err(_) => String::new(),
        };
        !late.is_empty()
    });
    assert_eq!(status(&late), 408);
    for path in ["/api/v1/explain", "/api/v1/costs", "/api/v1/summary", "/costs"] {
        let request = format!("{}{BOOK}", book_head(BOOK.len())).replace("/api/v1/bill", path);
        assert_eq!(told(&request).0, 405, "{path}");
    }
    let put = format!("{}{BOOK}", book_head(BOOK.len())).replacen("POST", "PUT", 1);
    let refused = agent.send(&put);
    assert!(status(&refused) == 405 && refused.contains("allow: GET, HEAD, POST\r\n"), "{refused}");
    let foreign = format!("{}{BOOK}", book_head(BOOK.len())).replace("localhost", "evil.example");
    assert_eq!(told(&foreign).0, 403);
    assert_eq!(told(&format!("{}{BOOK}", book_head(BOOK.len())).replacen("bill", "bill?form=1", 1)).0, 400);
}

#[test]
fn a_bill_times_out_and_a_full_queue_is_refused() {
    let agent = Agent::start(ServerLimits { bill: Duration::from_millis(50), ..patient() });
    // Nobody reads the queue, which holds one.
    assert_eq!(status(&agent.get("/api/v1/bill")), 504);
    assert_eq!(status(&agent.get("/api/v1/bill")), 503);
    assert_eq!(status(&agent.get("/metrics")), 200);
}

#[test]
fn a_bill_is_cancelled_when_its_client_disconnects() {
    let mut agent = Agent::start(patient());
    let mut client = agent.connect();
    client.write_all(b"GET /api/v1/bill HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
    let request = agent.bills.blocking_recv().unwrap();
    assert!(!request.reply.is_closed());
    drop(client);
    eventually(|| request.reply.is_closed());
}

#[test]
fn a_slow_request_head_is_cut_off_while_an_idle_connection_stays() {
    let agent = Agent::start(ServerLimits { head: Duration::from_millis(300), ..patient() });
    let mut idle = agent.answered_connection();
    let mut slow = agent.connect();
    // Each byte is soon after the last one: only the whole is late.
    eventually(|| slow.write_all(b"G").is_err());
    assert_eq!(rest(&mut slow), "");
    assert_eq!(rest(&mut agent.connect()), "", "a silent peer is cut off too");
    idle.write_all(b"GET /-/ready HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
    assert_eq!(body(&one(&mut idle)), "ready\n");
}

#[test]
fn a_connection_without_requests_is_closed_after_the_longest_idle_time() {
    let agent = Agent::start(ServerLimits { idle: Duration::from_millis(100), ..patient() });
    assert_eq!(rest(&mut agent.answered_connection()), "");
    let mut slow = agent.answered_connection();
    // Half a head does not extend it; it may have passed on a busy machine.
    let _ = slow.write_all(b"GET /-/re");
    assert_eq!(rest(&mut slow), "");
}

#[test]
fn a_connection_that_waits_for_an_answer_is_not_idle() {
    let mut agent = Agent::start(ServerLimits { idle: Duration::from_millis(100), ..patient() });
    let mut waiting = agent.connect();
    waiting.write_all(b"GET /api/v1/bill HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
    let request = agent.bills.blocking_recv().unwrap();
    // Connections that had their answer later are closed before it.
    for _ in 0..3 {
        assert_eq!(rest(&mut agent.answered_connection()), "");
    }
    request.reply.send(Ok("[]".to_owned()));
    assert_eq!(body(&one(&mut waiting)), "[]");
    assert_eq!(rest(&mut waiting), "", "after the answer it is idle");
}

/// More than the kernel keeps of a response.
const LARGE: usize = 32 << 20;

#[test]
fn a_peer_that_does_not_read_its_page_is_cut_off() {
    let limits = ServerLimits { response: Duration::from_millis(100), ..patient() };
    let agent = Agent::with_page(limits, LARGE);
    let mut stalled = agent.connect();
    let page = agent.page();
    stalled.write_all(b"GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
    stalled.read_exact(&mut [0]).unwrap();
    agent.publish(10);
    eventually(|| page.is_unique());
    assert!(rest(&mut stalled).len() < LARGE, "the agent has dropped the rest");
}

#[test]
fn a_peer_that_reads_its_page_too_slowly_is_cut_off() {
    let limits = ServerLimits { response: Duration::from_millis(500), ..patient() };
    let agent = Agent::with_page(limits, LARGE);
    let mut slow = agent.connect();
    slow.write_all(b"GET /metrics HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n").unwrap();
    // It never stalls: some of the page is read every few milliseconds.
    let (mut buffer, mut read) = (vec![0; 128 << 10], 0);
    while let Ok(count @ 1..) = slow.read(&mut buffer) {
        read += count;
        sleep(Duration::from_millis(5));
    }
    assert!(read < LARGE, "the response deadline has passed");
}

#[test]
fn a_scraper_replaces_a_peer_that_does_not_read_its_page() {
    let limits = ServerLimits { connections: 2, ..patient() };
    let agent = Agent::with_page(limits, LARGE);
    let mut slow = [agent.connect(), agent.connect()];
    for peer in &mut slow {
        peer.write_all(b"GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
        // Its answer has begun.
        peer.read_exact(&mut [0]).unwrap();
    }
    // Nothing else closes them: all limits are an hour. After a second one gives way.
    eventually(|| status(&agent.get("/-/ready")) == 200);
}

#[test]
fn only_a_few_slowly_read_pages_stay_in_memory() {
    let limits = ServerLimits { connections: 32, ..patient() };
    let agent = Agent::with_page(limits, 10);
    let (mut slow, mut pages) = (Vec::new(), Vec::new());
    for _ in 0..16 {
        // A page of its own for every response.
        agent.publish(8 << 20);
        pages.push(agent.page());
        let mut peer = agent.connect();
        peer.write_all(b"GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
        peer.read_exact(&mut [0]).unwrap();
        slow.push(peer);
    }
    // An eighth of the connections, and the published page.
    eventually(|| pages.iter().filter(|page| !page.is_unique()).count() <= 5);
}

#[test]
fn a_scraper_replaces_a_peer_that_never_finishes_its_head() {
    let agent = Agent::start(ServerLimits { connections: 2, ..patient() });
    let mut slow = [agent.connect(), agent.connect()];
    slow[0].write_all(b"GET /metr").unwrap();
    assert_eq!(status(&agent.get("/metrics")), 200);
    assert_eq!(rest(&mut slow[0]), "", "the oldest connection is closed");
}

#[test]
fn scrapers_beyond_the_connection_limit_are_all_answered() {
    let agent = Agent::start(ServerLimits { connections: 4, ..patient() });
    std::thread::scope(|scope| {
        // On a busy machine one may be replaced before its request is read, and asks again.
        let ask = || {
            let mut answers = (0..1_000).map(|_| {
                let mut stream = agent.connect();
                let _ = stream
                    .write_all(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
                rest(&mut stream)
            });
            status(&answers.find(|answer| !answer.is_empty()).unwrap_or_default())
        };
        let scrapers: Vec<_> = (0..64).map(|_| scope.spawn(ask)).collect();
        for scraper in scrapers {
            assert_eq!(scraper.join().unwrap(), 200);
        }
    });
}

#[test]
fn the_connection_limit_follows_the_descriptor_limit() {
    let connections = |files| ServerLimits::within(files).connections;
    assert_eq!([0, 64, 1_024, u64::MAX].map(connections), [4, 16, 256, 256]);
}

#[test]
fn a_new_connection_is_refused_while_all_are_being_answered() {
    let mut agent = Agent::start(ServerLimits { connections: 1, ..patient() });
    let mut waiting = agent.connect();
    waiting.write_all(b"GET /api/v1/bill HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
    let request = agent.bills.blocking_recv().unwrap();
    let answer = agent.get("/metrics");
    assert_eq!((status(&answer), body(&answer)), (503, "all connections are busy; try again soon\n"));
    assert!(answer.contains("retry-after: 1\r\n"));
    request.reply.send(Ok("{}".to_owned()));
    assert_eq!(body(&one(&mut waiting)), "{}");
    assert_eq!(status(&agent.get("/metrics")), 200, "the idle one gives way");
    assert_eq!(rest(&mut waiting), "");
    assert_eq!(agent.count(503), 1);
}

#[test]
fn a_panic_while_answering_ends_that_connection_only() {
    let agent = Agent::start(patient());
    agent.clock.store(PANIC_AT, Ordering::Relaxed);
    assert_eq!(agent.send("GET /-/healthy HTTP/1.1\r\nHost: a\r\n\r\n"), "");
    assert_eq!(status(&agent.get("/metrics")), 200);
    eventually(|| agent.count(500) == 1);
}

#[test]
fn a_stop_closes_idle_connections_and_finishes_answers_in_progress() {
    let mut agent = Agent::start(ServerLimits { drain: PATIENCE, ..patient() });
    let mut idle = agent.connect();
    idle.write_all(b"GET /-/ready HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
    one(&mut idle);
    let mut waiting = agent.connect();
    waiting.write_all(b"GET /api/v1/bill HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
    let request = agent.bills.blocking_recv().unwrap();
    let address = agent.address;
    let answerer = std::thread::spawn(move || {
        eventually(|| TcpStream::connect(address).is_err());
        request.reply.send(Ok("{}".to_owned()));
    });
    agent.stop();
    answerer.join().unwrap();
    assert_eq!(body(&rest(&mut waiting)), "{}", "an answer in progress is finished");
    assert_eq!(rest(&mut idle), "");
    assert!(TcpStream::connect(agent.address).is_err());
}

#[test]
fn a_stop_waits_for_no_peer_that_sends_or_reads_nothing() {
    let mut agent = Agent::with_page(patient(), LARGE);
    let mut slow = agent.connect();
    slow.write_all(b"GET /-/re").unwrap();
    let mut stalled = agent.connect();
    stalled.write_all(b"GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
    stalled.read_exact(&mut [0]).unwrap();
    // Their own limits are an hour; the limit of a stop is short.
    agent.stop();
    assert_eq!(rest(&mut slow), "");
    assert!(rest(&mut stalled).len() < LARGE);
}
