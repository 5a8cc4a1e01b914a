//! Holdings of jobs over rounds of records, job mappings, cgroups and environments.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use crate::holders::AllocatedDevice;
use proptest::prelude::*;

use super::*;

const GPU: &str = "GPU-3cae2e45-052c-4b11-80d3-4d7b2d2d3464";
const OTHER: &str = "GPU-00000000-052c-4b11-80d3-4d7b2d2d3464";
const SLUID: &str = "s5K1KKYAYG5D00";

fn text(more: &str) -> String {
    format!(
        "job_id=211\ncluster=alpha\nuser=ada\nuid=1000\naccount=physics\npartition=gpu\nqos=high\n\
         array_job_id=210\narray_task_id=3\nhet_job_id=\n{more}"
    )
}

fn file(name: &str, version: i64, text: &str) -> RecordFile {
    RecordFile { name: name.into(), version: (version, 0, 0), bytes: Ok(text.as_bytes().to_vec()) }
}

fn cgroup(name: &str, job: Option<&str>) -> JobCgroup {
    JobCgroup { name: name.into(), job: job.map(str::to_owned), steps: Vec::new() }
}

/// A node with GPUs of these minor numbers, which are their indices too.
fn node(gpus: &[(u32, &str)]) -> NodeGpus {
    let minors: BTreeMap<u32, String> =
        gpus.iter().map(|(minor, uuid)| (*minor, (*uuid).to_owned())).collect();
    NodeGpus { indices: Some(minors.clone()), minors, instances: Some(BTreeMap::new()) }
}

fn environment(variables: &[(&str, &str)]) -> StepEnvironment {
    let variables = variables.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
    StepEnvironment { job: "7".into(), step: "0".into(), uid: 1000, variables: variables.collect() }
}

fn nothing<'a>(
    gpus: &'a NodeGpus,
    environments: &'a BTreeMap<String, Vec<StepEnvironment>>,
) -> JobObservation<'a> {
    JobObservation {
        records: &[],
        mappings: &[],
        cluster: None,
        cgroups: None,
        environments,
        gres: None,
        gpus,
        now: Nanoseconds(0),
        utc: Utc(0),
    }
}

/// A round of records with the cgroups of these jobs, so many seconds after the boot.
fn round(jobs: &mut JobTracker, records: &[RecordFile], cgroups: Option<&[&str]>, now: u64) -> JobHoldings {
    let cgroups = cgroups.map(|jobs| jobs.iter().map(|job| cgroup(job, None)).collect::<Vec<_>>());
    let gpus = node(&[(8, OTHER)]);
    let (now, cgroups) = (Nanoseconds::from_seconds(now), cgroups.as_deref());
    jobs.observe(JobObservation { records, cgroups, now, ..nothing(&gpus, &BTreeMap::new()) })
}

#[test]
fn the_cluster_of_a_job_without_a_record_is_that_of_slurm_conf() {
    let variables =
        [("SLURM_CLUSTER_NAME", "others"), ("SLURM_JOB_GPUS", "0"), ("SLURM_ARRAY_JOB_ID", "210")];
    let environments = &BTreeMap::from([("211".to_owned(), vec![environment(&variables)])]);
    let gpus = node(&[(0, GPU)]);
    let seen = JobObservation { cluster: Some("alpha"), ..nothing(&gpus, environments) };
    let known = JobTracker::default().observe(seen);
    assert_eq!(held(&known), [("slurm:alpha/211", GPU)]);
    let facts = &known.allocations[0].holder.facts;
    assert_eq!((facts.uid, facts.get(Fact::SlurmArrayJob).map(|id| &**id)), (Some(1000), Some("210")));
}

/// The first round of a record, if there is one, with the environment of job 211 on a node of GPU 0 and 8.
fn with_environment(text: Option<&str>, variables: &[(&str, &str)]) -> JobHoldings {
    let environments = &BTreeMap::from([("211".to_owned(), vec![environment(variables)])]);
    let records: Vec<RecordFile> = text.iter().map(|text| file("211", 1, text)).collect();
    let gpus = node(&[(0, GPU), (8, OTHER)]);
    let (records, cgroups) = (&*records, Some(&[][..]));
    let gres = Some("Name=shard Count=4 File=/dev/nvidia0");
    JobTracker::default().observe(JobObservation { records, cgroups, gres, ..nothing(&gpus, environments) })
}

#[test]
fn what_no_prolog_is_told_comes_from_the_environment_of_the_job() {
    let record = text("gpu_minors=0\n").replace("array_job_id=210\narray_task_id=3\n", "");
    let known = with_environment(
        Some(&record),
        &[
            ("SLURM_ARRAY_JOB_ID", "210"),
            ("SLURM_ARRAY_TASK_ID", "4"),
            ("SLURM_JOB_GPUS", "0,8"),
            ("SLURM_JOB_ACCOUNT", "other"),
        ],
    );
    assert_eq!(held(&known), [("slurm:alpha/211", GPU)], "its record is complete");
    let facts = &known.allocations[0].holder.facts;
    assert_eq!(facts.get(Fact::SlurmArrayTask).map(|text| &**text), Some("4"));
    assert_eq!(facts.get(Fact::SlurmAccount).map(|text| &**text), Some("physics"));
}

/// What job 211 with this record holds when its environment names positions 0 and 1 of that `gres.conf`.
fn claimed(record: &str, gres: &str) -> Vec<String> {
    let variables = [("SLURM_CLUSTER_NAME", "alpha"), ("SLURM_JOB_GPUS", "0,1")];
    let environments = &BTreeMap::from([("211".to_owned(), vec![environment(&variables)])]);
    let gpus = NodeGpus { instances: Some([((1, 7), Vec::new())].into()), ..node(&[(0, GPU), (1, OTHER)]) };
    let mut records = vec![file("211", 1, &text(record))];
    records.retain(|_| !record.is_empty());
    let seen = JobObservation { records: &records, gres: Some(gres), ..nothing(&gpus, environments) };
    let known = JobTracker::default().observe(seen);
    held(&known).into_iter().map(|(_, gpu)| gpu.to_owned()).collect()
}

#[test]
fn the_environment_adds_only_gpus_of_further_types_to_a_record() {
    let of_two = "Name=gpu Type=a100 File=/dev/nvidia0\nName=gpu Type=t4 File=/dev/nvidia1\n";
    assert_eq!(claimed("gpu_minors=0\n", of_two), [GPU, OTHER]);
    assert_eq!(claimed(&format!("gpus={GPU}\n"), of_two), [GPU, OTHER]);
    for gres in
        ["", "AutoDetect=nvml", "Name=gpu File=/dev/nvidia[0-1]", "Name=gpu Type=a100 File=/dev/nvidia[0-1]"]
    {
        assert_eq!(claimed(&format!("gpus={GPU}\n"), gres), [GPU], "{gres}");
    }
}

#[test]
fn a_job_of_mig_instances_holds_no_whole_gpu_by_its_environment() {
    let instance = GPU.replace("GPU-", "MIG-");
    let of_two = "Name=gpu Type=a100 File=/dev/nvidia0\nName=gpu Type=t4 File=/dev/nvidia1\n";
    for gres in ["AutoDetect=nvml", of_two] {
        assert_eq!(claimed(&format!("gpus={instance}\n"), gres), [&*instance], "{gres}");
    }
    assert!(claimed("", "AutoDetect=nvml").is_empty(), "a position may be that of an instance");
    assert_eq!(claimed("", "Name=gpu File=/dev/nvidia[0-1]"), [GPU, OTHER]);
}

#[test]
fn a_job_of_shards_holds_its_part_of_those_of_its_gpu() {
    let fraction = |gpu: &str, shards: &str| {
        let record = text(&format!("gpu_minors={gpu}\n"));
        with_environment(Some(&record), &[("SLURM_SHARDS_ON_NODE", shards)]).allocations[0].fraction
    };
    assert_eq!(fraction("0", "1"), Fraction { numerator: 1, denominator: 4 });
    assert_eq!(fraction("0", "4"), Fraction { numerator: 4, denominator: 4 });
    assert_eq!(fraction("0", "5"), Fraction::WHOLE, "more than there are");
    assert_eq!(fraction("0", "0"), Fraction::WHOLE);
    assert_eq!(fraction("8", "1"), Fraction::WHOLE, "gres.conf says nothing of its shards");
}

#[test]
fn gres_conf_says_which_device_file_is_at_a_position() {
    let gpus = node(&[(0, GPU), (8, OTHER)]);
    let observe = |positions: &str, gres| {
        let records = &[file("211", 1, &text(&format!("node=n1\ngpus={GPU}\ngpu_positions={positions}\n")))];
        let environments = &BTreeMap::new();
        let seen = JobObservation { records, gres, ..nothing(&gpus, environments) };
        let known = JobTracker::default().observe(seen);
        known.allocations.iter().map(|one| one.device.to_string()).collect::<Vec<_>>()
    };
    let reversed = Some("Name=gpu File=/dev/nvidia8\nName=gpu File=/dev/nvidia0\n");
    assert_eq!(observe("0", None), [GPU]);
    assert_eq!(observe("0", Some("AutoDetect=nvml")), [GPU]);
    assert_eq!(observe("0", reversed), [OTHER]);
    assert_eq!(observe("1", reversed), [GPU]);
    assert_eq!(observe("2", reversed), [GPU], "as the prolog found it");
    let with_lost = Some("Name=gpu File=/dev/nvidia[0-1]");
    assert_eq!(observe("1", with_lost), [GPU], "GPU 1 is lost, and the prolog has found its UUID");
    let reversed = Some("Name=gpu File=/dev/nvidia1\nName=gpu File=/dev/nvidia0\n");
    assert!(observe("0", reversed).is_empty(), "the UUID is that of another GPU");
}

#[test]
fn a_job_without_a_record_holds_what_its_environment_names_and_nobody_else_holds() {
    let variables =
        [("SLURM_CLUSTER_NAME", "alpha"), ("SLURM_JOB_GPUS", "0,8"), ("SLURM_JOB_ACCOUNT", "other")];
    let known = with_environment(None, &variables);
    assert_eq!(held(&known), [("slurm:alpha/211", GPU), ("slurm:alpha/211", OTHER)]);
    assert_eq!(known.allocations[0].holder.facts.get(Fact::SlurmAccount), None);
    assert!(known.problems.first().unwrap().contains("does the prolog run?"), "{:?}", known.problems);
    assert_eq!(known.map.holder("211", "0").unwrap().id.as_str(), "slurm:alpha/211.0");
    let others = text("gpu_minors=0\n").replace("job_id=211", "job_id=212");
    let known = with_environment(Some(&others), &variables);
    assert_eq!(held(&known), [("slurm:alpha/212", GPU), ("slurm:alpha/211", OTHER)]);
}

#[test]
fn a_step_holds_what_slurm_gave_it_of_its_jobs_gpus_and_is_named_by_its_cgroup() {
    let record = text("gpu_minors=0\n");
    let held_by = |variables: &[(&str, &str)]| {
        let known = with_environment(Some(&record), variables);
        let held = held(&known).into_iter().map(|(holder, gpu)| (holder.to_owned(), gpu.to_owned()));
        held.collect::<Vec<_>>()
    };
    let job = || ("slurm:alpha/211".to_owned(), GPU.to_owned());
    let step = || ("slurm:alpha/211.0".to_owned(), GPU.to_owned());
    assert_eq!(held_by(&[("SLURM_STEP_ID", "0"), ("SLURM_STEP_GPUS", "0")]), [step(), job()]);
    assert_eq!(held_by(&[("SLURM_STEP_ID", "1"), ("SLURM_STEP_GPUS", "0")]), [job()], "another step's");
    assert_eq!(held_by(&[("SLURM_STEP_GPUS", "0")]), [job()]);
    assert_eq!(held_by(&[("SLURM_STEP_ID", "0"), ("SLURM_STEP_GPUS", "8")]), [job()], "not the job's");
    assert_eq!(held_by(&[("SLURM_STEP_ID", "0"), ("SLURM_STEP_GPUS", "x,-1,")]), [job()]);
    let shards = [("SLURM_STEP_ID", "0"), ("SLURM_STEP_GPUS", "0"), ("SLURM_SHARDS_ON_NODE", "1")];
    let known = with_environment(Some(&record), &shards);
    let fractions: Vec<Fraction> = known.allocations.iter().map(|one| one.fraction).collect();
    assert_eq!(fractions, [Fraction { numerator: 1, denominator: 4 }; 2], "never above its job's");
}

/// Rounds of mapping files beside records, with the cgroups of these jobs.
fn mapped(jobs: &mut JobTracker, files: [&[RecordFile]; 2], cgroups: &[&str], now: u64) -> JobHoldings {
    let gpus = node(&[(0, GPU), (1, OTHER)]);
    let cgroups: Vec<JobCgroup> = cgroups.iter().map(|job| cgroup(job, None)).collect();
    let [records, mappings] = files;
    let (cgroups, now) = (Some(&*cgroups), Nanoseconds::from_seconds(now));
    let environments = BTreeMap::new();
    let nothing = nothing(&gpus, &environments);
    jobs.observe(JobObservation { records, mappings, cgroups, now, cluster: Some("alpha"), ..nothing })
}

#[test]
fn a_job_that_mapping_files_alone_name_holds_their_gpus_without_an_account() {
    let files = [file("0", 1, "300 1000\n"), file(GPU, 1, "300 1000\n"), file("1", 1, "300\n301\n")];
    let known = mapped(&mut JobTracker::default(), [&[], &files], &["300", "301"], 5);
    let both = [("slurm:alpha/301", OTHER), ("slurm:alpha/300", GPU), ("slurm:alpha/300", OTHER)];
    assert_eq!(held(&known), both);
    assert!(known.problems.is_empty(), "{:?}", known.problems);
    let facts = &known.allocations[0].holder.facts;
    assert_eq!((facts.uid, facts.get(Fact::SlurmAccount)), (Some(1000), None));
    assert_eq!(known.map.holder("301", "batch").unwrap().id.as_str(), "slurm:alpha/301.batch");
}

#[test]
fn a_record_goes_before_a_mapping_file_for_its_job_and_for_its_gpus() {
    let record = [file("211", 1, &text(&format!("gpus={GPU}\n")))];
    let mut jobs = JobTracker::default();
    let files = [file("0", 1, "300 1000\n"), file("1", 1, "211 1000\n")];
    let known = mapped(&mut jobs, [&record, &files], &["211", "300"], 5);
    assert_eq!(held(&known), [("slurm:alpha/211", GPU)]);
    let problem = known.problems.first().unwrap();
    assert!(problem.contains("slurm:alpha/300") && problem.contains("another job's record"), "{problem}");
    let known = mapped(&mut jobs, [&[], &files], &["211"], 6);
    assert!(!held(&known).contains(&("slurm:alpha/211", OTHER)), "its epilog has run");
}

#[test]
fn a_mapping_file_that_stays_without_its_jobs_cgroup_holds_no_longer() {
    let mut jobs = JobTracker::default();
    let files = [file("0", 1, "300 1000\n")];
    assert_eq!(held(&mapped(&mut jobs, [&[], &files], &["300"], 5)).len(), 1);
    assert_eq!(held(&mapped(&mut jobs, [&[], &files], &[], 6)).len(), 1);
    let known = mapped(&mut jobs, [&[], &files], &[], 7);
    assert!(held(&known).is_empty() && known.problems.first().unwrap().contains("epilog"));
    let shared = [file("0", 2, "300 1000\n301 1000\n")];
    let known = mapped(&mut jobs, [&[], &shared], &["301"], 8);
    assert_eq!(held(&known), [("slurm:alpha/301", GPU)], "written anew for another job");
    assert_eq!(held(&mapped(&mut jobs, [&[], &shared], &["300", "301"], 9)).len(), 2, "requeued");
    assert!(held(&mapped(&mut jobs, [&[], &[]], &["300"], 10)).is_empty(), "the epilog removed it");
}

#[test]
fn a_mapping_goes_before_the_environment_which_tells_its_cluster_where_nothing_else_does() {
    let gpus = node(&[(0, GPU), (1, OTHER)]);
    let variables = [("SLURM_CLUSTER_NAME", "beta"), ("SLURM_JOB_GPUS", "1")];
    let environment = StepEnvironment { step: "batch".into(), ..environment(&variables) };
    let other = StepEnvironment { uid: 1001, ..environment.clone() };
    let environments =
        BTreeMap::from([("300".to_owned(), vec![environment]), ("301".to_owned(), vec![other])]);
    let mappings = [file("1", 1, "300\n"), file("0", 1, "302\n")];
    let seen = JobObservation { mappings: &mappings, ..nothing(&gpus, &environments) };
    let known = JobTracker::default().observe(seen);
    assert_eq!(held(&known), [("slurm:beta/300", OTHER)], "301 claims a GPU that a mapping gives to 300");
    assert!(known.problems.first().unwrap().contains("302"), "{:?}", known.problems);
}

fn held(known: &JobHoldings) -> Vec<(&str, &str)> {
    let held = known.allocations.iter().map(|one| match &one.device {
        AllocatedDevice::Uuid(uuid) => (one.holder.id.as_str(), &**uuid),
        other => panic!("jobs hold by UUID, not by {other}"),
    });
    let mut held: Vec<_> = held.collect();
    // The GPU of most tests first.
    held.sort_by_key(|(holder, gpu)| (std::cmp::Reverse(*holder), std::cmp::Reverse(*gpu)));
    held
}

#[test]
fn a_record_tells_the_job_its_account_and_its_gpus() {
    let record = JobRecord::parse(text(&format!("gpus={GPU}\ngpu_minors=8\n")).as_bytes()).unwrap();
    assert_eq!(record.holder.id.as_str(), "slurm:alpha/211");
    let facts: Vec<_> = record.holder.facts.iter().collect();
    let expected = [
        (Fact::SlurmCluster, "alpha"),
        (Fact::SlurmJob, "211"),
        (Fact::SlurmArrayJob, "210"),
        (Fact::SlurmArrayTask, "3"),
        (Fact::SlurmAccount, "physics"),
        (Fact::SlurmUser, "ada"),
        (Fact::SlurmPartition, "gpu"),
        (Fact::SlurmQos, "high"),
    ];
    assert_eq!((facts, record.holder.facts.uid), (expected.to_vec(), Some(1000)));
    assert_eq!(record.gpus, [RecordedGpu::Uuid(GPU.into()), RecordedGpu::Minor(8)]);
    assert_eq!(record.fraction, Fraction::WHOLE);
    let shared = JobRecord::parse(text(&format!("gpus={GPU}\nmps_percentage=25\n")).as_bytes()).unwrap();
    assert_eq!(shared.fraction, Fraction { numerator: 25, denominator: 100 });
    let instance = GPU.replace("GPU-", "MIG-");
    let instances = JobRecord::parse(text(&format!("gpus={instance}\n")).as_bytes()).unwrap();
    assert_eq!(instances.gpus, [RecordedGpu::Uuid(instance)]);
    let newer = JobRecord::parse(text("from_a_newer_prolog=1\n").as_bytes()).unwrap();
    assert!(newer.gpus.is_empty());
}

#[test]
fn a_record_that_is_not_exactly_one_is_refused_with_a_reason() {
    for (bad, reason) in [
        (String::new(), "incomplete"),
        ("\n".into(), "not key=value"),
        ("job_id=1\n".into(), "no cluster"),
        ("cluster=a\n".into(), "no job_id"),
        ("job_id=1\ncluster=a".into(), "incomplete"),
        ("job_id=1\ncluster=a/2\n".into(), "not a valid cluster name"),
        ("job_id=1;rm\ncluster=a\n".into(), "not a number"),
        ("job_id=007\ncluster=a\n".into(), "not a number"),
        ("job_id=-1\ncluster=a\n".into(), "not a number"),
        ("job_id=99999999999\ncluster=a\n".into(), "not a number"),
        (text("job_id=212\n"), "twice"),
        (text("account\n"), "not key=value"),
        (text("comment=\u{1b}[2J\n"), "control characters"),
        (text(&format!("comment={}\n", "x".repeat(300))), "too long"),
        (text("gpus=0\n"), "not the UUID"),
        (text(&format!("gpus={GPU},\n")), "not the UUID"),
        (text("gpus=MIG-GPU-1\n"), "not the UUID"),
        (text("gpu_minors=0-3\n"), "not a minor number"),
        (text("gpu_positions=0-3\n"), "not a number"),
        (text("gpu_minors=0,,1\n"), "not a minor number"),
        (text("mps_percentage=0\n"), "1 to 100"),
        (text("mps_percentage=101\n"), "1 to 100"),
    ] {
        let error = JobRecord::parse(bad.as_bytes()).unwrap_err();
        assert!(error.contains(reason) && !error.contains('\n') && error.len() < 400, "{bad:?}: {error}");
    }
    assert!(JobRecord::parse(b"job_id=1\ncluster=\xff\n").is_err());
}

#[test]
fn a_job_holds_its_gpus_and_names_the_processes_of_its_steps() {
    let mut jobs = JobTracker::default();
    let record = file("211", 1, &text(&format!("gpus={GPU}\ngpu_minors=8\n")));
    let known = round(&mut jobs, &[record], Some(&["211"]), 5);
    assert_eq!(held(&known), [("slurm:alpha/211", GPU), ("slurm:alpha/211", OTHER)]);
    assert!(known.problems.is_empty());
    let id = |job: &str, step: &str| known.map.holder(job, step).map(|holder| holder.id.to_string());
    assert_eq!(id("211", "0").as_deref(), Some("slurm:alpha/211.0"));
    assert_eq!(id("211", "batch").as_deref(), Some("slurm:alpha/211.batch"));
    assert_eq!(id("211", "").as_deref(), Some("slurm:alpha/211"));
    assert_eq!(id("211", "../x").as_deref(), Some("slurm:alpha/211"));
    assert_eq!(id("212", "0"), None, "a job without a record is not guessed");
    let step = known.map.holder("211", "0").unwrap();
    assert_eq!(step.facts.get(Fact::SlurmAccount).map(|text| &**text), Some("physics"));
    assert!(step.id.is_within(&known.allocations[0].holder.id));
}

#[test]
fn a_bad_record_and_an_unknown_gpu_hold_nothing_and_are_told() {
    let mut jobs = JobTracker::default();
    let unreadable = RecordFile { bytes: Err("it is no regular file".into()), ..file("x", 1, "") };
    let records = [file("a\nb", 1, "garbage\n"), file("211", 1, &text("gpu_minors=0,8\n")), unreadable];
    let known = round(&mut jobs, &records, None, 5);
    assert_eq!(held(&known), [("slurm:alpha/211", OTHER)]);
    assert_eq!(known.problems.len(), 3, "{:#?}", known.problems);
    assert!(known.problems.iter().all(|problem| !problem.contains('\n')));
}

#[test]
fn a_holding_ends_when_the_cgroup_is_gone_in_two_rounds() {
    let mut jobs = JobTracker::default();
    let record = [file("211", 1, &text(&format!("gpus={GPU}\n")))];
    assert_eq!(held(&round(&mut jobs, &record, Some(&[]), 5)).len(), 1, "it has none yet");
    assert_eq!(held(&round(&mut jobs, &record, Some(&["211"]), 6)).len(), 1);
    assert_eq!(held(&round(&mut jobs, &record, Some(&[]), 7)).len(), 1);
    assert_eq!(held(&round(&mut jobs, &record, Some(&["211"]), 8)).len(), 1, "missed only once");
    assert_eq!(held(&round(&mut jobs, &record, Some(&[]), 9)).len(), 1);
    let known = round(&mut jobs, &record, Some(&[]), 10);
    assert!(held(&known).is_empty() && known.map == JobMap::default());
    assert!(known.problems.first().unwrap().contains("epilog"), "{:?}", known.problems);
    assert!(held(&round(&mut jobs, &record, Some(&[]), 11)).is_empty(), "ended is ended");
    let next_step = round(&mut jobs, &record, Some(&["211"]), 12);
    assert_eq!(held(&next_step).len(), 1, "it was between two steps");
    assert!(next_step.problems.is_empty() && next_step.map.holder("211", "1").is_some());
    assert_eq!(held(&round(&mut jobs, &record, Some(&[]), 13)).len(), 1);
    assert!(held(&round(&mut jobs, &record, Some(&[]), 14)).is_empty());
    let requeued = [file("211", 2, &text(&format!("gpus={GPU}\n")))];
    assert_eq!(held(&round(&mut jobs, &requeued, Some(&[]), 15)).len(), 1);
    assert!(held(&round(&mut jobs, &[], Some(&["211"]), 16)).is_empty(), "the epilog ends it at once");
}

#[test]
fn a_job_that_never_had_a_cgroup_holds_for_a_minute_where_cgroups_can_be_seen() {
    let mut jobs = JobTracker::default();
    let record = [file("211", 1, &text(&format!("gpus={GPU}\n")))];
    for (now, holdings) in [(0, 1), (59, 1), (60, 1), (61, 0)] {
        assert_eq!(held(&round(&mut jobs, &record, Some(&["7"]), now)).len(), holdings, "{now}");
    }
    let mut jobs = JobTracker::default();
    for now in [0, 100, 200] {
        assert_eq!(held(&round(&mut jobs, &record, None, now)).len(), 1, "{now}");
    }
}

#[test]
fn a_record_that_is_older_than_the_agent_ends_without_another_minute() {
    let records = &[file("211", 1_000, &text(&format!("gpus={GPU}\n")))];
    let holdings = |written_ago: i64, up: u64| {
        let mut jobs = JobTracker::default();
        let utc = Utc(u64::try_from(1_000 + written_ago).unwrap() * 1_000_000_000);
        let (gpus, environments) = (NodeGpus::default(), BTreeMap::new());
        let (cgroups, now) = (Some(&[][..]), Nanoseconds::from_seconds(up));
        let seen = JobObservation { records, cgroups, now, utc, ..nothing(&gpus, &environments) };
        [jobs.observe(seen), jobs.observe(seen)].map(|known| known.allocations.len())
    };
    assert_eq!(holdings(61, 500), [1, 0]);
    assert_eq!(holdings(59, 500), [1, 1]);
    assert_eq!(holdings(-100, 500), [1, 1], "the clock is behind");
    assert_eq!(holdings(9_000, 500), [1, 0], "the clock was set since");
}

#[test]
fn a_sluid_stands_for_the_job_that_its_record_or_its_step_names() {
    let gpus = NodeGpus::default();
    let observe = |jobs: &mut JobTracker, text: &str, cgroups: &[JobCgroup], now| {
        let (records, cgroups) = (&[file("211", 1, text)], Some(cgroups));
        let now = Nanoseconds::from_seconds(now);
        jobs.observe(JobObservation { records, cgroups, now, ..nothing(&gpus, &BTreeMap::new()) })
    };
    let holder = |known: &JobHoldings| known.map.holder(SLUID, "0").map(|holder| holder.id.to_string());
    let told = observe(&mut JobTracker::default(), &text(&format!("sluid={SLUID}\n")), &[], 0);
    assert_eq!(holder(&told).as_deref(), Some("slurm:alpha/211.0"));
    let mut jobs = JobTracker::default();
    let seen = observe(&mut jobs, &text(""), &[cgroup(SLUID, Some("211"))], 0);
    assert_eq!(holder(&seen).as_deref(), Some("slurm:alpha/211.0"));
    for now in [70, 71, 72] {
        let known = observe(&mut jobs, &text(""), &[cgroup(SLUID, None)], now);
        assert!(known.problems.is_empty(), "no step of it runs, and it has not ended");
        assert_eq!(holder(&known), None);
    }
}

proptest! {
    #[test]
    fn any_record_is_parsed_without_a_panic(bytes: Vec<u8>) {
        let _parsed = JobRecord::parse(&bytes);
    }

    #[test]
    fn any_lines_are_parsed_without_a_panic(
        text in "((job_id|cluster|uid|gpus|gpu_minors|mps_percentage|sluid)=[0-9a-zGPU,-]{0,9}\n|\\PC{0,4}\n?){0,9}"
    ) {
        let _parsed = JobRecord::parse(text.as_bytes());
    }
}
