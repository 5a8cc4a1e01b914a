//! Excerpts of statements: nothing of others is in them, every change is found by name, and a script mails them.

use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use std::sync::LazyLock;

use gpumeter::accounting::billing::excerpt::Excerpt;
use gpumeter::accounting::billing::statement::{Document, GrantedCredit, Statement};
use gpumeter::model::{HolderId, Money};
use serde_json::Value;

use super::statements::{NOVEMBER, closed_months, forge, in_ledger, run};

const STATEMENT: &str = "st/statement-0001.json";
const TENANTS: [&str; 4] = ["bio", "lab", "ml", "physics"];

/// A place with the statements of October and November, and a credit for bio in the second.
static MONTHS: LazyLock<tempfile::TempDir> = LazyLock::new(|| {
    let directory = closed_months();
    let (status, told, error) = in_ledger(directory.path(), &NOVEMBER);
    assert_eq!(status, 0, "{told}{error}");
    directory
});

fn show(place: &Path, arguments: &[&str]) -> String {
    let (status, page, error) = run(place, &[&["show"], arguments].concat());
    assert_eq!((status, &*error), (0, ""), "{page}");
    page
}

fn statement(path: &Path) -> Statement {
    match Document::read(&std::fs::read_to_string(path).unwrap()).unwrap().document {
        Document::Statement(statement) => *statement,
        Document::Credit(credit) => panic!("{credit:?}"),
    }
}

fn read(text: &str) -> Excerpt {
    Excerpt::read(text).unwrap().unwrap().excerpt
}

/// All texts of a JSON value, names of fields included.
fn texts(value: &Value, found: &mut Vec<String>) {
    match value {
        Value::Object(fields) => fields.iter().for_each(|(name, value)| {
            found.push(name.clone());
            texts(value, found);
        }),
        Value::Array(items) => items.iter().for_each(|item| texts(item, found)),
        Value::String(text) => found.push(text.clone()),
        _ => {}
    }
}

#[test]
fn an_excerpt_has_the_lines_and_credits_of_one_tenant_and_nothing_of_others() {
    let place = MONTHS.path();
    let whole = statement(&place.join(STATEMENT));
    let totals = [whole.bill.reconciliation.line_money, whole.bill.reconciliation.gpu_money];
    for tenant in TENANTS {
        let text = show(place, &[STATEMENT, "--tenant", tenant, "--json"]);
        let excerpt = read(&text);
        let own: Vec<_> = whole.bill.lines.iter().filter(|line| line.tenant == tenant).cloned().collect();
        assert_eq!(excerpt.bill.lines, own, "the lines keep their printed numbers");
        let own_money: Money = own.iter().filter_map(|line| line.money).sum();
        assert_eq!(excerpt.bill.reconciliation.line_money, own_money);
        assert!(excerpt.bill.rates.iter().all(|rate| (rate.slot.0, rate.money) == (0, Money(0))));
        let mut said = Vec::new();
        texts(&serde_json::from_str(&text).unwrap(), &mut said);
        let others = whole.bill.lines.iter().filter(|line| line.tenant != tenant);
        let mut foreign: Vec<&str> = others.clone().map(|line| line.holder.name()).collect();
        foreign.extend(others.map(|line| &*line.tenant));
        foreign.retain(|name| !own.iter().any(|line| line.holder.name() == *name));
        for name in foreign {
            assert!(!said.iter().any(|text| text == name), "{tenant} is told of {name}");
        }
        let printed = [&[][..], &["--html"], &["--csv"]]
            .map(|form| show(place, &[&[STATEMENT, "--tenant", tenant], form].concat()));
        for page in printed.iter().chain([&text]) {
            for total in totals {
                let total = gpumeter::accounting::billing::print_money(total);
                assert!(!page.contains(total.trim_end_matches('0')), "{tenant}: {page}");
            }
            let words: Vec<&str> = page.split(|letter: char| !letter.is_alphanumeric()).collect();
            let other = TENANTS.iter().find(|other| **other != tenant && words.contains(other));
            assert_eq!(other, None, "{tenant}: {page}");
        }
    }
}

#[test]
fn the_credits_of_a_tenant_are_in_its_excerpt_alone() {
    let place = MONTHS.path();
    let page = |tenant: &str| show(place, &["st/statement-0003.json", "--tenant", tenant]);
    let bio = page("bio");
    assert!(
        bio.contains("\ncredit 0002 to bio, of statement 0001: -14.350000000 EUR: a late rate\n"),
        "{bio}"
    );
    assert!(bio.contains("\ntotal less credits: 1425.750000000 EUR\n"), "{bio}");
    let unheld = page(HolderId::UNALLOCATED);
    assert!(unheld.contains("\nonly lines and credits of __unallocated__\n"), "{unheld}");
    assert!(!unheld.contains("credit 0"), "{unheld}");
}

#[test]
fn an_excerpt_proves_itself_and_with_its_statement_where_it_is_from() {
    let directory = tempfile::tempdir().unwrap();
    let place = directory.path();
    std::fs::create_dir(place.join("st")).unwrap();
    std::fs::copy(MONTHS.path().join(STATEMENT), place.join(STATEMENT)).unwrap();
    std::fs::write(place.join("bio.json"), show(place, &[STATEMENT, "--tenant", "bio", "--json"])).unwrap();
    let (status, told, error) = run(place, &["verify", "bio.json"]);
    assert_eq!((status, &*error), (0, ""), "{told}");
    let lines: Vec<&str> = told.lines().collect();
    assert!(
        lines[0].starts_with("bio.json: unchanged: excerpt of statement 0001 for bio, by ada at 2025-"),
        "{told}"
    );
    assert!(lines[1].starts_with("bio.json: its origin is not proved: give statement 0001 too, "), "{told}");
    for given in [STATEMENT, "st"] {
        let (status, told, error) = run(place, &["verify", "bio.json", given]);
        assert_eq!((status, &*error), (0, ""), "{told}");
        assert!(told.ends_with("bio.json: stands in statement 0001\n"), "{told}");
    }
    // What is printed of it is what is printed of the statement.
    for form in [&[][..], &["--html"], &["--csv"], &["--json"]] {
        let of_statement = show(place, &[&[STATEMENT, "--tenant", "bio"], form].concat());
        assert_eq!(show(place, &[&["bio.json"], form].concat()), of_statement);
    }
    for refused in [&["bio.json", "--tenant", "lab"][..], &["bio.json", "--split-by", "tenant", "x"]] {
        let (status, _, error) = run(place, &[&["show"], refused].concat());
        assert!(status == 2 && error.contains("it is an excerpt and has only bio"), "{error}");
    }
    let (status, _, error) = run(place, &["show", STATEMENT, "--tenant", "eve"]);
    assert!(
        status == 2 && error.contains("statement 0001 has no line and no credit of eve; it has "),
        "{error}"
    );
}

/// A change of an excerpt that gets a new digest, what `verify` says of it alone, and what with its statement.
struct Forgery {
    change: fn(&mut Excerpt),
    alone: Option<&'static str>,
    with_statement: &'static str,
}

const FORGERIES: [Forgery; 9] = [
    Forgery {
        change: |excerpt| excerpt.bill.lines[0].money = Some(Money(1)),
        alone: Some("bill.lines[0].money is 0.000000001, and the rest of the excerpt makes it "),
        with_statement: "bill.lines[0].money is 0.000000001, and statement 0001 makes it ",
    },
    Forgery {
        change: |excerpt| excerpt.bill.reconciliation.line_money = Money(1),
        alone: Some(
            "bill.reconciliation.line_money is 0.000000001, and the rest of the excerpt makes it 941.75",
        ),
        with_statement: "bill.reconciliation.line_money is 0.000000001, and statement 0001 makes it 941.75",
    },
    Forgery {
        change: |excerpt| drop(excerpt.bill.lines.pop()),
        alone: Some("bill.reconciliation.held_ns is "),
        with_statement: "bill.lines is a list of ",
    },
    // A removed line, and sums without it.
    Forgery {
        change: |excerpt| {
            excerpt.bill.lines.pop();
            excerpt.bill.keep_lines(|_| true);
        },
        alone: None,
        with_statement: "bill.lines is a list of ",
    },
    Forgery {
        change: |excerpt| excerpt.statement.number = "0007".into(),
        alone: None,
        with_statement: "no statement 0007 is among those that were given",
    },
    Forgery {
        change: |excerpt| excerpt.statement.digest = "sha256:0".into(),
        alone: None,
        with_statement: "it names statement 0001 with sha256:0, and that is sha256:",
    },
    Forgery {
        change: |excerpt| excerpt.tenant = "lab".into(),
        alone: Some("tenant is lab, and the rest of the excerpt makes it bio"),
        with_statement: "tenant is lab, and the rest of the excerpt makes it bio",
    },
    Forgery {
        change: |excerpt| {
            excerpt.tenant = "eve".into();
            excerpt.bill.lines.iter_mut().for_each(|line| line.tenant = "eve".into());
            excerpt.bill.keep_lines(|_| true);
        },
        alone: None,
        with_statement: "statement 0001 has no line and no credit of eve",
    },
    Forgery {
        change: |excerpt| {
            let credit = excerpt.statement.clone();
            let (tenant, currency, reason) = ("bio".into(), "EUR".into(), "a gift".into());
            let statement = "0001".into();
            excerpt.credits =
                vec![GrantedCredit { credit, statement, tenant, amount: Money(1), currency, reason }];
        },
        alone: None,
        with_statement: "credits is a list of 1, and statement 0001 makes it a list of 0",
    },
];

#[test]
fn every_change_of_an_excerpt_is_found_by_name() {
    let directory = tempfile::tempdir().unwrap();
    let place = directory.path();
    std::fs::create_dir(place.join("st")).unwrap();
    std::fs::copy(MONTHS.path().join(STATEMENT), place.join(STATEMENT)).unwrap();
    let text = show(place, &[STATEMENT, "--tenant", "bio", "--json"]);
    let verify = |text: &str, more: &[&str]| {
        std::fs::write(place.join("x.json"), text).unwrap();
        let (status, told, error) = run(place, &[&["verify", "x.json"], more].concat());
        assert_eq!(status != 0, error.contains("found"), "{told}{error}");
        (status, told)
    };
    for (number, Forgery { change, alone, with_statement }) in FORGERIES.iter().enumerate() {
        let mut excerpt = read(&text);
        change(&mut excerpt);
        let kept = serde_json::to_value(&excerpt).unwrap();
        let (forged, _) = excerpt.with_digest().unwrap();
        let (status, told) = verify(&forged, &[]);
        assert_eq!(
            (status, alone.is_none_or(|alone| told.contains(alone))),
            (i32::from(alone.is_some()), true),
            "{number}: {told}"
        );
        let (status, told) = verify(&forged, &["st"]);
        assert!(status == 1 && told.contains(with_statement), "{number}: {told}");
        // Without a new digest each is a change by hand, whatever else.
        let mut by_hand = kept;
        by_hand["digest"] = serde_json::from_str::<Value>(&text).unwrap()["digest"].clone();
        let (status, told) = verify(&format!("{by_hand:#}\n"), &[]);
        assert!(
            status == 1 && told.contains("changed by hand: its content is not that of sha256:"),
            "{number}: {told}"
        );
    }
    let (status, _, error) = run(place, &["show", "x.json"]);
    assert!(status == 1 && error.contains("x.json: it was changed after it was written"), "{error}");
    // A statement that was changed proves nothing.
    forge(&place.join(STATEMENT), |document| {
        let Document::Statement(statement) = document else { unreachable!() };
        statement.bill.lines[0].money = Some(Money(1));
    });
    let renamed = statement(&place.join(STATEMENT));
    let digest = Document::Statement(Box::new(renamed)).with_digest().unwrap().1.digest;
    let mut excerpt = read(&text);
    excerpt.statement.digest = digest;
    let (status, told) = verify(&excerpt.with_digest().unwrap().0, &["st"]);
    assert!(status == 1 && told.contains("statement 0001 has problems itself, and proves nothing"), "{told}");
}

#[test]
fn a_digest_of_an_excerpt_that_was_changed_in_the_statement_is_named() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("x.json");
    let mut whole = statement(&MONTHS.path().join(STATEMENT));
    let known: Vec<&String> = whole.excerpts.keys().collect();
    let tenants = ["__rate_variance__", "__terms__", "__unallocated__", "__unavailable__", "__unobserved__"];
    assert!(known.iter().copied().eq(tenants.iter().chain(&TENANTS)), "{known:?}");
    whole.excerpts.insert("bio".into(), "sha256:0".into());
    std::fs::write(&path, Document::Statement(Box::new(whole)).with_digest().unwrap().0).unwrap();
    let (status, told, _) = run(directory.path(), &["verify", "x.json"]);
    assert!(
        status == 1
            && told.contains("excerpts.bio is sha256:0, and the rest of the document makes it sha256:"),
        "{told}"
    );
}

#[test]
fn a_statement_from_before_excerpts_stays_valid_and_its_excerpts_say_so() {
    let directory = tempfile::tempdir().unwrap();
    let place = directory.path();
    let mut old = statement(&MONTHS.path().join(STATEMENT));
    old.excerpts = BTreeMap::new();
    let (text, _) = Document::Statement(Box::new(old)).with_digest().unwrap();
    assert!(!text.contains("\"excerpts\""));
    std::fs::write(place.join("old.json"), text).unwrap();
    assert_eq!(run(place, &["verify", "old.json"]).0, 0);
    let (status, excerpt, error) = run(place, &["show", "old.json", "--tenant", "bio", "--json"]);
    assert!(status == 0 && error.contains("old.json: it has no digests of tenants"), "{error}");
    std::fs::write(place.join("bio.json"), &excerpt).unwrap();
    let (status, told, _) = run(place, &["verify", "bio.json", "old.json"]);
    assert!(
        status == 0 && told.ends_with("stands in statement 0001, which has no digests of tenants\n"),
        "{told}"
    );
    let mut forged = read(&excerpt);
    forged.bill.keep_lines(|line| line.slot.gpu_instance.is_some());
    std::fs::write(place.join("bio.json"), forged.with_digest().unwrap().0).unwrap();
    let (status, told, _) = run(place, &["verify", "bio.json", "old.json"]);
    assert!(status == 1 && told.contains("bill.lines is a list of "), "{told}");
}

#[test]
fn a_statement_is_split_into_a_page_and_a_file_to_verify_for_each_tenant() {
    let directory = tempfile::tempdir().unwrap();
    let place = directory.path();
    std::fs::copy(MONTHS.path().join(STATEMENT), place.join("s.json")).unwrap();
    let list = show(place, &["s.json", "--split-by", "tenant,attribute:cost_center", "out"]);
    assert!(
        list.contains("out/ml_4711.html\tml\t4711\n") && list.contains("out/bio_-.html\tbio\t-\n"),
        "{list}"
    );
    for name in ["ml_4711", "bio_-", "physics_4712", "lab_-"] {
        let (status, told, error) = run(place, &["verify", &format!("out/{name}.json"), "s.json"]);
        assert!(status == 0 && told.contains("stands in statement 0001"), "{told}{error}");
    }
    let page = std::fs::read_to_string(place.join("out/ml_4711.html")).unwrap();
    assert!(page.contains("<p>only lines and credits of ml, cost_center 4711, owner ada</p>"), "{page}");
    let (status, _, error) = run(place, &["show", "s.json", "--split-by", "class", "out"]);
    assert!(status == 2 && error.contains("give tenant, or tenant,attribute:NAME"), "{error}");
}

#[test]
fn a_split_bill_tells_no_tenant_of_others() {
    let directory = closed_months();
    let place = directory.path();
    let bill = [
        "--ledger",
        "month.db",
        "--month",
        "2025-10",
        "--time-zone",
        "Europe/Zurich",
        "--split-by",
        "tenant",
        "out",
    ];
    let mut command = Command::new(env!("CARGO_BIN_EXE_gpumeter"));
    let output = command.arg("bill").args(bill).current_dir(place).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    for tenant in TENANTS {
        let page = std::fs::read_to_string(place.join(format!("out/{tenant}.html"))).unwrap();
        let words: Vec<&str> = page.split(|letter: char| !letter.is_alphanumeric()).collect();
        let other = TENANTS.iter().find(|other| **other != tenant && words.contains(other));
        assert_eq!(other, None, "{tenant}: {page}");
        assert!(!page.contains("3224.5"), "{page}");
    }
}

/// Runs `mail-bills.sh` with a program that keeps what it is to mail. Returns its status, its output and the mails.
fn mail(place: &Path, arguments: &[&str]) -> (i32, String, Vec<String>) {
    let sendmail = place.join("sendmail");
    std::fs::write(&sendmail, "#!/bin/sh\n[ \"$1\" = -t ] && cat > \"$(mktemp \"$MAILS/XXXXXX\")\"\n")
        .unwrap();
    std::fs::set_permissions(&sendmail, std::fs::Permissions::from_mode(0o755)).unwrap();
    let mails = tempfile::tempdir().unwrap();
    std::fs::write(place.join("owners"), "lab lab@example.org\n").unwrap();
    let programs = Path::new(env!("CARGO_BIN_EXE_gpumeter")).parent().unwrap();
    let path = format!("{}:{}", programs.display(), std::env::var("PATH").unwrap());
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/examples/mail-bills.sh");
    let environment =
        [("PATH", path.as_str()), ("SENDMAIL", sendmail.to_str().unwrap()), ("OWNERS", "owners")];
    let mut command = Command::new("sh");
    command.arg(script).args(arguments).current_dir(place).envs(environment).env("MAILS", mails.path());
    let output = command.output().unwrap();
    let files = std::fs::read_dir(mails.path())
        .unwrap()
        .map(|file| std::fs::read_to_string(file.unwrap().path()).unwrap());
    let mut files: Vec<String> = files.collect();
    files.sort();
    let told = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
    (output.status.code().unwrap(), told, files)
}

/// The decoded parts of a mail.
fn parts(mail: &str) -> Vec<String> {
    use base64::Engine;
    let bodies = mail.split("--=_gpumeter\n").skip(1).filter_map(|part| part.split_once("\n\n"));
    let body = |(_, coded): (&str, &str)| {
        let coded = coded.split("--=_gpumeter--").next().unwrap_or_default();
        let coded: String = coded.split_whitespace().collect();
        String::from_utf8(base64::engine::general_purpose::STANDARD.decode(coded).unwrap()).unwrap()
    };
    bodies.map(body).collect()
}

#[test]
fn a_script_mails_each_tenant_its_excerpt_and_a_dry_run_nothing() {
    let directory = closed_months();
    let place = directory.path();
    let (status, told, mails) = mail(place, &["2025-10", "--statements", "st", "--dryrun"]);
    assert_eq!((status, mails), (2, Vec::new()), "{told}");
    let (status, told, mails) = mail(place, &["2025-10", "--statements", "st", "--dry-run"]);
    assert_eq!((status, mails.len()), (0, 0), "{told}");
    assert!(told.contains("would mail to lab@example.org: GPU statement 0001 of lab, 2025-10, "), "{told}");
    assert!(told.contains("no address: GPU statement 0001 of bio, 2025-10\n"), "{told}");
    assert!(!told.contains("__"), "{told}");
    let (status, told, mails) = mail(place, &["2025-10", "--statements", "st"]);
    assert_eq!((status, mails.len()), (0, 1), "{told}");
    assert!(
        mails[0].starts_with(
            "To: lab@example.org\nSubject: GPU statement 0001 of lab, 2025-10\nMIME-Version: 1.0\n"
        ),
        "{}",
        mails[0]
    );
    let [page, excerpt] = &parts(&mails[0])[..] else { panic!("{}", mails[0]) };
    assert!(page.starts_with("<!DOCTYPE html>"), "{page}");
    std::fs::write(place.join("lab.json"), excerpt).unwrap();
    let (status, told, error) = run(place, &["verify", "lab.json", "st"]);
    assert!(status == 0 && told.contains("lab.json: stands in statement 0001"), "{told}{error}");
    // The attribute of a tenant goes before its line in the file of owners.
    std::fs::remove_file(place.join("st/credit-0002.json")).unwrap();
    forge(&place.join(STATEMENT), |document| {
        let Document::Statement(statement) = document else { unreachable!() };
        let of_lab = statement.bill.tenant_attributes.entry("lab".into()).or_default();
        of_lab.insert("mail".into(), "ada@example.org, eve@example.org".into());
    });
    let (status, told, mails) = mail(place, &["2025-10", "--statements", "st"]);
    assert_eq!((status, mails.len()), (0, 1), "{told}");
    assert!(mails[0].starts_with("To: ada@example.org, eve@example.org\nSubject: "), "{}", mails[0]);
    let (status, told, _) = mail(place, &["2025-12", "--statements", "st"]);
    assert!(status == 1 && told.contains("st: no statement of 2025-12"), "{told}");
}

#[test]
fn a_script_mails_bills_of_whatever_gpumeter_bill_can_ask_once_the_month_is_over() {
    let directory = closed_months();
    let place = directory.path();
    let of_ledger = ["--ledger", "month.db", "--time-zone", "Europe/Zurich"];
    let (status, told, mails) = mail(place, &[&["2025-10"], &of_ledger[..]].concat());
    assert_eq!((status, mails.len()), (0, 1), "{told}");
    let [page] = &parts(&mails[0])[..] else { panic!("{}", mails[0]) };
    assert!(page.contains("600.0000") && page.contains("PARTIAL: "), "{page}");
    let (status, told, mails) = mail(place, &[&["2025-12"], &of_ledger[..]].concat());
    assert!(status == 1 && told.contains("ends at 2025-12-01 00:00 +01:00 instead of 2026-01-01"), "{told}");
    assert!(mails.is_empty(), "{mails:?}");
}
