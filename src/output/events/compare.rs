//! Compares snapshots. A GPU that is seen for the first time after the agent's start is where it begins, and no event.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::kinds::{
    BACK, BUDGET, CONFIG, DRIVER, ENDED, FOUND, GAP, GRANTED, HEALTH, LOST, QUIESCED, RESHAPED, RESUMED,
    SXID, THROTTLED, UNTHROTTLED, XID,
};
use super::{Event, EventKind, Party, Severity};
use crate::model::catalogue::xid::{self, Action};
use crate::model::catalogue::{AgentFamily, POWER_CAP, THROTTLE_REASONS, ThrottleReason};
use crate::model::snapshot::{GpuEntry, GpuState, HoldingEntry, SeenXid, Snapshot};
use crate::model::{
    Attachment, Decimal, Fact, GpuId, HealthState, HoldingSource, Money, Nanoseconds, SxidCount, Utc,
};

/// An episode is reported once it lasts this long; it ends once clocks are not held down for `EPISODE_ENDS`.
const EPISODE_BEGINS: Nanoseconds = Nanoseconds::from_seconds(10);
const EPISODE_ENDS: Nanoseconds = Nanoseconds::from_seconds(30);
/// How long workloads stay known for an XID after their tick, since its count waits for the ledger.
const USERS_KEPT: Nanoseconds = Nanoseconds::from_seconds(30);

/// A holding by presence has ended once nobody was there for that long: a window of the account, within which use is booked to
/// holders that were identified late.
const PRESENCE_ENDS: Nanoseconds = Nanoseconds::from_seconds(15);

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ConfigReloads {
    pub count: u64,
    pub succeeded: bool,
}

#[derive(Clone, Copy, Debug)]
struct Episode {
    since: Utc,
    /// When they were last found held down.
    last: Utc,
    told: bool,
}

/// A GPU in a snapshot.
#[derive(Clone, Copy)]
struct SeenGpu<'a> {
    entry: &'a GpuEntry,
    state: &'a GpuState,
}

impl<'a> SeenGpu<'a> {
    fn all(snapshot: &'a Snapshot) -> impl Iterator<Item = Self> {
        snapshot.roster.gpus.iter().zip(&snapshot.gpus).map(|(entry, state)| Self { entry, state })
    }
}

#[derive(Debug, Default)]
pub struct EventTracker {
    previous: Option<Arc<Snapshot>>,
    reloads: ConfigReloads,
    episodes: BTreeMap<(Arc<str>, &'static str), Episode>,
    /// Since when GPUs that are there are not read, by UUID.
    unread: BTreeMap<Arc<str>, Utc>,
    /// The workloads that were on each GPU, by UUID, each with the last time.
    users: BTreeMap<Arc<str>, Vec<(Party, Utc)>>,
    /// Holdings by presence that ended a moment ago, with the event that is emitted if they stay away.
    leaving: Vec<Leaving>,
    /// The holdings that came back, each with the time since which it holds.
    returned: Vec<(HoldingKey, Utc)>,
}

impl EventTracker {
    pub fn observe(&mut self, snapshot: &Arc<Snapshot>, reloads: ConfigReloads) -> Vec<Event> {
        let mut events = Vec::new();
        let now = snapshot.at.utc;
        self.note_users(snapshot);
        let previous = self.previous.replace(Arc::clone(snapshot));
        let last_reloads = std::mem::replace(&mut self.reloads, reloads);
        let Some(previous) = previous else { return events };
        let before: BTreeMap<&Arc<str>, SeenGpu<'_>> =
            SeenGpu::all(&previous).map(|gpu| (&gpu.entry.id.uuid, gpu)).collect();
        for gpu in SeenGpu::all(snapshot) {
            match before.get(&gpu.entry.id.uuid) {
                Some(old) => self.compare_gpu(*old, gpu, now, &mut events),
                None if !before.is_empty() => events.push(found(gpu.entry, &previous, now)),
                None => {}
            }
            self.follow_throttles(gpu, now, &mut events);
        }
        self.compare_holdings(&previous, snapshot, &mut events);
        compare_budgets(&previous, snapshot, &mut events);
        compare_sxids(&previous, snapshot, &mut events);
        let is_quiesced = |of: &Snapshot| of.agent_integer(AgentFamily::Quiesced.name()) == Some(1);
        match (is_quiesced(&previous), is_quiesced(snapshot)) {
            (false, true) => events.push(event(&QUIESCED, now, None, "the driver is released on request")),
            (true, false) => events.push(event(&RESUMED, now, None, "the driver is used again")),
            _ => {}
        }
        if reloads.count != last_reloads.count {
            let text = match reloads.succeeded {
                true => "the configuration was reloaded",
                false => "the configuration has a mistake and was not reloaded",
            };
            let severity = if reloads.succeeded { Severity::Info } else { Severity::Warn };
            let attributes = vec![("success", reloads.succeeded.to_string())];
            events.push(Event { severity, attributes, ..event(&CONFIG, now, None, text) });
        }
        events
    }

    fn note_users(&mut self, snapshot: &Snapshot) {
        let now = snapshot.at.utc;
        for entries in self.users.values_mut() {
            entries.retain(|(_, last)| now.0.saturating_sub(last.0) <= USERS_KEPT.0);
        }
        let roster = &snapshot.roster;
        let holdings = roster.holdings.iter().map(|one| (one.gpu, &one.workload, &one.tenant));
        let processes = roster.processes.iter().map(|one| (one.gpu, &one.workload, &one.tenant));
        for (gpu, workload, tenant) in
            holdings.chain(processes).filter(|(_, workload, _)| !workload.is_empty())
        {
            let Some(entry) = roster.gpus.get(gpu) else { continue };
            let known = self.users.entry(Arc::clone(&entry.id.uuid)).or_default();
            match known.iter_mut().find(|(party, _)| party.workload == *workload) {
                Some((_, last)) => *last = now,
                None => known.push((party(snapshot, workload, tenant), now)),
            }
        }
        self.users.retain(|_, entries| !entries.is_empty());
    }

    /// Holdings that begin or end. An end of presence is told once the holder stays away: its next process may be there already and
    /// not identified yet, and then the account books the time in between to it too.
    fn compare_holdings(&mut self, previous: &Snapshot, snapshot: &Snapshot, events: &mut Vec<Event>) {
        let now = snapshot.at.utc;
        let (old, new) = (&previous.roster.holdings, &snapshot.roster.holdings);
        if !Arc::ptr_eq(old, new) {
            let keys = |of: &Snapshot| -> Vec<HoldingKey> {
                of.roster.holdings.iter().map(|one| holding_key(of, one)).collect()
            };
            let (before, after) = (keys(previous), keys(snapshot));
            for (place, holding) in
                new.iter().enumerate().filter(|(place, _)| !before.contains(&after[*place]))
            {
                match self.leaving.iter().position(|one| one.key == after[place]) {
                    Some(back) => {
                        let Leaving { key, since, .. } = self.leaving.swap_remove(back);
                        self.returned.push((key, since));
                    }
                    None => events.push(granted_event(snapshot, place, holding)),
                }
            }
            for (holding, key) in old.iter().zip(before).filter(|(_, key)| !after.contains(key)) {
                if holding.source != HoldingSource::Presence {
                    events.push(ended_event(previous, holding, holding.since, now));
                    continue;
                }
                let begun = self.returned.iter().position(|(returned, _)| *returned == key);
                let since = begun.map_or(holding.since, |place| self.returned.swap_remove(place).1);
                // A scheduler's holding of the same workload goes on, and was told.
                if !after
                    .iter()
                    .any(|(gpu, instance, workload, _)| (gpu, instance, workload) == (&key.0, &key.1, &key.2))
                {
                    let event = ended_event(previous, holding, since, now);
                    self.leaving.push(Leaving { key, since, event });
                }
            }
        }
        let is_over = |ended: &Event| now.0.saturating_sub(ended.at.0) >= PRESENCE_ENDS.0;
        self.leaving.retain(|Leaving { event, .. }| {
            if is_over(event) {
                events.push(Event { observed: now, ..event.clone() });
            }
            !is_over(event)
        });
    }

    fn parties(&self, gpu: &GpuId) -> Vec<Party> {
        let known = self.users.get(&gpu.uuid);
        known.into_iter().flatten().map(|(party, _)| party.clone()).collect()
    }

    fn compare_gpu(&mut self, old: SeenGpu<'_>, new: SeenGpu<'_>, now: Utc, events: &mut Vec<Event>) {
        let SeenGpu { entry, state } = new;
        let first = events.len();
        for ((code, label), seen) in entry.xids.iter().zip(&state.xids) {
            let place = old.entry.xids.iter().position(|(known, _)| known == code);
            let before = place.and_then(|place| old.state.xids.get(place)).map_or(0, |seen| seen.count);
            if seen.count > before {
                let new = SeenXid { count: seen.count - before, last: seen.last.min(now), ..*seen };
                events.push(xid_event(entry, *code, label, new));
            }
        }
        match (old.entry.absence, entry.absence) {
            (None, Some(absence)) => {
                let text = format!("the GPU is no longer there: {absence}");
                let attributes = vec![("attachment", absence.to_owned())];
                events.push(Event { attributes, ..event(&LOST, now, Some(entry), text) });
            }
            (Some(absence), None) => {
                let text = format!("the GPU is back; it was {absence}");
                let attributes = vec![("attachment", Attachment::Present.name().to_owned())];
                events.push(Event { attributes, ..event(&BACK, now, Some(entry), text) });
            }
            _ => {}
        }
        self.compare_reading(old, new, now, events);
        for event in &mut events[first..] {
            event.parties = self.parties(&entry.id);
        }
    }

    fn compare_reading(&mut self, old: SeenGpu<'_>, new: SeenGpu<'_>, now: Utc, events: &mut Vec<Event>) {
        let (SeenGpu { entry: old_entry, state: old }, SeenGpu { entry, state }) = (old, new);
        let is_divided_otherwise = match (&old.layout, &state.layout) {
            (Some(before), Some(after)) => !before.is_divided_like(after),
            (before, after) => before.is_some() != after.is_some(),
        };
        if is_divided_otherwise && old.frame.is_some() {
            let instances: Vec<&str> = entry.instances.iter().map(|one| &*one.gpu_instance).collect();
            let text = match state.layout {
                Some(_) => format!("the GPU is divided into other MIG instances: {}", instances.join(", ")),
                None => "MIG mode was switched off".to_owned(),
            };
            let attributes = vec![("instances", instances.join(","))];
            events.push(Event { attributes, ..event(&RESHAPED, now, Some(entry), text) });
        }
        let versions = (&old_entry.identity.driver_version, &entry.identity.driver_version);
        if versions.0 != versions.1 && !versions.0.is_empty() && !versions.1.is_empty() {
            let text = format!("the driver is version {}; it was {}", versions.1, versions.0);
            let attributes = vec![("driver", versions.1.to_string()), ("before", versions.0.to_string())];
            events.push(Event { attributes, ..event(&DRIVER, now, Some(entry), text) });
        }
        if old.health.state != state.health.state {
            events.push(health_event(old, entry, state, now));
        }
        let is_unread = state.present && !state.is_up();
        match (self.unread.get(&entry.id.uuid).copied(), is_unread) {
            (None, true) => drop(self.unread.insert(Arc::clone(&entry.id.uuid), now)),
            (Some(since), false) => {
                self.unread.remove(&entry.id.uuid);
                if state.is_up() {
                    let text = format!("the GPU could not be read for {} s", seconds(since, now));
                    let attributes = vec![("seconds", seconds(since, now).to_string())];
                    events.push(Event { attributes, ..event(&GAP, now, Some(entry), text) });
                }
            }
            _ => {}
        }
    }

    fn follow_throttles(&mut self, gpu: SeenGpu<'_>, now: Utc, events: &mut Vec<Event>) {
        let SeenGpu { entry, state } = gpu;
        for ThrottleReason { name: reason, point, .. } in THROTTLE_REASONS {
            let key = (Arc::clone(&entry.id.uuid), reason);
            let is_held = state.reading(point.id, point.tier).ok().map(|value| value > 0);
            if is_held == Some(true) {
                let episode =
                    self.episodes.entry(key).or_insert(Episode { since: now, last: now, told: false });
                episode.last = now;
                if !episode.told && now.0.saturating_sub(episode.since.0) >= EPISODE_BEGINS.0 {
                    episode.told = true;
                    let text = format!("the clocks are held down: {reason}");
                    let severity = if reason == POWER_CAP { Severity::Info } else { Severity::Warn };
                    let attributes = vec![("reason", reason.to_owned())];
                    let parties = self.parties(&entry.id);
                    let begun = event(&THROTTLED, now, Some(entry), text);
                    events.push(Event { severity, attributes, parties, detail: reason.into(), ..begun });
                }
                continue;
            }
            let Some(episode) = self.episodes.get(&key).copied() else { continue };
            // An unread GPU may go on being throttled, but nobody knows.
            if now.0.saturating_sub(episode.last.0) < EPISODE_ENDS.0 {
                continue;
            }
            self.episodes.remove(&key);
            if episode.told {
                let lasted = seconds(episode.since, episode.last);
                let text = format!("the clocks are no longer held down: {reason}, for {lasted} s");
                let attributes = vec![("reason", reason.to_owned()), ("seconds", lasted.to_string())];
                let ended = event(&UNTHROTTLED, now, Some(entry), text);
                events.push(Event { at: episode.last, attributes, detail: reason.into(), ..ended });
            }
        }
    }
}

fn event(kind: &'static EventKind, at: Utc, gpu: Option<&GpuEntry>, text: impl Into<String>) -> Event {
    Event {
        kind,
        severity: kind.severity,
        at,
        observed: at,
        gpu: gpu.map(|entry| entry.id.clone()),
        detail: "".into(),
        text: text.into(),
        attributes: Vec::new(),
        parties: Vec::new(),
        count: 1,
    }
}

fn seconds(since: Utc, until: Utc) -> u64 {
    until.0.saturating_sub(since.0) / Nanoseconds::SECOND.0
}

fn xid_event(entry: &GpuEntry, code: u32, label: &Arc<str>, new: SeenXid) -> Event {
    let SeenXid { count, last, gpu_instance } = new;
    let row = xid::find(code);
    let severity = match row.action {
        Action::Ignore => Severity::Info,
        Action::RestartApp => Severity::Warn,
        _ => Severity::Error,
    };
    let mut attributes = vec![
        ("xid", label.to_string()),
        ("class", row.class.name().to_owned()),
        ("action", row.action.name().to_owned()),
    ];
    let mut text = format!("XID {code}: {}", row.text);
    if let Some(instance) = gpu_instance {
        attributes.push(("gpu_instance", instance.to_string()));
        text = format!("{text}, on GPU instance {instance}");
    }
    let of_xid = event(&XID, last, Some(entry), text);
    let detail =
        gpu_instance.map_or_else(|| Arc::clone(label), |instance| format!("{label} {instance}").into());
    Event { severity, attributes, count, detail, ..of_xid }
}

fn compare_sxids(previous: &Snapshot, snapshot: &Snapshot, events: &mut Vec<Event>) {
    for SxidCount { sxid, count, last } in &snapshot.sxids {
        let before = previous.sxids.iter().find(|known| known.sxid == *sxid).map_or(0, |known| known.count);
        if *count == before {
            continue;
        }
        let severity = if sxid.is_fatal { Severity::Error } else { Severity::Warn };
        let attributes = vec![
            ("pci_bus_id", sxid.switch.to_string()),
            ("sxid", sxid.code.to_string()),
            ("severity", sxid.severity().to_owned()),
        ];
        let what = if sxid.is_fatal { "fatal: it must be reset with its GPUs" } else { "not fatal" };
        let text = format!("SXID {} of the NVSwitch at {}, {what}", sxid.code, sxid.switch);
        let detail = format!("{} {} {}", sxid.switch, sxid.code, sxid.severity()).into();
        let of_switch = event(&SXID, (*last).min(snapshot.at.utc), None, text);
        events.push(Event { severity, attributes, detail, count: count - before, ..of_switch });
    }
}

fn found(entry: &GpuEntry, previous: &Snapshot, now: Utc) -> Event {
    let replaced = previous.roster.gpus.iter().find(|old| old.id.index == entry.id.index);
    let text = match replaced {
        Some(old) => format!("a GPU that was not known is there, at the index of {}", old.id.uuid),
        None => "a GPU that was not known is there".to_owned(),
    };
    let attributes = replaced.map(|old| ("replaces", old.id.uuid.to_string())).into_iter().collect();
    Event { attributes, ..event(&FOUND, now, Some(entry), text) }
}

fn health_event(old: &GpuState, entry: &GpuEntry, state: &GpuState, now: Utc) -> Event {
    let (verdict, before) = (&state.health, old.health.state.name());
    let severity = match verdict.state {
        HealthState::Ok => Severity::Info,
        HealthState::Degraded | HealthState::Unknown => Severity::Warn,
        HealthState::Failed => Severity::Error,
    };
    let mut text = format!("the GPU is {}; it was {before}", verdict.state.name());
    let mut attributes = vec![
        ("state", verdict.state.name().to_owned()),
        ("before", before.to_owned()),
        ("action", verdict.remedy.name().to_owned()),
    ];
    if let Some(reason) = verdict.reasons.first() {
        text = format!("{text}: {}", reason.what);
        attributes.extend([("rule", reason.rule.to_owned()), ("evidence", reason.evidence.to_string())]);
    }
    let changed = event(&HEALTH, now, Some(entry), text);
    Event { severity, attributes, detail: verdict.state.name().into(), ..changed }
}

fn party(snapshot: &Snapshot, workload: &Arc<str>, tenant: &Arc<str>) -> Party {
    let entry = snapshot.roster.workloads.iter().find(|entry| entry.workload == *workload);
    let user = |fact| entry.and_then(|entry| entry.facts.get(fact)).map(Arc::clone);
    let users = [user(Fact::User), user(Fact::SlurmUser)];
    Party { workload: Arc::clone(workload), tenant: Arc::clone(tenant), users }
}

#[derive(Debug)]
struct Leaving {
    key: HoldingKey,
    /// Since when it holds, earlier moments away included.
    since: Utc,
    /// The event that is emitted if the holder stays away.
    event: Event,
}

/// What distinguishes a holding: GPU, instance, workload and source.
type HoldingKey = (Option<Arc<str>>, Arc<str>, Arc<str>, HoldingSource);

fn holding_key(of: &Snapshot, holding: &HoldingEntry) -> HoldingKey {
    let gpu = of.roster.gpus.get(holding.gpu).map(|entry| Arc::clone(&entry.id.uuid));
    let HoldingEntry { gpu_instance, workload, source, .. } = holding;
    (gpu, Arc::clone(gpu_instance), Arc::clone(workload), *source)
}

fn granted_event(snapshot: &Snapshot, place: usize, holding: &HoldingEntry) -> Event {
    let now = snapshot.at.utc;
    let share = snapshot.holdings.get(place).map(|state| state.fraction.to_string()).unwrap_or_default();
    let text = format!("{} holds {share} of it", holding.workload);
    let granted = holding_event(&GRANTED, snapshot, holding, text);
    let mut attributes = granted.attributes.clone();
    attributes.push(("share", share));
    Event { at: holding.since.min(now), observed: now, attributes, ..granted }
}

fn ended_event(previous: &Snapshot, holding: &HoldingEntry, since: Utc, now: Utc) -> Event {
    let text = format!("{} no longer holds it", holding.workload);
    let ended = holding_event(&ENDED, previous, holding, text);
    let mut attributes = ended.attributes.clone();
    attributes.push(("seconds", seconds(since, now).to_string()));
    Event { at: now, observed: now, attributes, ..ended }
}

fn holding_event(kind: &'static EventKind, of: &Snapshot, holding: &HoldingEntry, text: String) -> Event {
    let attributes = vec![
        ("gpu_instance", holding.gpu_instance.to_string()),
        ("source", holding.source.name().to_owned()),
    ];
    let parties = vec![party(of, &holding.workload, &holding.tenant)];
    let detail = format!("{}:{}", holding.gpu_instance, holding.workload).into();
    let plain = event(kind, of.at.utc, of.roster.gpus.get(holding.gpu), text);
    Event { attributes, parties, detail, ..plain }
}

fn compare_budgets(previous: &Snapshot, snapshot: &Snapshot, events: &mut Vec<Event>) {
    for (place, entry) in snapshot.roster.month_costs.iter().enumerate() {
        let Some(cost) = snapshot.month_costs.get(place) else { continue };
        let budgets = snapshot.roster.budgets.iter();
        let budget = budgets.filter(|one| one.tenant == entry.tenant && one.currency == entry.currency);
        let Some(Money(amount)) = budget.map(|one| one.amount).next() else { continue };
        let same = |old: &(usize, &crate::model::snapshot::MonthCostEntry)| old.1 == entry;
        let before = previous.roster.month_costs.iter().enumerate().find(same);
        let before = before.and_then(|(place, _)| previous.month_costs.get(place));
        if *cost <= amount || before.is_none_or(|before| *before > amount) {
            continue;
        }
        let money = |nano: i128| format!("{:.2}", Decimal::of_nano(nano));
        let text = format!("{} costs more than its budget for {}", entry.tenant, entry.month);
        let attributes = vec![
            ("month", entry.month.to_string()),
            ("currency", entry.currency.to_string()),
            ("budget", money(amount)),
            ("cost", money(*cost)),
        ];
        let parties = vec![party(snapshot, &"".into(), &entry.tenant)];
        let detail = format!("{}:{}", entry.tenant, entry.month).into();
        let passed = event(&BUDGET, snapshot.at.utc, None, text);
        events.push(Event { attributes, parties, detail, ..passed });
    }
}
