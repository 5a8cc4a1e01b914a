//! UIDs, ids and names of pods and containers, from the names in the kubelet's log directories.
//!
//! `/var/log/pods` has a directory `NAMESPACE_POD_UID` per pod, `/var/log/containers` a link
//! `POD_NAMESPACE_CONTAINER-ID.log` per container. Kubernetes names have no underscore, so the format is unambiguous. An
//! entry that the kubelet would not have created is skipped. No log is read.

use std::fs::{self, DirEntry};
use std::io::{self, ErrorKind};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::SystemTime;

use super::Host;
use crate::model::Utc;

/// The longest name of a link without `.log`: the kubelet cuts what would be longer, as a file's name has at most 255
/// bytes.
const LONGEST_LINK: usize = 251;

/// The most entries of a directory that are read; a kubelet runs 110 pods by default.
const MOST_ENTRIES: usize = 8_192;

const PODS: &str = "var/log/pods";

const CONTAINERS: &str = "var/log/containers";

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodLog {
    pub pod: LoggedPod,
    /// Modification time of the directory: when its latest container began to log.
    pub changed: Utc,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct LoggedPod {
    pub namespace: String,
    pub name: String,
    /// Its UID, or the hash of a static pod's manifest, as in the pod's cgroups.
    pub uid: String,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ContainerLog {
    pub pod: LoggedPod,
    pub name: String,
    /// Its id, 64 hexadecimal digits; fewer or none where the names are so long that the kubelet cut it.
    pub id: String,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PodLogs {
    /// Pods, by namespace, name and UID; none where the directory cannot be read.
    pub pods: Option<Vec<PodLog>>,
    /// Containers, those that have ended among them, by id; none where the directory cannot be read.
    pub containers: Option<Vec<ContainerLog>>,
    /// What is missing because a directory cannot be read, and why it cannot be read.
    pub unread: Option<String>,
}

impl Host {
    pub fn pod_logs(&self) -> PodLogs {
        let pods = read_entries(&self.root, PODS);
        let containers = read_entries(&self.root, CONTAINERS);
        let unread = explain_unread(pods.as_ref().err(), containers.as_ref().err());
        let pods = pods.ok().map(|entries| {
            let mut pods: Vec<PodLog> = entries.filter_map(|entry| read_pod(&entry)).collect();
            pods.sort_by(|one, other| one.pod.cmp(&other.pod));
            pods
        });
        let containers = containers.ok().map(|entries| {
            let mut containers: Vec<ContainerLog> =
                entries.filter_map(|entry| read_container(&entry)).collect();
            containers.sort_by(|one, other| one.id.cmp(&other.id));
            containers
        });
        PodLogs { pods, containers, unread }
    }

    /// The modification times of the log directories, which change when a pod or container is added or removed.
    pub fn pod_logs_modified(&self) -> [Option<SystemTime>; 2] {
        [PODS, CONTAINERS].map(|directory| fs::metadata(self.root.join(directory)).ok()?.modified().ok())
    }
}

fn read_entries(root: &Path, directory: &str) -> io::Result<impl Iterator<Item = DirEntry> + use<>> {
    Ok(fs::read_dir(root.join(directory))?.take(MOST_ENTRIES).filter_map(Result::ok))
}

/// What is missing without the directories that failed with these errors, and what to do. The links of containers have
/// the UIDs of pods too.
fn explain_unread(pods: Option<&io::Error>, containers: Option<&io::Error>) -> Option<String> {
    let error = containers?;
    let (missing, directories) = match pods {
        Some(_) => ("no GPU process can be matched to its pod", "/var/log/pods and /var/log/containers"),
        None => (
            "only processes of pods with a single container can be matched to their pod",
            "/var/log/containers",
        ),
    };
    let reason = match error.kind() {
        ErrorKind::NotFound => {
            "not there; in a container mount the host's directory of that name, read-only".to_owned()
        }
        ErrorKind::PermissionDenied => "permission denied; run the agent as root".to_owned(),
        _ => error.to_string(),
    };
    Some(format!("{missing}, because {directories} cannot be read: {reason}"))
}

fn read_pod(entry: &DirEntry) -> Option<PodLog> {
    let name = entry.file_name();
    let metadata = entry.metadata().ok().filter(fs::Metadata::is_dir)?;
    let seconds = u64::try_from(metadata.mtime()).ok()?.checked_mul(1_000_000_000)?;
    let changed = Utc(seconds.checked_add(u64::try_from(metadata.mtime_nsec()).ok()?)?);
    Some(PodLog { pod: parse_pod(name.to_str()?)?, changed })
}

/// The name of the link has the id, its target the rest: `/var/log/pods/NAMESPACE_POD_UID/CONTAINER/RESTARTS.log`.
fn read_container(entry: &DirEntry) -> Option<ContainerLog> {
    let link = entry.file_name();
    let link = link.to_str()?.strip_suffix(".log")?;
    let target = fs::read_link(entry.path()).ok()?;
    let mut parts = target.to_str()?.rsplit('/').skip(1);
    let name = parts.next().filter(|name| is_label(name))?;
    let pod = parse_pod(parts.next()?)?;
    let names = format!("{}_{}_{name}-", pod.name, pod.namespace);
    let id = match link.strip_prefix(&*names) {
        Some(id) => id,
        None => names.starts_with(link).then_some("")?,
    };
    let is_cut = link.len() == LONGEST_LINK && id.len() < 64 && is_hexadecimal(id);
    (is_cut || is_container_id(id)).then(|| ContainerLog { pod, name: name.to_owned(), id: id.to_owned() })
}

fn parse_pod(directory: &str) -> Option<LoggedPod> {
    let mut parts = directory.split('_');
    let (namespace, name, uid) = (parts.next()?, parts.next()?, parts.next()?);
    let is_pod = parts.next().is_none() && is_label(namespace) && is_subdomain(name) && is_uid(uid);
    let owned = || LoggedPod { namespace: namespace.into(), name: name.into(), uid: uid.into() };
    is_pod.then(owned)
}

/// Whether a text can be the id of a container: 64 hexadecimal digits.
pub fn is_container_id(text: &str) -> bool {
    text.len() == 64 && is_hexadecimal(text)
}

fn is_hexadecimal(text: &str) -> bool {
    text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

/// Whether a text can be the name of a namespace or a container (RFC 1123 label).
pub fn is_label(text: &str) -> bool {
    text.len() <= 63 && is_subdomain(text) && !text.contains('.')
}

/// Whether a text can be the name of a pod (RFC 1123 subdomain).
pub fn is_subdomain(text: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    (1..=253).contains(&text.len())
        && text.split('.').all(|label| {
            label.bytes().all(|byte| is_plain(byte) || byte == b'-')
                && label.bytes().next().is_some_and(is_plain)
                && label.bytes().next_back().is_some_and(is_plain)
        })
}

/// Whether a text can be the UID of a pod, or the hash of a static one.
pub fn is_uid(text: &str) -> bool {
    let digits = text.bytes().filter(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f')).count();
    digits == 32 && (text.len() == 32 || (text.len() == 36 && text.split('-').count() == 5))
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]
mod tests {
    use std::os::unix::fs::symlink;

    use proptest::prelude::*;

    use super::*;

    const UID: &str = "3cae2e45-052c-4b11-80d3-4d7b2d2d3464";
    const ID: &str = "2b18000000000000000000000000000000000000000000000000000000000abc";

    fn pod(namespace: &str, name: &str, uid: &str) -> LoggedPod {
        LoggedPod { namespace: namespace.into(), name: name.into(), uid: uid.into() }
    }

    #[test]
    fn pods_and_containers_are_read_from_the_names_of_their_logs() {
        let root = tempfile::tempdir().unwrap();
        let logs = root.path().join("var/log");
        fs::create_dir_all(logs.join(format!("pods/ml_train-0_{UID}/main"))).unwrap();
        fs::create_dir_all(logs.join("containers")).unwrap();
        let link = logs.join(format!("containers/train-0_ml_main-{ID}.log"));
        symlink(format!("/var/log/pods/ml_train-0_{UID}/main/3.log"), link).unwrap();
        let read = Host::at(root.path()).pod_logs();
        let pods: Vec<_> = read.pods.unwrap().into_iter().map(|log| log.pod).collect();
        assert_eq!(pods, [pod("ml", "train-0", UID)]);
        let expected = ContainerLog { pod: pod("ml", "train-0", UID), name: "main".into(), id: ID.into() };
        assert_eq!(read.containers.unwrap(), [expected]);
    }

    #[test]
    fn of_a_link_that_the_kubelet_cut_the_rest_of_the_id_is_read() {
        let root = tempfile::tempdir().unwrap();
        let logs = root.path().join("var/log");
        fs::create_dir_all(logs.join("containers")).unwrap();
        let read_of = |pod: &str| {
            let link: String = format!("{pod}_ml_main-{ID}").chars().take(LONGEST_LINK).collect();
            let path = logs.join("containers").join(format!("{link}.log"));
            symlink(format!("/var/log/pods/ml_{pod}_{UID}/main/0.log"), &path).unwrap();
            let read = Host::at(root.path()).pod_logs().containers.unwrap();
            fs::remove_file(path).unwrap();
            read.into_iter().map(|log| (log.pod.name, log.id)).collect::<Vec<_>>()
        };
        // Names of 184 characters leave room for the whole id.
        for (length, digits) in [(178, 64), (179, 63), (200, 42), (241, 1), (242, 0), (246, 0), (250, 0)] {
            let pod = "p".repeat(length);
            assert_eq!(read_of(&pod), [(pod.clone(), ID[..digits].to_owned())], "{length}");
        }
    }

    #[test]
    fn without_the_directories_nothing_is_known_and_an_empty_one_has_no_pods() {
        let root = tempfile::tempdir().unwrap();
        let read = Host::at(root.path()).pod_logs();
        assert_eq!((read.pods, read.containers), (None, None));
        let unread = read.unread.unwrap();
        assert!(
            unread.starts_with("no GPU process can be matched to its pod") && unread.contains("mount"),
            "{unread}"
        );
        fs::create_dir_all(root.path().join("var/log/pods")).unwrap();
        let read = Host::at(root.path()).pod_logs();
        assert_eq!(read.pods, Some(Vec::new()));
        assert!(read.unread.unwrap().starts_with("only processes of pods with a single container"));
        assert_eq!(Host::at(root.path()).pod_logs_modified()[1], None);
        fs::write(root.path().join("var/log/containers"), "").unwrap();
        let unread = Host::at(root.path()).pod_logs().unread.unwrap();
        assert!(unread.contains("cannot be read: Not a directory"), "{unread}");
    }

    #[test]
    fn names_that_the_kubelet_would_not_have_made_are_skipped() {
        let root = tempfile::tempdir().unwrap();
        let logs = root.path().join("var/log");
        for name in [
            format!("ml_train_0_{UID}"),
            format!("ml_{UID}"),
            format!("_train-0_{UID}"),
            format!("ml_Train_{UID}"),
            format!("ml_a\nb_{UID}"),
            format!("ml_-a_{UID}"),
            format!("ml_a..b_{UID}"),
            "ml_train-0_../../etc".replace('/', "-"),
            format!("ml_train-0_{}", &UID[1..]),
        ] {
            fs::create_dir_all(logs.join("pods").join(name)).unwrap();
        }
        fs::write(logs.join(format!("pods/ml_file_{UID}")), "").unwrap();
        fs::create_dir_all(logs.join("containers")).unwrap();
        for (name, target) in [
            (format!("a_ml_main-{ID}.log"), "/etc/passwd".to_owned()),
            (format!("b_ml_main-{}.log", &ID[1..]), format!("/var/log/pods/ml_b_{UID}/main/0.log")),
            (format!("c_ml_main-{ID}"), format!("/var/log/pods/ml_c_{UID}/main/0.log")),
            (format!("d_ml_main-{ID}.log"), format!("/var/log/pods/ml_d_{UID}/ma in/0.log")),
        ] {
            symlink(target, logs.join("containers").join(name)).unwrap();
        }
        fs::write(logs.join(format!("containers/e_ml_main-{ID}.log")), "").unwrap();
        let none = PodLogs { pods: Some(vec![]), containers: Some(vec![]), unread: None };
        assert_eq!(Host::at(root.path()).pod_logs(), none);
    }

    #[test]
    fn a_directory_that_belongs_to_root_is_read_as_root() {
        let denied = io::Error::from(ErrorKind::PermissionDenied);
        let why = explain_unread(Some(&denied), Some(&denied)).unwrap();
        assert!(why.ends_with("cannot be read: permission denied; run the agent as root"), "{why}");
        assert_eq!(explain_unread(Some(&denied), None), None, "links of containers are enough");
    }

    proptest! {
        #[test]
        fn any_name_of_a_directory_is_read_without_a_panic(name in "([a-z0-9_.-]|\\PC){0,40}") {
            if let Some(pod) = parse_pod(&name) {
                prop_assert_eq!(format!("{}_{}_{}", pod.namespace, pod.name, pod.uid), name);
            }
        }
    }
}
