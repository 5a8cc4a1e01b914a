//! What a bill says in words: heading, marks, prices, reconciliation.

use std::collections::{BTreeMap, BTreeSet};

use crate::accounting::billing::{
    Bill, BillGpu, BillLine, BillRate, ClaimConflict, Fleet, RateKind, print_money,
};
use crate::cli::report::{CellUnit, Report};
use crate::model::{MINUTE, Money, Nanoseconds, TimeSum, Utc, shown};

pub(super) const NO_TIME: &str = "no GPU time was accounted for in this period\n";

/// How many of something that has a plural with an s.
pub(in crate::cli) fn counted(count: u64, one: &str) -> String {
    format!("{count} {one}{}", if count == 1 { "" } else { "s" })
}

/// Names from outside with commas between them.
pub(in crate::cli) fn list_names(names: impl Iterator<Item = impl AsRef<str>>) -> String {
    names.map(|name| shown(name.as_ref()).into_owned()).collect::<Vec<_>>().join(", ")
}

pub(super) fn begin(bill: &Bill) -> Report {
    Report { title: title(bill), head: vec![period(bill)], marks: marks(bill), ..Report::default() }
}

pub(super) fn title(bill: &Bill) -> String {
    if let Some(Fleet { nodes, clusters, .. }) = &bill.fleet {
        let nodes = counted(*nodes, "node");
        let of_clusters = match clusters.as_slice() {
            [] => String::new(),
            [one] => format!(", cluster {}", shown(one)),
            many => format!(", clusters {}", list_names(many.iter())),
        };
        return format!("Bill of {nodes}{of_clusters}");
    }
    let name = if bill.node.is_empty() { "unknown node" } else { &*bill.node };
    let cluster = bill.cluster.as_ref().map(|cluster| format!(", cluster {}", shown(cluster)));
    format!("Bill of {}{}", shown(name), cluster.unwrap_or_default())
}

pub(in crate::cli) fn period(bill: &Bill) -> String {
    let [from, to] = [&bill.from_local, &bill.to_local].map(|time| readable(time));
    format!("{from} to {to}, time zone {}", bill.time_zone)
}

/// What a reader must know before the numbers.
fn marks(bill: &Bill) -> Vec<String> {
    let mut marks: Vec<String> = bill.partial.then(|| partial(bill)).into_iter().collect();
    marks.extend(made_up(bill.simulated, bill.example_prices));
    marks.extend(bill.fleet.iter().flat_map(|fleet| fleet.notes.clone()));
    let differing = bill.fleet.iter().flat_map(|fleet| &fleet.differing_budgets);
    marks.extend(differing.map(|budgets| shown(&budgets.to_string()).into_owned()));
    marks
}

fn partial(bill: &Bill) -> String {
    let tenants: BTreeSet<&str> = bill.lines.iter().map(|line| &*line.tenant).collect();
    let lines = match tenants.first().filter(|_| tenants.len() == 1) {
        Some(tenant) => format!("the lines of {}", shown(tenant)),
        None => "some lines, those asked for that you may see".to_owned(),
    };
    format!("PARTIAL: only {lines}; sums are of these lines")
}

pub(super) fn made_up(is_simulated: bool, has_example_prices: bool) -> Vec<String> {
    let marks = [
        (is_simulated, "SIMULATED: the GPUs are simulated, every number is made up"),
        (has_example_prices, "EXAMPLE PRICES: made up by gpumeter, not the operator's"),
    ];
    marks.into_iter().filter(|(is_so, _)| *is_so).map(|(_, mark)| mark.to_owned()).collect()
}

/// What stands below the table: time in conflict, unmeasured energy, since when there is an account, prices, reconciliation, an
/// end before the requested one, and how GPUs are held.
pub(super) fn notes(bill: &Bill) -> Vec<String> {
    let prices = prices(bill) + &reconciliation(bill) + &clipped(bill);
    let mut notes = vec![conflicts(bill), unmetered(bill), coverage(bill), prices];
    notes.extend(holding(bill).into_iter().map(|line| line + "\n"));
    notes.retain(|note| !note.is_empty());
    notes
}

/// How GPUs are held that no grant names, and what is charged to nobody since nobody held the GPU.
fn holding(bill: &Bill) -> Vec<String> {
    let mut lines = Vec::new();
    if let Some(how_held) = bill.how_held {
        lines.push(format!("{}; {}", how_held.describe(), how_held.advice()));
    }
    lines.extend(unheld(bill).filter(|_| !bill.partial));
    let conflicts = bill.claim_conflicts.iter().filter(|_| !bill.partial);
    lines.extend(conflicts.clone().take(MOST_CONFLICTS).map(conflict));
    let others = conflicts.count().saturating_sub(MOST_CONFLICTS);
    if others > 0 {
        lines.push(format!("{others} more conflicts of claims are in the bill as JSON"));
    }
    lines
}

/// Conflicts of claims with a line of their own; short jobs beside pods may have thousands in a month.
const MOST_CONFLICTS: usize = 20;

fn conflict(ClaimConflict { gpu, gpu_instance, holders, quarter_hours }: &ClaimConflict) -> String {
    let instance = gpu_instance.map(|id| format!(" instance {id}")).unwrap_or_default();
    format!(
        "conflict on GPU {}{instance} ({}): in {} the claims of {} did not fit together, and each was charged for a part",
        gpu.index,
        gpu.uuid,
        counted(*quarter_hours, "quarter hour"),
        list_names(holders.iter())
    )
}

/// Use of workloads that nobody pays for, from a minute and 5 % of all use on.
fn unheld(bill: &Bill) -> Option<String> {
    let used = |line: &BillLine| u128::from(line.amounts.used.total());
    let used: u128 = bill.lines.iter().map(used).sum();
    let is_free = |line: &&BillLine| !line.holder.is_remainder() && !bill.charges_unheld(line);
    let unheld = bill.lines.iter().filter(is_free).map(|line| u128::from(line.amounts.used.unheld));
    let unheld: u128 = unheld.sum();
    if unheld < u128::from(MINUTE.0) || unheld * 20 <= used {
        return None;
    }
    let [unheld, used] = [unheld, used].map(|time| CellUnit::Hours.print(time.cast_signed()));
    Some(format!("{unheld} h of {used} h used are charged to nobody: nobody held the GPU meanwhile"))
}

/// `2026-11-01 00:00 +01:00` of a time in RFC 3339; bills begin and end on whole minutes.
pub(super) fn readable(time: &str) -> String {
    match (time.get(..10), time.get(11..16), time.get(19..)) {
        (Some(date), Some(clock), Some(offset)) => format!("{date} {clock} {offset}"),
        _ => time.to_owned(),
    }
}

/// The days of GPUs that two ledgers hold at one time.
fn conflicts(bill: &Bill) -> String {
    let conflicts = bill.fleet.iter().flat_map(|fleet| &fleet.conflicts);
    let lines = conflicts.map(|conflict| {
        let ledgers = conflict.ledgers.iter().map(|one| {
            format!("{} h in {}", CellUnit::Hours.print(one.held.0.cast_signed()), shown(&one.ledger))
        });
        format!("{} on {}: {}\n", conflict.gpu, conflict.date, ledgers.collect::<Vec<_>>().join(", "))
    });
    let lines: Vec<String> = lines.collect();
    if lines.is_empty() {
        return String::new();
    }
    format!(
        "in conflict, and in no line above: GPUs that two ledgers hold at one time, each with its whole day\n{}",
        lines.concat()
    )
}

fn unmetered(bill: &Bill) -> String {
    let lines = bill.lines.iter().filter(|line| !line.has_energy);
    let gpus: BTreeSet<(u32, &str)> = lines.map(|line| (line.gpu.index, &*line.gpu.uuid)).collect();
    if gpus.is_empty() {
        return String::new();
    }
    let gpus: Vec<String> = gpus.iter().map(|(gpu, uuid)| format!("GPU {gpu} ({uuid})")).collect();
    format!("energy not measured, and in no kWh above: {}\n", gpus.join(", "))
}

/// Each rate with its time or energy and money, the time without a price, and the terms of tenants. Without terms the times
/// and money of GPUs sum to the totals of the table.
fn prices(bill: &Bill) -> String {
    let mut page = String::new();
    if bill.unpriced.is_none() {
        page += "no prices are configured: hours and energy only\n";
    }
    for kind in [RateKind::GpuHour, RateKind::InstanceHour, RateKind::Kwh, RateKind::CarbonKwh] {
        let rates: Vec<&BillRate> = bill.rates.iter().filter(|rate| rate.unit == kind).collect();
        let rounded = |unit: CellUnit, of: fn(&BillRate) -> i128| {
            unit.round(&rates.iter().map(|rate| of(rate)).collect::<Vec<_>>()).into_iter()
        };
        let quantities = match kind {
            RateKind::GpuHour | RateKind::InstanceHour => {
                rounded(CellUnit::Hours, |rate| rate.slot.0.cast_signed())
            }
            RateKind::Kwh | RateKind::CarbonKwh => rounded(CellUnit::Kwh, |rate| rate.energy.0.cast_signed()),
        };
        let money = rounded(CellUnit::Money, |rate| rate.money.0);
        for ((rate, quantity), money) in rates.iter().zip(quantities).zip(money) {
            page += &price(bill, rate);
            if !bill.partial {
                page += &charged(bill, kind, quantity, money);
            }
            page.push('\n');
        }
    }
    if !bill.partial && bill.unpriced.is_some_and(|unpriced| unpriced.0 > 0) {
        let unpriced: i128 = bill.lines.iter().map(|line| i128::from(line.unpriced.0)).sum();
        page += &format!("no price in force: {} h\n", CellUnit::Hours.print(unpriced));
    }
    for terms in &bill.terms {
        let dates = dates(bill, terms.since, terms.recorded);
        page += &format!("terms of {}: {}{dates}\n", shown(&terms.tenant), terms.terms);
    }
    page
}

fn charged(bill: &Bill, kind: RateKind, quantity: i128, money: i128) -> String {
    let quantity = CellUnit::Hours.print(quantity);
    let money = format!("{} {}", CellUnit::Money.print(money), bill.currency.as_deref().unwrap_or_default());
    match kind {
        RateKind::GpuHour => format!(": {quantity} h, {money}"),
        RateKind::InstanceHour => format!(": {quantity} instance-hours, {money} in place of the GPU's rate"),
        RateKind::Kwh => format!(": {quantity} kWh, {money}"),
        RateKind::CarbonKwh => format!(": {quantity} kWh"),
    }
}

pub(super) const fn unit(kind: RateKind) -> &'static str {
    match kind {
        RateKind::GpuHour => "GPU-hour",
        RateKind::InstanceHour => "instance-hour",
        RateKind::Kwh | RateKind::CarbonKwh => "kWh",
    }
}

/// A price with its unit, and how it follows from what the operator gave.
pub(super) fn in_words(rate: &BillRate, currency: &str) -> String {
    let of = if rate.unit == RateKind::CarbonKwh { "g CO2e" } else { currency };
    let derivation = rate.derivation.as_ref().map(|text| format!(" ({text})")).unwrap_or_default();
    format!("{} {of} per {}{derivation}", trimmed(rate.price), unit(rate.unit))
}

fn price(bill: &Bill, rate: &BillRate) -> String {
    let name = match rate.unit {
        RateKind::GpuHour | RateKind::InstanceHour => "price",
        RateKind::Kwh => "energy",
        RateKind::CarbonKwh => "emissions",
    };
    let mut text = format!("{name}: {}", in_words(rate, bill.currency.as_deref().unwrap_or_default()));
    let selected = rate.selector.describe();
    if !selected.is_empty() {
        text += &format!(", {}", selected.join(", "));
    }
    if matches!(rate.unit, RateKind::GpuHour | RateKind::InstanceHour) {
        text += &format!(", class {}", shown(&rate.class));
    }
    match (rate.given_since, rate.since) {
        // Its other dates follow from this.
        (Some(given), Some(since)) => text + &format!(", since {since} instead of {given}"),
        _ => text + &dates(bill, rate.since, rate.recorded),
    }
}

/// The begin of a rate or terms where it is in the bill, and when they were recorded where that is after the begin.
fn dates(bill: &Bill, since: Option<Utc>, recorded: Option<Utc>) -> String {
    let late = recorded.filter(|recorded| since.is_some_and(|since| *recorded > since));
    let dates = [("since", since), ("recorded", late.map(|late| late.floor(Nanoseconds::SECOND)))];
    let dates = dates.into_iter().filter_map(|(word, at)| Some((word, at.filter(|at| *at > bill.from)?)));
    dates.map(|(word, at)| format!(", {word} {at}")).collect()
}

fn coverage(bill: &Bill) -> String {
    let period = u128::from(bill.to.since(bill.from).0);
    if bill.partial || period == 0 || bill.gpus.is_empty() {
        return String::new();
    }
    let mut groups: BTreeMap<String, u64> = BTreeMap::new();
    for gpu in &bill.gpus {
        *groups.entry(covered(bill, gpu, period)).or_default() += 1;
    }
    let lines = groups
        .into_iter()
        .map(|(covered, count)| format!("accounted for: {} {covered}\n", counted(count, "GPU")));
    lines.collect()
}

fn covered(bill: &Bill, gpu: &BillGpu, period: u128) -> String {
    let thousandths = u128::from(gpu.slot.0) * 1_000 / period;
    let part = match thousandths {
        1_000.. => return "in the whole period".to_owned(),
        0 => "less than 0.1 % of the period".to_owned(),
        _ => format!("{}.{} % of the period", thousandths / 10, thousandths % 10),
    };
    let in_seconds = |at: Utc| at.floor(Nanoseconds::SECOND).to_string();
    if gpu.accounted_since > bill.from {
        format!("since {}, {part}", in_seconds(gpu.accounted_since))
    } else {
        format!("until {}, {part}", in_seconds(gpu.settled_until.min(bill.to)))
    }
}

/// A price without trailing zeros, but with its cents.
pub(super) fn trimmed(price: Money) -> String {
    let mut price = print_money(price);
    let kept = price.trim_end_matches('0').len();
    let cents = price.find('.').map_or(price.len(), |point| point + 3);
    price.truncate(kept.max(cents));
    price
}

fn reconciliation(bill: &Bill) -> String {
    if bill.partial {
        return String::new();
    }
    let proof = &bill.reconciliation;
    let verdict = if bill.is_balanced() { "reconciles" } else { "DOES NOT RECONCILE" };
    let money = bill.currency.as_ref().map(|code| {
        format!(", money {} of {} {code}", print_money(proof.line_money), print_money(proof.gpu_money))
    });
    format!(
        "{verdict}: held {} s of {} s GPU time{}\n",
        seconds(proof.held),
        seconds(proof.slot),
        money.unwrap_or_default()
    )
}

/// A note if the bill ends before the requested time.
fn clipped(bill: &Bill) -> String {
    let Some(asked) = &bill.asked_to else { return String::new() };
    format!(
        "ends at {} instead of {}: later minutes are not complete yet; ask again then\n",
        readable(&bill.to_local),
        readable(asked)
    )
}

/// When a bill without lines will have some, or that it ends before the requested time.
pub(super) fn pending(bill: &Bill) -> String {
    if bill.partial {
        return "no line of those asked for that you may see\n".to_owned();
    }
    if bill.to < bill.closed_until {
        return String::new();
    }
    "no minute of it is complete yet: the first is billed about 90 seconds after the agent started; ask again then\n"
        .to_owned()
        + &clipped(bill)
}

/// Exact seconds, which have as many decimals as money.
pub(super) fn seconds(time: impl Into<TimeSum>) -> String {
    print_money(Money(time.into().0.cast_signed()))
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]
mod tests {
    use serde_json::{Value, json};

    use super::super::{budget, columns, compare, csv};
    use super::*;
    use crate::accounting::billing::BillGrouping;
    use crate::accounting::billing::made;
    use crate::cli::report::{html, text};

    fn report(bill: &Bill, by: &BillGrouping) -> Report {
        columns::report(bill, by, &columns::ShownColumns::Every).unwrap()
    }

    fn page(bill: &Bill) -> String {
        text::report(&report(bill, &"tenant".parse().unwrap()))
    }

    const HOUR: u64 = 3_600_000_000_000;

    /// A bill of one hour of one GPU in Berlin, held and idle, with these fields instead.
    fn bill(other: Value) -> Bill {
        let mut fields = json!({"from": "2026-10-31T23:00:00Z", "to": "2026-11-01T00:00:00Z",
            "from_local": "2026-11-01T00:00:00+01:00", "to_local": "2026-11-01T01:00:00+01:00",
            "time_zone": "Europe/Berlin", "closed_until": "2026-11-01T00:00:00Z", "currency": null,
            "lines": [line("alice", 0, None)]});
        fields.as_object_mut().unwrap().extend(other.as_object().unwrap().clone());
        made::bill(&fields)
    }

    fn line(tenant: &str, gpu: u32, energy: Option<u64>) -> Value {
        made::line(
            &json!({"tenant": tenant, "holder": tenant, "gpu": gpu, "uuid": format!("GPU-{gpu}"), "held_ns": HOUR,
            "idle_ns": HOUR, "energy_static_uj": energy, "energy_dynamic_uj": energy, "charged_ns": HOUR}),
        )
    }

    #[test]
    fn energy_that_was_not_measured_is_not_zero() {
        let half = Some(1_800_000_000_000);
        let lines =
            [line("both", 0, half), line("both", 1, None), line("dark", 1, None), line("idle", 0, Some(0))];
        let page = page(&bill(json!({"lines": lines})));
        let energy = |tenant: &str| {
            page.lines().find(|line| line.starts_with(tenant)).and_then(|line| line.split(' ').next_back())
        };
        let energies = ["both", "dark", "idle", "total"].map(energy);
        assert_eq!(energies, [Some("1.0000"), Some("-"), Some("0.0000"), Some("1.0000")], "{page}");
        assert!(page.contains("energy not measured, and in no kWh above: GPU 1 (GPU-1)\n"), "{page}");
    }

    #[test]
    fn a_hostile_name_is_escaped_and_cut_in_every_form_that_people_read() {
        let name = format!("a\u{1b}[2Jb\n\u{202e}c{}", "d".repeat(4_000));
        let day = |held: Value| {
            let mut line = line(&name, 0, None);
            line.as_object_mut().unwrap().extend([("day".to_owned(), held)]);
            line
        };
        let budgets = json!({&name: {"amount": "1.000000000", "currency": "USD"}});
        let bill = bill(json!({"node": name, "cluster": name, "tenant_budgets": budgets,
            "lines": [day("2026-10-31".into()), day("2026-11-01".into())],
            "claim_conflicts": [{"gpu": 0, "uuid": "GPU-0", "holders": [name, name], "quarter_hours": 1}]}));
        let by = "tenant".parse().unwrap();
        let cut = format!("a\\u{{1b}}[2Jb\\n\\u{{202e}}c{}…", "d".repeat(119 - 22));
        let over = budget::over_budget(&bill);
        for page in [
            page(&bill),
            html::page(&[report(&bill, &by)], &[], &[]),
            csv::page(std::slice::from_ref(&bill), &by, &[]).unwrap(),
            text::report(&compare::report(&bill, &bill, &by).unwrap()),
            text::report(&budget::report(&bill, &over)),
        ] {
            let is_hostile = |character| matches!(character, '\u{1b}' | '\u{202e}');
            assert!(!page.contains(is_hostile) && page.contains(&cut), "{page}");
            assert!(!page.contains(&"d".repeat(100)), "{page}");
        }
    }

    #[test]
    fn a_bill_without_lines_says_when_there_will_be_some() {
        let told = page(&bill(json!({"lines": []})));
        assert!(
            told.contains(NO_TIME) && told.contains("about 90 seconds after the agent started"),
            "{told}"
        );
        let past = page(&bill(json!({"lines": [], "closed_until": "2026-11-01T01:00:00Z"})));
        assert!(past.contains(NO_TIME) && !past.contains("ask again"), "{past}");
    }

    #[test]
    fn a_bill_that_ends_before_the_requested_time_says_so() {
        let told = page(&bill(json!({"asked_to": "2026-12-01T00:00:00+01:00"})));
        assert!(
            told.contains("ends at 2026-11-01 01:00 +01:00 instead of 2026-12-01 00:00 +01:00: "),
            "{told}"
        );
        assert!(!page(&bill(json!({}))).contains("ends at"));
    }

    #[test]
    fn a_bill_says_how_gpus_are_held_what_nobody_held_and_which_claims_conflicted() {
        let unheld = |tenant: &str, holder: &str, time: u64| {
            made::line(&json!({"tenant": tenant, "holder": holder, "used_ns": time, "unheld_ns": time}))
        };
        let lines = [unheld("ada", "user:ada", HOUR / 2), unheld("__system__", "__system__", HOUR / 2)];
        let told = page(&bill(json!({"how_held": "kubelet", "lines": lines, "claim_conflicts": [
            {"gpu": 3, "uuid": "GPU-3", "gpu_instance": 2, "holders": ["k8s:1/main", "slurm:a/7"], "quarter_hours": 4}]})));
        let has = |line: &str| told.lines().any(|found| found == line);
        assert!(told.contains("\nGPUs are held by grants alone: "), "{told}");
        assert!(
            told.contains("(attribution.presence: auto, and there is a kubelet); to let others than"),
            "{told}"
        );
        assert!(
            has("0.5000 h of 1.0000 h used are charged to nobody: nobody held the GPU meanwhile"),
            "{told}"
        );
        let conflict = "conflict on GPU 3 instance 2 (GPU-3): in 4 quarter hours the claims of k8s:1/main, slurm:a/7 did not fit \
                        together, and each was charged for a part";
        assert!(has(conflict), "{told}");
        let under = |terms: &str| {
            let mut lines = lines.clone();
            lines[0].as_object_mut().unwrap().insert("terms".to_owned(), json!("7"));
            let terms = json!([{"id": "7", "tenant": "ada", "terms": terms}]);
            page(&bill(json!({"lines": lines, "terms": terms}))).contains("charged to nobody")
        };
        assert!(
            under("held time, 10 % off") && under("held time, and use outside it") && !under("used time")
        );
        let held = page(&bill(json!({})));
        assert!(!held.contains("GPUs are held") && !held.contains("charged to nobody"), "{held}");
    }

    #[test]
    fn a_bill_says_whose_it_is_when_it_was_and_what_is_made_up() {
        let told = page(&bill(json!({"cluster": "c1"})));
        let heading = "Bill of n1, cluster c1\n2026-11-01 00:00 +01:00 to 2026-11-01 01:00 +01:00, time zone Europe/Berlin\n\n";
        assert!(told.starts_with(heading), "{told}");
        assert!(!told.contains("SIMULATED") && !told.contains("EXAMPLE PRICES"), "{told}");
        assert!(told.contains("\nno prices are configured: hours and energy only\n"), "{told}");
        assert!(!told.contains("unpriced"), "{told}");
        let prices = json!([{"id": "1", "unit": "gpu_hour", "since": null, "price": "2.000000000", "class": "spot", "slot_ns": "0", "money": "0.000000000"}]);
        let partial =
            page(&bill(json!({"partial": true, "unpriced_ns": 0, "currency": "EUR", "rates": prices})));
        assert!(partial.contains("PARTIAL: ") && !partial.contains("reconcile"), "{partial}");
        assert!(partial.contains("\nprice: 2.00 EUR per GPU-hour, class spot\n"), "{partial}");
        let made_up = page(&bill(json!({"simulated": true, "example_prices": true})));
        assert!(made_up.contains("\nSIMULATED: ") && made_up.contains("\nEXAMPLE PRICES: "), "{made_up}");
    }

    #[test]
    fn every_price_and_the_time_without_one_have_a_line_and_add_up_to_the_total() {
        let price = |since: Option<&str>, gpu_hour: &str, slot_ns: u64, money: &str| json!({"id": "1", "unit": "gpu_hour", "since": since, "price": gpu_hour, "class": "spot", "slot_ns": slot_ns, "money": money});
        let mut alice = line("alice", 0, None);
        let (charged, unpriced) = (HOUR * 3 / 4, HOUR / 4);
        alice.as_object_mut().unwrap().extend(
            json!({"charged_ns": charged, "unpriced_ns": unpriced, "money": "1.500000000"})
                .as_object()
                .unwrap()
                .clone(),
        );
        let told =
            page(&bill(json!({"currency": "EUR", "lines": [alice], "unpriced_ns": unpriced, "rates": [
            price(Some("2026-10-31T23:15:00Z"), "1.000000000", charged / 3, "0.250000000"),
            price(Some("2026-10-31T23:30:00Z"), "2.500000000", charged * 2 / 3, "1.250000000")]})));
        for line in [
            "price: 1.00 EUR per GPU-hour, class spot, since 2026-10-31T23:15:00Z: 0.2500 h, 0.2500 EUR",
            "price: 2.50 EUR per GPU-hour, class spot, since 2026-10-31T23:30:00Z: 0.5000 h, 1.2500 EUR",
            "no price in force: 0.2500 h",
        ] {
            assert!(told.lines().any(|found| found == line), "{line}: {told}");
        }
        let total: Vec<&str> =
            told.lines().find(|line| line.starts_with("total")).unwrap().split_whitespace().collect();
        assert_eq!(total[1..], ["1.0000", "1.0000", "0.7500", "0.2500", "-", "1.5000"], "{told}");
    }

    #[test]
    fn a_price_keeps_its_cents_and_every_significant_digit() {
        let prices = [2_000_000_000, 2_490_000_000, 1, 123_400_000].map(|nano| trimmed(Money(nano)));
        assert_eq!(prices, ["2.00", "2.49", "0.000000001", "0.1234"]);
    }

    fn full_line() -> Value {
        let mut line = line("a-tenant-of-17-ch", 0, Some(0));
        let times = [
            "within_ns",
            "lent_ns",
            "idle_ns",
            "unmeasured_ns",
            "unavailable_ns",
            "beyond_share_ns",
            "outside_holding_ns",
            "unheld_ns",
            "unpriced_ns",
        ];
        let line_of = line.as_object_mut().unwrap();
        line_of.extend(times.map(|name| (name.to_owned(), HOUR.into())));
        line_of.extend(
            [("held_ns", 5), ("used_ns", 4), ("charged_ns", 3)]
                .map(|(name, hours)| (name.to_owned(), (hours * HOUR).into())),
        );
        line
    }

    #[test]
    fn every_column_of_people_is_explained() {
        let told = page(&bill(json!({"unpriced_ns": 0, "lines": [full_line()]})));
        let heads = told.lines().find(|line| line.starts_with("tenant")).unwrap();
        let heads: Vec<&str> = heads.split_whitespace().skip(1).collect();
        assert_eq!(heads.len(), 13, "{told}");
        let legend = told.split("\n\n").last().unwrap();
        let explained: Vec<&str> = legend.lines().map(|line| line.split(' ').next().unwrap()).collect();
        assert_eq!(explained, heads, "{told}");
    }

    #[test]
    fn a_column_that_is_zero_in_every_row_is_left_out_and_not_explained() {
        let told = page(&bill(json!({"unpriced_ns": 0, "currency": "EUR"})));
        let heads = told.lines().find(|line| line.starts_with("tenant")).unwrap();
        let heads: Vec<&str> = heads.split_whitespace().collect();
        assert_eq!(heads, ["tenant", "held", "idle", "charged", "kWh", "EUR"], "{told}");
        let legend = told.split("\n\n").last().unwrap();
        let explained: Vec<&str> = legend.lines().map(|line| line.split(' ').next().unwrap()).collect();
        assert_eq!(explained, ["held", "idle", "charged", "kWh", "EUR"], "{told}");
        assert!(!told.contains("unavailable"), "{told}");
    }

    #[test]
    fn use_within_holdings_has_a_column_only_where_it_is_not_all_use() {
        let has_within = |held: u64, within: u64, outside: u64| {
            let lines = [made::line(&json!({"tenant": "lab", "held_ns": held, "within_ns": within,
                "idle_ns": held - within, "used_ns": within + outside, "outside_holding_ns": outside}))];
            page(&bill(json!({"lines": lines}))).lines().any(|line| line.starts_with("within "))
        };
        assert!(!has_within(2 * HOUR, HOUR, 0), "it would repeat what is used");
        assert!(!has_within(2 * HOUR, 0, HOUR), "all use is outside");
        assert!(has_within(2 * HOUR, HOUR, HOUR));
        // Less than the last printed digit is outside.
        assert!(has_within(2 * HOUR, HOUR, 1));
    }
}
