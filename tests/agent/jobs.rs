//! Slurm jobs on GPUs: the whole agent beside the records that the prolog writes.

use std::fs;
use std::io::Write;
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::Command;

use gpumeter::holders::JobRecord;
use gpumeter::model::Fact;
use serde_json::Value;

use crate::running::{
    Demo, Unheld, bill_lines, exchange, held_on_first_gpu, output, seconds, time_of_first_gpu, wait_until,
};
use crate::scrape::{Scrape, nano};

/// A node of two GPUs with a busy process in step 0 of job 211.
struct Node {
    demo: Demo,
    /// UUIDs by index.
    gpus: Vec<String>,
    _scenario: tempfile::TempDir,
}

impl Node {
    fn start() -> Self {
        // Its process is there before its job has a record, so it would hold by presence until then.
        Self::start_with("attribution: {presence: false}\n")
    }

    /// The node with additional configuration.
    fn start_with(config: &str) -> Self {
        let scenario = tempfile::tempdir().unwrap();
        let text = serde_json::json!({
            "driver_version": "590.48.01", "cycle_seconds": 600,
            "gpus": [{"profile": "h100", "count": 2}],
            "processes": [{
                "pid": 4001, "name": "python3", "gpu": 0,
                "phases": [{"from": 0, "to": 600, "demand": 0.6, "memory_bytes": 8_589_934_592_u64}],
                "host": {"uid": 0, "cgroup": "/system.slice/slurmstepd.scope/job_211/step_0/user/task_0"},
            }],
            "config": format!("limits: {{birth_delay: 0s}}\n{config}"),
        });
        let file = scenario.path().join("scenario.json");
        fs::write(&file, text.to_string()).unwrap();
        let demo = Demo::start(&["--speed", "30", "--scenario", file.to_str().unwrap()]);
        let page = demo.agent.wait_for("both GPUs", |page| page.series_of("gpu_up", &[]).count() == 2);
        let label = |name: &str| name.split("uuid=\"").nth(1).unwrap().split('"').next().unwrap().to_owned();
        let gpus = page.series_of("gpu_up", &[]).map(|(name, _)| label(name)).collect();
        fs::create_dir_all(demo.directory.path().join("host/run/gpumeter")).unwrap();
        Self { demo, gpus, _scenario: scenario }
    }

    fn path(&self, path: &str) -> PathBuf {
        self.demo.directory.path().join("host").join(path)
    }

    /// Runs a Slurm hook as slurmd would for job 211 on these GPUs.
    fn hook(&self, script: &str, gpus: &str) {
        self.hook_for(script, gpus, "physics");
    }

    /// The same for a job of that account.
    fn hook_for(&self, script: &str, gpus: &str, account: &str) {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("packaging/slurm").join(script);
        let status = Command::new("sh")
            .arg(script)
            .env_clear()
            .env("GPUMETER_DIRECTORY", self.path("run/gpumeter"))
            .env("SLURM_JOB_ID", "211")
            .env("SLURMD_NODENAME", "node1")
            .env("SLURM_CLUSTER_NAME", "alpha")
            .env("SLURM_JOB_ACCOUNT", account)
            .env("SLURM_JOB_START_TIME", "1700000000")
            .env("SLURM_JOB_USER", "ada")
            .env("SLURM_JOB_UID", "1000")
            .env("SLURM_JOB_PARTITION", "gpu")
            .env("SLURM_JOB_QOS", "high")
            .env("SLURM_JOB_GPUS", gpus)
            .status();
        assert!(status.unwrap().success());
    }

    /// Waits until the agent has written its map; returns the minor number of the first GPU.
    fn minor(&self) -> String {
        let map = self.path("run/gpumeter/gpus");
        self.demo.agent.wait_for("the map of GPUs", |_| map.exists());
        let text = fs::read_to_string(map).unwrap();
        assert_eq!(text.lines().count(), 2, "{text}");
        let line = text.lines().find(|line| line.ends_with(&self.gpus[0]));
        line.unwrap().split(' ').next().unwrap().to_owned()
    }

    fn wait_for(&self, what: &str, wanted: impl Fn(&Scrape) -> bool) -> Scrape {
        self.demo.agent.wait_for(what, wanted)
    }

    fn lines(&self) -> Vec<Value> {
        bill_lines(&self.demo.agent)
    }

    /// Asserts that `gpumeter job` reports for job 211 at least these lines of an earlier bill.
    fn assert_summary(&self, lines: &[Value]) {
        let url = format!("http://{}", self.demo.agent.address);
        let summary = || -> Value {
            serde_json::from_slice(&output(&["job", "211", "--url", &url, "--json"]).stdout).unwrap()
        };
        wait_until("a tick of the job in the ledger", || {
            amount(&summary()["total"], "memory_peak_bytes") == 8_589_934_592
        });
        let json = summary();
        let sum = |key: &str| lines.iter().map(|line| amount(line, key)).sum::<u64>();
        let total = &json["total"];
        for key in ["held_ns", "used_ns"] {
            assert!(amount(total, key) >= sum(key) && sum(key) > 0, "{key} of {json}");
        }
        let efficiency = total["efficiency"].as_f64().unwrap();
        assert!(efficiency > 0.0 && efficiency < 1.0, "{json}");
        let text = output(&["job", "211", "--url", &url]).stdout;
        let text = String::from_utf8(text).unwrap();
        let words = [
            "Job 211 on ",
            "cluster       alpha",
            "account       physics",
            "SIMULATED",
            "\nstart         20",
            "\nend           20",
            "held h",
            "peak GiB",
            "total",
            " %",
            "\nstep  start ",
        ];
        for words in words {
            assert!(text.contains(words), "{words:?} in {text}");
        }
        assert!(total["start"].as_str() < total["end"].as_str(), "{json}");
        let step = &json["steps"][0];
        assert_eq!((&step["step"], &step["gpus"]), (&"0".into(), &1.into()), "{json}");
        assert_eq!(step["used_ns"], total["used_ns"], "{json}");
        self.assert_list(&url);
        self.assert_comparison(&url, &json);
        let explained = output(&["explain", "211", "--url", &url]).stdout;
        let explained = String::from_utf8(explained).unwrap();
        let explained = explained.split_whitespace().collect::<Vec<_>>().join(" ");
        for words in [
            "Job 211 Bill of demo-node ",
            "slurm:alpha/211 on GPU 0 (",
            "slurm:alpha/211.0 on GPU 0 (",
            ", granted by slurm tenant ",
            "by its label slurm_account; there were no tenant rules",
        ] {
            assert!(explained.contains(words), "{words:?} in {explained}");
        }
        assert!(!explained.contains("ada"), "{explained}");
        let unknown = output(&["job", "212", "--url", &url]);
        assert_eq!(unknown.status.code(), Some(1));
        assert!(
            String::from_utf8_lossy(&unknown.stderr).contains("no job 212 in the account"),
            "{unknown:?}"
        );
        let elsewhere = output(&["job", "211", "--cluster", "beta", "--url", &url]);
        assert_eq!(elsewhere.status.code(), Some(1), "{elsewhere:?}");
    }
}

impl Node {
    /// Asserts that the account agrees with what sacct would print of job 211, and with nothing else.
    fn assert_comparison(&self, url: &str, summary: &Value) {
        let file = self.demo.directory.path().join("sacct.txt");
        let to = summary["accounted_until"].as_str().unwrap();
        let compare = |sacct: &str, more: &[&str]| {
            fs::write(&file, sacct).unwrap();
            let against = ["bill", "--against", file.to_str().unwrap(), "--to", to, "--url", url];
            let ended = output(&[&against[..], more].concat());
            let text = [ended.stdout, ended.stderr].map(|text| String::from_utf8(text).unwrap()).concat();
            (ended.status.code(), text)
        };
        let seconds = amount(&summary["total"], "held_ns") / 1_000_000_000;
        let head = "JobID|User|Account|AllocTRES|ElapsedRaw|NodeList\n";
        let job =
            |gpus: u32| format!("{head}211|ada|physics|cpu=4,gres/gpu={gpus},node=1|{seconds}|demo-node\n");
        let (status, text) = compare(&job(1), &[]);
        assert_eq!(status, Some(0), "{text}");
        assert!(
            text.contains("0 jobs differ by more than 60 s per GPU or in their account, 1 agree;"),
            "{text}"
        );
        let (status, text) = compare(&(job(1) + "212|eve|bio|gres/gpu=8|9999|gpu8\n"), &["--tolerance", "2"]);
        assert_eq!(status, Some(0), "{text}");
        assert!(text.contains("left out: 1 on other nodes, 0 outside"), "{text}");
        let (status, text) = compare(&job(9), &[]);
        assert_eq!(status, Some(1), "{text}");
        let row = text.lines().find(|line| line.starts_with("211 ")).unwrap_or_else(|| panic!("{text}"));
        assert!(
            row.contains(" ada ")
                && row.contains(" physics ")
                && row.contains(&format!(" {}.0 ", seconds * 9)),
            "{text}"
        );
        assert!(text.contains("1 of 1 jobs differ from Slurm"), "{text}");
        let (status, json) = compare(&job(9), &["--json"]);
        assert!(status == Some(1) && json.contains("\"differs\": true"), "{json}");
        let (status, text) = compare("211 00:10:00", &[]);
        assert!(status == Some(2) && text.contains("sacct.txt: its first line"), "{text}");
        let (status, text) = compare(&job(1), &["--csv"]);
        assert!(status == Some(2) && text.contains("cannot be used with"), "{text}");
    }

    /// Asserts that job 211 is listed by its user and by its account, and to nobody else.
    fn assert_list(&self, url: &str) {
        let list = |more: &[&str]| {
            let arguments = [&["job", "--url", url], more].concat();
            String::from_utf8(output(&arguments).stdout).unwrap()
        };
        for more in [
            &[][..],
            &["--user", "ada", "--last", "7d"],
            &["--slurm-account", "physics", "--cluster", "alpha"],
        ] {
            let text = list(more);
            let row = text.lines().find(|line| line.starts_with("211 ")).unwrap_or_else(|| panic!("{text}"));
            assert!(row.contains(" ada ") && row.contains(" physics "), "{text}");
        }
        for more in [["--user", "eve"], ["--slurm-account", "bio"], ["--to", "2020-01-01"]] {
            let text = list(&[&more[..], &["--from", "2019-12-01"]].concat());
            assert!(text.contains("no job held or used a GPU in this period"), "{text}");
        }
        let json: Value = serde_json::from_str(&list(&["--json"])).unwrap();
        assert_eq!((&json["jobs"][0]["job"], &json["jobs"][1]), (&"211".into(), &Value::Null), "{json}");
    }
}

const HOLDING: &str = "workload=\"slurm:alpha/211\"";

/// Nanoseconds of a line.
fn amount(line: &Value, key: &str) -> u64 {
    line[key].as_str().and_then(|number| number.parse().ok()).unwrap_or_else(|| panic!("{key} in {line}"))
}

#[test]
fn a_job_on_a_gpu_has_its_bill_line_under_its_account() {
    let node = Node::start();
    let minor = node.minor();
    node.hook("prolog.sh", &minor);
    let record = fs::read_to_string(node.path("run/gpumeter-slurm/211.node1")).unwrap();
    assert!(record.contains(&format!("gpus={}\n", node.gpus[0])), "{record}");
    let page = node.wait_for("two minutes of the account", |page| {
        seconds(page, "gpu_tenant_held_seconds_total", "physics") >= 120
            && seconds(page, "gpu_tenant_used_seconds_total", "physics") >= 60
            && page.has("gpu_workload_info", &["workload=\"slurm:alpha/211.0\""])
    });
    assert_eq!(page.value("gpu_holding_ratio", &[HOLDING, "source=\"slurm\""]), Some("1"));
    let step =
        page.series_of("gpu_workload_info", &["workload=\"slurm:alpha/211.0\""]).next().unwrap().0.to_owned();
    for label in [
        "kind=\"slurm\"",
        "tenant=\"physics\"",
        "slurm_cluster=\"alpha\"",
        "slurm_job_id=\"211\"",
        "slurm_step_id=\"0\"",
        "slurm_account=\"physics\"",
        "slurm_user=\"ada\"",
        "slurm_partition=\"gpu\"",
        "slurm_qos=\"high\"",
    ] {
        assert!(step.contains(label), "{label} in {step}");
    }
    assert_eq!(page.value("gpumeter_resolver_success", &["resolver=\"jobs\""]), Some("1"));
    assert_eq!(seconds(&page, "gpu_tenant_outside_holding_seconds_total", "physics"), 0);
    let lines: Vec<Value> = node.lines().into_iter().filter(|line| line["tenant"] == "physics").collect();
    let [job, step] = &lines[..] else { panic!("lines of the job and its step in {lines:?}") };
    for (line, holder) in [(job, "slurm:alpha/211"), (step, "slurm:alpha/211.0")] {
        assert_eq!((&line["holder"], &line["uuid"]), (&holder.into(), &node.gpus[0].as_str().into()));
        assert_eq!(amount(line, "outside_holding_ns"), 0, "a step is within its job: {line}");
    }
    // A slow machine may miss a tick, whose time is unmeasured.
    let parts = ["within_ns", "lent_ns", "idle_ns", "unmeasured_ns", "unavailable_ns"];
    assert_eq!(amount(job, "held_ns"), parts.iter().map(|part| amount(job, part)).sum::<u64>(), "{job}");
    assert!(amount(job, "within_ns") > 0 && amount(job, "idle_ns") > 0, "{job}");
    assert!(amount(step, "used_ns") > 0 && amount(step, "held_ns") == 0, "{step}");
    node.assert_summary(&lines);
    node.hook("epilog.sh", &minor);
    assert!(!node.path("run/gpumeter-slurm/211.node1").exists());
    node.wait_for("the end of the holding", |page| !page.has("gpu_holding_ratio", &[HOLDING]));
}

#[test]
fn a_job_whose_record_names_another_account_is_on_its_bill_from_then_on() {
    const HELD: &str = "gpu_tenant_held_seconds_total";
    let node = Node::start_with("sampling: {level: full}\n");
    let minor = node.minor();
    node.hook("prolog.sh", &minor);
    let before = node.wait_for("a minute of the first account", |page| {
        seconds(page, HELD, "physics") >= 60 && seconds(page, "gpu_tenant_used_seconds_total", "physics") > 0
    });
    node.hook_for("prolog.sh", &minor, "bio");
    let after = node.wait_for("a minute of the second account", |page| {
        seconds(page, HELD, "bio") >= 60
            && seconds(page, "gpu_tenant_used_seconds_total", "bio") > 0
            && page.has("gpu_workload_info", &["workload=\"slurm:alpha/211.0\""])
    });
    assert!(seconds(&after, HELD, "physics") >= seconds(&before, HELD, "physics"));
    let held = |page: &Scrape| page.value("gpu_workload_held_seconds_total", &[HOLDING]).map(nano);
    assert!(held(&after) >= held(&before), "{:?} then {:?}", held(&before), held(&after));
    let info = |page: &Scrape, id: &str| -> Vec<String> {
        let workload = format!("workload=\"{id}\"");
        page.series_of("gpu_workload_info", &[&workload]).map(|(name, _)| name.to_owned()).collect()
    };
    for id in ["slurm:alpha/211", "slurm:alpha/211.0"] {
        let info = info(&after, id);
        assert_eq!(info.len(), 1, "{info:?}");
        assert!(info[0].contains("slurm_account=\"bio\""), "{info:?}");
    }
    let lines = node.lines();
    let tenants: Vec<&Value> =
        lines.iter().filter(|line| line["holder"] == "slurm:alpha/211").map(|line| &line["tenant"]).collect();
    assert_eq!(tenants, ["bio", "physics"]);
    let url = format!("http://{}", node.demo.agent.address);
    let summary = output(&["job", "211", "--url", &url]).stdout;
    let summary = String::from_utf8(summary).unwrap();
    for words in ["account       bio\n", "account       physics\n"] {
        assert!(summary.contains(words), "{words:?} in {summary}");
    }
    let bill = output(&["bill", "--by", "workload", "--url", &url]).stdout;
    let bill = String::from_utf8(bill).unwrap();
    for words in ["slurm:alpha/211 (bio)", "slurm:alpha/211 (physics)"] {
        assert!(bill.contains(words), "{words:?} in {bill}");
    }
}

#[test]
fn a_step_holds_its_gpu_within_its_job_and_gpu_time_is_billed_once() {
    let node = Node::start();
    let minor = node.minor();
    let step = node.path("sys/fs/cgroup/system.slice/slurmstepd.scope/job_211/step_0/user/task_0");
    fs::create_dir_all(&step).unwrap();
    fs::write(step.join("cgroup.procs"), "4001\n").unwrap();
    let environment = format!(
        "SLURM_JOB_ID=211\0SLURM_STEP_ID=0\0SLURMD_NODENAME=node1\0SLURM_JOB_ACCOUNT=others\0SLURM_STEP_GPUS={minor}\0"
    );
    fs::write(node.path("proc/4001/environ"), environment).unwrap();
    node.hook("prolog.sh", &minor);
    let step = "workload=\"slurm:alpha/211.0\"";
    let held = |page: &Scrape| page.value("gpu_holding_ratio", &[step, "tenant=\"physics\""]) == Some("1");
    let page = node.wait_for("the holding of the step", held);
    assert_eq!(page.value("gpu_holding_ratio", &[HOLDING]), Some("0"), "the step has it");
    node.wait_for("two minutes of the account", |page| {
        seconds(page, "gpu_tenant_held_seconds_total", "physics") >= 120
    });
    // The lines' held time sums to the GPUs' time: `lines` requires a balanced bill.
    let lines = node.lines();
    let of_step: Vec<&Value> = lines.iter().filter(|line| line["holder"] == "slurm:alpha/211.0").collect();
    let [step] = of_step[..] else { panic!("one line of the step in {lines:?}") };
    assert_eq!((&step["tenant"], &step["uuid"]), (&"physics".into(), &node.gpus[0].as_str().into()));
    let amount = |key: &str| amount(step, key);
    assert!(amount("held_ns") > 0 && amount("within_ns") > 0 && amount("idle_ns") > 0, "{step}");
    assert_eq!(amount("outside_holding_ns"), 0, "{step}");
}

#[test]
fn a_job_known_only_from_another_exporters_files_holds_its_gpus() {
    let node = Node::start_with("attribution: {slurm: {job_mapping_dir: /run/gpustat}}\n");
    let directory = node.path("run/gpustat");
    fs::create_dir_all(&directory).unwrap();
    fs::create_dir_all(node.path("etc/slurm")).unwrap();
    fs::write(node.path("etc/slurm/slurm.conf"), "# of the fixture\nClusterName=Alpha\n").unwrap();
    // As the prologs of jobstats and of dcgm-exporter write it.
    fs::write(directory.join(&node.gpus[0]), "211 1000\n").unwrap();
    fs::write(directory.join("1"), "212\n").unwrap();
    fs::write(directory.join("9"), "213\n").unwrap();
    let other = "workload=\"slurm:alpha/212\"";
    node.wait_for("both holdings", |page| {
        page.has("gpu_holding_ratio", &[HOLDING]) && page.has("gpu_holding_ratio", &[other, "gpu=\"1\""])
    });
    let log = node.demo.agent.wait_for_log("job mapping file");
    assert!(log.contains("\"9\""), "{log}");
    node.wait_for("use of the step", |page| {
        page.has("gpu_workload_info", &["workload=\"slurm:alpha/211.0\""])
    });
    let minor = node.minor();
    node.hook("prolog.sh", &minor);
    node.wait_for("the account of the record", |page| {
        page.has("gpu_holding_ratio", &[HOLDING, "tenant=\"physics\""])
    });
    fs::remove_file(directory.join("1")).unwrap();
    node.wait_for("the end of the holding", |page| !page.has("gpu_holding_ratio", &[other]));
}

#[test]
fn without_an_epilog_a_job_holds_until_its_cgroup_is_gone_and_an_invalid_record_holds_nothing() {
    let node = Node::start();
    let minor = node.minor();
    let scope = node.path("sys/fs/cgroup/system.slice/slurmstepd.scope");
    fs::create_dir_all(scope.join("job_211")).unwrap();
    node.hook("prolog.sh", &minor);
    fs::write(node.path("run/gpumeter-slurm/212"), "job_id=212\ncluster=alpha\ngpus=all\n").unwrap();
    node.wait_for("the holding", |page| page.has("gpu_holding_ratio", &[HOLDING]));
    let log = node.demo.agent.wait_for_log("is not the UUID of a GPU");
    assert!(log.contains("212"), "{log}");
    fs::remove_dir(scope.join("job_211")).unwrap();
    let page = node.wait_for("the end of the holding", |page| !page.has("gpu_holding_ratio", &[HOLDING]));
    assert!(!page.has("gpu_holding_ratio", &["workload=\"slurm:alpha/212\""]));
    node.demo.agent.wait_for_log("does the epilog run?");
}

#[test]
fn a_job_on_a_gpu_without_any_record_is_a_failure_of_the_resolver() {
    let node = Node::start();
    let succeeded =
        |page: &Scrape| page.value("gpumeter_resolver_success", &["resolver=\"jobs\""]).map(str::to_owned);
    let page = node.wait_for("the failure", |page| succeeded(page).is_some());
    assert_eq!(succeeded(&page).as_deref(), Some("0"));
    let log = node.demo.agent.wait_for_log("records of jobs cannot be read");
    assert!(log.contains("does the prolog of Slurm run?"), "{log}");
    node.hook("prolog.sh", &node.minor());
    node.wait_for("the record", |page| succeeded(page).as_deref() == Some("1"));
}

#[test]
fn a_restart_while_records_cannot_be_read_keeps_what_jobs_hold() {
    const MINUTE: i128 = 60_000_000_000;
    let mut node = Node::start();
    let minor = node.minor();
    node.hook("prolog.sh", &minor);
    let before =
        node.wait_for("a minute of the holding", |page| held_on_first_gpu(page, &["physics"]) >= MINUTE);
    // The demo makes the host's files anew: records and cgroups of jobs are gone.
    let scenario = node._scenario.path().join("scenario.json");
    node.demo.kill_and_restart(&["--speed", "30", "--scenario", scenario.to_str().unwrap()]);
    let slice = node.path("sys/fs/cgroup/system.slice");
    let scope = slice.join("slurmstepd.scope");
    fs::create_dir_all(slice.join("new/job_211")).unwrap();
    // The agent never sees the scope without the job.
    fs::rename(slice.join("new"), &scope).unwrap();
    node.demo.agent.wait_for_log("records of jobs cannot be read; holdings of jobs stay as they were");
    let later = time_of_first_gpu(&before) + 10 * MINUTE;
    let unheld = Unheld::of(&before);
    let after = node.wait_for("ten minutes", |page| {
        unheld.assert_stays(page);
        time_of_first_gpu(page) >= later
    });
    unheld.assert_recovered();
    assert!(after.has("gpu_holding_ratio", &[HOLDING, "source=\"slurm\""]));
    fs::remove_dir(scope.join("job_211")).unwrap();
    node.wait_for("the end of the holding", |page| !page.has("gpu_holding_ratio", &[HOLDING]));
}

/// What the prolog records of a job's GPUs at positions 0 and 1, with these devices and that map of the agent.
fn recorded_gpus(devices: &str, map: &str) -> String {
    let place = tempfile::tempdir().unwrap();
    fs::create_dir(place.path().join("gpumeter")).unwrap();
    fs::write(place.path().join("gpumeter/gpus"), map).unwrap();
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("packaging/slurm/prolog.sh");
    let status = Command::new("sh")
        .arg(script)
        .env_clear()
        .env("GPUMETER_DIRECTORY", place.path().join("gpumeter"))
        .env("SLURM_JOB_ID", "211")
        .env("SLURM_CLUSTER_NAME", "alpha")
        .env("SLURM_JOB_GPUS", "0,1")
        .env("CUDA_VISIBLE_DEVICES", devices)
        .status();
    assert!(status.unwrap().success());
    let record = fs::read_to_string(place.path().join("gpumeter-slurm/211")).unwrap();
    record.strip_prefix("job_id=211\ncluster=alpha\n").unwrap().to_owned()
}

/// A user chooses the name of his job, and must not get out of its record by it.
#[test]
fn no_name_of_a_job_makes_its_record_invalid() {
    use std::os::unix::ffi::OsStringExt;
    let long = [b'x'; 400].to_vec();
    for (name, recorded) in [
        (b"train".to_vec(), Some("train".to_owned())),
        (b"a b=c".to_vec(), Some("a b=c".to_owned())),
        (b"x\ngpus=\xff".to_vec(), Some("x_gpus=_".to_owned())),
        (long, Some("x".repeat(128))),
        (Vec::new(), None),
    ] {
        let place = tempfile::tempdir().unwrap();
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("packaging/slurm/prolog.sh");
        let status = Command::new("sh")
            .arg(script)
            .env_clear()
            .env("GPUMETER_DIRECTORY", place.path().join("gpumeter"))
            .env("SLURM_JOB_ID", "211")
            .env("SLURM_CLUSTER_NAME", "alpha")
            .env("SLURM_JOB_NAME", std::ffi::OsString::from_vec(name))
            .status();
        assert!(status.unwrap().success());
        let record = fs::read(place.path().join("gpumeter-slurm/211")).unwrap();
        let record = JobRecord::parse(&record).unwrap();
        assert_eq!(record.holder.facts.get(Fact::SlurmJobName).map(ToString::to_string), recorded);
    }
}

#[test]
fn the_prolog_records_mig_instances_by_slurms_uuids() {
    let instances = "MIG-3cae2e45-052c-4b11-80d3-4d7b2d2d3464,MIG-00000000-052c-4b11-80d3-4d7b2d2d3464";
    assert_eq!(recorded_gpus(instances, ""), format!("gpus={instances}\n"));
}

#[test]
fn uuids_that_slurm_gives_the_prolog_win_over_the_map_of_positions() {
    let uuid = |first: u32| format!("GPU-{first:08x}-052c-4b11-80d3-4d7b2d2d3464");
    let map = (0..4).map(|minor| format!("{minor} {}\n", uuid(minor))).collect::<String>();
    let reversed = format!("{},{}", uuid(3), uuid(2));
    assert_eq!(recorded_gpus(&reversed, &map), format!("gpus={reversed}\n"));
    assert_eq!(recorded_gpus(&reversed, ""), format!("gpus={reversed}\n"), "without a map");
    let by_position = format!("gpus={},{}\ngpu_positions=0,1\n", uuid(0), uuid(1));
    for older in ["0,1", "", "GPU-3cae2e45,GPU-00000000", "GPU-zcae2e45-052c-4b11-80d3-4d7b2d2d3464"] {
        assert_eq!(recorded_gpus(older, &map), by_position, "{older}");
    }
}

#[test]
fn minor_numbers_that_the_prolog_could_not_map_are_mapped_by_the_agent() {
    let node = Node::start();
    let minor = node.minor();
    fs::remove_file(node.path("run/gpumeter/gpus")).unwrap();
    node.hook("prolog.sh", &minor);
    let record = fs::read_to_string(node.path("run/gpumeter-slurm/211.node1")).unwrap();
    assert!(record.contains(&format!("gpu_minors={minor}\n")), "{record}");
    let uuid = format!("uuid=\"{}\"", node.gpus[0]);
    node.wait_for("the holding", |page| page.has("gpu_holding_ratio", &[HOLDING, &uuid]));
}

#[test]
fn the_use_of_a_job_without_a_record_is_unattributed() {
    let node = Node::start();
    node.minor();
    let nobody = |page: &Scrape| {
        page.series_of("gpu_unattributed_seconds_total", &["reason=\"job\""])
            .any(|(_, value)| nano(value) > 0)
    };
    let page = node.wait_for("unattributed use", nobody);
    assert!(!page.has("gpu_workload_info", &["kind=\"slurm\""]));
}

#[test]
fn a_user_of_the_node_sees_his_own_bill_and_nobody_else_s() {
    let node = Node::start_with("web: {local_readers: [ops, \"group:admins\"]}");
    let minor = node.minor();
    node.hook("prolog.sh", &minor);
    node.wait_for("the job's account", |page| {
        seconds(page, "gpu_tenant_held_seconds_total", "physics") > 120
    });
    let users = [("ada", 4711), ("eve", 4712), ("ops", 4713), ("root-like", 4714)];
    let lines = users.map(|(name, uid)| format!("{name}:x:{uid}:{uid}::/:/bin/sh\n")).concat();
    for (file, more) in [("etc/passwd", &*lines), ("etc/group", "admins:x:99:root-like\n")] {
        let text = fs::read_to_string(node.path(file)).unwrap_or_default();
        fs::write(node.path(file), text + more).unwrap();
    }
    let ask = |uid: Option<u32>, path: &str| {
        let stream = TcpStream::connect(&node.demo.agent.address).unwrap();
        if let Some(uid) = uid {
            let uid = rustix::fs::Uid::from_raw(uid);
            // The kernel takes the owner of the socket's file for the socket's user.
            rustix::fs::fchown(&stream, Some(uid), None).unwrap();
        }
        let answer = exchange(stream, path);
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        assert!(head.starts_with("HTTP/1.1 200"), "{answer}");
        serde_json::from_str::<Value>(body).unwrap()
    };
    let holders = |uid: Option<u32>| {
        let bill = ask(uid, "/api/v1/bill");
        let lines = bill["lines"].as_array().unwrap();
        let mut holders: Vec<String> =
            lines.iter().map(|line| line["holder"].as_str().unwrap().to_owned()).collect();
        holders.sort();
        holders.dedup();
        (bill["partial"] == true, holders)
    };
    let (partial, all) = holders(None);
    assert!(!partial && all.iter().any(|holder| holder == "__unallocated__"), "{all:?}");
    if !rustix::process::geteuid().is_root() {
        // Standard error itself: the harness shows what a passing test prints to nobody.
        let words =
            "not tested without root, who may give a socket to another user: what users see of a bill";
        return writeln!(std::io::stderr(), "{words}").unwrap();
    }
    let (partial, own) = holders(Some(4711));
    assert!(
        partial && !own.is_empty() && own.iter().all(|holder| holder.starts_with("slurm:alpha/211")),
        "{own:?}"
    );
    assert_eq!(holders(Some(4712)), (true, Vec::new()), "another user");
    assert_eq!(holders(Some(4799)), (true, Vec::new()), "a user without a name");
    for reader in [0, 4713, 4714] {
        assert!(!holders(Some(reader)).0, "{reader}");
    }
    let explained = |uid| ask(Some(uid), "/api/v1/explain?job=211")["lines"].as_array().unwrap().len();
    assert!(explained(4711) > 0);
    assert_eq!((explained(4712), explained(4799)), (0, 0), "others");
    let series = |uid| ask(Some(uid), "/api/v1/snapshot").to_string();
    let (own, other) = (series(4711), series(4712));
    assert!(own.contains("slurm:alpha/211") && !other.contains("slurm:alpha/211"), "{own}");
    for page in [&own, &other] {
        assert!(
            !page.contains("gpu_tenant_held_seconds_total") && !page.contains("gpu_power_watts"),
            "{page}"
        );
    }
}

/// Slurmd runs in a pod that holds two GPUs: job 7 has a record of the first, and job 8 has none.
#[test]
fn a_job_in_a_pod_pays_for_the_gpu_of_its_record_and_the_pod_for_the_rest() {
    const ID: &str = "aa18000000000000000000000000000000000000000000000000000000000abc";
    const UID: &str = "11111111-052c-4b11-80d3-4d7b2d2d3464";
    let slice = UID.replace('-', "_");
    let process = |pid: u32, gpu: u32, job: u32| {
        serde_json::json!({
            "pid": pid, "name": "python3", "gpu": gpu,
            "phases": [{"from": 0, "to": 600, "demand": 0.5, "memory_bytes": 8_589_934_592_u64}],
            "host": {"uid": 1001, "cgroup": format!(
                "/kubepods.slice/kubepods-pod{slice}.slice/cri-containerd-{ID}.scope/system.slice/slurmstepd.scope/\
                 job_{job}/step_0/user/task_0"
            )},
        })
    };
    let text = serde_json::json!({
        "driver_version": "590.48.01", "cycle_seconds": 600,
        "gpus": [{"profile": "h100", "count": 2}],
        "pods": [{"namespace": "slurm", "name": "slinky-0", "uid": UID,
            "containers": [{"name": "slurmd", "id": ID, "devices": ["0", "1"]}]}],
        "jobs": [{"job_id": 7, "gpus": [0], "cluster": "alpha", "account": "phys", "user": "ada", "uid": "1001",
            "partition": "all", "start": "1795783000"}],
        "processes": [process(4001, 0, 7), process(4002, 1, 8)],
        "config": "limits: {birth_delay: 0s}\nattribution: {container_nodes: ['/kubepods.slice/kubepods-pod*/cri-containerd-*']}\n",
    });
    let scenario = tempfile::tempdir().unwrap();
    let file = scenario.path().join("scenario.json");
    fs::write(&file, text.to_string()).unwrap();
    let demo = Demo::start(&["--speed", "30", "--scenario", file.to_str().unwrap()]);
    let sum_of = |lines: &[Value], tenant: &str, gpu: u64, key: &str| {
        let lines = lines.iter().filter(|line| line["tenant"] == tenant && line["gpu"] == gpu);
        lines.map(|line| amount(line, key)).sum::<u64>()
    };
    // The page may be ahead of the bill, which ends with a minute.
    let mut lines = Vec::new();
    wait_until("time of the job on the bill", || {
        lines = bill_lines(&demo.agent);
        sum_of(&lines, "phys", 0, "held_ns") > 0
    });
    let before = sum_of(&lines, "slurm", 0, "held_ns");
    wait_until("minutes of both on the bill", || {
        lines = bill_lines(&demo.agent);
        [("phys", 0), ("slurm", 1)]
            .iter()
            .all(|(tenant, gpu)| sum_of(&lines, tenant, *gpu, "held_ns") >= 150 * 1_000_000_000)
    });
    // Only before both were known.
    assert_eq!(sum_of(&lines, "slurm", 0, "held_ns"), before, "{lines:#?}");
    let sum = |tenant: &str, gpu: u64, key: &str| sum_of(&lines, tenant, gpu, key) / 1_000_000_000;
    assert_eq!(sum("phys", 1, "held_ns") + sum("phys", 1, "used_ns"), 0, "{lines:#?}");
    // A busy machine may leave time unmeasured; of the rest both processes use half.
    for (tenant, gpu) in [("phys", 0), ("slurm", 1)] {
        let [held, used, unmeasured] =
            ["held_ns", "used_ns", "unmeasured_ns"].map(|key| sum(tenant, gpu, key));
        assert!(used > 0 && used * 3 >= held - unmeasured, "{tenant}: {lines:#?}");
    }
}
