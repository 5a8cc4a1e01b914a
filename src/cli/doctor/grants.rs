//! What each grant in `attribution.standing` matches on this node: which GPUs, and which users.

use std::path::Path;

use serde::Serialize;

use super::Finding;
use crate::accounting::ledger::Reader;
use crate::agent::policy;
use crate::agent::resolvers::{installed_scheduler, unresolved_grants};
use crate::config::Config;
use crate::holders::host::{Host, UserDatabase};
use crate::holders::{Allocation, Granting, SessionGpu, holdings, in_words};
use crate::meter::attribution::conflicts;
use crate::model::snapshot::CONFLICT_ADVICE;
use crate::model::{HowHeld, Selector, shown};

#[derive(Clone, Debug, Serialize)]
pub struct GrantDiagnosis {
    /// Its id, or its number in the list.
    pub grant: String,
    pub fraction: String,
    /// Its GPUs, including those that the node does not have.
    pub gpus: String,
    pub holder: String,
}

/// How GPUs are held on this node, as an agent that starts now would find it, and what to set for another rule. It fails
/// where nobody can hold a GPU.
pub(super) fn check_holding(config: &Config, host: &Host) -> Finding {
    let installed = installed_scheduler(config, host);
    let scheduler = installed.or_else(|| has_scheduled(&config.ledger.path).then_some(HowHeld::Scheduled));
    let how_held = policy::how_held(config, scheduler);
    let grants_exist = scheduler.is_some() || !config.attribution.standing.is_empty();
    let works = how_held.is_by_presence() || grants_exist;
    let nobody = if works { "" } else { ", and nothing here grants a GPU, so nobody holds one" };
    Finding::new("holding", works, format!("{}{nobody}; {}", how_held.describe(), how_held.advice()))
}

fn has_scheduled(path: &Path) -> bool {
    path.is_file() && Reader::open(path).is_ok_and(|ledger| ledger.has_scheduled().unwrap_or(false))
}

/// The GPUs on which claims of schedulers do not fit together; nothing where all fit.
pub(super) fn check_conflicts(
    config: &Config,
    gpus: &[SessionGpu],
    allocations: &[Allocation],
) -> Option<Finding> {
    let standing = &config.attribution.standing;
    let in_conflict = |gpu: &SessionGpu| {
        let granting = Granting { allocations, standing, presence: false };
        let (held, covered_by) = holdings(gpu, granting, []);
        let holders = conflicts(&held, &covered_by);
        let names = holders.iter().map(|id| shown(id.name())).collect::<Vec<_>>().join(", ");
        (!holders.is_empty()).then(|| format!("{}: {names}", gpu_name(gpu)))
    };
    let found: Vec<String> = gpus.iter().filter_map(in_conflict).collect();
    (!found.is_empty()).then(|| {
        let why = format!(
            "claims on a GPU do not fit together, so each is charged for a part of what it claims ({}); {CONFLICT_ADVICE}",
            found.join("; ")
        );
        Finding::new("conflicts", false, why)
    })
}

/// Whether the users and groups of the grants in `attribution.standing` exist; nothing if there are no grants.
pub(super) fn check_users(config: &Config, users: &UserDatabase) -> Option<Finding> {
    let granted = config.attribution.standing.len();
    let problems = unresolved_grants(config, users);
    let why = match problems.is_empty() {
        true => format!("all users and groups named by the {granted} grants in attribution.standing exist"),
        false => problems.join("; "),
    };
    (granted > 0).then(|| Finding::new("standing", problems.is_empty(), why))
}

/// Whether each grant in `attribution.standing` matches a GPU of the driver; nothing if there are no grants.
pub(super) fn check_gpus(config: &Config, gpus: &[SessionGpu]) -> Option<Finding> {
    let granted = &config.attribution.standing;
    let unmatched: Vec<String> = granted
        .iter()
        .map(|grant| (&grant.id, grant.unmatched(gpus.iter())))
        .filter(|(_, missing)| !missing.is_empty())
        .map(|(id, missing)| format!("{id} ({})", in_words(&missing)))
        .collect();
    let why = match unmatched.is_empty() {
        true => format!("all {} grants in attribution.standing match a GPU", granted.len()),
        false => format!(
            "attribution.standing: no GPU that the driver lists matches {}; such a grant has no effect there: correct its \
             gpu, indices and UUIDs are those of nvidia-smi -L",
            unmatched.join(", ")
        ),
    };
    (!granted.is_empty()).then(|| Finding::new("grants", unmatched.is_empty(), why))
}

/// What every grant matches, in the order of the file; `gpus` are those of the driver, if it lists them. Looking up users
/// may wait for a network.
pub(super) fn match_grants(
    config: &Config,
    gpus: Option<&[SessionGpu]>,
    users: &UserDatabase,
) -> Vec<GrantDiagnosis> {
    config
        .attribution
        .standing
        .iter()
        .map(|grant| GrantDiagnosis {
            grant: grant.id.clone(),
            fraction: grant.fraction.to_string(),
            gpus: match gpus {
                None => format!("{} (not checked: the driver does not list its GPUs)", in_words(&grant.gpus)),
                Some(gpus) => {
                    let matched = gpus.iter().filter(|gpu| grant.selects(gpu)).map(gpu_name);
                    let missing = grant.unmatched(gpus.iter());
                    let missing = missing.iter().map(|gpu| format!("{gpu} (not there)"));
                    matched.chain(missing).collect::<Vec<_>>().join(", ")
                }
            },
            holder: describe_holder(&grant.selector, users),
        })
        .collect()
}

fn gpu_name(gpu: &SessionGpu) -> String {
    let index = gpu.index.map(|index| format!("GPU {index} ")).unwrap_or_default();
    format!("{index}{}", gpu.uuid)
}

fn describe_holder(holder: &Selector, users: &UserDatabase) -> String {
    let of_name = |name: &String| match users.has_user(name) {
        Ok(true) => name.clone(),
        Ok(false) => format!("{name} (not on this machine)"),
        Err(_) => format!("{name} (cannot be looked up)"),
    };
    let of_uid = |uid: &u32| match users.look_up(*uid) {
        Ok(Some(name)) => format!("{name} (uid {uid})"),
        Ok(None) => format!("{uid} (not on this machine)"),
        Err(_) => format!("{uid} (cannot be looked up)"),
    };
    match holder {
        Selector::User(name) => format!("user {}", of_name(name)),
        Selector::Uid { uid, .. } => format!("user {}", of_uid(uid)),
        Selector::Team { name, users, uids } => {
            let members: Vec<String> = users.iter().map(of_name).chain(uids.iter().map(of_uid)).collect();
            format!("team {name}, members {}", members.join(", "))
        }
        Selector::Group { name, .. } => format!("group {}", describe_group(name, users)),
        Selector::Unit(name) => format!("unit {name}"),
        Selector::Namespace(name) => format!("pods of namespace {name}, as team:{name}"),
    }
}

fn describe_group(name: &str, users: &UserDatabase) -> String {
    let group = match users.group(name) {
        Ok(Some(group)) => group,
        Ok(None) => return format!("{name} (not on this machine)"),
        Err(_) => return format!("{name} (cannot be looked up)"),
    };
    let members: Vec<&str> = group.members.values().map(AsRef::as_ref).collect();
    // The name service does not list the users whose primary group this is.
    let others = if users.is_service() { "users whose primary group it is" } else { "" };
    let members = match (members.is_empty(), others.is_empty()) {
        (true, true) => "none".to_owned(),
        (true, false) => others.to_owned(),
        (false, true) => members.join(", "),
        (false, false) => format!("{} and {others}", members.join(", ")),
    };
    format!("{name} (gid {}), members {members}", group.gid)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]
mod tests {
    use super::*;

    #[test]
    fn each_grant_is_listed_with_its_gpus_and_its_users() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("passwd");
        std::fs::write(&path, "ada:x:1001:100::/:\nben:x:1002:1200::/:\n").unwrap();
        std::fs::write(directory.path().join("group"), "lab:x:1200:ada\n").unwrap();
        let users = UserDatabase::of_file(&path);
        let text = r#"attribution:
  standing:
    - {id: condo, gpu: [0, 99], fraction: 0.5, group: lab}
    - {gpu: 1, user: 1001}
    - {id: pair, gpu: GPU-1d1c0000-0000-1111-2222-333344445555, fraction: 1/2, user: [ada, zoe]}
    - {gpu: 2, group: labb}"#;
        let config = Config::parse(text, "test").unwrap();
        let uuid = "GPU-1d1c0000-0000-1111-2222-333344445555";
        let gpus = [
            SessionGpu { index: Some(0), uuid: uuid.into() },
            SessionGpu { index: Some(1), uuid: "GPU-b".into() },
        ];
        let lines = |gpus| -> Vec<String> {
            let all = match_grants(&config, gpus, &users);
            all.iter()
                .map(|one| format!("{} {} | {} | {}", one.grant, one.fraction, one.gpus, one.holder))
                .collect()
        };
        assert_eq!(
            lines(Some(&gpus)),
            [
                format!(
                    "condo 1/2 | GPU 0 {uuid}, GPU 99 (not there) | group lab (gid 1200), members ada, ben"
                ),
                "2 1/1 | GPU 1 GPU-b | user ada (uid 1001)".to_owned(),
                format!("pair 1/2 | GPU 0 {uuid} | team pair, members ada, zoe (not on this machine)"),
                "4 1/1 | GPU 2 (not there) | group labb (not on this machine)".to_owned(),
            ]
        );
        assert!(lines(None)[0].contains("| GPU 0, GPU 99 (not checked: "), "{:?}", lines(None));
    }

    #[test]
    fn a_grant_that_matches_no_gpu_is_named() {
        let gpus = [SessionGpu { index: Some(0), uuid: "GPU-1d1c".into() }];
        let check = |text: &str| check_gpus(&Config::parse(text, "test").unwrap(), &gpus);
        assert!(check("").is_none());
        let well = "attribution: {standing: [{gpu: all, user: alice, fraction: 1/8}, {gpu: 0, user: bob, fraction: 1/8}]}";
        assert!(check(well).unwrap().works);
        let sick = "attribution: {standing: [{id: lab, gpu: 8, user: alice, fraction: 1/8}, {gpu: 0, user: bob, fraction: \
                    1/8}, {gpu: 9, user: bob, fraction: 1/8}]}";
        let finding = check(sick).unwrap();
        assert!(!finding.works && finding.why.contains("matches lab (GPU 8), 3 (GPU 9);"), "{}", finding.why);
    }
}
