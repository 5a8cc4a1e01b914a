//! TLS, users and sockets of the real binary, and each user's view.

use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::{Command, Stdio};

use rustix::process::Signal;
use serde_json::Value;

use crate::running::{Agent, Demo, PATIENCE, output, program, set_first_clock, wait_until};
use crate::scrape::Scrape;
use crate::serve::certificates::{Certificates, Client};

/// bcrypt of a password at a low cost, so that a test is quick.
fn hash(password: &str) -> String {
    bcrypt::hash_with_salt(password, 4, [7; 16]).unwrap().format_for_version(bcrypt::Version::TwoY)
}

/// A web configuration file with TLS and the user alice.
fn with_alice(certificates: &Certificates, password: &str) {
    let text = format!(
        "tls_server_config:\n  cert_file: server.crt\n  key_file: server.key\nbasic_auth_users:\n  alice: {}\n",
        hash(password)
    );
    std::fs::write(certificates.path().join("web.yml"), text).unwrap();
}

fn start(certificates: &Certificates, more: &[&str]) -> Agent {
    let file = certificates.path().join("web.yml");
    let mut arguments = vec!["--web.config.file", file.to_str().unwrap()];
    arguments.extend(more);
    Agent::start(Demo::command(&certificates.path().join("state"), &arguments))
}

/// Status and body of a page over TLS.
fn get(
    certificates: &Certificates,
    agent: &Agent,
    (user, path): (Option<(&'static str, &'static str)>, &str),
) -> (u16, String) {
    let address: SocketAddr = agent.address.parse().unwrap();
    let client = Client { user, ..Client::default() };
    let Ok(exchange) = client.get(certificates, (address, path)) else { return (0, String::new()) };
    let (head, body) = exchange.answer.split_once("\r\n\r\n").unwrap();
    (head.split(' ').nth(1).unwrap().parse().unwrap(), body.to_owned())
}

/// Requests until the status is as expected, and returns the body.
fn wait_for(
    certificates: &Certificates,
    agent: &Agent,
    wanted: u16,
    (user, path): (Option<(&'static str, &'static str)>, &str),
) -> String {
    let begun = std::time::Instant::now();
    loop {
        let (status, body) = get(certificates, agent, (user, path));
        if status == wanted {
            return body;
        }
        assert!(begun.elapsed() < PATIENCE, "{user:?} {path}: {status} {body}");
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
}

#[test]
fn tls_with_passwords_survives_an_invalid_reload() {
    let certificates = Certificates::new();
    with_alice(&certificates, "first");
    let agent = start(&certificates, &[]);
    let alice = Some(("alice", "first"));
    wait_for(&certificates, &agent, 200, (alice, "/metrics"));
    assert_eq!(get(&certificates, &agent, (None, "/metrics")).0, 401);
    assert_eq!(get(&certificates, &agent, (Some(("alice", "guess")), "/metrics")).0, 401);
    assert_eq!(get(&certificates, &agent, (alice, "/metrics")).0, 200);
    assert_eq!(agent.get("/metrics").0, 0, "nothing is sent without TLS");

    // An invalid file: the last valid one stays in use, and log and page report it.
    std::fs::write(certificates.path().join("web.yml"), "tls_server_config: {cert_file: gone.crt}\n")
        .unwrap();
    let log = agent.wait_for_log("configuration not reloaded");
    assert!(log.contains("tls_server_config.key_file: is missing"), "{log}");
    assert_eq!(get(&certificates, &agent, (None, "/metrics")).0, 401);
    let page = wait_until_reload(&certificates, &agent, alice, "0");
    assert!(page.has("gpu_up", &[]));

    // A new password and certificate: both are used, and the old password is refused.
    let old = certificate(&certificates, &agent);
    certificates.sign("server", &["localhost"]);
    with_alice(&certificates, "second");
    agent.signal(Signal::HUP);
    let second = Some(("alice", "second"));
    wait_for(&certificates, &agent, 200, (second, "/metrics"));
    wait_until_reload(&certificates, &agent, second, "1");
    agent.wait_for_log("certificates and users reloaded");
    assert_eq!(get(&certificates, &agent, (alice, "/metrics")).0, 401);
    assert_ne!(certificate(&certificates, &agent), old);

    // A certificate that is renewed alone is detected too.
    let old = certificate(&certificates, &agent);
    agent.log_so_far();
    certificates.sign("server", &["localhost"]);
    agent.wait_for_log("certificates and users reloaded");
    assert_ne!(certificate(&certificates, &agent), old);
}

#[test]
fn an_emptied_web_file_switches_nothing_off_and_single_users_may_still_change() {
    let certificates = Certificates::new();
    let write = |text: &str| std::fs::write(certificates.path().join("web.yml"), text).unwrap();
    with_alice(&certificates, "first");
    let agent = start(&certificates, &[]);
    let alice = Some(("alice", "first"));
    wait_for(&certificates, &agent, 200, (alice, "/metrics"));
    let without_users = "tls_server_config: {cert_file: server.crt, key_file: server.key}\n".to_owned();
    let without_tls = format!("basic_auth_users: {{alice: {}}}\n", hash("first"));
    for (text, problem) in [
        (String::new(), "has no key with a value"),
        (
            "rate_limit: {interval: 1ms, burst: 9}\n".to_owned(),
            "would leave the agent without TLS, users, which",
        ),
        (
            without_users.clone(),
            "would leave the agent without users, which no reload switches off; restart the agent",
        ),
        (without_tls, "would leave the agent without TLS, which"),
    ] {
        write(&text);
        agent.signal(Signal::HUP);
        agent.wait_for_log(problem);
        agent.wait_for_log("configuration not reloaded");
        assert_eq!(agent.get("/metrics").0, 0, "nothing is sent without TLS: {text}");
        assert_eq!(get(&certificates, &agent, (None, "/metrics")).0, 401, "{text}");
        wait_until_reload(&certificates, &agent, alice, "0");
    }
    write(&format!("{without_users}basic_auth_users: {{bob: {}}}\n", hash("second")));
    agent.signal(Signal::HUP);
    let bob = Some(("bob", "second"));
    wait_for(&certificates, &agent, 200, (bob, "/metrics"));
    wait_until_reload(&certificates, &agent, bob, "1");
    assert_eq!(get(&certificates, &agent, (alice, "/metrics")).0, 401);
}

fn certificate(certificates: &Certificates, agent: &Agent) -> Vec<u8> {
    let address = agent.address.parse().unwrap();
    Client::default().get(certificates, (address, "/-/healthy")).unwrap().certificate
}

#[test]
fn a_renewed_certificate_is_used_even_if_the_configuration_is_invalid() {
    let certificates = Certificates::new();
    let path = |name: &str| certificates.path().join(name).to_str().unwrap().to_owned();
    let text =
        format!("web: {{tls: {{cert_file: {}, key_file: {}}}}}\n", path("server.crt"), path("server.key"));
    std::fs::write(path("c.yaml"), &text).unwrap();
    let arguments = ["--config", &path("c.yaml")];
    let agent = Agent::start(Demo::command(&certificates.path().join("state"), &arguments));
    wait_for(&certificates, &agent, 200, (None, "/metrics"));
    std::fs::write(path("c.yaml"), text + "sampling: {interval: soon}\n").unwrap();
    agent.wait_for_log("configuration not reloaded");
    let old = certificate(&certificates, &agent);
    certificates.sign("server", &["localhost"]);
    agent.wait_for_log("configuration not reloaded");
    assert_ne!(certificate(&certificates, &agent), old);
    wait_until_reload(&certificates, &agent, None, "0");
}

/// Waits for the page that reports the result of the last reload.
fn wait_until_reload(
    certificates: &Certificates,
    agent: &Agent,
    user: Option<(&'static str, &'static str)>,
    success: &str,
) -> Scrape {
    let begun = std::time::Instant::now();
    loop {
        let page = Scrape::parse(&wait_for(certificates, agent, 200, (user, "/metrics")));
        if page.value("gpumeter_config_reload_success", &[]) == Some(success) {
            return page;
        }
        assert!(begun.elapsed() < PATIENCE, "no reload with success {success}");
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
}

/// A demo whose configuration has these users, each with its own name as the password.
fn with_users(directory: &Path, tenants: &str) -> Agent {
    let mut users = String::new();
    for user in ["root", "alice", "bob"] {
        let file = directory.join(user);
        // As htpasswd prints it.
        std::fs::write(&file, format!("{user}:{}\n", hash(user))).unwrap();
        users += &format!("    {user}: {}\n", file.display());
    }
    let config = directory.join("c.yaml");
    let grants = "attribution: {standing: [{gpu: 0, user: alice}, {gpu: 1, user: carol}]}\n\
                  prices: {currency: EUR, rates: [{gpu_hour: 2}]}\n";
    let text = format!("{grants}web:\n  open_probes: true\n  users:\n{users}  tenants: {tenants}\n");
    std::fs::write(&config, text).unwrap();
    let arguments = ["--speed", "30", "--config", config.to_str().unwrap()];
    let state = directory.join("state");
    set_first_clock(&state);
    Agent::start(Demo::command(&state, &arguments))
}

/// Status and body for a user whose password is the name.
fn request(agent: &Agent, user: &str, path: &str) -> (u16, String) {
    use base64::Engine;
    let encoded = base64::engine::general_purpose::STANDARD.encode(format!("{user}:{user}"));
    agent.get_with(path, &format!("Authorization: Basic {encoded}\r\n"))
}

/// What a reader of some tenants gets of a path.
#[derive(PartialEq)]
enum Shown {
    Refused,
    /// What everybody gets, in which no tenant is named.
    Same,
    /// Its own part of what names tenants.
    Own,
    /// Its own part, in which another tenant need not be named to anybody.
    Unnamed,
}

/// A new path is in no arm until somebody has decided.
fn shown_of(path: &str) -> Shown {
    match path {
        "/metrics" | "/api/v1/fit" | "/api/v1/demand" => Shown::Refused,
        "/-/healthy" | "/-/ready" => Shown::Same,
        "/api/v1/summary" | "/api/v1/snapshot" | "/api/v1/bill" | "/api/v1/explain" | "/api/v1/costs" => {
            Shown::Own
        }
        // A whole names what it has several of.
        "/api/v1/history"
        | "/api/v1/processes"
        | "/api/v1/health"
        | "/api/v1/events"
        | "/api/v1/advice"
        // None of these is of Slurm.
        | "/api/v1/jobs"
        | "/api/v1/explain/whole" => Shown::Unnamed,
        other => panic!("{other}: say here what a reader of some tenants gets of it"),
    }
}

/// Asks each path of the server as a reader of everything and as a reader of the tenant alice.
fn check_every_path(agent: &Agent) {
    for path in gpumeter::output::serve::endpoint_paths() {
        let shown = shown_of(path);
        let ((status, own), (_, whole)) = (request(agent, "alice", path), request(agent, "root", path));
        assert_eq!(status, if shown == Shown::Refused { 403 } else { 200 }, "{path}: {own}");
        assert!(!own.contains("carol"), "{path}: {own}");
        assert!(shown != Shown::Own || whole.contains("carol") && own.contains("alice"), "{path}: {whole}");
        assert!(shown != Shown::Same || own == whole, "{path}: {own}");
    }
    for group in ["workload", "gpu", "user", "day"] {
        let (status, own) = request(agent, "alice", &format!("/api/v1/costs?group={group}"));
        assert!(
            status == 200 && !own.contains("carol") && own.contains("\"partial\":true"),
            "{group}: {own}"
        );
    }
}

#[test]
fn a_user_sees_only_the_lines_of_its_tenants() {
    let directory = tempfile::tempdir().unwrap();
    let agent = with_users(directory.path(), "{root: \"*\", alice: alice}");
    let begun = std::time::Instant::now();
    let lines = |bill: &Value| bill["lines"].as_array().map_or(0, Vec::len);
    let (whole, own) = loop {
        let read = |user| {
            serde_json::from_str::<Value>(&request(&agent, user, "/api/v1/bill").1).unwrap_or_default()
        };
        let (whole, own) = (read("root"), read("alice"));
        if lines(&own) > 0 && lines(&whole) > lines(&own) {
            break (whole, own);
        }
        assert!(begun.elapsed() < PATIENCE, "no bill: {whole}\n{own}");
        std::thread::sleep(std::time::Duration::from_millis(100));
    };
    assert_eq!((whole.get("partial"), &own["partial"]), (None, &Value::Bool(true)));
    let own_lines = own["lines"].as_array().unwrap();
    assert!(own_lines.iter().all(|line| line["tenant"] == "alice"), "{own}");
    let held: u64 =
        own_lines.iter().map(|line| line["held_ns"].as_str().unwrap().parse::<u64>().unwrap()).sum();
    assert_eq!(own["reconciliation"]["slot_ns"], held.to_string());
    // Of the GPUs nothing is told but what is its own.
    let of_gpus = own["gpus"].as_array().unwrap().iter();
    let of_gpus: u64 = of_gpus.map(|gpu| gpu["slot_ns"].as_str().unwrap().parse::<u64>().unwrap()).sum();
    assert_eq!(of_gpus, held);
    assert!(own["rates"].as_array().unwrap().iter().all(|rate| rate["slot_ns"] == "0"));
    let explained = request(&agent, "alice", "/api/v1/explain").1;
    let json: Value = serde_json::from_str(&explained).unwrap();
    assert!(lines(&json) >= lines(&own), "{explained}");
    assert!(json["lines"].as_array().unwrap().iter().all(|line| line["tenant"] == "alice"), "{explained}");
    assert!(!explained.contains("carol") && json["bill"]["gpus"] == Value::Array(Vec::new()), "{explained}");

    let (status, snapshot) = request(&agent, "alice", "/api/v1/snapshot");
    let parsed: Value = serde_json::from_str(&snapshot).unwrap();
    assert_eq!((status, &parsed["partial"]), (200, &Value::Bool(true)));
    assert!(snapshot.contains("\"tenant\":\"alice\"") && !snapshot.contains("carol"), "{snapshot}");
    for family in parsed["families"].as_array().unwrap() {
        let series = family["series"].as_array().unwrap();
        let is_own = |one: &Value| {
            let labels = &one["labels"];
            labels["tenant"] == "alice" || labels.get("workload").is_some() || family["name"] == "gpu_info"
        };
        assert!(series.iter().all(is_own), "{family}");
    }
    let (_, snapshot) = request(&agent, "root", "/api/v1/snapshot");
    assert!(snapshot.contains("carol") && !snapshot.contains("\"partial\""), "{snapshot}");
    // At level standard the first request of a while makes the next snapshots list processes.
    let summary = |user: &str| request(&agent, user, "/api/v1/summary").1;
    wait_until("a list of processes", || summary("root").contains("\"processes_listed\":true"));
    let (whole, own) = (summary("root"), summary("alice"));
    assert!(whole.contains("carol") && whole.contains("\"partial\":false"), "{whole}");
    assert!(!own.contains("carol") && own.contains("\"partial\":true"), "{own}");
    let parsed: Value = serde_json::from_str(&own).unwrap();
    assert_eq!(
        (&parsed["gpus"][0]["holders"][0]["tenant"], &parsed["gpus"][1]["withheld"]),
        (&"alice".into(), &true.into())
    );
    wait_until("processes", || {
        let list: Value = serde_json::from_str(&request(&agent, "root", "/api/v1/processes").1).unwrap();
        list["total"].as_u64() > Some(0)
    });
    check_every_path(&agent);
    // A user without tenants sees no lines.
    let bob: Value = serde_json::from_str(&request(&agent, "bob", "/api/v1/bill").1).unwrap();
    assert_eq!((lines(&bob), &bob["reconciliation"]["slot_ns"]), (0, &Value::from("0")));
    assert_eq!(["root", "alice", "bob"].map(|user| request(&agent, user, "/metrics").0), [200, 403, 403]);
    let page = request(&agent, "root", "/metrics").1;
    assert!(page.contains("gpumeter_http_requests_total{code=\"403\"}"), "{page}");
}

#[test]
fn probes_need_no_password_with_open_probes_or_over_the_local_socket() {
    let directory = tempfile::tempdir().unwrap();
    let mut agent = with_users(directory.path(), "{root: \"*\"}");
    let socket = directory.path().join("state/control.sock");
    let probe = |more: &[&str]| {
        let mut arguments = vec!["probe", "--socket", socket.to_str().unwrap()];
        arguments.extend(more);
        output(&arguments).status.code()
    };
    let begun = std::time::Instant::now();
    while probe(&["--ready"]) != Some(0) {
        assert!(begun.elapsed() < PATIENCE, "it does not become ready");
    }
    assert_eq!(probe(&[]), Some(0));
    assert_eq!(
        ["/-/healthy", "/-/ready", "/metrics", "/"].map(|path| agent.get(path).0),
        [200, 200, 401, 401]
    );
    agent.kill();
    assert_eq!((probe(&[]), probe(&["--ready"])), (Some(1), Some(1)));
}

#[test]
fn commands_work_over_tls_with_a_user() {
    let certificates = Certificates::new();
    with_alice(&certificates, "secret");
    let password = certificates.path().join("password");
    std::fs::write(&password, "secret\n").unwrap();
    let agent = start(&certificates, &[]);
    wait_for(&certificates, &agent, 200, (Some(("alice", "secret")), "/-/ready"));
    let url = format!("https://localhost:{}", agent.address.rsplit_once(':').unwrap().1);
    let authority = certificates.path().join("ca.crt");
    let [authority, password] = [&authority, &password].map(|path| path.to_str().unwrap());
    let text = |more: &[&str]| {
        let mut arguments = vec!["health", "--json", "--url", &url];
        arguments.extend(more);
        let output = output(&arguments);
        String::from_utf8([output.stdout, output.stderr].concat()).unwrap()
    };
    let whole = text(&["--web.ca-file", authority, "--web.user", "alice", "--web.password-file", password]);
    assert!(whole.contains("\"remembered\":true"), "{whole}");
    let refused = text(&["--web.ca-file", authority]);
    assert!(
        refused.contains("give a user and the right password: --web.user and --web.password-file"),
        "{refused}"
    );
    // Without the option, the machine's CAs are trusted; SSL_CERT_FILE names a file of them.
    let trusting = |roots: &str| {
        let health = ["health", "--url", &url, "--web.user", "alice", "--web.password-file", password];
        let output = program().args(health).env("SSL_CERT_FILE", roots).output().unwrap();
        String::from_utf8([output.stdout, output.stderr].concat()).unwrap()
    };
    let trusted = trusting(authority);
    assert!(!trusted.contains("certificate"), "{trusted}");
    let nobody = trusting("/dev/null");
    assert!(
        nobody.contains("signed by no CA that is trusted here; give that CA with --web.ca-file"),
        "{nobody}"
    );
    let prefixed = output(&["health", "--url", &format!("{url}/nodes/7"), "--web.ca-file", authority]);
    let prefixed = String::from_utf8(prefixed.stderr).unwrap();
    assert!(prefixed.contains("/nodes/7"), "{prefixed}");
}

/// A proxy that has the agent below `/nodes/7`; returns its address.
fn proxy_of(agent: &Agent) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let (address, agent) = (listener.local_addr().unwrap(), agent.address.clone());
    std::thread::spawn(move || {
        listener.incoming().map_while(Result::ok).try_for_each(|one| pass_on(&one, &agent))
    });
    address
}

/// Passes one request on without the prefix of its path, and the answer back.
fn pass_on(mut client: &TcpStream, agent: &str) -> std::io::Result<()> {
    let head =
        BufReader::new(client).lines().take_while(|line| line.as_ref().is_ok_and(|line| !line.is_empty()));
    let head = head.collect::<Result<Vec<_>, _>>()?.join("\r\n");
    let Some(below) = head.strip_prefix("GET /nodes/7/") else {
        return client.write_all(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
    };
    let mut upstream = TcpStream::connect(agent)?;
    write!(upstream, "GET /{below}\r\n\r\n")?;
    std::io::copy(&mut upstream, &mut client)?;
    Ok(())
}

#[test]
fn commands_ask_an_agent_behind_a_proxy_by_its_path() {
    let demo = Demo::start(&["--speed", "30"]);
    demo.agent.wait_for("two minutes of the account", |page| {
        page.nano_sum("gpu_slot_seconds_total", &["gpu=\"0\""]) >= 120_000_000_000
    });
    let proxy = proxy_of(&demo.agent);
    for url in [format!("http://{proxy}/nodes/7"), format!("{proxy}/nodes/7/")] {
        let bill = output(&["bill", "--json", "--url", &url]);
        assert!(bill.status.success(), "{bill:?}");
        let bill: Value = serde_json::from_slice(&bill.stdout).unwrap();
        assert!(!bill["lines"].as_array().unwrap().is_empty(), "{bill}");
    }
    let other = output(&["bill", "--url", &format!("http://{proxy}/nodes/8")]);
    let words = String::from_utf8(other.stderr).unwrap();
    assert!(
        other.status.code() == Some(2) && words.contains("/nodes/8: this is not a gpumeter agent"),
        "{words}"
    );
}

#[test]
fn conflicting_web_protection_is_refused_at_start() {
    let certificates = Certificates::new();
    with_alice(&certificates, "secret");
    let path = |name: &str| certificates.path().join(name).to_str().unwrap().to_owned();
    let refused = |config: &str, web: &str| {
        std::fs::write(path("c.yaml"), config).unwrap();
        let (state, config, web) = (path("state"), path("c.yaml"), path(web));
        let output = output(&["demo", "--state-dir", &state, "--config", &config, "--web.config.file", &web]);
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    };
    let (status, text) = refused("web: {http2: false}", "web.yml");
    assert!(
        status == Some(2) && text.contains("the configuration has web.http2; keep one of the two"),
        "{text}"
    );
    let (status, text) = refused("", "none.yml");
    assert!(status == Some(2) && text.contains("none.yml: cannot be read: No such file"), "{text}");
    std::fs::write(path("web.yml"), "tls_server_config: {cert_file: server.crt, key_file: ca.crt}").unwrap();
    let (status, text) = refused("", "web.yml");
    assert!(status == Some(2) && text.contains("ca.crt: has no private key"), "{text}");
    let (status, text) = refused("web: {tenants: {dave: x}}", "web.yml");
    assert!(status == Some(2) && text.contains("names user dave, who has no password"), "{text}");
}

#[test]
fn several_addresses_and_a_socket_in_the_file_system_are_served() {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("web.sock");
    let listen = format!("unix:{}", socket.display());
    let demo = Demo::start(&["--listen", "127.0.0.1:0", "--listen", &listen]);
    let second = demo.agent.wait_for_log(&listen);
    let second = second.lines().find_map(|line| line.split_once("address=127.")).unwrap().1;
    let second = format!("127.{}", second.split_whitespace().next().unwrap());
    assert_ne!(second, demo.agent.address);
    demo.agent.wait_for("a first page", |page| page.has("gpu_up", &[]));
    assert_eq!(demo.agent.get_at(&second, "/metrics").0, 200);
    for path in ["/metrics", "/api/v1/snapshot"] {
        let stream = std::os::unix::net::UnixStream::connect(&socket).unwrap();
        let answer = crate::running::exchange(stream, path);
        assert!(answer.starts_with("HTTP/1.1 200"), "{path}: {answer}");
    }
}

/// A command that inherits this socket as from systemd; a shell, since the environment must contain the pid of the process.
fn activated(listener: TcpListener) -> Command {
    let mut command = Command::new("/bin/sh");
    command.args(["-c", "LISTEN_PID=$$ LISTEN_FDS=1 exec \"$0\" \"$@\" 3<&0 0</dev/null"]);
    command.arg(program().get_program()).stdin(Stdio::from(OwnedFd::from(listener)));
    command
}

#[test]
fn a_socket_of_systemd_that_conflicts_with_the_configured_addresses_is_named() {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name).to_str().unwrap().to_owned();
    let listen = || TcpListener::bind("127.0.0.1:0").unwrap();
    // The agent is not told to use the socket.
    let listener = listen();
    let address = listener.local_addr().unwrap().to_string();
    // systemd keeps a descriptor of its own.
    let _systemd = listener.try_clone().unwrap();
    std::fs::write(path("c.yaml"), format!("ledger: {{path: {}}}\nweb: {{control: off}}\n", path("l.db")))
        .unwrap();
    let mut command = activated(listener);
    command.args(["run", "--config", &path("c.yaml"), "--listen", &address, "--listen", "127.0.0.1:0"]);
    command.args(["--nvml-library", "libc.so.6"]);
    let agent = Agent::start(command);
    agent.wait_for("a first page", |page| page.has("gpumeter_build_info", &[]));
    let (status, why) = agent.get("/-/ready");
    assert_eq!(status, 503);
    for words in [&*format!("systemd listens on {address} for this service"), "--web.systemd-socket"] {
        assert!(why.contains(words), "{why}");
    }
    drop(agent);
    // It uses the socket, and so no configured address.
    std::fs::write(path("d.yaml"), "web: {listen: \"127.0.0.1:9\"}\n").unwrap();
    let mut command = activated(listen());
    command.args(["demo", "--scenario", "node", "--web.systemd-socket", "--config", &path("d.yaml")]);
    command.args(["--state-dir", &path("state")]);
    let agent = Agent::start(command);
    let log = &agent.first_lines;
    assert!(log.contains("web.listen 127.0.0.1:9 is not served: with --web.systemd-socket"), "{log}");
}

#[test]
fn a_socket_that_systemd_opened_is_served() {
    let directory = tempfile::tempdir().unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let mut command = activated(listener);
    command.args(["demo", "--scenario", "node", "--web.systemd-socket", "--state-dir"]);
    command.arg(directory.path());
    let agent = Agent::start(command);
    assert_eq!(agent.address, address.to_string());
    agent.wait_for("a first page", |page| page.has("gpu_up", &[]));
}

#[test]
fn without_a_socket_of_systemd_the_configured_addresses_are_served() {
    let directory = tempfile::tempdir().unwrap();
    let config = directory.path().join("config.yaml");
    std::fs::write(&config, "web: {listen: '127.0.0.1:0'}\n").unwrap();
    let mut command = program();
    command.args(["demo", "--scenario", "node", "--web.systemd-socket", "--state-dir"]);
    command.arg(directory.path().join("demo")).arg("--config").arg(config);
    let agent = Agent::start(command);
    assert!(agent.address.starts_with("127.0.0.1:"), "{}", agent.address);
    agent.wait_for("a first page", |page| page.has("gpu_up", &[]));
}
