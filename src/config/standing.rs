//! Reads the holdings that the operator grants in the file (`attribution.standing`). Which GPUs the node has is not checked
//! here.

use super::entries::{EntryPlace, Mistake, Placed, entries_of, read_entries};
use std::collections::BTreeSet;
use std::sync::Arc;

use super::fraction::{Sum, fraction};
use super::problem::{Complaint, ProblemCollector};
use super::tree::YamlNode;
use super::values::token;
use crate::model::{GpuSelector, Selector, StandingGrant};

entry_keys! { StandingGrant;
    id => id, text("a name", token), Optional("condo-physics"),
        "Your name for this grant; no two alike.";
    gpu => gpus, list("all, an index, a range such as 4-7, or a UUID", add_gpus), Required("all"),
        "The GPUs; it grants a share of each. Indices are those of nvidia-smi.";
    fraction => fraction, text("a fraction such as 1/2 or 0.5, or 1", fraction), Default("1"), in "GPUs",
        "How much of each GPU; the grants of one GPU sum to 1 at most.";
    user => selector, list("a user name or a uid", add_user), Optional("alice"),
        "The Unix user who holds it; several hold it together as team:ID, and need id.";
    group => selector, text("a group name", group), Optional("research"),
        "The Unix group that holds it, as group:NAME, for all its members; instead of user.";
    namespace => selector, text("a name", namespace), Optional("physics"),
        "The namespace that holds it, as team:NAMESPACE, for its pods; instead of user.";
    unit => selector, text("NAME.service", unit), Optional("inference.service"),
        "The systemd service that holds it; instead of user.";
}

type PlacedGrant = Placed<StandingGrant>;

pub(crate) fn read(items: &[YamlNode], base: &str, report: &mut ProblemCollector) -> Vec<StandingGrant> {
    let placed = read_entries(items, base, TABLE.keys, report, |mut grant: StandingGrant, at, earlier| {
        check_holder(at)?;
        let nothing = StandingGrant::default();
        // A missing or malformed part is reported already.
        if grant.gpus.is_empty() || grant.fraction == nothing.fraction || grant.selector == nothing.selector {
            return Err(None);
        }
        if !at.has("id") {
            grant.id = (earlier.len() + 1).to_string();
        }
        if let Selector::Team { name, .. } = &mut grant.selector {
            if !at.has("id") {
                let text = "names several users; give id: NAME, the name under which they hold it together";
                return Err(Some(Mistake::of("user", text)));
            }
            name.clone_from(&grant.id);
        }
        Ok(grant)
    });
    check_ids(&placed, report);
    check_teams(&placed, report);
    check_sums(&placed, report);
    entries_of(placed)
}

/// Checks that exactly one of user, group, namespace and unit is given, valid or not.
fn check_holder(at: &EntryPlace) -> Result<(), Option<Mistake>> {
    let given: Vec<&str> =
        ["user", "group", "namespace", "unit"].into_iter().filter(|key| at.has(key)).collect();
    let text = match given.as_slice() {
        [] => "has no holder; give user: NAME, group: NAME, namespace: NAME or unit: NAME.service".to_owned(),
        [_] => return Ok(()),
        several => format!("has {}; keep the one that holds it", several.join(" and ")),
    };
    Err(Some(Mistake::of("", text)))
}

fn check_ids(placed: &[PlacedGrant], report: &mut ProblemCollector) {
    for (index, grant) in placed.iter().enumerate() {
        let id = &grant.entry.id;
        let is_same = |other: &&PlacedGrant| other.at.has("id") && other.entry.id == *id;
        if let Some(first) = placed[..index].iter().find(is_same).filter(|_| grant.at.has("id")) {
            let wrong = format!("is the name of the grant on line {} too", first.at.line("gpu"));
            let complaint = Complaint::about(id, &wrong, "give another name");
            grant.at.complain(report, Mistake::new("id", complaint));
        }
    }
}

/// Checks that no team has the name of a namespace: both would hold as one.
fn check_teams(placed: &[PlacedGrant], report: &mut ProblemCollector) {
    let is_team = |grant: &StandingGrant, own: &String| matches!(&grant.selector, Selector::Team { name, .. } if name == own);
    for grant in placed {
        let Selector::Namespace(name) = &grant.entry.selector else { continue };
        if let Some(other) = placed.iter().find(|other| is_team(&other.entry, name)) {
            let line = other.at.line("gpu");
            let wrong = format!("holds as team:{name}, as the users of the grant {name} on line {line} do");
            let complaint = Complaint::about(name, &wrong, "give that grant another id");
            grant.at.complain(report, Mistake::new("namespace", complaint));
        }
    }
}

/// Checks that no grant makes the sum of one of its GPUs more than 1. An index and a UUID of the same GPU can only be compared on
/// the node.
fn check_sums(placed: &[PlacedGrant], report: &mut ProblemCollector) {
    for (index, last) in placed.iter().enumerate() {
        let mut choices = placed[..=index].iter().flat_map(|grant| &grant.entry.gpus);
        if let Some(complaint) = choices.find_map(|choice| too_many(choice, &placed[..index], last)) {
            last.at.complain(report, Mistake::new("fraction", complaint));
        }
    }
}

/// What is wrong where a grant of a GPU is the first that makes the sum of the grants more than 1, or impossible to compute.
fn too_many(choice: &GpuSelector, before: &[PlacedGrant], last: &PlacedGrant) -> Option<Complaint> {
    let names = |grant: &&PlacedGrant| {
        let gpus = &grant.entry.gpus;
        gpus.contains(choice) || gpus.contains(&GpuSelector::All)
    };
    let earlier: Vec<&PlacedGrant> = before.iter().filter(names).collect();
    let sum = |sum: Sum, grant: &PlacedGrant| sum.plus(grant.entry.fraction);
    let granted = earlier.iter().try_fold(Sum::ZERO, |all, grant| sum(all, grant))?;
    if !names(&last) || granted.exceeds_one() {
        return None;
    }
    let lines: Vec<String> = earlier.iter().map(|grant| grant.at.line("fraction").to_string()).collect();
    let lines = format!("line{} {}", if lines.len() == 1 { "" } else { "s" }, lines.join(", "));
    match sum(granted, last) {
        Some(all) if !all.exceeds_one() => None,
        Some(all) => Some(Complaint(format!(
            "together with {lines} grants {all} of {choice}; keep the sum at 1 or below"
        ))),
        None => Some(Complaint(format!(
            "cannot be added exactly to {lines}; give the grants of {choice} one denominator"
        ))),
    }
}

fn add_gpus(chosen: &mut Vec<GpuSelector>, text: &str) -> Result<(), Complaint> {
    for choice in gpus(text)? {
        if chosen.contains(&choice) {
            let wrong = format!("names {choice} again");
            return Err(Complaint::about(text, &wrong, "name each GPU once"));
        }
        let wrong = match (&choice, chosen.as_slice()) {
            (GpuSelector::All, [_, ..]) => "stands beside other GPUs",
            (_, [GpuSelector::All]) => "stands beside all",
            _ => "",
        };
        if !wrong.is_empty() {
            return Err(Complaint::about(text, wrong, "give all alone, or the GPUs without it"));
        }
        chosen.push(choice);
    }
    Ok(())
}

/// `all`, an index, a range of indices, or a UUID as the driver prints it.
fn gpus(text: &str) -> Result<Vec<GpuSelector>, Complaint> {
    if text == "all" {
        return Ok(vec![GpuSelector::All]);
    }
    if let Some(index) = index(text) {
        return Ok(vec![GpuSelector::Index(index)]);
    }
    if let Some((first, last)) = text.split_once('-')
        && let (Some(first), Some(last)) = (index(first.trim()), index(last.trim()))
    {
        return range(text, first, last);
    }
    let lower = text.to_ascii_lowercase();
    let groups: Vec<&str> = lower.strip_prefix("gpu-").unwrap_or_default().split('-').collect();
    let hexadecimal = groups.iter().all(|group| group.bytes().all(|byte| byte.is_ascii_hexdigit()));
    if hexadecimal && groups.iter().map(|group| group.len()).eq([8, 4, 4, 4, 12]) {
        return Ok(vec![GpuSelector::Uuid(format!("GPU-{}", groups.join("-")))]);
    }
    let remedy = "give all, an index such as 0, a range such as 4-7, or a UUID as nvidia-smi -L prints it";
    Err(Complaint::about(text, "is not a GPU", remedy))
}

fn index(text: &str) -> Option<u32> {
    is_digits(text).then(|| text.parse().ok())?
}

/// Both ends included.
fn range(text: &str, first: u32, last: u32) -> Result<Vec<GpuSelector>, Complaint> {
    const MOST: u32 = 256;
    if first > last {
        return Err(Complaint::about(text, "runs backwards", "give the lower index first, as in 4-7"));
    }
    if last - first >= MOST {
        return Err(Complaint::about(text, "names more than 256 GPUs", "give a range such as 4-7"));
    }
    Ok((first..=last).map(GpuSelector::Index).collect())
}

/// Adds a user, by name or by a uid in digits, to those who hold a grant together.
fn add_user(holder: &mut Selector, text: &str) -> Result<(), Complaint> {
    let (mut users, mut uids) = match std::mem::replace(holder, Selector::NOBODY) {
        Selector::Team { users, uids, .. } => (users, uids),
        Selector::User(name) => (BTreeSet::from([name]), BTreeSet::new()),
        Selector::Uid { uid, .. } => (BTreeSet::new(), BTreeSet::from([uid])),
        _ => Default::default(),
    };
    let name = token(text)?;
    let is_new = if is_digits(&name) {
        let uid =
            name.parse().map_err(|_| Complaint::about(text, "is not a uid", "give a number below 2^32"))?;
        uids.insert(uid)
    } else {
        users.insert(name)
    };
    if !is_new {
        return Err(Complaint::about(text, "is in the list twice", "keep one"));
    }
    *holder = match (users.first(), uids.first()) {
        (Some(name), None) if users.len() == 1 => Selector::User(name.clone()),
        (None, Some(uid)) if uids.len() == 1 => Selector::Uid { uid: *uid, name: uid.to_string().into() },
        _ => Selector::Team { name: String::new(), users, uids },
    };
    Ok(())
}

fn namespace(text: &str) -> Result<Selector, Complaint> {
    token(text).map(Selector::Namespace)
}

fn group(text: &str) -> Result<Selector, Complaint> {
    let name = token(text)?;
    if is_digits(&name) {
        return Err(Complaint::about(text, "is a number", "give the name of the group"));
    }
    Ok(Selector::Group { name, members: Arc::default() })
}

fn is_digits(text: &str) -> bool {
    text.bytes().all(|byte| byte.is_ascii_digit())
}

fn unit(text: &str) -> Result<Selector, Complaint> {
    let name = token(text)?;
    match name.strip_suffix(".service") {
        Some(stem) if !stem.is_empty() && !stem.contains('/') => Ok(Selector::Unit(name)),
        _ => Err(Complaint::about(text, "is not a systemd service", "give NAME.service")),
    }
}
