//! The attachment of every GPU in the ledger, across restarts and changed by an operator without an agent.

use std::path::Path;

use gpumeter::accounting::batches::{Expected, GpuRegistration, LedgerBatch};
use gpumeter::accounting::ledger::{
    Cause, ClosedPeriod, InventoryRow, Ledger, Opening, Reader, StatementOrder, check_unowned, forget,
    record_statement, snapshot,
};
use gpumeter::model::{Attachment, GpuId, Nanoseconds, Stamp, Utc};

fn opening() -> Opening {
    let now = Stamp { boottime: Nanoseconds(1_000), utc: Utc(1_800_000_000_000_000_000) };
    Opening { boot_id: "boot".into(), now, ..Opening::default() }
}

fn registration(index: u32, uuid: &str) -> GpuRegistration {
    GpuRegistration {
        gpu: GpuId { index, uuid: uuid.into() },
        model: "test".into(),
        memory: None,
        at: Utc(10),
    }
}

fn listed(path: &Path) -> Vec<(u32, Attachment, u64)> {
    let row = |listed: &InventoryRow| (listed.gpu.index, listed.expected.attachment, listed.expected.since.0);
    Reader::open(path).unwrap().inventory().unwrap().iter().map(row).collect()
}

/// A ledger of two GPUs, of which the second is passed through to a guest.
fn ledger(path: &Path) -> Ledger {
    let (mut ledger, _) = Ledger::open(path, &opening()).unwrap();
    let lent = Expected {
        gpu: "GPU-1".into(),
        bus: "0000:0f:00.0".into(),
        attachment: Attachment::Guest,
        since: Utc(30),
    };
    let stranger = Expected { gpu: "GPU-9".into(), ..lent.clone() };
    let registrations = vec![registration(1, "GPU-1"), registration(0, "GPU-0")];
    ledger
        .commit(&LedgerBatch {
            now: Utc(40),
            registrations,
            expected: vec![lent, stranger],
            ..LedgerBatch::default()
        })
        .unwrap();
    ledger
}

#[test]
fn the_attachment_of_a_gpu_survives_the_agent() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("ledger.db");
    let owner = ledger(&path);
    let wanted = [(0, Attachment::Present, 10), (1, Attachment::Guest, 30)];
    assert_eq!(listed(&path), wanted, "one that was never seen has no inventory");
    drop(owner);
    let (_, recovered) = Ledger::open(&path, &opening()).unwrap();
    let lent = recovered.inventory.iter().find(|expected| &*expected.gpu == "GPU-1").unwrap();
    assert_eq!((&*lent.bus, lent.attachment), ("0000:0f:00.0", Attachment::Guest));
}

#[test]
fn a_gpu_is_forgotten_only_in_a_ledger_without_a_running_agent() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("ledger.db");
    forget(&path, "GPU-1", "boot", Nanoseconds(50)).unwrap_err();
    assert!(!path.exists(), "the refused call creates no file");
    let owner = ledger(&path);
    // Under every name of the ledger.
    let [link, hard] = ["link.db", "hard.db"].map(|name| directory.path().join(name));
    std::os::unix::fs::symlink(&path, &link).unwrap();
    std::fs::hard_link(&path, &hard).unwrap();
    for name in [&path, &link, &hard] {
        let refused = forget(name, "GPU-1", "boot", Nanoseconds(50)).unwrap_err().to_string();
        assert!(refused.contains("writes it"), "{refused}");
        assert!(check_unowned(name).is_err(), "{}", name.display());
        let period = ClosedPeriod { from: Utc(0), to: Utc(1), by: "ada".to_owned() };
        let refused = record_statement(name, &StatementOrder::Close(period)).unwrap_err().to_string();
        assert!(refused.contains("writes it"), "{refused}");
    }
    // What is only in the write-ahead log would be missing.
    let copy = directory.path().join("copy.db");
    assert!(matches!(snapshot(&hard, &copy).unwrap_err().cause, Cause::OtherName));
    snapshot(&link, &copy).unwrap();
    drop(owner);
    check_unowned(&hard).unwrap();
    assert!(forget(&path, "GPU-1", "boot", Nanoseconds(50)).unwrap());
    assert!(!forget(&path, "GPU-9", "boot", Nanoseconds(50)).unwrap(), "the GPU was never on this node");
    assert_eq!(listed(&path)[1].1, Attachment::Forgotten);
}

#[test]
fn a_gpu_is_forgotten_in_account_time_whatever_the_wall_clock_shows() {
    let hour = Nanoseconds::from_seconds(3_600);
    for boot in ["boot", "another boot"] {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("ledger.db");
        let (mut ledger, recovered) = Ledger::open(&path, &opening()).unwrap();
        let begun = recovered.timeline.at(Nanoseconds(1_000));
        let last = Utc(begun.0 + 40);
        let registrations = vec![GpuRegistration { at: begun, ..registration(0, "GPU-0") }];
        ledger.commit(&LedgerBatch { now: last, registrations, ..LedgerBatch::default() }).unwrap();
        drop(ledger);
        assert!(forget(&path, "GPU-0", boot, Nanoseconds(1_000 + hour.0)).unwrap());
        // Nothing is known of another boot: the account still ends at its last commit.
        let since = if boot == "boot" { begun.plus(hour) } else { last };
        assert_eq!(listed(&path), [(0, Attachment::Forgotten, since.0)], "{boot}");
    }
}
