//! Events that follow from snapshots, in virtual time.

use std::sync::Arc;

use gpumeter::model::catalogue::known_point;
use gpumeter::model::snapshot::{AgentNumber, HoldingEntry, Roster, Snapshot};
use gpumeter::model::{HealthState, HoldingSource, Nanoseconds, Utc, Verdict, VisibleAccount};
use gpumeter::output::events::{ConfigReloads, Event, EventLog, EventTracker, Severity};
use gpumeter::output::render::{OtlpResource, encode_events, events};
use opentelemetry_proto::tonic::collector::logs::v1::ExportLogsServiceRequest;
use prost::Message;

use crate::export::fixture::{AT, node, roster, values};

const SECOND: u64 = 1_000_000_000;
const RELOADS: ConfigReloads = ConfigReloads { count: 0, succeeded: true };

/// A sequence of snapshots, one a second.
struct Sequence {
    tracker: EventTracker,
    second: u64,
}

impl Sequence {
    fn new() -> Self {
        let mut sequence = Self { tracker: EventTracker::default(), second: 0 };
        assert_eq!(sequence.next(|_| {}), []);
        sequence
    }

    /// The events of the next snapshot.
    fn next(&mut self, change: impl FnOnce(&mut Snapshot)) -> Vec<Event> {
        let mut snapshot = node(2, 0);
        snapshot.at.utc = self.now();
        change(&mut snapshot);
        self.second += 1;
        self.tracker.observe(&Arc::new(snapshot), RELOADS)
    }

    fn now(&self) -> Utc {
        Utc(AT.0 + self.second * SECOND)
    }
}

fn change_roster(snapshot: &mut Snapshot, change: impl FnOnce(&mut Roster)) {
    let mut changed = roster(2, 0);
    change(&mut changed);
    snapshot.roster = Arc::new(changed);
}

fn names(events: &[Event]) -> Vec<&'static str> {
    events.iter().map(|event| event.kind.name).collect()
}

fn attribute<'a>(event: &'a Event, name: &str) -> &'a str {
    event.attributes.iter().find(|(known, _)| *known == name).map(|(_, text)| &**text).unwrap()
}

fn count_xid(snapshot: &mut Snapshot, more: u64) {
    snapshot.gpus[0].xids[1].count += more;
}

#[test]
fn an_xid_names_class_action_and_the_workloads_and_tenants_on_the_gpu() {
    let mut sequence = Sequence::new();
    let found = sequence.next(|snapshot| count_xid(snapshot, 3));
    assert_eq!(names(&found), ["gpu.xid"]);
    let xid = &found[0];
    assert_eq!((xid.count, xid.severity, &*xid.detail), (3, Severity::Error, "79"));
    assert_eq!(attribute(xid, "action"), "reboot_node");
    assert_eq!((&*xid.parties[0].workload, &*xid.parties[0].tenant), ("unit:trainer.service", "physics"));
    assert_eq!(xid.gpu.as_ref().unwrap().index, 0);
}

#[test]
fn an_xid_names_the_gpu_instance_where_there_is_one() {
    let told = |gpu_instance| {
        let mut sequence = Sequence::new();
        let found = sequence.next(|snapshot| {
            count_xid(snapshot, 1);
            snapshot.gpus[0].xids[1].gpu_instance = gpu_instance;
        });
        let named = found[0].attributes.iter().find(|(name, _)| *name == "gpu_instance");
        (found[0].text.to_string(), named.map(|(_, instance)| instance.clone()))
    };
    let (text, instance) = told(Some(3));
    assert!(text.ends_with(", on GPU instance 3"), "{text}");
    assert_eq!(instance.as_deref(), Some("3"));
    let (text, instance) = told(None);
    assert!(!text.contains("instance") && instance.is_none(), "{text}");
}

#[test]
fn gpus_holdings_and_verdicts_that_change_are_events_and_nothing_else_is() {
    let mut sequence = Sequence::new();
    assert_eq!(sequence.next(|_| {}), []);
    let lost = sequence.next(|snapshot| {
        change_roster(snapshot, |roster| roster.gpus[0].absence = Some("lost"));
    });
    assert_eq!((names(&lost), attribute(&lost[0], "attachment")), (vec!["gpu.lost"], "lost"));
    assert_eq!(names(&sequence.next(|_| {})), ["gpu.back"]);
    let failed = sequence.next(|snapshot| {
        let verdict = Verdict { state: HealthState::Failed, ..Verdict::default() };
        snapshot.gpus[0].health = Arc::new(verdict);
    });
    assert_eq!((names(&failed), failed[0].severity), (vec!["gpu.health.changed"], Severity::Error));
    assert_eq!(names(&sequence.next(|_| {})), ["gpu.health.changed"]);
    let granted = sequence.next(|snapshot| {
        change_roster(snapshot, |roster| {
            let holding = HoldingEntry {
                gpu: 1,
                gpu_instance: "".into(),
                workload: "pod:ml/train-0".into(),
                tenant: "ml".into(),
                source: HoldingSource::Standing,
                since: AT,
            };
            roster.holdings = roster.holdings.iter().cloned().chain([holding]).collect();
        });
        snapshot.holdings.push(snapshot.holdings[0]);
    });
    assert_eq!(names(&granted), ["gpu.holding.granted"]);
    assert_eq!(granted[0].at, AT);
    let ended = sequence.next(|_| {});
    assert_eq!((names(&ended), attribute(&ended[0], "seconds")), (vec!["gpu.holding.ended"], "7"));
    let quiesced = sequence.next(|snapshot| {
        let place = snapshot.roster.agent.iter().position(|entry| entry.family == "gpumeter_quiesced");
        if let Some(place) = place {
            snapshot.agent[place] = AgentNumber::Integer(1);
        }
    });
    assert!(quiesced.iter().all(|event| event.kind.name == "gpumeter.quiesced"), "{quiesced:?}");
    sequence.next(|_| {});
    let over = sequence.next(|snapshot| snapshot.month_costs = vec![6_000_000_000_000, 0].into());
    assert_eq!(names(&over), ["gpumeter.budget.passed"]);
    assert_eq!((attribute(&over[0], "budget"), attribute(&over[0], "cost")), ("5000.00", "6000.00"));
}

/// A holder whose next process is not identified in a tick held all the time in the account.
#[test]
fn a_holder_by_presence_who_is_away_for_a_moment_has_no_event_and_one_who_stays_away_has() {
    let mut sequence = Sequence::new();
    let present = |sequence: &mut Sequence, since| {
        sequence.next(|snapshot| {
            change_roster(snapshot, |roster| {
                let holding = HoldingEntry {
                    gpu: 1,
                    gpu_instance: "".into(),
                    workload: "user:dave".into(),
                    tenant: "dave".into(),
                    source: HoldingSource::Presence,
                    since,
                };
                roster.holdings = roster.holdings.iter().cloned().chain([holding]).collect();
            });
            snapshot.holdings.push(snapshot.holdings[0]);
        })
    };
    assert_eq!(names(&present(&mut sequence, AT)), ["gpu.holding.granted"]);
    assert_eq!(sequence.next(|_| {}), []);
    // It holds from then on, by its own account.
    assert_eq!(present(&mut sequence, AT.plus(Nanoseconds::from_seconds(2))), []);
    let is_of_holding = |event: &Event| event.kind.name.starts_with("gpu.holding.");
    let told: Vec<Event> =
        (0..20).flat_map(|_| sequence.next(|_| {})).filter(|event| is_of_holding(event)).collect();
    assert_eq!(names(&told), ["gpu.holding.ended"]);
    assert_eq!(told[0].observed.since(told[0].at), Nanoseconds::from_seconds(15));
    let held = told[0].at.since(AT).0 / Nanoseconds::SECOND.0;
    assert!(told[0].attributes.contains(&("seconds", held.to_string())), "{told:?}");
}

#[test]
fn throttling_is_one_episode_with_begin_and_end_however_it_flickers() {
    const POINT: usize = known_point("gpu_throttle_active", Some("hw_thermal_slowdown")).id;
    let mut sequence = Sequence::new();
    let set = |snapshot: &mut Snapshot, value: i64| {
        let frame = Arc::get_mut(snapshot.gpus[0].frame.as_mut().unwrap());
        frame.unwrap().readings[POINT] = Ok(value);
    };
    let mut told = Vec::new();
    for second in 0..300 {
        let is_held = (20..200).contains(&second) && second % 3 > 0;
        told.extend(sequence.next(|snapshot| set(snapshot, i64::from(is_held))));
    }
    let told: Vec<Event> = told
        .into_iter()
        .filter(|event| &*event.detail == "hw_thermal_slowdown" && event.gpu.as_ref().unwrap().index == 0)
        .collect();
    assert_eq!(names(&told), ["gpu.throttle.started", "gpu.throttle.ended"]);
    assert_eq!(attribute(&told[1], "seconds"), "179");
}

#[test]
fn a_storm_is_told_at_once_and_then_as_one_event_with_its_count() {
    let (log, mut sequence) = (EventLog::default(), Sequence::new());
    let mut told = Vec::new();
    for second in 0..150 {
        let found =
            sequence.next(|snapshot| count_xid(snapshot, if second < 100 { second + 1 } else { 100 }));
        told.extend(log.record(found, sequence.now()));
    }
    told.retain(|event| event.kind.name == "gpu.xid");
    let counts: Vec<u64> = told.iter().map(|event| event.count).collect();
    assert_eq!((counts[0], counts.len(), counts.iter().sum::<u64>()), (1, 3, 100));
    let ids: std::collections::BTreeSet<String> = told.iter().map(|event| event.id()).collect();
    assert_eq!(ids.len(), 3);
}

#[test]
fn churn_of_holdings_evicts_no_xid_and_tenants_see_what_is_theirs() {
    let (log, mut sequence) = (EventLog::default(), Sequence::new());
    log.record(sequence.next(|snapshot| count_xid(snapshot, 1)), sequence.now());
    for number in 0..2_000 {
        let found = sequence.next(|snapshot| {
            count_xid(snapshot, 1);
            change_roster(snapshot, |roster| {
                let mut holdings = roster.holdings.to_vec();
                holdings[0].workload = format!("pod:ml/train-{number}").into();
                holdings[0].tenant = "ml".into();
                roster.holdings = holdings.into();
            });
        });
        log.record(found, sequence.now());
    }
    let mut latest = log.latest();
    // The fixture is throttled, too.
    latest.retain(|event| !event.kind.name.starts_with("gpu.throttle"));
    assert_eq!(latest.len(), 501);
    assert!(latest.iter().any(|event| event.kind.name == "gpu.xid"));
    let shown = |tenant: &str| {
        let body = events(&latest, &node(2, 0), &VisibleAccount::Tenants(vec![tenant.to_owned()]));
        serde_json::from_slice::<serde_json::Value>(&body).unwrap()["events"].as_array().unwrap().clone()
    };
    let physics = shown("physics");
    assert!(
        physics
            .iter()
            .any(|event| event["name"] == "gpu.xid" && event["workloads"][0]["tenant"] == "physics")
    );
    assert!(!physics.iter().any(|event| event.to_string().contains("pod:ml")), "{physics:?}");
    assert_eq!(shown("nobody"), [] as [serde_json::Value; 0]);
}

#[test]
fn a_reader_sees_the_events_of_gpus_and_instances_that_its_tenants_hold_alone_since_their_last_holder_came() {
    let mut sequence = Sequence::new();
    let found = sequence.next(|snapshot| count_xid(snapshot, 1));
    let [xid] = &found[..] else { panic!("{found:?}") };
    let with = |at: Utc, attributes: &[(&'static str, &str)]| Event {
        at,
        attributes: attributes.iter().map(|(name, text)| (*name, (*text).to_owned())).collect(),
        ..xid.clone()
    };
    let shown = |event: &Event, tenant: &str, change: &dyn Fn(&mut Roster)| {
        let mut snapshot = node(2, 0);
        change_roster(&mut snapshot, change);
        let visible = VisibleAccount::Tenants(vec![tenant.to_owned()]);
        let body = events(&[Arc::new(event.clone())], &snapshot, &visible);
        let body: serde_json::Value = serde_json::from_slice(&body).unwrap();
        !body["events"].as_array().unwrap().is_empty()
    };
    let with_ml = |gpu_instance: &str, roster: &mut Roster| {
        let first = HoldingEntry { gpu_instance: "1".into(), ..roster.holdings[0].clone() };
        let other = HoldingEntry {
            gpu_instance: gpu_instance.into(),
            workload: "pod:ml/a".into(),
            tenant: "ml".into(),
            ..first.clone()
        };
        roster.holdings = [first, other].into();
    };
    let alone = |_: &mut Roster| {};
    let came = Utc(AT.0 - 3_600 * SECOND);
    assert!(shown(&with(came, &[]), "physics", &alone), "it holds the GPU alone, since then");
    assert!(!shown(&with(Utc(came.0 - 1), &[]), "physics", &alone), "before it came");
    assert!(!shown(&with(came, &[]), "ml", &alone) && !shown(&with(came, &[]), "nobody", &alone));
    let divided = |roster: &mut Roster| with_ml("2", roster);
    assert!(!shown(&with(came, &[]), "physics", &divided), "what concerns the whole GPU");
    assert!(shown(&with(came, &[("gpu_instance", "1")]), "physics", &divided), "its own instance");
    assert!(!shown(&with(came, &[("gpu_instance", "2")]), "physics", &divided));
    let shared = |roster: &mut Roster| with_ml("1", roster);
    assert!(!shown(&with(came, &[("gpu_instance", "1")]), "physics", &shared));
    let nobody = |roster: &mut Roster| roster.holdings = [].into();
    assert!(!shown(&with(came, &[]), "physics", &nobody), "who only uses it does not hold it");
}

#[test]
fn events_are_otlp_logs_with_name_severity_times_and_id() {
    let (log, mut sequence) = (EventLog::default(), Sequence::new());
    let told = log.record(sequence.next(|snapshot| count_xid(snapshot, 2)), sequence.now());
    let body = encode_events(&told, &OtlpResource::new("node-1", ""));
    let request = ExportLogsServiceRequest::decode(&*body).unwrap();
    let logs = &request.resource_logs[0];
    assert!(logs.resource.as_ref().unwrap().attributes.iter().any(|one| one.key == "service.instance.id"));
    let record = &logs.scope_logs[0].log_records[0];
    assert_eq!(
        (&*record.event_name, record.severity_number, &*record.severity_text),
        ("gpu.xid", 17, "ERROR")
    );
    assert!(record.time_unix_nano <= record.observed_time_unix_nano && record.time_unix_nano > 0);
    let keys: Vec<&str> = record.attributes.iter().map(|one| &*one.key).collect();
    assert_eq!(keys, ["event.id", "gpu", "uuid", "xid", "class", "action", "count", "workloads", "tenants"]);
    let empty = snapshot_without_change();
    assert_eq!(empty, []);
}

/// What a tracker finds in two snapshots that are alike.
fn snapshot_without_change() -> Vec<Event> {
    let mut tracker = EventTracker::default();
    let snapshot = || Arc::new(values(Arc::new(roster(2, 0)), 1));
    tracker.observe(&snapshot(), RELOADS);
    tracker.observe(&snapshot(), RELOADS)
}

#[test]
fn a_reload_is_an_event_with_its_success() {
    let mut tracker = EventTracker::default();
    tracker.observe(&Arc::new(node(1, 0)), RELOADS);
    let failed = ConfigReloads { count: 1, succeeded: false };
    let found = tracker.observe(&Arc::new(node(1, 0)), failed);
    assert_eq!((names(&found), found[0].severity), (vec!["gpumeter.config.reloaded"], Severity::Warn));
}
