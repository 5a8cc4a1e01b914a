//! What the report of a job says of the job: what advice would, of what happened once. It forecasts nothing, and says nothing
//! where more than 5 % of the time that it is about was not measured.

use jiff::tz::TimeZone;

use super::gates::{grace_without_process, grace_without_use, is_work_by_power};
use crate::accounting::billing::{
    BillRequest, Explanation, GpuIncident, JobGpu, JobNote, JobReport, JobSummary, JobUsage, readable_time,
    zone_of,
};
use crate::model::{LONGEST_PAUSE, Nanoseconds, STOPS_WORK, TimeSum, WorkloadClass};

/// A shorter job, such as one that failed at its start, says nothing.
const LEAST_RUN: Nanoseconds = Nanoseconds::from_seconds(30 * 60);

/// A shorter idle end is not worth a sentence.
const LEAST_TAIL: Nanoseconds = Nanoseconds::from_seconds(10 * 60);

/// Ranks of a job that goes on may start late.
const LEAST_OPEN_RUN: Nanoseconds = Nanoseconds::from_seconds(86_400);

/// Of what was used, but so little that it counts as unused.
const HARDLY_USED: &str = "used for less than 1 % of the time";

/// The findings of a health verdict by which a GPU was slowed.
const HEAT: [(&str, &str); 3] = [
    ("hw_thermal", "slowed by its temperature"),
    ("sw_thermal", "slowed by its temperature"),
    ("hw_power_brake", "slowed by its power supply"),
];

/// What an explanation says of the jobs of a request, with notes.
pub fn job_report(explanation: &Explanation, request: &BillRequest) -> JobReport {
    let mut report = JobReport::new(explanation, request);
    report.jobs.iter_mut().for_each(add_notes);
    report
}

/// Writes the notes of a job and of its members anew.
pub fn add_notes(job: &mut JobSummary) {
    job.members.iter_mut().for_each(add_notes);
    // The tasks of an array are jobs of their own, and the pods of a controller are parts of one.
    let is_array = job.members.iter().any(|member| !member.job.contains('/'));
    job.notes = if is_array { of_tasks(&job.members) } else { notes(job) };
}

/// A note, and how much it is about, by which those of several tasks are compared.
struct FoundNote {
    kind: &'static str,
    text: String,
    weight: u128,
}

/// The notes of the tasks of an array: of each kind how many have it, and that of the one with most of it.
fn of_tasks(tasks: &[JobSummary]) -> Vec<JobNote> {
    let found: Vec<(&JobSummary, FoundNote)> =
        tasks.iter().flat_map(|task| find(task).into_iter().map(move |note| (task, note))).collect();
    let mut kinds: Vec<&str> = Vec::new();
    for (_, note) in &found {
        if !kinds.contains(&note.kind) {
            kinds.push(note.kind);
        }
    }
    let of_kind = |kind: &str| {
        let own = || found.iter().filter(|(_, note)| note.kind == kind);
        let with_it = tasks.iter().filter(|task| own().any(|(of, _)| std::ptr::eq(*of, *task))).count();
        let (task, most) = own().max_by_key(|(_, note)| note.weight)?;
        let text = format!("{with_it} of {} tasks: {} ({})", tasks.len(), most.text, task.job);
        Some(JobNote { kind: kind.to_owned(), text })
    };
    kinds.into_iter().filter_map(of_kind).collect()
}

fn notes(job: &JobSummary) -> Vec<JobNote> {
    find(job).into_iter().map(|note| JobNote { kind: note.kind.to_owned(), text: note.text }).collect()
}

fn find(job: &JobSummary) -> Vec<FoundNote> {
    let zone = zone_of(&job.time_zone);
    let mut found: Vec<FoundNote> = never_used(job).or_else(|| unused_gpus(job)).into_iter().collect();
    found.extend(idle_end(job, &zone));
    found.extend(memory(job));
    found.extend(faults(job, &zone));
    found
}

const fn length(usage: &JobUsage) -> Nanoseconds {
    usage.end.since(usage.start)
}

/// Whether at most 5 % of what was held was unmeasured, or unavailable.
fn is_known(usage: &JobUsage) -> bool {
    (usage.held_ns.0 - usage.measured().0) * 20 <= usage.held_ns.0 && usage.held_ns.0 > 0
}

/// Whether a GPU was used for less than one percent of its time; none where that, or whether it was used at all, is not clear.
fn is_unused(gpu: &JobGpu) -> Option<bool> {
    let usage = &gpu.usage;
    let (used, measured) = (usage.used_ns.0, usage.measured().0);
    if !is_known(usage) {
        return None;
    }
    if used * 10 > measured {
        return Some(false);
    }
    let idle_since = usage.last_use.unwrap_or(usage.start);
    let is_quiet = !is_work_by_power(usage.waiting_after_use_uj, usage.end.since(idle_since));
    (used * 100 < measured && is_quiet).then_some(true)
}

/// The GPUs, of which there must be some, and which of them were used; none where that is not clear of all of them.
fn unused(job: &JobSummary) -> Option<Vec<bool>> {
    let unused = job.gpus.iter().map(is_unused).collect::<Option<Vec<bool>>>()?;
    (!unused.is_empty()).then_some(unused)
}

fn never_used(job: &JobSummary) -> Option<FoundNote> {
    let least = grace_without_process(job.class)?.max(LEAST_RUN);
    let unused = unused(job)?;
    if !unused.iter().all(|is_unused| *is_unused) || length(&job.total) < add(least, job.resolution_ns) {
        return None;
    }
    let is_zero = job.total.used_ns.0 == 0;
    let text = match (unused.len(), is_zero) {
        (1, true) => "its GPU was never used".to_owned(),
        (1, false) => format!("its GPU was {HARDLY_USED}"),
        (count, true) => format!("none of its {count} GPUs was ever used"),
        (count, false) => format!("each of its {count} GPUs was {HARDLY_USED}"),
    };
    Some(FoundNote { kind: "never_used", text, weight: job.total.idle_ns.0 })
}

fn unused_gpus(job: &JobSummary) -> Option<FoundNote> {
    let least = if job.goes_on() { LEAST_OPEN_RUN } else { LEAST_RUN };
    let unused = unused(job)?;
    let count = unused.iter().filter(|is_unused| **is_unused).count();
    let (total, pause) = (&job.total, add(LONGEST_PAUSE, job.resolution_ns));
    let is_even = job
        .gpus
        .iter()
        .all(|gpu| gpu.usage.start.since(total.start) <= pause && total.end.since(gpu.usage.end) <= pause);
    if count == 0 || count == unused.len() || !is_even || length(total) < add(least, job.resolution_ns) {
        return None;
    }
    let own = job.gpus.iter().zip(&unused).filter(|(_, is_unused)| **is_unused);
    let is_zero = own.map(|(gpu, _)| gpu.usage.used_ns.0).sum::<u128>() == 0;
    let how = if is_zero { "never used" } else { HARDLY_USED };
    let text = format!("{count} of {} GPUs {how}", unused.len());
    Some(FoundNote { kind: "unused_gpus", text, weight: count as u128 })
}

/// How long a job may use nothing at its end without a note, by what it is for.
const fn least_tail(class: WorkloadClass) -> Option<Nanoseconds> {
    match class {
        WorkloadClass::Batch | WorkloadClass::Interruptible => Some(LEAST_TAIL),
        other => grace_without_use(other),
    }
}

fn idle_end(job: &JobSummary, zone: &TimeZone) -> Option<FoundNote> {
    let least = least_tail(job.class)?;
    let total = &job.total;
    let last = total.last_use?;
    let tail = total.end.since(last);
    // It may have ended before the end of the last row.
    let certain = Nanoseconds(tail.0.saturating_sub(job.resolution_ns.0));
    if certain < least || certain.0 * 5 < length(total).0 {
        return None;
    }
    let is_known = |gpu: &JobGpu| {
        let usage = &gpu.usage;
        let idle = usage.end.since(usage.last_use.unwrap_or(usage.start));
        usage.unknown_after_use_ns.0 * 20 <= u128::from(tail.0)
            && !is_work_by_power(usage.waiting_after_use_uj, idle)
    };
    if !job.gpus.iter().all(is_known) {
        return None;
    }
    let percent = u128::from(tail.0) * 100 / u128::from(length(total).0.max(1));
    let text = format!("idle after {}, for {percent} % of its time", readable_time(last, zone));
    Some(FoundNote { kind: "idle_end", text, weight: percent })
}

fn memory(job: &JobSummary) -> Option<FoundNote> {
    let least = add(LEAST_RUN, job.resolution_ns);
    // Boards of one model differ a little.
    let totals = job.gpus.iter().map(|gpu| gpu.memory_total_bytes).collect::<Option<Vec<u64>>>()?;
    let total = totals.into_iter().min()?;
    let is_whole = |gpu: &JobGpu| {
        let held = gpu.usage.held_ns.0 + 2 * u128::from(job.resolution_ns.0);
        held * 20 >= u128::from(length(&gpu.usage).0) * 19
    };
    let is_whole = job.gpus.iter().all(is_whole);
    let peak = job.total.memory_peak_bytes;
    let is_small = peak > 0 && u128::from(peak) * 2 <= u128::from(total);
    if !is_whole || !is_small || !is_known(&job.total) || length(&job.total) < least {
        return None;
    }
    let text = format!("at most {} of {} GiB of memory", gibibytes(peak), gibibytes(total));
    Some(FoundNote { kind: "memory", text, weight: (total - peak).into() })
}

fn faults(job: &JobSummary, zone: &TimeZone) -> Vec<FoundNote> {
    let mut found = Vec::new();
    for gpu in &job.gpus {
        let place = if job.nodes.len() > 1 {
            format!("{} GPU {}", gpu.node, gpu.gpu)
        } else {
            format!("GPU {}", gpu.gpu)
        };
        for (of, words) in HEAT {
            let own = || gpu.faults.iter().filter(|fault| fault.kind == of);
            let time: TimeSum = own().map(|fault| fault.to.since(fault.from)).sum();
            if let Some(first) = own().map(|fault| fault.from).min() {
                let minutes = time.0 / 60 / u128::from(Nanoseconds::SECOND.0);
                let text =
                    format!("{place} {words} for {minutes} min from {} on", readable_time(first, zone));
                found.push(FoundNote { kind: "heat", text, weight: time.0 });
            }
        }
        for fault in gpu.faults.iter().filter(|fault| STOPS_WORK.contains(&&*fault.kind)) {
            let text = format!("{place} had a fault ({}) {}", fault.kind, span(fault, gpu, zone));
            found.push(FoundNote { kind: "fault", text, weight: fault.to.since(fault.from).0.into() });
        }
    }
    found
}

/// From when to when a fault was, as far as the job had the GPU.
fn span(fault: &GpuIncident, gpu: &JobGpu, zone: &TimeZone) -> String {
    let from = readable_time(fault.from, zone);
    if fault.to >= gpu.usage.end {
        return format!("from {from} on");
    }
    format!("from {from} to {}", readable_time(fault.to, zone))
}

/// Whole GiB, of less than ten with one decimal.
pub(super) fn gibibytes(bytes: u64) -> String {
    let tenths = (u128::from(bytes) * 10 + (1 << 29)) >> 30;
    if tenths < 100 { format!("{}.{}", tenths / 10, tenths % 10) } else { ((tenths + 5) / 10).to_string() }
}

const fn add(one: Nanoseconds, other: Nanoseconds) -> Nanoseconds {
    Nanoseconds(one.0 + other.0)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    /// Minutes after midnight.
    fn at(minutes: u64) -> String {
        format!("2026-11-01T{:02}:{:02}:00Z", minutes / 60, minutes % 60)
    }

    const MINUTE: u64 = 60_000_000_000;

    /// What a GPU was for in three hours from midnight, with these fields instead.
    fn gpu(used: u64, last_use: Option<u64>, other: &Value) -> Value {
        let mut gpu = json!({"node": "n1", "gpu": 0, "uuid": "GPU-0", "start": at(0), "end": at(180), "held_ns": 180 * MINUTE,
            "used_ns": used * MINUTE, "lent_ns": 0, "idle_ns": (180 - used) * MINUTE, "unmeasured_ns": 0, "unavailable_ns": 0,
            "busy_ns": 0, "measured_slot_ns": 0, "memory_peak_bytes": 70_u64 << 30, "memory_total_bytes": 80_u64 << 30,
            "last_use": last_use.map(at), "unknown_after_use_ns": 0, "waiting_after_use_uj": 0});
        gpu.as_object_mut().unwrap().extend(other.as_object().unwrap().clone());
        gpu
    }

    fn texts(class: &str, gpus: &[Value]) -> Vec<String> {
        let usages: Vec<JobUsage> =
            gpus.iter().map(|gpu| serde_json::from_value(gpu.clone()).unwrap()).collect();
        let total = JobUsage::sum(&usages.iter().collect::<Vec<_>>());
        let mut job: JobSummary = serde_json::from_value(json!({"job": "7", "class": class, "labels": [], "nodes": ["n1"],
            "simulated": false, "accounted_until": at(600), "time_zone": "UTC", "currency": null, "total": total, "gpus": gpus,
            "steps": []}))
        .unwrap();
        add_notes(&mut job);
        job.notes.into_iter().map(|note| note.text).collect()
    }

    const NOTHING: [&str; 0] = [];

    #[test]
    fn an_idle_end_is_told_from_its_last_use_and_not_where_it_was_not_measured_or_drew_power() {
        let busy = |last: u64, other: Value| vec![gpu(100, Some(last), &other)];
        assert_eq!(
            texts("batch", &busy(120, json!({}))),
            ["idle after 2026-11-01 02:00 Z, for 33 % of its time"]
        );
        assert_eq!(
            texts("interactive", &busy(59, json!({}))),
            ["idle after 2026-11-01 00:59 Z, for 67 % of its time"]
        );
        // Near misses: a shorter end, a session within its grace, and one that nobody knows the use of.
        assert_eq!(texts("batch", &busy(150, json!({}))), NOTHING);
        assert_eq!(texts("interactive", &busy(70, json!({}))), NOTHING);
        for class in ["service", "warm", "reserve", "unknown"] {
            assert_eq!(texts(class, &busy(30, json!({}))), NOTHING, "{class}");
        }
        assert_eq!(texts("batch", &busy(120, json!({"unknown_after_use_ns": 4 * MINUTE}))), NOTHING);
        assert_eq!(
            texts("batch", &busy(120, json!({"waiting_after_use_uj": 3_600_u64 * 101_000_000}))),
            NOTHING
        );
        // Over exports, the end may be a quarter hour earlier.
        let two = vec![gpu(100, Some(120), &json!({})), gpu(90, Some(140), &json!({"uuid": "GPU-1"}))];
        assert_eq!(
            texts("batch", &two),
            ["idle after 2026-11-01 02:20 Z, for 22 % of its time"],
            "the last use of any of its GPUs"
        );
    }

    #[test]
    fn gpus_that_were_never_used_are_counted_where_that_is_clear_of_each() {
        let used = gpu(170, Some(175), &json!({}));
        let idle = |other: Value| gpu(0, None, &other);
        let two = |other: Value| texts("batch", &[used.clone(), idle(json!({"uuid": "GPU-1"})), idle(other)]);
        assert_eq!(two(json!({})), ["2 of 3 GPUs never used"]);
        let ambiguous = json!({"used_ns": 5 * MINUTE, "idle_ns": 175 * MINUTE, "last_use": at(170)});
        assert_eq!(two(ambiguous), NOTHING);
        assert_eq!(two(json!({"unmeasured_ns": 10 * MINUTE, "idle_ns": 170 * MINUTE})), NOTHING);
        assert_eq!(two(json!({"waiting_after_use_uj": 3 * 3_600_u64 * 101_000_000})), NOTHING);
        assert_eq!(two(json!({"start": at(60), "held_ns": 120 * MINUTE, "idle_ns": 120 * MINUTE})), NOTHING);
        assert_eq!(texts("batch", &[idle(json!({}))]), ["its GPU was never used"]);
        assert_eq!(texts("batch", &[idle(json!({})), idle(json!({}))]), ["none of its 2 GPUs was ever used"]);
        let hardly = || idle(json!({"used_ns": MINUTE, "idle_ns": 179 * MINUTE, "last_use": at(1)}));
        assert_eq!(
            two(json!({"used_ns": MINUTE, "last_use": at(1)})),
            ["2 of 3 GPUs used for less than 1 % of the time"]
        );
        assert_eq!(texts("batch", &[hardly()])[0], "its GPU was used for less than 1 % of the time");
        assert_eq!(
            texts("batch", &[hardly(), hardly()])[0],
            "each of its 2 GPUs was used for less than 1 % of the time"
        );
        assert_eq!(texts("service", &[idle(json!({}))]), NOTHING);
    }

    #[test]
    fn memory_is_told_of_whole_gpus_of_which_at_most_half_was_in_use() {
        let with = |other: Value| texts("service", &[gpu(170, Some(175), &other)]);
        assert_eq!(with(json!({"memory_peak_bytes": 40_u64 << 30})), ["at most 40 of 80 GiB of memory"]);
        assert_eq!(with(json!({"memory_peak_bytes": 3_u64 << 29})), ["at most 1.5 of 80 GiB of memory"]);
        assert_eq!(with(json!({"memory_peak_bytes": (40_u64 << 30) + 1})), NOTHING);
        assert_eq!(with(json!({"memory_peak_bytes": 0})), NOTHING);
        assert_eq!(with(json!({"memory_peak_bytes": 1_u64 << 30, "memory_total_bytes": null})), NOTHING);
        let share = json!({"memory_peak_bytes": 1_u64 << 30, "held_ns": 90 * MINUTE});
        assert_eq!(with(share), NOTHING);
    }

    #[test]
    fn heat_and_faults_are_told_and_errors_of_the_application_are_not() {
        let fault = |kind: &str, from: u64, to: u64| json!({"from": at(from), "to": at(to), "kind": kind, "code": null});
        let faults = json!({"faults": [fault("hw_thermal", 60, 90), fault("nvlink_down", 95, 100), fault("xid_application", 100, 101), fault("nvlink_down", 170, 180)]});
        assert_eq!(
            texts("batch", &[gpu(170, Some(175), &faults)]),
            [
                "GPU 0 slowed by its temperature for 30 min from 2026-11-01 01:00 Z on",
                "GPU 0 had a fault (nvlink_down) from 2026-11-01 01:35 Z to 2026-11-01 01:40 Z",
                "GPU 0 had a fault (nvlink_down) from 2026-11-01 02:50 Z on"
            ]
        );
    }
}
