//! The costs of a period from the rows of one ledger, cut at local hours.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use jiff::civil::Date;
use rusqlite::Connection;

use super::billing::{GpuSpan, HOLDERS, SIMULATED, StoredAccount, find_currency, load_conflicts, used_rates};
use super::error::Cause;
use super::{node, reader};
use crate::accounting::billing::costs::{
    CostDraft, CostFacts, CostKey, CostNotice, CostRanges, CostReport, CostRequest, CostSource, CostSums,
    CostTenants, CostWorkload, HourSums, LocalHour, local_hours,
};
use crate::accounting::billing::{BillLine, Month, RateKind, RateSchedule, local_time};
use crate::model::{HolderId, Nanoseconds, NodeIdentity, Utc, VisibleAccount};

pub(super) fn make_costs(connection: &Connection, request: &CostRequest) -> Result<CostReport, Cause> {
    let account = StoredAccount::load(connection, reader::holders(connection, HOLDERS, [])?)?;
    let begins = account.gpus.iter().map(|(_, gpu)| gpu.accounted_since);
    let begin = begins.min().unwrap_or_default().max(account.rolled.deleted_until);
    let ranges = request.ranges([begin, account.closed_until()]).map_err(Cause::Request)?;
    let [from, to] = ranges.period;
    account.rolled.check_period(from, to)?;
    let node = Arc::new(node::load(connection)?);
    let tenants = tenants(&account, request, to);
    let mut feed = Feed::new(request, &ranges, &tenants, Keys::new(&account.rates, &node, request));
    account.read(&feed.spans(&account), |span| feed.add(span))?;
    let all = used_rates(&account.rates, &feed.used);
    let used = used_rates(&account.rates, &feed.used_in_period);
    let currency = find_currency(&used, from)?;
    let is_simulated = node.simulated || feed.models.iter().any(|model| model.ends_with(SIMULATED));
    let mut notices = Vec::new();
    if used.iter().any(|rate| rate.entry.is_example()) {
        notices.push(notice("example_prices", "The prices are made up by gpumeter, not the operator's."));
    }
    if request.is_partial() {
        notices.push(notice(
            "partial",
            "Only lines that you may see are here, and all sums are of these lines.",
        ));
    } else {
        notices.extend(incomplete(&account, request, ranges.period));
        notices.extend(conflicts(connection, ranges.period)?);
    }
    let facts = CostFacts {
        source: CostSource {
            kind: "node",
            node: Some(node.name.clone()).filter(|name| !name.is_empty()),
            nodes: 1,
            clusters: node.cluster.clone().into_iter().collect(),
            simulated: is_simulated,
        },
        compares_money: find_currency(&all, from).is_ok_and(|all| all == currency),
        currency,
        notices,
        ..CostFacts::default()
    };
    Ok(feed.finish()?.finish(facts)?)
}

fn notice(kind: &'static str, text: impl Into<String>) -> CostNotice {
    CostNotice { kind, text: text.into() }
}

fn tenants(account: &StoredAccount<'_>, request: &CostRequest, to: Utc) -> CostTenants {
    let month = Month::containing(Utc(to.0.saturating_sub(1)), &request.zone);
    let last = account.rules.versions().entries().last();
    CostTenants {
        attributes: last.map(|last| last.entry.attributes.clone()).unwrap_or_default(),
        budgets: account.rules.budgets_until(month.map_or(to, |month| month.end)).clone(),
    }
}

/// Since when there is an account, where that is after the begin of the period.
fn incomplete(
    account: &StoredAccount<'_>,
    request: &CostRequest,
    [from, to]: [Utc; 2],
) -> Option<CostNotice> {
    let late = account.gpus.iter().map(|(_, gpu)| gpu.accounted_since);
    let late: Vec<Utc> = late.filter(|since| from < *since && *since < to).collect();
    let since = local_time(*late.iter().min()?, &request.zone);
    let text = format!(
        "{} of {} GPUs have an account that begins later than the period, the first at {since}.",
        late.len(),
        account.gpus.len()
    );
    Some(notice("open_days", text))
}

fn conflicts(connection: &Connection, period: [Utc; 2]) -> Result<Option<CostNotice>, Cause> {
    let conflicts = load_conflicts(connection, period)?;
    let gpus: BTreeSet<&str> = conflicts.iter().map(|conflict| &*conflict.gpu.uuid).collect();
    let text = format!(
        "On {} of the GPUs claims did not fit together, and each was charged for a part; `gpumeter bill` names them.",
        gpus.len()
    );
    Ok((!gpus.is_empty()).then(|| notice("conflict", text)))
}

/// The GPU, holder, tenant and rate of a line.
type LineIdentity = (Arc<str>, HolderId, String, Option<i64>);

/// The keys of lines, each made once.
struct Keys<'a> {
    rates: &'a RateSchedule,
    node: &'a Arc<NodeIdentity>,
    /// Whether a request tells workloads apart, or its reader sees only those of one user.
    has_workloads: bool,
    known: HashMap<LineIdentity, Arc<CostKey>>,
}

impl<'a> Keys<'a> {
    fn new(rates: &'a RateSchedule, node: &'a Arc<NodeIdentity>, request: &CostRequest) -> Self {
        let is_of_user = matches!(request.visible, VisibleAccount::OfUser(_));
        Self { rates, node, has_workloads: is_of_user || request.needs_workloads(), known: HashMap::new() }
    }

    fn key(&mut self, line: BillLine, model: &str) -> Arc<CostKey> {
        let id = (Arc::clone(&line.gpu.uuid), line.holder.clone(), line.tenant.clone(), line.rates.time);
        let key = self.known.entry(id).or_insert_with(|| {
            let rate =
                line.rates.time.and_then(|id| self.rates.rates.entries().iter().find(|rate| rate.id == id));
            Arc::new(CostKey {
                node: Arc::clone(self.node),
                model: model.into(),
                tenant: line.tenant.into(),
                class: rate.map(|rate| Arc::clone(&rate.entry.tariff.class)),
                workload: self.has_workloads.then(|| CostWorkload {
                    gpu: line.gpu,
                    holder: line.holder,
                    labels: Arc::new(line.labels),
                }),
            })
        });
        Arc::clone(key)
    }
}

/// A longer period is read by day, since each span that is read takes as long as hundreds of rows: 92 days, the longest quarter, and
/// an hour more where clocks are set.
const MOST_BY_HOUR: Nanoseconds = Nanoseconds::from_seconds((92 * 24 + 1) * 3_600);

/// Feeds the lines of the ledger to a draft.
struct Feed<'a> {
    draft: CostDraft<'a>,
    ranges: &'a CostRanges,
    /// The local hours of the period and of the last weeks, in order.
    hours: Vec<LocalHour>,
    keys: Keys<'a>,
    /// Nanograms of CO2e per kWh, by the number of the rate.
    carbon: BTreeMap<i64, i64>,
    /// The numbers of the rates, of all lines and of those of the period.
    used: BTreeSet<i64>,
    used_in_period: BTreeSet<i64>,
    models: BTreeSet<String>,
    /// The GPUs with any energy in the period: one draws power whenever it is there.
    measured: BTreeSet<Arc<str>>,
    /// Sums of an hour without energy, whose GPU may have some in another one.
    without_energy: BTreeMap<(Arc<str>, Arc<CostKey>, Date), CostSums>,
}

impl<'a> Feed<'a> {
    fn new(
        request: &'a CostRequest,
        ranges: &'a CostRanges,
        tenants: &'a CostTenants,
        keys: Keys<'a>,
    ) -> Self {
        let mut draft = CostDraft::new(request, ranges, tenants);
        let of_weeks = ranges.weeks.iter().flat_map(|week| local_hours(*week, &request.zone));
        let mut hours: Vec<LocalHour> = of_weeks.collect();
        let of_period = local_hours(ranges.period, &request.zone).into_iter();
        let of_period = of_period.filter(|hour| !ranges.weeks.iter().any(|week| is_in(hour.begin, week)));
        if ranges.period[1].since(ranges.period[0]) > MOST_BY_HOUR {
            draft.leave_out_hours();
            hours.extend(by_day(of_period));
        } else {
            hours.extend(of_period);
        }
        hours.sort_by_key(|hour| hour.begin);
        let carbon = keys.rates.rates.entries().iter().filter(|rate| rate.entry.kind == RateKind::CarbonKwh);
        Self {
            draft,
            ranges,
            hours,
            carbon: carbon.map(|rate| (rate.id, rate.entry.nano)).collect(),
            keys,
            used: BTreeSet::new(),
            used_in_period: BTreeSet::new(),
            models: BTreeSet::new(),
            measured: BTreeSet::new(),
            without_energy: BTreeMap::new(),
        }
    }

    /// What is read: each part of a local hour, and the period before in one piece where it is in no week.
    fn spans(&self, account: &StoredAccount<'_>) -> Vec<[Utc; 2]> {
        let all = self.ranges.weeks.iter().chain(&self.ranges.before).chain([&self.ranges.period]);
        let (Some(from), Some(to)) =
            (all.clone().map(|range| range[0]).min(), all.clone().map(|range| range[1]).max())
        else {
            return Vec::new();
        };
        let edges = self.hours.iter().flat_map(|hour| [hour.begin, hour.end]);
        let edges = edges.chain(self.ranges.before.into_iter().flatten());
        let spans = account.spans([from, to], edges).into_iter();
        spans.filter(|[from, _]| all.clone().any(|range| is_in(*from, range))).collect()
    }

    fn add(&mut self, span: GpuSpan<'_>) -> Result<(), Cause> {
        let is_of_period = is_in(span.from, &self.ranges.period);
        let is_before = self.ranges.before.is_some_and(|before| is_in(span.from, &before));
        let place = self.hours.partition_point(|hour| hour.begin <= span.from).checked_sub(1);
        let hour = place.map(|place| self.hours[place]).filter(|hour| span.from < hour.end);
        let has_energy = span.lines.iter().any(|line| line.energy() > 0);
        let uuid = Arc::clone(&span.gpu.gpu.uuid);
        if is_of_period {
            self.models.insert(span.gpu.model.clone());
            self.used_in_period.extend(span.rate);
            if has_energy {
                self.measured.insert(Arc::clone(&uuid));
            }
        }
        self.used.extend(span.rate);
        for line in span.lines {
            let line = BillLine { has_energy, ..line };
            let rates = [line.rates.time, line.rates.energy, line.rates.carbon];
            self.used.extend(rates.into_iter().flatten());
            let carbon = line.rates.carbon.and_then(|id| self.carbon.get(&id).copied());
            let sums = CostSums::of_line(&line, carbon);
            let with_energy = (!has_energy).then(|| Self::known_energy(&line, carbon));
            let key = self.keys.key(line, &span.gpu.model);
            if is_before {
                self.draft.add_before(&key, &sums)?;
            }
            let Some(hour) = hour else { continue };
            if is_of_period {
                self.used_in_period.extend(rates.into_iter().flatten());
                self.draft.add(&key, hour.day, &sums)?;
                if let Some(energy) = with_energy {
                    self.without_energy.insert((Arc::clone(&uuid), Arc::clone(&key), hour.day), energy);
                }
            }
            self.draft.add_hour(&key, &hour, &HourSums::of(&key.tenant, &sums))?;
        }
        Ok(())
    }

    /// Nothing, but known energy.
    fn known_energy(line: &BillLine, carbon: Option<i64>) -> CostSums {
        let nothing = BillLine { has_energy: true, rates: line.rates, ..BillLine::default() };
        CostSums::of_line(&nothing, carbon)
    }

    fn finish(mut self) -> Result<CostDraft<'a>, Cause> {
        for ((uuid, key, day), sums) in &self.without_energy {
            if self.measured.contains(uuid) {
                self.draft.add(key, *day, sums)?;
            }
        }
        Ok(self.draft)
    }
}

/// Hours with those of their day in one piece, as far as they follow each other.
fn by_day(hours: impl Iterator<Item = LocalHour>) -> Vec<LocalHour> {
    let mut days = Vec::<LocalHour>::new();
    for hour in hours {
        match days.last_mut().filter(|day| day.day == hour.day && day.end == hour.begin) {
            Some(day) => day.end = hour.end,
            None => days.push(hour),
        }
    }
    days
}

fn is_in(at: Utc, [from, to]: &[Utc; 2]) -> bool {
    *from <= at && at < *to
}
