//! An explanation as text.

use jiff::tz::TimeZone;

use super::text::{begin, counted, in_words, seconds, trimmed, unit};
use crate::accounting::billing::{
    Bill, BillLine, BillRate, ExplainedLine, Explanation, GpuEventKind, GpuRecord, LineRates, LineSpan,
    MissingReasons, RateKind, Tenancy, TenantBasis, print_money, readable_time, zone_of,
};
use crate::cli::report::{CellUnit, Column, Report, ReportCell, ReportPart, ReportTable};
use crate::cli::wrap;
use crate::model::{EnergySum, Grade, MINUTE, Microjoules, Money, Nanoseconds, TimeSum, Utc, shown};

const MOST_SPANS: usize = 40;

pub(super) fn report(subject: &str, explanation: &Explanation) -> Report {
    let zone = zone_of(&explanation.bill.time_zone);
    let mut report = begin(&explanation.bill);
    report.head.insert(0, std::mem::replace(&mut report.title, shown(subject).into_owned()));
    report.marks.extend(explanation.quarter_hours_until.map(|until| {
        format!("before {} only quarter hours are kept: times there are theirs", readable_time(until, &zone))
    }));
    report.parts.extend(explanation.lines.iter().map(|line| explain_line(line, explanation, &zone)));
    let lines = &explanation.lines;
    report.parts.extend(explanation.gpus.iter().map(|gpu| ReportPart::Note(explain_gpu(gpu, lines, &zone))));
    report.parts.extend(clocks(explanation, &zone).map(ReportPart::Note));
    report.parts.push(ReportPart::Note(sum(explanation)));
    report
}

fn explain_line(line: &ExplainedLine, explanation: &Explanation, zone: &TimeZone) -> ReportPart {
    let of = &line.line;
    let profile = of.slot.profile.as_ref().map(|profile| format!(" ({})", profile.name)).unwrap_or_default();
    let instance = of.slot.gpu_instance.map(|id| format!(", MIG instance {id}{profile}"));
    let node = of.node.as_ref().map(|node| format!("{}, ", shown(&node.name))).unwrap_or_default();
    let mut page = format!(
        "{} on {node}GPU {} ({}){}\n",
        shown(of.holder.name()),
        of.gpu.index,
        of.gpu.uuid,
        instance.unwrap_or_default()
    );
    let labels: Vec<String> =
        of.labels.iter().map(|(name, value)| format!("{}={}", shown(name), shown(value))).collect();
    let mut entries = vec![("labels", labels.join(" ")), ("recorded", recorded(line, zone))];
    entries.extend(grants(line).iter().take(MOST_SPANS).map(|spans| ("holding", grant_text(spans, zone))));
    entries.extend(line.tenancies.iter().map(|tenancy| ("tenant", tenancy_text(&of.tenant, tenancy, zone))));
    entries.push(("class", class_text(line)));
    entries.extend(line.elsewhere.iter().map(|missing| ("reasons", missing_text(line, missing, zone))));
    let priced = Priced::of(of, line.spans.first().map(|span| span.from));
    entries.extend(price_entries(&priced, &explanation.bill, zone));
    entries.push(("use", use_text(line)));
    let more = line.spans.len().saturating_sub(MOST_SPANS);
    entries
        .extend((more > 0).then(|| ("minutes", format!("and {more} more spans than these; --json has all"))));
    entries.retain(|(_, value)| !value.is_empty());
    page.extend(entries.iter().map(|(name, value)| wrap(&format!("  {name:10} "), value)));
    if line.spans.is_empty() {
        ReportPart::Note(page)
    } else {
        ReportPart::Table(page, span_table(&line.spans, zone))
    }
}

/// What is priced alike: a line, or the sum of several.
pub(super) struct Priced {
    pub(super) rates: LineRates,
    /// Of a MIG instance: its slices, and those of the GPU.
    pub(super) slices: Option<[u64; 2]>,
    pub(super) charged: TimeSum,
    pub(super) unpriced: TimeSum,
    /// None where it was not measured.
    pub(super) energy: Option<EnergySum>,
    pub(super) money: Option<Money>,
    pub(super) energy_money: Option<Money>,
    /// Its first minute; none where it is not known.
    pub(super) first: Option<Utc>,
}

impl Priced {
    fn of(line: &BillLine, first: Option<Utc>) -> Self {
        Self {
            rates: line.rates,
            slices: line.slot.profile.as_ref().map(|profile| [profile.size, profile.total]),
            charged: line.charged.into(),
            unpriced: line.unpriced.into(),
            energy: line.has_energy.then(|| Microjoules(line.energy()).into()),
            money: line.money,
            energy_money: line.energy_money,
            first,
        }
    }
}

pub(super) fn price_entries(of: &Priced, bill: &Bill, zone: &TimeZone) -> Vec<(&'static str, String)> {
    let currency = bill.currency.as_deref().unwrap_or_default();
    let rate = |id: Option<i64>| bill.rates.iter().find(|rate| Some(rate.id) == id);
    let mut entries = Vec::new();
    let time = rate(of.rates.time);
    entries.extend(time.map(|rate| ("rate", rate_text(rate, currency, of.first, zone))));
    let terms = bill.terms.iter().find(|terms| Some(terms.id) == of.rates.terms);
    entries.extend(terms.map(|terms| {
        let since = terms.since.map(|at| format!(", since {}", readable_time(at, zone))).unwrap_or_default();
        let recorded =
            terms.recorded.map(|at| format!(", recorded {}", readable_time(at, zone))).unwrap_or_default();
        ("terms", format!("{}, for {}{since}{recorded}", terms.terms, shown(&terms.tenant)))
    }));
    let energy = rate(of.rates.energy).zip(of.energy);
    entries.extend(energy.map(|(rate, _)| ("energy", rate_text(rate, currency, of.first, zone))));
    if of.unpriced.0 > 0 {
        entries.push(("rate", format!("none in force: {} s cost nothing", seconds(of.unpriced))));
    }
    let has_amount = of.charged.0 > 0 || of.money.is_some_and(|money| money.0 != 0);
    if let Some(money) = of.money.filter(|_| has_amount) {
        entries.push(("amount", amount_text(of, money, (time, energy), currency)));
    }
    entries
}

/// Time x rate = amount.
fn amount_text(
    of: &Priced,
    money: Money,
    (time, energy): (Option<&BillRate>, Option<(&BillRate, EnergySum)>),
    currency: &str,
) -> String {
    let of_energy = of.energy_money.unwrap_or_default();
    let of_time = Money(money.0 - of_energy.0);
    let mut text = match time {
        Some(rate) if of.charged.0 > 0 => format!(
            "{} s x {} {currency} per {}{}{} = {} {currency}",
            seconds(of.charged),
            trimmed(rate.price),
            unit(rate.unit),
            slices(of, rate.unit),
            if of.rates.terms.is_some() { ", under the terms" } else { "" },
            print_money(of_time)
        ),
        _ => format!("{} {currency}", print_money(of_time)),
    };
    if let Some((rate, energy)) = energy {
        text += &format!(
            "; {} kWh x {} {currency} = {} {currency}; together {} {currency}",
            CellUnit::Kwh.print(energy.0.cast_signed()),
            trimmed(rate.price),
            print_money(of_energy),
            print_money(money)
        );
    }
    text
}

/// How time of an instance, which is a part of the GPU's, becomes hours of the instance.
fn slices(of: &Priced, kind: RateKind) -> String {
    match of.slices {
        Some([size, total]) if kind == RateKind::InstanceHour => format!(" x {total} / {size} slices"),
        _ => String::new(),
    }
}

fn rate_text(rate: &BillRate, currency: &str, used_from: Option<Utc>, zone: &TimeZone) -> String {
    let selector = rate.selector.describe();
    let selector = if selector.is_empty() { "every GPU".to_owned() } else { selector.join(", ") };
    let begin =
        rate.since.map_or_else(|| "always".to_owned(), |at| format!("from {}", readable_time(at, zone)));
    let end = rate.until.map(|at| format!(" to {}", readable_time(at, zone))).unwrap_or_default();
    let recorded = rate.recorded.map(|recorded| {
        let is_late = used_from.is_some_and(|from| recorded.floor(MINUTE) > from);
        let late = if is_late { ", after the time that it prices" } else { "" };
        format!(", recorded {}{late}", readable_time(recorded, zone))
    });
    format!(
        "{}, class {}, for {selector}, in force {begin}{end}{}",
        in_words(rate, currency),
        shown(&rate.class),
        recorded.unwrap_or_default()
    )
}

/// When the holder was first stored, and when it says that it began.
fn recorded(line: &ExplainedLine, zone: &TimeZone) -> String {
    let first = line.first_seen.map(|at| format!("first stored {}", readable_time(at, zone)));
    let started =
        line.started.map(|at| format!("its scheduler says that it began {}", readable_time(at, zone)));
    [first, started].into_iter().flatten().collect::<Vec<_>>().join("; ")
}

/// The spans in which it is known who granted what the line held, divided where that changes.
fn grants(line: &ExplainedLine) -> Vec<Vec<&LineSpan>> {
    let held: Vec<&LineSpan> = line.spans.iter().filter(|span| span.held.held() > 0).collect();
    let grants = held.chunk_by(|one, next| one.granted_by == next.granted_by);
    grants.filter(|spans| spans.iter().all(|span| !span.granted_by.is_empty())).map(<[_]>::to_vec).collect()
}

/// When spans with one grant held, and who granted it.
fn grant_text(spans: &[&LineSpan], zone: &TimeZone) -> String {
    let [Some(first), Some(last)] = [spans.first(), spans.last()] else { return String::new() };
    let stretches = spans.chunk_by(|one, next| one.to == next.from).count();
    let stretches = if stretches > 1 { format!(" in {stretches} stretches") } else { String::new() };
    let sources: Vec<&str> = first.granted_by.iter().map(|source| source.name()).collect();
    let (from, to) = (readable_time(first.from, zone), readable_time(last.to, zone));
    format!("{from} to {to}{stretches}, granted by {}", sources.join(" and "))
}

/// Where the reasons of a time are that the files lack.
fn missing_text(line: &ExplainedLine, missing: &MissingReasons, zone: &TimeZone) -> String {
    let MissingReasons { node, from, to } = missing;
    let is_unknown = |span: &LineSpan| {
        span.from < *to && *from < span.to && span.held.held() > 0 && span.granted_by.is_empty()
    };
    let holder = &line.line.holder;
    let grants = line.spans.iter().any(is_unknown) && !holder.is_remainder();
    format!(
        "{}rules and faults from {} to {} are not in the files; on {}: gpumeter explain {} --from {from} --to {to}",
        if grants { "grants, " } else { "" },
        readable_time(*from, zone),
        readable_time(*to, zone),
        shown(node),
        in_shell(holder.name())
    )
}

/// A text as one word of a shell's command.
fn in_shell(text: &str) -> String {
    let is_plain = |one: u8| one.is_ascii_alphanumeric() || b"_-./:@%+,".contains(&one);
    let text = shown(text);
    if text.bytes().all(is_plain) { text.into_owned() } else { format!("'{}'", text.replace('\'', r"'\''")) }
}

fn tenancy_text(tenant: &str, tenancy: &Tenancy, zone: &TimeZone) -> String {
    let tenant = shown(tenant);
    let version = tenancy.version.as_ref().map_or_else(
        || "there were no tenant rules".to_owned(),
        |version| {
            let [begin, recorded] = [version.begin, version.recorded].map(|at| readable_time(at, zone));
            let begin =
                if version.begin == Utc(0) { String::new() } else { format!(" in force from {begin},") };
            format!("version {} of the rules,{begin} recorded {recorded}", version.id)
        },
    );
    let unmatched = if tenancy.version.is_some() { "no rule matches; " } else { "" };
    let basis = match &tenancy.basis {
        TenantBasis::Rule { number, patterns, tenant } => {
            let patterns: Vec<String> =
                patterns.iter().map(|(label, pattern)| format!("{label}: {pattern:?}")).collect();
            format!("by rule {number} {{{}}} -> {}", patterns.join(", "), shown(tenant))
        }
        TenantBasis::Label(label) => format!("{unmatched}by its label {}", shown(label)),
        TenantBasis::Workload => format!("{unmatched}by its workload id"),
        TenantBasis::Reserved => return format!("{tenant}, which is reserved and which no rule changes"),
    };
    format!(
        "{tenant} from {} to {}: {basis}; {version}",
        readable_time(tenancy.from, zone),
        readable_time(tenancy.to, zone)
    )
}

/// What the holder was for, and which rule says so.
fn class_text(line: &ExplainedLine) -> String {
    let known = line.tenancies.iter().filter(|tenancy| tenancy.basis != TenantBasis::Reserved);
    let mut texts: Vec<String> = known
        .map(|tenancy| match tenancy.class_rule {
            Some(number) => format!("{}, by rule {number} of advice.classes", tenancy.class.name()),
            None => format!("{}, by default", tenancy.class.name()),
        })
        .collect();
    texts.dedup();
    texts.join("; then ")
}

fn use_text(line: &ExplainedLine) -> String {
    let used = line.line.amounts.used.total();
    if used == 0 {
        return String::new();
    }
    let share = u128::from(line.line.amounts.measured) * 1_000 / u128::from(used);
    let sources: Vec<&str> = line.line.sources.iter().map(|source| source.name()).collect();
    let grade = match line.line.grade {
        Grade::Measured => String::new(),
        grade => format!(", worst grade {}", grade.name()),
    };
    format!(
        "{} s, {}.{} % of it measured per process{grade}; activity from {}",
        seconds(Nanoseconds(used)),
        share / 10,
        share % 10,
        sources.join(", ")
    )
}

fn span_table(spans: &[LineSpan], zone: &TimeZone) -> ReportTable {
    let hours = |heading, of: fn(&LineSpan) -> u64| {
        Column::new(heading, CellUnit::Hours, move |span: &LineSpan| ReportCell::Amount(of(span).into()))
    };
    let share = |span: &LineSpan| {
        let slot = u128::from(span.slot.0.max(1));
        let share = (u128::from(span.held.held()) * 10_000 + slot / 2) / slot;
        format!("{}.{:02} %", share / 100, share % 100).into()
    };
    let columns = [
        Column::new("  from", CellUnit::Text, |span: &LineSpan| {
            format!("  {}", readable_time(span.from, zone)).into()
        }),
        Column::new("minutes", CellUnit::Number, |span: &LineSpan| {
            ReportCell::Amount((span.to.since(span.from).0 / MINUTE.0).into())
        }),
        Column::new("share", CellUnit::Number, share),
        hours("held h", |span| span.held.held()),
        hours("others h", |span| span.others.0),
        hours("within", |span| span.held.within),
        hours("lent", |span| span.held.lent),
        hours("idle", |span| span.held.idle),
        hours("unmeasured", |span| span.held.unmeasured),
        hours("unavailable", |span| span.held.unavailable),
        hours("used", |span| span.used.total()),
    ];
    ReportTable::new(columns, &spans[..spans.len().min(MOST_SPANS)], None).for_people()
}

fn explain_gpu(gpu: &GpuRecord, lines: &[ExplainedLine], zone: &TimeZone) -> String {
    let span = |from: Utc, to: Utc| format!("{} to {}", readable_time(from, zone), readable_time(to, zone));
    let mut notes: Vec<String> = Vec::new();
    for event in &gpu.events {
        let meaning = match event.kind {
            GpuEventKind::Unavailable => "unavailable: the GPU was lost or failed",
            GpuEventKind::Unobserved => "unobserved: no agent watched",
            GpuEventKind::Unmeasured => "unmeasured: it was held, and its activity could not be known",
            GpuEventKind::Bridged => {
                "bridged: the agent was away, and the holder was the same before and after"
            }
        };
        notes.push(format!("{}: {} s {meaning}", span(event.from, event.to), seconds(event.time)));
    }
    notes.extend(
        gpu.remarks.iter().map(|remark| format!("{}: {}", span(remark.from, remark.to), remark.text)),
    );
    notes.extend(gpu.incidents.iter().take(MOST_SPANS).map(|incident| {
        let what = match incident.code {
            Some(code) => format!("XID {code}"),
            None => format!("fault {}", shown(&incident.kind)),
        };
        format!("{}: {what}", span(incident.from, incident.to))
    }));
    let more = gpu.incidents.len().saturating_sub(MOST_SPANS);
    notes.extend((more > 0).then(|| format!("and {more} more faults than these; --json has all")));
    notes.extend(gpu.xids.iter().map(|xid| {
        format!(
            "XID {}: last {}, {} in all since counting began",
            xid.xid,
            readable_time(xid.last, zone),
            xid.count
        )
    }));
    let own = lines.iter().filter(|line| line.line.gpu.uuid == gpu.gpu.uuid);
    if own.flat_map(|line| &line.elsewhere).next().is_some() {
        notes.push("faults in a time without reasons are not listed".to_owned());
    } else if notes.is_empty() {
        notes.push("no fault, no gap and no conflict in the minutes of these lines".to_owned());
    }
    let notes: String = notes.iter().map(|note| wrap("  ", note)).collect();
    format!("GPU {} ({}), {}\n{notes}", gpu.gpu.index, gpu.gpu.uuid, gpu.model)
}

/// Steps of the clock and boots, which move no time.
fn clocks(explanation: &Explanation, zone: &TimeZone) -> Option<String> {
    let steps = explanation.clock_steps.iter().map(|step| {
        let (at, seconds) = (readable_time(step.at, zone), print_money(Money(step.step_ns.into())));
        format!("{at}: the wall clock stepped to {seconds} s beside the account's time")
    });
    let boots = explanation.boots.iter();
    let boots =
        boots.map(|boot| format!("{}: the agent was first there after a boot", readable_time(boot.at, zone)));
    let notes: String = boots.chain(steps).map(|note| format!("  {note}\n")).collect();
    (!notes.is_empty()).then(|| format!("Node\n{notes}"))
}

fn sum(explanation: &Explanation) -> String {
    let lines = || explanation.lines.iter().map(|line| &line.line);
    let held = lines().map(|line| i128::from(line.amounts.parts.held())).sum();
    let charged: TimeSum = lines().map(|line| line.charged).sum();
    let money: Money = lines().filter_map(|line| line.money).sum();
    let amount = explanation.bill.currency.as_ref();
    let amount = amount.map(|code| format!(", charged {} s, {} {code}", seconds(charged), trimmed(money)));
    format!(
        "{}: held {} h{}\n",
        counted(explanation.lines.len() as u64, "line"),
        CellUnit::Hours.print(held),
        amount.unwrap_or_default()
    )
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::cli::report::text;

    const HOUR: u64 = 3_600_000_000_000;

    fn span(from: &str, to: &str) -> Value {
        let used = json!({"within_ns": HOUR / 8, "beyond_ns": 0, "outside_ns": 0, "unheld_ns": 0});
        let held = json!({"within_ns": HOUR / 8, "lent_ns": 0, "idle_ns": HOUR * 3 / 8, "unmeasured_ns": 0, "unavailable_ns": 0});
        json!({"from": from, "to": to, "slot_ns": HOUR, "held_by_others_ns": HOUR / 2, "held": held,
            "used": used, "measured_ns": HOUR / 16, "grade": "split_by_memory", "method": "observed",
            "coarse": false, "sources": ["gpm"], "granted_by": ["slurm"]})
    }

    /// The page, with spaces instead of line breaks, of a line of half a GPU in one hour, with that many spans.
    fn told(spans: usize) -> String {
        let (from, to) = ("2026-10-31T23:00:00Z", "2026-11-01T00:00:00Z");
        let mut line = json!({"tenant": "physics", "holder": "slurm:alpha/7", "labels": {"slurm_account": "phys1"}, "gpu": 3,
            "uuid": "GPU-3", "gpu_instance": 2, "mig_profile": "4g.40gb", "mig_slices": [4, 8], "rate": "5",
            "energy_rate": "6", "terms": "1", "held_ns": HOUR / 2, "within_ns": HOUR / 8, "lent_ns": 0,
            "idle_ns": HOUR * 3 / 8, "unmeasured_ns": 0, "unavailable_ns": 0, "used_ns": HOUR / 8,
            "beyond_share_ns": 0, "outside_holding_ns": 0, "unheld_ns": 0});
        let others = json!({"energy_static_uj": 0,
            "energy_dynamic_uj": HOUR, "grade": "split_by_memory", "measured_ns": HOUR / 16, "method": "observed",
            "sources": ["gpm"], "charged_ns": HOUR / 8, "unpriced_ns": HOUR / 4, "money": "1.325000000",
            "energy_money": "0.200000000", "first_seen": from, "started": null,
            "spans": vec![span(from, to); spans],
            "tenancies": [{"from": from, "to": to, "version": {"id": 3, "begin": "2026-10-01T00:00:00Z",
                "recorded": "2026-09-30T12:00:00Z"}, "basis": {"rule": {"number": 2,
                "match": {"slurm_account": "phys*"}, "tenant": "physics"}}}]});
        line.as_object_mut().unwrap().extend(others.as_object().unwrap().clone());
        let rate = |id: u32, unit: &str, price: &str, selector: Value| {
            json!({"id": id, "unit": unit, "price": price, "class": "spot", "selector": selector,
                "derivation": "20.00 per node-hour / 8 GPUs", "since": "2026-10-01T00:00:00Z",
                "until": "2027-01-01T00:00:00Z", "recorded": "2026-11-15T00:00:00Z", "slot_ns": 0,
                "money": "0.000000000"})
        };
        let explanation = serde_json::from_value(json!({
            "bill": {"node": "n1", "cluster": null, "from": from, "to": to, "from_local": "2026-11-01T00:00:00+01:00",
                "to_local": "2026-11-01T01:00:00+01:00", "time_zone": "Europe/Berlin", "closed_until": to,
                "currency": "EUR", "lines": [], "gpus": [],
                "rates": [rate(5, "instance_hour", "2.500000000", json!({"model": "*H100*"})),
                    rate(6, "kwh", "0.200000000", json!({}))],
                "terms": [{"id": 1, "tenant": "phys*", "terms": "used time, 10 % off", "since": from}],
                "reconciliation": {"slot_ns": 0, "held_ns": 0,
                "imbalance_ns": "0", "gpu_money": "0.000000000", "line_money": "0.000000000",
                "imbalance_money": "0.000000000"}},
            "lines": [line], "usage": [],
            "gpus": [{"gpu": 3, "uuid": "GPU-3", "model": "H100",
                "events": [{"from": from, "to": to, "kind": "bridged", "time_ns": 1_500_000_000}],
                "remarks": [{"from": from, "to": to, "text": "claims of others conflict"}],
                "xids": [{"xid": 31, "count": 2, "last": from}]}],
            "clock_steps": [{"at": from, "step_ns": "-250000000"}], "boots": [{"at": from}]}))
        .unwrap();
        text::report(&report("Job 7", &explanation)).split_whitespace().collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn shares_rates_rules_faults_and_steps_are_told_in_the_zone_of_the_bill() {
        let told = told(1);
        for words in [
            "Job 7 Bill of n1 2026-11-01 00:00 +01:00 to 2026-11-01 01:00 +01:00, time zone Europe/Berlin",
            "slurm:alpha/7 on GPU 3 (GPU-3), MIG instance 2 (4g.40gb)",
            "first stored 2026-11-01 00:00 +01:00",
            "holding 2026-11-01 00:00 +01:00 to 2026-11-01 01:00 +01:00, granted by slurm",
            "physics from 2026-11-01 00:00 +01:00 to 2026-11-01 01:00 +01:00: by rule 2 {slurm_account: \"phys*\"} -> physics; \
             version 3 of the rules, in force from 2026-10-01 02:00 +02:00, recorded 2026-09-30 14:00 +02:00",
            "rate 2.50 EUR per instance-hour (20.00 per node-hour / 8 GPUs), class spot, for model *H100*, in force from \
             2026-10-01 02:00 +02:00 to 2027-01-01 01:00 +01:00, recorded 2026-11-15 01:00 +01:00, after the time that it \
             prices",
            "terms used time, 10 % off, for phys*, since 2026-11-01 00:00 +01:00",
            "energy 0.20 EUR per kWh",
            "rate none in force: 900.000000000 s cost nothing",
            "amount 450.000000000 s x 2.50 EUR per instance-hour x 8 / 4 slices, under the terms = 1.125000000 EUR; \
             1.0000 kWh x 0.20 EUR = 0.200000000 EUR; together 1.325000000 EUR",
            "450.000000000 s, 50.0 % of it measured per process, worst grade split_by_memory; activity from gpm",
            "from minutes share held h others h within idle used 2026-11-01 00:00 +01:00 60 50.00 % 0.5000 0.5000 0.1250 0.3750 0.1250",
            "1.500000000 s bridged: the agent was away",
            "claims of others conflict",
            "XID 31: last 2026-11-01 00:00 +01:00, 2 in all",
            "after a boot",
            "the wall clock stepped to -0.250000000 s beside",
            "1 line: held 0.5000 h, charged 450.000000000 s, 1.325 EUR",
        ] {
            assert!(told.contains(words), "{words:?} in {told}");
        }
    }

    #[test]
    fn a_line_with_very_many_spans_says_how_many_more_there_are() {
        assert!(
            told(45).contains("and 5 more spans than these; --json has all")
                && !told(40).contains("more spans")
        );
    }
}
