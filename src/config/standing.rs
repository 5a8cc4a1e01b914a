//! Holdings that the operator grants by hand: `attribution.standing`.
//!
//! In: the list as it stands in the file. Out: [`Standing`]s, or complaints: a missing holder, two of one
//! name, more of a GPU granted than there is. It does not know which GPUs this node has.

use super::fraction::{Sum, fraction};
use super::key::{Absent, Change, Field, Key};
use super::problem::{Complaint, Place, Report};
use super::tree::Node;
use super::values::{put, token};
use super::walk;
use crate::model::Fraction;

/// A share of a GPU, or of each, that somebody holds until the configuration changes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Standing {
    /// The operator's name for it; no two alike.
    pub id: Option<String>,
    /// Which GPUs.
    pub gpu: GpuChoice,
    /// How much of each.
    pub fraction: Fraction,
    /// Who holds it.
    pub holder: Grantee,
}

/// Which GPUs a standing holding is on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GpuChoice {
    /// Every GPU of the node.
    All,
    /// The GPU with this index.
    Index(u32),
    /// The GPU with this UUID, in the driver's spelling.
    Uuid(String),
}

impl std::fmt::Display for GpuChoice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::All => f.write_str("every GPU"),
            Self::Index(index) => write!(f, "GPU {index}"),
            Self::Uuid(uuid) => f.write_str(uuid),
        }
    }
}

/// Who holds a standing holding.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Grantee {
    /// A Unix user, by name.
    User(String),
    /// A Unix user, by uid.
    Uid(u32),
    /// A systemd service, `NAME.service`.
    Unit(String),
}

/// An entry while it is read.
#[derive(Default)]
pub(crate) struct Draft {
    id: Option<String>,
    gpu: Option<GpuChoice>,
    fraction: Option<Fraction>,
    user: Option<Grantee>,
    unit: Option<String>,
}

/// The keys of an entry.
pub(crate) const KEYS: &[Key<Draft>] = &[
    Key {
        path: "id",
        field: Field::Text { accepts: "a name", set: |draft, text| put(&mut draft.id, token(text)) },
        absent: Absent::Optional("condo-physics"),
        change: Change::Reload,
        unit: "",
        help: "Your name for this grant; no two alike.",
    },
    Key {
        path: "gpu",
        field: Field::Text {
            accepts: "all, an index, or a UUID",
            set: |draft, text| put(&mut draft.gpu, gpu(text)),
        },
        absent: Absent::Required("all"),
        change: Change::Reload,
        unit: "",
        help: "The GPUs on which it is; an index is that of nvidia-smi at the moment.",
    },
    Key {
        path: "fraction",
        field: Field::Text {
            accepts: "a fraction such as 1/2, or 1",
            set: |draft, text| put(&mut draft.fraction, fraction(text)),
        },
        absent: Absent::Default("1"),
        change: Change::Reload,
        unit: "GPUs",
        help: "How much of each GPU; the grants of one GPU sum to 1 at most.",
    },
    Key {
        path: "user",
        field: Field::Text {
            accepts: "a user name or a uid",
            set: |draft, text| put(&mut draft.user, user(text)),
        },
        absent: Absent::Optional("alice"),
        change: Change::Reload,
        unit: "",
        help: "The Unix user who holds it, by name or uid; either this or unit.",
    },
    Key {
        path: "unit",
        field: Field::Text { accepts: "NAME.service", set: |draft, text| put(&mut draft.unit, unit(text)) },
        absent: Absent::Optional("inference.service"),
        change: Change::Reload,
        unit: "",
        help: "The systemd service that holds it; either this or user.",
    },
];

/// An entry that can be used, and where it stands.
struct Placed {
    standing: Standing,
    place: Option<Place>,
    path: String,
}

impl Placed {
    fn line(&self) -> u64 {
        self.place.map_or(0, |place| place.line)
    }
}

/// Reads the list; what can be used of it is returned.
pub(crate) fn read(items: &[Node], base: &str, report: &mut Report) -> Vec<Standing> {
    let mut placed = Vec::new();
    for (index, item) in items.iter().enumerate() {
        let path = format!("{base}[{index}]");
        let mut draft = Draft::default();
        let Some(places) = walk::fill(item, &path, KEYS, &mut draft, report) else { continue };
        if let Err(complaint) = one_holder(&places) {
            report.add(item.place, &path, complaint);
        } else if let Some(standing) = finish(draft) {
            let place = places.get("fraction").or(places.get("gpu")).or(item.place);
            placed.push(Placed { standing, place, path });
        }
    }
    no_two_of_one_name(&placed, report);
    no_gpu_twice_over(&placed, report);
    placed.into_iter().map(|entry| entry.standing).collect()
}

/// Exactly one of user and unit, however well it is written.
fn one_holder(places: &walk::Places) -> Result<(), Complaint> {
    let wrong = match (places.get("user"), places.get("unit")) {
        (Some(_), Some(_)) => "has both user and unit; keep the one that holds it",
        (None, None) => "has no holder; give user: NAME or unit: NAME.service",
        _ => return Ok(()),
    };
    Err(Complaint(wrong.to_owned()))
}

/// The entry, unless something that it needs is missing or malformed, which has been reported.
fn finish(draft: Draft) -> Option<Standing> {
    let holder = draft.user.or(draft.unit.map(Grantee::Unit))?;
    Some(Standing { id: draft.id, gpu: draft.gpu?, fraction: draft.fraction?, holder })
}

fn no_two_of_one_name(placed: &[Placed], report: &mut Report) {
    for (index, entry) in placed.iter().enumerate() {
        let Some(id) = &entry.standing.id else { continue };
        let first = placed[..index].iter().find(|other| other.standing.id.as_ref() == Some(id));
        if let Some(first) = first {
            let wrong = format!("is the name of the grant on line {} too", first.line());
            report.add(
                entry.place,
                format!("{}.id", entry.path),
                Complaint::about(id, &wrong, "give another name"),
            );
        }
    }
}

/// An index and a UUID may mean the same GPU; that shows only where the GPUs are.
fn no_gpu_twice_over(placed: &[Placed], report: &mut Report) {
    let mut choices: Vec<&GpuChoice> = vec![&GpuChoice::All];
    for entry in placed {
        if !choices.contains(&&entry.standing.gpu) {
            choices.push(&entry.standing.gpu);
        }
    }
    for choice in choices {
        let grants: Vec<&Placed> = placed
            .iter()
            .filter(|entry| entry.standing.gpu == *choice || entry.standing.gpu == GpuChoice::All)
            .collect();
        let Some(count) = first_too_many(&grants) else { continue };
        let (earlier, last) = (&grants[..count], grants[count]);
        // Where the grants of `all` are too many by themselves, that has been said once.
        let own = grants[..=count].iter().any(|entry| entry.standing.gpu == *choice);
        if own {
            report.add(last.place, format!("{}.fraction", last.path), too_many(choice, earlier, last));
        }
    }
}

/// The first grant with which the sum is above 1, or cannot be told.
fn first_too_many(grants: &[&Placed]) -> Option<usize> {
    let mut sum = Sum::ZERO;
    grants.iter().position(|entry| match sum.plus(entry.standing.fraction) {
        Some(more) => {
            sum = more;
            sum.exceeds_one()
        }
        None => true,
    })
}

fn too_many(choice: &GpuChoice, earlier: &[&Placed], last: &Placed) -> Complaint {
    let lines: Vec<String> = earlier.iter().map(|entry| entry.line().to_string()).collect();
    let lines = format!("line{} {}", if lines.len() == 1 { "" } else { "s" }, lines.join(", "));
    let all =
        earlier.iter().chain([&last]).try_fold(Sum::ZERO, |sum, entry| sum.plus(entry.standing.fraction));
    Complaint(match all {
        Some(sum) => {
            format!("together with {lines} grants {sum} of {choice}; keep the sum at 1 or below")
        }
        None => format!("cannot be added exactly to {lines}; give the grants of {choice} one denominator"),
    })
}

/// `all`, an index, or a UUID as the driver prints it.
fn gpu(text: &str) -> Result<GpuChoice, Complaint> {
    if text == "all" {
        return Ok(GpuChoice::All);
    }
    if text.bytes().all(|byte| byte.is_ascii_digit())
        && let Ok(index) = text.parse()
    {
        return Ok(GpuChoice::Index(index));
    }
    let lower = text.to_ascii_lowercase();
    let groups: Vec<&str> = lower.strip_prefix("gpu-").unwrap_or_default().split('-').collect();
    let hexadecimal = groups.iter().all(|group| group.bytes().all(|byte| byte.is_ascii_hexdigit()));
    if hexadecimal && groups.iter().map(|group| group.len()).eq([8, 4, 4, 4, 12]) {
        return Ok(GpuChoice::Uuid(format!("GPU-{}", groups.join("-"))));
    }
    let remedy = "give all, an index such as 0, or a UUID as nvidia-smi -L prints it";
    Err(Complaint::about(text, "is not a GPU", remedy))
}

/// A name, or digits, of which no name consists.
fn user(text: &str) -> Result<Grantee, Complaint> {
    let name = token(text)?;
    if !name.bytes().all(|byte| byte.is_ascii_digit()) {
        return Ok(Grantee::User(name));
    }
    let uid = name.parse().map_err(|_| Complaint::about(text, "is not a uid", "give a number below 2^32"))?;
    Ok(Grantee::Uid(uid))
}

fn unit(text: &str) -> Result<String, Complaint> {
    let name = token(text)?;
    match name.strip_suffix(".service") {
        Some(stem) if !stem.is_empty() && !stem.contains('/') => Ok(name),
        _ => Err(Complaint::about(text, "is not a systemd service", "give NAME.service")),
    }
}
