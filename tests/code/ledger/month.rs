//! A month whose bill was worked out by hand.
//!
//! October 2025 in Zurich has 745 hours, since clocks are set back in it. Times below are hours since it began. GPU 0 is an
//! H100, GPU 1 an A100 that is divided from hour 100 on.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;
use std::sync::{Arc, LazyLock};

use gpumeter::accounting::batches::{ClosedWindow, GpuRegistration, LedgerBatch};
use gpumeter::accounting::billing::{BillRequest, PriceBook};
use gpumeter::accounting::ledger::{Ledger, Opening, Reader};
use gpumeter::accounting::tenants::TenantRules;
use gpumeter::config::{Config, TenantsConfig};
use gpumeter::model::{
    Amounts, Fact, Facts, GpuId, Holder, HolderId, HolderKind, Method, Microjoules, MigProfile, Nanoseconds,
    NodeIdentity, Parts, Row, Settlement, SlotId, Stamp, Use, Utc,
};

use super::world::{Decides, SECOND, World, between, grant_of, uuid};
use crate::generated::check::{Outcome, check};

/// 2025-10-01T00:00:00+02:00.
const BEGIN: Utc = Utc(1_759_269_600_000_000_000);
const HOUR: u64 = 3_600 * SECOND;
pub(super) const HOURS: u64 = 745;

pub(super) fn at(hours: u64) -> Utc {
    BEGIN.plus(Nanoseconds(hours * HOUR))
}

/// Time since boot at that hour.
const fn boottime(hours: u64) -> Nanoseconds {
    Nanoseconds(hours * HOUR + 1_000 * SECOND)
}

/// The page about prices, which has the configuration of this month.
const PRICES: &str = include_str!("../../../docs/prices.md");

/// The page about closing a month, which has the rate that is recorded too late.
const STATEMENTS: &str = include_str!("../../../docs/statements.md");

/// The pages that show commands over this month, in the order in which these are run.
const PAGES: [(&str, &str); 4] = [
    ("docs/prices.md", PRICES),
    ("docs/bill.md", include_str!("../../../docs/bill.md")),
    ("docs/statements.md", STATEMENTS),
    ("docs/explain.md", include_str!("../../../docs/explain.md")),
];

/// The rate in a page, as code in the text, that begins so.
fn rate_in(page: &str, beginning: &str) -> String {
    let text = page.split_whitespace().collect::<Vec<_>>().join(" ");
    text.split('`').find(|code| code.starts_with(beginning)).unwrap().to_owned()
}

/// The configuration of the page, before and after the late rate of A100s is in it.
fn config(is_late: bool) -> Config {
    let text = PRICES.split("```yaml\n").nth(1).unwrap().split("```").next().unwrap();
    let late = rate_in(PRICES, "{model: \"*A100*\"");
    let rates = if is_late { format!("  rates:\n    - {late}\n") } else { "  rates:\n".to_owned() };
    Config::parse(&text.replace("  rates:\n", &rates), "prices.md").unwrap()
}

pub(super) fn book(is_late: bool) -> PriceBook {
    config(is_late).prices
}

/// The rules of the page, by which jobs of physicists belong to this tenant.
fn physicists_are(tenant: &str) -> Arc<TenantRules> {
    let TenantsConfig { mut rules, attributes, .. } = config(false).tenants;
    rules[0].tenant = tenant.to_owned();
    Arc::new(TenantRules { rules, attributes, ..TenantRules::default() })
}

fn job(number: &str, account: &str) -> Holder {
    let facts = [(Fact::SlurmCluster, "alpha"), (Fact::SlurmJob, number), (Fact::SlurmAccount, account)];
    Holder::new(HolderKind::Slurm, Facts::new(facts))
}

/// What a holder had of a window: eighths of the GPU, of which so many hundredths were used.
#[derive(Clone)]
struct Share {
    holder: &'static str,
    slot: SlotId,
    eighths: u64,
    used: u64,
}

fn whole(holder: &'static str, used: u64) -> Share {
    Share { holder, slot: SlotId::default(), eighths: 8, used }
}

fn instance(holder: &'static str, id: u32, name: &str, eighths: u64, used: u64) -> Share {
    let profile = Some(MigProfile { name: name.into(), size: eighths, total: 8 });
    Share { holder, slot: SlotId { gpu_instance: Some(id), profile }, eighths, used }
}

/// A window in which these shares were held.
fn window(gpu: u32, (from, to): (u64, u64), shares: &[Share], change: fn(&mut Row)) -> ClosedWindow {
    let time = (to - from) * HOUR;
    let row = |share: &Share| {
        let held = time * share.eighths / 8;
        let within = held / 100 * share.used;
        let parts = Parts { within, idle: held - within, ..Parts::default() };
        let used = Use { within, ..Use::default() };
        let amounts = Amounts { parts, used, measured: within, ..Amounts::default() };
        let holder = HolderId::new(share.holder);
        let granted_by = grant_of(&holder, &parts);
        let mut row = Row { slot: share.slot.clone(), amounts, granted_by, ..Row::empty(holder) };
        change(&mut row);
        row
    };
    let (carry, weights, flags) = Default::default();
    let rows = shares.iter().map(row).collect();
    let settlement =
        Settlement { from: at(from), to: at(to), rows, carry, weights, flags, ..Settlement::default() };
    ClosedWindow { gpu: uuid(gpu), settlement, coarse: false }
}

fn unmeasured(row: &mut Row) {
    row.amounts.parts = Parts { unmeasured: row.amounts.parts.held(), ..Parts::default() };
    row.method = Method::Bridged;
}

fn unavailable(row: &mut Row) {
    row.amounts.parts = Parts { unavailable: row.amounts.parts.held(), ..Parts::default() };
}

/// 100 kWh.
fn energetic(row: &mut Row) {
    row.amounts.energy_static = Microjoules(40 * HOUR);
    row.amounts.energy_dynamic = Microjoules(60 * HOUR);
}

/// The ledger of the month.
pub(super) static MONTH: LazyLock<World> = LazyLock::new(|| {
    let world = World::new();
    play(&world);
    world
});

/// Plays the month into a ledger.
fn play(world: &World) {
    let opening = Opening {
        boot_id: "first".into(),
        now: Stamp { boottime: boottime(0), utc: BEGIN },
        book: book(false),
        tenant_rules: physicists_are("physics"),
        node: NodeIdentity { name: "gpu-7".into(), ..NodeIdentity::default() },
        ..Opening::default()
    };
    let (mut ledger, _) = Ledger::open(&world.path(), &opening).unwrap();
    let registrations = [(0, "NVIDIA H100"), (1, "NVIDIA A100")].map(|(index, model)| GpuRegistration {
        gpu: GpuId { index, uuid: uuid(index) },
        model: model.into(),
        memory: None,
        at: BEGIN,
    });
    let batch = LedgerBatch { now: BEGIN, registrations: registrations.into(), ..LedgerBatch::default() };
    ledger.commit(&batch).unwrap();
    let mut settle = |until: u64, holders: Vec<Holder>, closed: Vec<ClosedWindow>| {
        let batch = LedgerBatch { now: at(until), holders, closed, ..LedgerBatch::default() };
        assert_eq!(ledger.commit(&batch).unwrap().imbalance, 0);
        if until == 360 {
            // A minute before: the rule holds from hour 360 on.
            let before = Nanoseconds(boottime(360).0 - 60 * SECOND);
            ledger.replace_tenant_rules(&physicists_are("lab"), before).unwrap();
        }
        if until == 500 {
            ledger.reprice(&book(true), boottime(500)).unwrap();
        }
    };
    let none: fn(&mut Row) = |_| {};
    let [seven, bio_seven] = [job("7", "phys1"), job("7", "bio")];
    settle(200, vec![seven], vec![window(0, (0, 200), &[whole("slurm:alpha/7", 60)], energetic)]);
    // The job is queued again, for another account.
    settle(360, vec![bio_seven], vec![window(0, (200, 360), &[whole("slurm:alpha/7", 100)], none)]);
    let eight = &[whole("slurm:alpha/8", 0)];
    settle(500, vec![job("8", "phys2")], vec![window(0, (360, 500), eight, none)]);
    // Two gaps of the agent: the job was there before and after the first one.
    let gaps = vec![
        window(0, (500, 600), eight, none),
        window(0, (600, 601), eight, unmeasured),
        window(0, (601, 610), eight, none),
        window(0, (610, 612), &[whole(HolderId::UNOBSERVED, 0)], unmeasured),
        window(0, (612, 700), &[whole(HolderId::UNALLOCATED, 0)], none),
    ];
    settle(700, vec![], gaps);
    // The GPU is lost for five hours.
    let nine = &[whole("slurm:alpha/9", 50)];
    let lost = vec![
        window(0, (700, 705), &[whole("slurm:alpha/9", 0)], unavailable),
        window(0, (705, HOURS), nine, none),
    ];
    settle(HOURS, vec![job("9", "ml")], lost);
    let instances = [
        instance("slurm:alpha/11", 7, "1g.5gb", 1, 50),
        instance("slurm:alpha/12", 1, "3g.20gb", 4, 100),
        Share { holder: HolderId::UNALLOCATED, slot: SlotId::default(), eighths: 3, used: 0 },
    ];
    let of_a100 = vec![
        window(1, (0, 100), &[whole("slurm:alpha/10", 25)], none),
        window(1, (100, HOURS), &instances, none),
    ];
    settle(HOURS, vec![job("10", "ml"), job("11", "ml"), job("12", "bio")], of_a100);
}

/// The output of `gpumeter bill` for the month.
fn bill(world: &World, arguments: &[&str]) -> String {
    let mut command = Command::new(env!("CARGO_BIN_EXE_gpumeter"));
    let period = ["--from", "2025-09-30T22:00:00Z", "--to", "2025-10-31T23:00:00Z"];
    command.args(["bill", "--ledger"]).arg(world.path()).args(period).args(arguments);
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// The amounts of a bill's rows by their first column.
fn amounts(page: &str) -> BTreeMap<String, String> {
    let table = page.split("\n\n").find(|part| part.starts_with("GPU time in hours")).unwrap();
    let rows =
        table.lines().skip(2).filter_map(|line| Some((line.split(' ').next()?, line.rsplit(' ').next()?)));
    rows.map(|(name, amount)| (name.to_owned(), amount.to_owned())).collect()
}

fn expected(amounts: &[(&str, &str)]) -> BTreeMap<String, String> {
    amounts.iter().map(|(name, amount)| ((*name).to_owned(), (*amount).to_owned())).collect()
}

#[test]
fn a_month_worked_out_by_hand_is_what_the_bill_says_to_the_last_digit() {
    let world = &MONTH;
    let zone = ["--time-zone", "Europe/Zurich"];
    let page = bill(world, &zone);
    assert!(page.contains("2025-10-01 00:00 +02:00 to 2025-11-01 00:00 +01:00"), "{page}");
    let by_tenant = expected(&[
        // GPU 0: 40 h x 3.00 + 120 h x 2.40; GPU 1: 4/8 of 200 h x 2.00 and of 445 h x 1.50
        ("bio", "941.7500"),
        // 250 h x 2.40, of which one hour is bridged
        ("lab", "600.0000"),
        // 100 h x 2.00 and 300 h x 0.30 held; used with 10 % off: 20 h x 2.16 and 345 h / 8 / 2 x 2.16
        ("ml", "379.7750"),
        // 200 h x 3.00, and 100 kWh x 0.25
        ("physics", "625.0000"),
        // 1/8 of 200 h x 2.00 and of 445 h x 1.50, less 645 h x 0.30
        ("__rate_variance__", "-60.0625"),
        // 40 h x 2.40 - 43.20, and 345 h x 0.30 - 46.575
        ("__terms__", "109.7250"),
        // GPU 0: 88 h x 2.40; GPU 1: 3/8 of 200 h x 2.00 and of 445 h x 1.50
        ("__unallocated__", "611.5125"),
        ("__unavailable__", "12.0000"),
        ("__unobserved__", "4.8000"),
        // 240 h x 3.00 + 505 h x 2.40 + 25, and 300 h x 2.00 + 445 h x 1.50
        ("total", "3224.5000"),
    ]);
    assert_eq!(amounts(&page), by_tenant, "{page}");
    for line in [
        "reconciles: held 5364000.000000000 s of 5364000.000000000 s GPU time, money 3224.500000000 of 3224.500000000 EUR",
        "accounted for: 2 GPUs in the whole period",
        "terms of ml: used time, 10 % off, since 2025-10-17T14:00:00Z",
        "energy: 0.25 EUR per kWh (0.2 per kWh x PUE 1.25): 100.0000 kWh, 25.0000 EUR",
    ] {
        assert!(page.lines().any(|told| told == line), "{line}: {page}");
    }
    // The rate that was recorded after the time that it prices says so.
    assert!(
        page.contains("since 2025-10-13T10:00:00Z, recorded 2025-10-21T18:00:00Z: 445.0000 h, 667.5000 EUR"),
        "{page}"
    );
    let by_gpu = bill(world, &[&zone[..], &["--by", "gpu"]].concat());
    assert_eq!(
        amounts(&by_gpu),
        expected(&[("0", "1957.0000"), ("1", "1267.5000"), ("total", "3224.5000")]),
        "{by_gpu}"
    );
    let of_month = bill(world, &[&zone[..], &["--by", "class"]].concat());
    assert_eq!(amounts(&of_month)["total"], "3224.5000", "{of_month}");
}

#[test]
fn every_grouping_and_zone_of_the_month_has_the_same_total_and_days_have_their_hours() {
    let world = &MONTH;
    // The zone decides where days begin, and nothing else.
    let all = ["day", "day,model", "workload", "model", "uuid", "account", "tenant,class"];
    for (zone, groupings) in
        [("Europe/Zurich", &all[..]), ("Asia/Kolkata", &all[..2]), ("Asia/Kathmandu", &all[..2])]
    {
        for by in groupings {
            let page = bill(world, &["--by", by, "--time-zone", zone]);
            assert_eq!(amounts(&page)["total"], "3224.5000", "{by} {zone}: {page}");
        }
    }
    let days = bill(world, &["--by", "day", "--time-zone", "Europe/Zurich"]);
    let held = |day: &str| {
        let row = days.lines().find(|line| line.starts_with(day)).unwrap();
        row.split_whitespace().nth(1).unwrap().to_owned()
    };
    assert_eq!(["2025-10-25", "2025-10-26", "2025-10-27"].map(held), ["48.0000", "50.0000", "48.0000"]);
    // Unheld time is spread by charged time, beside the amount, and sums to nothing.
    let spread = bill(world, &["--spread"]);
    let column =
        |name: &str| spread.lines().find(|line| line.starts_with(name)).unwrap().rsplit(' ').next().unwrap();
    assert_eq!((column("__unallocated__"), column("total")), ("-611.5125", "0.0000"), "{spread}");
}

#[test]
fn other_rules_and_a_neighbouring_bill_change_no_total() {
    let world = &MONTH;
    let mut reader = Reader::open(&world.path()).unwrap();
    let whole = reader.bill(&between(Some(at(0)), Some(at(HOURS)))).unwrap();
    for cut in [1, 240, 399, 401, 744] {
        let parts = [
            reader.bill(&between(Some(at(0)), Some(at(cut)))),
            reader.bill(&between(Some(at(cut)), Some(at(HOURS)))),
        ];
        let exact = |bill: &gpumeter::accounting::billing::Bill| {
            gpumeter::accounting::billing::ExactMoney::sum(bill.lines.iter().map(|line| line.exact)).unwrap()
        };
        let [one, two] = parts.map(|bill| exact(&bill.unwrap()));
        assert_eq!(one.plus(two), Ok(exact(&whole)), "{cut}");
    }
    // A book of one price: nothing is left of terms and instance prices, and the total is time x price.
    let flat = Config::parse("prices: {currency: EUR, rates: [{gpu_hour: 1}]}", "flat.yaml").unwrap().prices;
    let request = BillRequest { book: Some(flat), ..between(Some(at(0)), Some(at(HOURS))) };
    let flat = Reader::open(&world.path()).unwrap().bill(&request).unwrap();
    assert_eq!(flat.reconciliation.gpu_money.0, 2 * 745 * 1_000_000_000);
    assert!(flat.is_balanced() && flat.lines.iter().all(|line| line.tenant != HolderId::TERMS));
    let held = |bill: &gpumeter::accounting::billing::Bill| {
        bill.lines.iter().map(|line| line.amounts.parts.held()).sum::<u64>()
    };
    assert_eq!(held(&flat), held(&whole));
}

/// The words of a command line, of which those in quotes may have blanks.
fn words(line: &str) -> Vec<String> {
    let parts = line.split('"').enumerate();
    let words = parts.flat_map(|(place, part)| match place % 2 {
        0 => part.split_whitespace().map(str::to_owned).collect(),
        _ => vec![part.to_owned()],
    });
    words.collect()
}

/// The commands of a console block, each with the lines that it shows.
fn commands(block: &str) -> Vec<(&str, Vec<&str>)> {
    let mut commands: Vec<(&str, Vec<&str>)> = Vec::new();
    for line in block.lines() {
        match (line.strip_prefix("$ "), commands.last_mut()) {
            (Some(command), _) => commands.push((command, Vec::new())),
            (None, Some((_, shown))) => shown.push(line),
            (None, None) => {}
        }
    }
    commands
}

/// The lines of an output, of which a page that has a line `…` shows as many as stand before and after that.
fn excerpt(output: &str, shown: &[&str]) -> String {
    let lines: Vec<&str> = output.lines().collect();
    let cut = shown.iter().position(|line| *line == "…");
    match cut.map(|cut| (cut, shown.len() - cut - 1)) {
        Some((head, tail)) if head + tail < lines.len() => {
            let lines = [&lines[..head], &["…"], &lines[lines.len() - tail..]].concat();
            lines.join("\n") + "\n"
        }
        _ => output.to_owned(),
    }
}

/// Runs the commands of a console block, and returns the block with what they print. One that fails says so at its end.
fn run_block(block: &str, directory: &Path) -> String {
    let mut printed = String::new();
    for (command, shown) in commands(block) {
        let words = words(command);
        let program = match words[0].as_str() {
            "gpumeter" => env!("CARGO_BIN_EXE_gpumeter"),
            "sed" => "sed",
            other => panic!("{other}: {command}"),
        };
        let ran = Command::new(program).args(&words[1..]).current_dir(directory).output().unwrap();
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        let mut output = text(ran.stdout);
        if !ran.status.success() {
            output += &text(ran.stderr);
        }
        printed += &format!("$ {command}\n{}", excerpt(&output, &shown));
    }
    without_digests(&printed)
}

/// Shortens digests, which depend on when a credit was given, and leaves that time out.
fn without_digests(text: &str) -> String {
    let lines = text.split_inclusive('\n').map(|line| match line.split_once(" at 20") {
        Some((given, rest)) if line.contains(": unchanged: credit ") => {
            format!("{given} at …{}", rest.split_once('Z').unwrap().1)
        }
        _ => line.to_owned(),
    });
    let text: String = lines.collect();
    let mut parts = text.split("sha256:");
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |text, part| {
        text + "sha256:…" + part.trim_start_matches(|digit: char| digit.is_ascii_hexdigit())
    })
}

/// Hours of November.
const NOVEMBER: u64 = 720;

/// Plays November, before which a late rate was added, into a ledger whose October may be closed.
pub(super) fn play_november(path: &Path) {
    let late = rate_in(STATEMENTS, "{model: \"*A100*\", gpu_hour: 1.40");
    let rates = format!("prices: {{currency: EUR, rates: [{{gpu_hour: 2.00}}, {late}]}}");
    let opening = Opening {
        boot_id: "first".into(),
        now: Stamp { boottime: boottime(HOURS), utc: at(HOURS) },
        book: Config::parse(&rates, "late.yaml").unwrap().prices,
        tenant_rules: physicists_are("lab"),
        node: NodeIdentity { name: "gpu-7".into(), ..NodeIdentity::default() },
        ..Opening::default()
    };
    let (mut ledger, _) = Ledger::open(path, &opening).unwrap();
    let month = (HOURS, HOURS + NOVEMBER);
    let none: fn(&mut Row) = |_| {};
    let closed = vec![
        window(0, month, &[whole("slurm:alpha/12", 100)], none),
        window(1, month, &[whole(HolderId::UNALLOCATED, 0)], none),
    ];
    let batch = LedgerBatch { now: at(month.1), closed, ..LedgerBatch::default() };
    assert_eq!(ledger.commit(&batch).unwrap().imbalance, 0);
}

#[test]
fn the_pages_about_costs_show_what_the_commands_print() -> Outcome {
    let directory = tempfile::tempdir()?;
    std::fs::copy(MONTH.path(), directory.path().join("month.db"))?;
    let whatif = PRICES.split("```yaml\n").nth(2).unwrap().split("```").next().unwrap();
    std::fs::write(directory.path().join("whatif.yaml"), whatif)?;
    let mut has_november = false;
    for (path, page) in PAGES {
        let blocks = page.split("```console\n").map(|part| match part.split_once("```") {
            Some((block, rest)) if block.starts_with("$ ") => {
                if block.contains("--month 2025-11") && !has_november {
                    play_november(&directory.path().join("month.db"));
                    has_november = true;
                }
                format!("```console\n{}```{rest}", run_block(block, directory.path()))
            }
            _ => part.to_owned(),
        });
        check(path, &blocks.collect::<String>())?;
    }
    let size = std::fs::metadata(MONTH.path())?.len();
    assert!((9_000_000..13_000_000).contains(&size), "the month takes {size} bytes");
    Ok(())
}
