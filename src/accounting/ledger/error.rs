//! Errors of a ledger. Inside the module an error is a [`Cause`]; public functions add the path and the operation.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::model::{HolderId, Utc};

#[derive(Debug, thiserror::Error)]
#[error("{}: cannot {doing}: {cause}", path.display())]
pub struct Error {
    pub path: PathBuf,
    pub doing: &'static str,
    pub cause: Cause,
}

#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Cause {
    #[error(
        "process {} writes it; stop that process, or configure another ledger for this agent",
        pid.map_or_else(|| "(unknown)".to_owned(), |pid| pid.to_string())
    )]
    Owned { pid: Option<u32> },
    #[error(
        "it is another name of a ledger that an agent writes; give the name that the agent has, or stop the agent"
    )]
    OtherName,
    #[error(
        "its lock {} belongs to user {owner}, who is neither root nor this agent's user; remove it",
        path.display()
    )]
    LockOwner { path: PathBuf, owner: u32 },
    #[error("its lock {} is no regular file; remove it", path.display())]
    LockKind { path: PathBuf },
    #[error("it is not a gpumeter ledger; name another path or move the file away (it was not touched)")]
    Foreign,
    #[error(
        "it is empty, and a ledger was there, so its account is lost; put a copy of it back, or remove the empty file to begin \
         a new account (it was not touched)"
    )]
    Emptied,
    #[error(
        "its schema is version {found}, this agent knows {known}; run the newer agent, or let its \
         `gpumeter ledger restore` put back the copy from before the upgrade (the file was not touched)"
    )]
    Newer { found: i64, known: i64 },
    #[error(
        "its schema is version {found}, which only builds before the first release wrote; that release and later ones read \
         {first} and above; make its bills with the build that wrote it, and move the file away to begin a new account (it was \
         not touched)"
    )]
    Unreleased { found: i64, first: i64 },
    #[error(
        "its schema is version {found}, and this command writes only version {known}; start an agent of this release with it \
         once, which saves a copy of it and upgrades it (the ledger was not changed)"
    )]
    Older { found: i64, known: i64 },
    #[error(
        "it is not upgraded from schema version {from} to {to}, because saving it first as {} failed: {cause} \
         (the ledger was not touched)",
        copy.display()
    )]
    Upgrade { copy: PathBuf, from: i64, to: i64, cause: Box<Cause> },
    #[error(
        "there is no saved copy to restore: the ledger has schema version {present}; {}; name a copy of another version \
         with --to",
        listed_copies(path, copies)
    )]
    NoCopy { path: PathBuf, present: i64, copies: Vec<i64> },
    #[error("another program is writing it; stop that program first")]
    Busy,
    #[error(
        "the clock is not synchronised since the boot; the ledger is opened when it is, or two minutes after the boot, a new one \
         also not before 2025"
    )]
    ClockNotSet,
    /// The filesystem does not support the locks and shared memory of SQLite.
    #[error("it is on {name}, a network filesystem, where SQLite loses data; use a local disk")]
    NetworkFilesystem { name: &'static str },
    #[error("there is no such file; give the path of an existing ledger")]
    Missing,
    #[error("the file exists; give the path of a new one")]
    Exists,
    #[error("it is a directory; give the path of the ledger file, such as {}", path.join("ledger.db").display())]
    Directory { path: PathBuf },
    #[error("{0}; give the path of the ledger file")]
    Irregular(std::io::Error),
    /// Another user's ledger: its files are closed to others, and SQLite writes to files beside it even when reading.
    #[error(
        "it belongs to user {owner}, and this user ({user}) cannot read it; run this command as that user or as root"
    )]
    OtherUser { owner: u32, user: u32 },
    /// The directory belongs to another user.
    #[error("{0}; run this command as the user of the ledger or as root")]
    Unopenable(std::io::Error),
    #[error("{0}; give a path in an existing directory that this user can write")]
    Unwritable(#[from] std::io::Error),
    #[error(
        "the window {}..{} of {gpu} is empty, or overlaps its account, which ends at {}; nothing of the batch was \
         stored",
        from.0, to.0, settled_until.0
    )]
    Window { gpu: Arc<str>, from: Utc, to: Utc, settled_until: Utc },
    #[error(
        "the raw spans of {gpu} overlap the account or each other at {}; pass only the part of the span \
         after the account's end; nothing of the batch was stored", at.0
    )]
    Spans { gpu: Arc<str>, at: Utc },
    #[error("{gpu} has no account yet; it must be registered in this batch or an earlier one")]
    UnknownGpu { gpu: Arc<str> },
    #[error("{holder} is not stored; it must be in this batch or an earlier one")]
    UnknownHolder { holder: HolderId },
    #[error("from: {from} is in the future; the account is closed up to {closed_until}")]
    Future { from: String, closed_until: Utc },
    /// A request to which there is no answer.
    #[error("{0}")]
    Request(String),
    #[error(
        "{edge}: {at} is inside a quarter hour of which only the sum is kept, as of all before {until} \
         (ledger.retention.minutes); give {begin} or {end}"
    )]
    RolledUp { edge: &'static str, at: Utc, begin: Utc, end: Utc, until: Utc },
    #[error(
        "from: {from} is before {until}, where the account of this ledger begins: what is older was deleted \
         (ledger.retention.quarter_hours); give that time or a later one"
    )]
    Deleted { from: Utc, until: Utc },
    #[error(
        "prices in {first} and, since {since}, in {second} were in force; choose a period up to that time, or from it"
    )]
    Currencies { first: String, second: String, since: Utc },
    #[error(
        "prices in {first} and, since {since}, in {second} were in force at one time; give one of them rates from then on that \
         replace all others (docs/prices.md)"
    )]
    MixedCurrencies { first: String, second: String, since: Utc },
    #[error(
        "the account of its GPUs is closed up to {settled}, and the period ends at {to}; close it when that is over"
    )]
    NotSettled { to: Utc, settled: Utc },
    #[error(
        "the account of {gpu} ends before {to}; start its agent until that is closed, or say that the GPU was taken out with \
         `gpumeter inventory forget {gpu}`"
    )]
    GpuNotSettled { gpu: Arc<str>, to: Utc },
    #[error(
        "{from} to {to} is closed already{}; a correction is a credit (gpumeter statement credit)",
        if number.is_empty() { String::new() } else { format!(" by statement {number}") }
    )]
    Closed { from: Utc, to: Utc, number: String },
    #[error("it has not closed {from} to {to}; is it the ledger of that statement?")]
    NotClosed { from: Utc, to: Utc },
    #[error("it recorded document {number} with {digest} for this period")]
    Recorded { number: String, digest: String },
    #[error("{0}")]
    Money(#[from] crate::accounting::billing::MoneyOverflow),
    #[error("{0}")]
    Book(#[from] crate::accounting::billing::OtherCurrency),
    #[error("{0}")]
    Sum(#[from] crate::accounting::billing::SumOverflow),
    #[error("{source}{}", remedy(source))]
    Sqlite {
        #[from]
        source: rusqlite::Error,
    },
    #[error("{0}; a newer agent or another program wrote it, run that agent or restore a copy")]
    Json(#[from] serde_json::Error),
}

impl Error {
    /// Whether the same operation may succeed later, as after a failure of the disk or a lock, so that a batch is kept.
    /// Refusals are permanent: the ledger's own, a value that does not convert, and what SQLite refuses for a constraint,
    /// a type or a size.
    pub fn may_pass(&self) -> bool {
        use rusqlite::ErrorCode as Code;
        let Cause::Sqlite { source } = &self.cause else { return false };
        code(source).is_some_and(|code| {
            !matches!(
                code,
                Code::ConstraintViolation
                    | Code::TypeMismatch
                    | Code::TooBig
                    | Code::ApiMisuse
                    | Code::ParameterOutOfRange
            )
        })
    }

    /// Whether what was asked for is the reason, its period or its book, and not the ledger.
    pub const fn is_of_request(&self) -> bool {
        matches!(
            self.cause,
            Cause::Currencies { .. }
                | Cause::MixedCurrencies { .. }
                | Cause::RolledUp { .. }
                | Cause::Deleted { .. }
                | Cause::Future { .. }
                | Cause::Request(_)
                | Cause::Book(_)
        )
    }

    /// Whether this is the wrong file, another agent's ledger, or a forbidden place, so that trying again is useless. A full
    /// or failing disk, missing permissions and a missing mount may be repaired while the agent runs.
    pub const fn is_wrong_ledger(&self) -> bool {
        matches!(
            self.cause,
            Cause::Foreign
                | Cause::Irregular(_)
                | Cause::Newer { .. }
                | Cause::Unreleased { .. }
                | Cause::Owned { .. }
                | Cause::OtherName
                | Cause::NetworkFilesystem { .. }
        )
    }
}

impl Cause {
    pub(super) fn at(self, path: &Path, doing: &'static str) -> Error {
        let cause = match self {
            Self::Sqlite { source } if code(&source) == Some(rusqlite::ErrorCode::NotADatabase) => {
                Self::Foreign
            }
            other => other,
        };
        Error { path: path.to_owned(), doing, cause }
    }
}

fn listed_copies(path: &Path, versions: &[i64]) -> String {
    let name = path.display();
    if versions.is_empty() {
        return format!("no files {name}.v<version> exist");
    }
    let names: Vec<String> = versions.iter().map(|version| format!("{name}.v{version}")).collect();
    format!("these copies exist: {}", names.join(", "))
}

/// Replaces the failure to read another user's file by an error that names both users.
pub(super) fn name_users(cause: Cause, owner: u32, user: u32) -> Cause {
    use rusqlite::ErrorCode as Code;
    let is_refused = match &cause {
        Cause::Sqlite { source } => {
            matches!(code(source), Some(Code::ReadOnly | Code::CannotOpen | Code::PermissionDenied))
        }
        _ => false,
    };
    if is_refused && owner != user { Cause::OtherUser { owner, user } } else { cause }
}

fn code(error: &rusqlite::Error) -> Option<rusqlite::ErrorCode> {
    match error {
        rusqlite::Error::SqliteFailure(failure, _) => Some(failure.code),
        _ => None,
    }
}

fn remedy(error: &rusqlite::Error) -> &'static str {
    use rusqlite::ErrorCode as Code;
    match code(error) {
        Some(Code::DiskFull) => "; free space on its disk, the agent tries again",
        Some(Code::ReadOnly | Code::CannotOpen | Code::PermissionDenied) => {
            "; make the file and its directory writable for the agent"
        }
        Some(Code::DatabaseCorrupt) => "; keep the file, and restore or start a new one",
        Some(Code::DatabaseBusy | Code::DatabaseLocked) => "; another program has it open for writing",
        Some(Code::SystemIoFailure) => "; check its disk in the kernel log",
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(source: rusqlite::Error) -> Error {
        Cause::from(source).at(Path::new("ledger.db"), "test")
    }

    #[test]
    fn an_unreadable_ledger_of_another_user_names_both_users() {
        use rusqlite::ffi;
        let refused = |code| Cause::from(rusqlite::Error::SqliteFailure(ffi::Error::new(code), None));
        for code in [ffi::SQLITE_READONLY, ffi::SQLITE_CANTOPEN, ffi::SQLITE_PERM] {
            let message = name_users(refused(code), 0, 1_000).to_string();
            assert!(message.contains("belongs to user 0") && message.contains("as root"), "{message}");
            assert!(matches!(name_users(refused(code), 1_000, 1_000), Cause::Sqlite { .. }));
        }
        assert!(matches!(name_users(refused(ffi::SQLITE_FULL), 0, 1_000), Cause::Sqlite { .. }));
    }

    #[test]
    fn only_what_the_disk_or_a_lock_prevents_may_pass() {
        use rusqlite::ffi;
        let failure = |code| error(rusqlite::Error::SqliteFailure(ffi::Error::new(code), None));
        for code in [ffi::SQLITE_FULL, ffi::SQLITE_IOERR, ffi::SQLITE_BUSY, ffi::SQLITE_READONLY] {
            assert!(failure(code).may_pass(), "{code}");
        }
        for code in [ffi::SQLITE_CONSTRAINT, ffi::SQLITE_MISMATCH, ffi::SQLITE_TOOBIG] {
            assert!(!failure(code).may_pass(), "{code}");
        }
        assert!(!error(rusqlite::Error::ToSqlConversionFailure("too large".into())).may_pass());
        assert!(!Cause::Missing.at(Path::new("ledger.db"), "test").may_pass());
    }
}
