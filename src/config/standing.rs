//! Reads the holdings that the operator grants in the file (`attribution.standing`). Which GPUs the node has is not checked
//! here.

use super::fraction::{Sum, fraction};
use super::key::{Absent, ChangeEffect, Key, KeyType, Table};
use super::problem::{Complaint, FilePosition, ProblemCollector};
use super::read_mapping;
use super::tree::YamlNode;
use super::values::{add, put, token};
use crate::model::{Fraction, GpuSelector};

/// A share of one or more GPUs that a holder has until the configuration changes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GrantConfig {
    /// The operator's name for it; no two alike.
    pub id: Option<String>,
    /// Its GPUs, each at most once.
    pub gpus: Vec<GpuSelector>,
    /// How much of each.
    pub fraction: Fraction,
    /// Who holds it.
    pub holder: Grantee,
}

/// Who holds a standing holding.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Grantee {
    /// A Unix user.
    User(UserChoice),
    /// Several Unix users, who hold it together under its id.
    Team(Vec<UserChoice>),
    /// A Unix group, by name.
    Group(String),
    /// A namespace of Kubernetes, for its pods.
    Namespace(String),
    /// A systemd service, `NAME.service`.
    Unit(String),
}

/// A Unix user of a standing holding.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum UserChoice {
    /// By name.
    Name(String),
    /// By uid.
    Uid(u32),
}

/// Whether presence holds GPUs without a grant.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PresenceSetting {
    /// Where nothing that grants GPUs is found at the agent's start.
    #[default]
    Auto,
    /// Always.
    True,
    /// Never.
    False,
}

impl PresenceSetting {
    pub(super) const ALL: [Self; 3] = [Self::Auto, Self::True, Self::False];
    pub(super) const NAMES: [&str; 3] = ["auto", "true", "false"];

    /// As the file has it.
    pub const fn name(self) -> &'static str {
        Self::NAMES[self as usize]
    }
}

keys! { GrantDraft;
"A grant while it is read."
pub(crate) struct GrantDraft () {
    id: Option<String>, text("a name", token), Optional("condo-physics"), Reload,
        "Your name for this grant; no two alike.";
    gpu: Vec<GpuSelector>, list("all, an index, a range such as 4-7, or a UUID", add_gpus), Required("all"), Reload,
        "The GPUs; it grants a share of each. Indices are those of nvidia-smi.";
    fraction: Option<Fraction>, text("a fraction such as 1/2 or 0.5, or 1", fraction), Default("1"), Reload, in "GPUs",
        "How much of each GPU; the grants of one GPU sum to 1 at most.";
    user: Vec<UserChoice>, texts("a user name or a uid", user), Optional("alice"), Reload,
        "The Unix user who holds it; several hold it together as team:ID, and need id.";
    group: Option<String>, text("a group name", group), Optional("research"), Reload,
        "The Unix group that holds it, as group:NAME, for all its members; instead of user.";
    namespace: Option<String>, text("a name", token), Optional("physics"), Reload,
        "The namespace that holds it, as team:NAMESPACE, for its pods; instead of user.";
    unit: Option<String>, text("NAME.service", unit), Optional("inference.service"), Reload,
        "The systemd service that holds it; instead of user.";
}
}

/// A valid entry with its position.
struct Placed {
    standing: GrantConfig,
    place: Option<FilePosition>,
    path: String,
}

impl Placed {
    fn line(&self) -> u64 {
        self.place.map_or(0, |place| place.line)
    }
}

/// Reads the list and returns the valid grants.
pub(crate) fn read(items: &[YamlNode], base: &str, report: &mut ProblemCollector) -> Vec<GrantConfig> {
    let mut placed = Vec::new();
    for (index, item) in items.iter().enumerate() {
        let path = format!("{base}[{index}]");
        let mut draft = GrantDraft::default();
        let Some(places) = read_mapping::read_mapping(item, &path, TABLE.keys, &mut draft, report) else {
            continue;
        };
        if let Err(complaint) = check_holder(&places) {
            report.add(item.place, &path, complaint);
        } else if draft.user.len() > 1 && places.get("id").is_none() {
            let text = "names several users; give id: NAME, the name under which they hold it together";
            report.add(places.get("user"), format!("{path}.user"), Complaint(text.to_owned()));
        } else if let Some(standing) = finish(draft) {
            let place = places.get("fraction").or(places.get("gpu")).or(item.place);
            placed.push(Placed { standing, place, path });
        }
    }
    check_ids(&placed, report);
    check_teams(&placed, report);
    check_sums(&placed, report);
    placed.into_iter().map(|entry| entry.standing).collect()
}

/// Checks that exactly one of user, group, namespace and unit is given, valid or not.
fn check_holder(places: &read_mapping::KeyPositions) -> Result<(), Complaint> {
    let given: Vec<&str> =
        ["user", "group", "namespace", "unit"].into_iter().filter(|key| places.get(key).is_some()).collect();
    Err(Complaint(match given.as_slice() {
        [] => "has no holder; give user: NAME, group: NAME, namespace: NAME or unit: NAME.service".to_owned(),
        [_] => return Ok(()),
        several => format!("has {}; keep the one that holds it", several.join(" and ")),
    }))
}

/// The grant; none if a part is missing or malformed, which is reported already.
fn finish(draft: GrantDraft) -> Option<GrantConfig> {
    let user = match draft.user.as_slice() {
        [] => None,
        [user] => Some(Grantee::User(user.clone())),
        _ => Some(Grantee::Team(draft.user)),
    };
    let others = draft.group.map(Grantee::Group).or(draft.namespace.map(Grantee::Namespace));
    let holder = user.or(others).or(draft.unit.map(Grantee::Unit))?;
    (!draft.gpu.is_empty()).then_some(GrantConfig {
        id: draft.id,
        gpus: draft.gpu,
        fraction: draft.fraction?,
        holder,
    })
}

fn check_ids(placed: &[Placed], report: &mut ProblemCollector) {
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

/// Checks that no team has the name of a namespace: both would hold as one.
fn check_teams(placed: &[Placed], report: &mut ProblemCollector) {
    let team = |entry: &Placed| match &entry.standing.holder {
        Grantee::Team(_) => entry.standing.id.clone(),
        _ => None,
    };
    for entry in placed {
        let Grantee::Namespace(name) = &entry.standing.holder else { continue };
        if let Some(other) = placed.iter().find(|other| team(other).as_ref() == Some(name)) {
            let wrong =
                format!("holds as team:{name}, as the users of the grant {name} on line {} do", other.line());
            let remedy = "give that grant another id";
            report.add(
                entry.place,
                format!("{}.namespace", entry.path),
                Complaint::about(name, &wrong, remedy),
            );
        }
    }
}

/// Checks that the grants of no GPU sum to more than 1. An index and a UUID of the same GPU can only be compared on the
/// node.
fn check_sums(placed: &[Placed], report: &mut ProblemCollector) {
    let mut choices = vec![&GpuSelector::All];
    for choice in placed.iter().flat_map(|entry| &entry.standing.gpus) {
        if !choices.contains(&choice) {
            choices.push(choice);
        }
    }
    // GPUs with the same excessive grants are reported together.
    let mut excesses: Vec<(Vec<usize>, Vec<&GpuSelector>)> = Vec::new();
    for choice in choices {
        let names = |entry: &Placed, choice| entry.standing.gpus.contains(choice);
        let grants = (0..placed.len())
            .filter(|index| names(&placed[*index], choice) || names(&placed[*index], &GpuSelector::All));
        let Some(grants) = first_too_many(placed, grants) else { continue };
        // Excessive grants of `all` alone are reported once, for `all`.
        if !grants.iter().any(|index| names(&placed[*index], choice)) {
            continue;
        }
        match excesses.iter_mut().find(|(same, _)| *same == grants) {
            Some((_, choices)) => choices.push(choice),
            None => excesses.push((grants, vec![choice])),
        }
    }
    for (grants, choices) in excesses {
        let grants: Vec<&Placed> = grants.iter().map(|index| &placed[*index]).collect();
        let Some((last, earlier)) = grants.split_last() else { continue };
        report.add(last.place, format!("{}.fraction", last.path), too_many(&choices, earlier, last));
    }
}

/// The grants up to the first one with which the sum exceeds 1 or cannot be computed.
fn first_too_many(placed: &[Placed], grants: impl Iterator<Item = usize>) -> Option<Vec<usize>> {
    let mut sum = Some(Sum::ZERO);
    let mut taken = Vec::new();
    for index in grants {
        taken.push(index);
        sum = sum.and_then(|sum| sum.plus(placed[index].standing.fraction));
        if sum.is_none_or(Sum::exceeds_one) {
            return Some(taken);
        }
    }
    None
}

fn too_many(choices: &[&GpuSelector], earlier: &[&Placed], last: &Placed) -> Complaint {
    let gpus: Vec<String> = choices.iter().map(ToString::to_string).collect();
    let gpus = gpus.join(", ");
    let lines: Vec<String> = earlier.iter().map(|entry| entry.line().to_string()).collect();
    let lines = format!("line{} {}", if lines.len() == 1 { "" } else { "s" }, lines.join(", "));
    let all =
        earlier.iter().chain([&last]).try_fold(Sum::ZERO, |sum, entry| sum.plus(entry.standing.fraction));
    Complaint(match all {
        Some(sum) => {
            format!("together with {lines} grants {sum} of {gpus}; keep the sum at 1 or below")
        }
        None => format!("cannot be added exactly to {lines}; give the grants of {gpus} one denominator"),
    })
}

/// Adds the GPUs of one entry of `gpu`.
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

/// A user name, or a uid in digits.
fn user(text: &str) -> Result<UserChoice, Complaint> {
    let name = token(text)?;
    if !is_digits(&name) {
        return Ok(UserChoice::Name(name));
    }
    let uid = name.parse().map_err(|_| Complaint::about(text, "is not a uid", "give a number below 2^32"))?;
    Ok(UserChoice::Uid(uid))
}

fn group(text: &str) -> Result<String, Complaint> {
    let name = token(text)?;
    if is_digits(&name) {
        return Err(Complaint::about(text, "is a number", "give the name of the group"));
    }
    Ok(name)
}

fn is_digits(text: &str) -> bool {
    text.bytes().all(|byte| byte.is_ascii_digit())
}

fn unit(text: &str) -> Result<String, Complaint> {
    let name = token(text)?;
    match name.strip_suffix(".service") {
        Some(stem) if !stem.is_empty() && !stem.contains('/') => Ok(name),
        _ => Err(Complaint::about(text, "is not a systemd service", "give NAME.service")),
    }
}
