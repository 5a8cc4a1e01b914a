//! Configuration files that may change while the agent runs, and which changes apply without a restart.

use std::path::{Path, PathBuf};

use super::changes::{changed_keys, key_texts};
use super::key::ChangeEffect;
use super::problem::Problems;
use super::settings::{Config, TABLE};
use super::tree::{YamlNode, YamlValue};
use crate::runtime::file::FileState;

#[derive(Debug)]
pub struct ConfigFile {
    path: PathBuf,
    files: FileSet,
    /// Its configuration when the agent started.
    first: Config,
    /// Its keys when it was last read and valid.
    tree: YamlNode,
}

#[derive(Debug)]
pub struct ReloadedConfig {
    /// The new configuration, with the running values of keys that need a restart.
    pub config: Config,
    /// The keys that have changed since the file was last read.
    pub changes: Vec<String>,
    /// The keys that need a restart.
    pub waiting: Vec<&'static str>,
}

/// Files with their states when they were last read.
#[derive(Debug, Default)]
pub struct FileSet {
    paths: Vec<PathBuf>,
    read: Vec<Option<FileState>>,
    checked: Vec<Option<FileState>>,
}

impl FileSet {
    /// Adds files; call it before they are read.
    pub fn add(&mut self, paths: impl IntoIterator<Item = PathBuf>) {
        for path in paths {
            let state = FileState::of(&path);
            self.paths.push(path);
            self.read.push(state);
            self.checked.push(state);
        }
    }

    /// Whether one has changed since it was last read, valid or not, and none since the last check: a file that changes
    /// between checks may still be written.
    pub fn have_changed(&mut self) -> bool {
        let now = self.states();
        let is_stable = self.checked == now;
        self.checked.clone_from(&now);
        is_stable && now != self.read
    }

    fn states(&self) -> Vec<Option<FileState>> {
        self.paths.iter().map(|path| FileState::of(path)).collect()
    }

    pub fn is_empty(&self) -> bool {
        self.paths.is_empty()
    }

    /// Records their states; call it before they are read again.
    pub fn mark_read(&mut self) {
        self.read = self.states();
    }
}

impl ConfigFile {
    /// Reads the file for the first time.
    ///
    /// # Errors
    /// All problems of the file.
    pub fn open(path: &Path) -> Result<(Self, Config), Problems> {
        let mut files = FileSet::default();
        let (config, tree) = read(path, &mut files)?;
        Ok((Self { path: path.into(), files, first: config.clone(), tree }, config))
    }

    /// The file as the operator named it.
    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn has_changed(&mut self) -> bool {
        self.files.have_changed()
    }

    /// Whether it gives that key a value, be it the default.
    pub fn gives(&self, key: &str) -> bool {
        let texts = key_texts(&self.tree);
        // An entry of a list is named by its place.
        texts
            .keys()
            .any(|path| path.strip_prefix(key).is_some_and(|rest| rest.is_empty() || rest.starts_with('[')))
    }

    /// Whether it gives no key, and not even `{}`, which says that none is meant.
    pub fn is_blank(&self) -> bool {
        key_texts(&self.tree).is_empty() && self.tree.shape != YamlValue::Map(Vec::new())
    }

    /// Reads the file again. Keys that need a restart keep their running values; those that differ from the start are
    /// returned.
    ///
    /// # Errors
    /// All problems of the file; it had keys, and has none now, as after a write that a full disk cut off.
    pub fn read_again(&mut self, running: &Config) -> Result<ReloadedConfig, Problems> {
        self.files = FileSet::default();
        let (mut config, tree) = read(&self.path, &mut self.files)?;
        if key_texts(&tree).is_empty() && !key_texts(&self.tree).is_empty() {
            let text = "has no key with a value any more; put them back, or restart the agent to run on the defaults";
            return Err(Problems::one(&self.path.display().to_string(), None, text));
        }
        let changes = changed_keys(&self.tree, &tree);
        self.tree = tree;
        let mut waiting = Vec::new();
        for key in TABLE.keys {
            let ChangeEffect::Restart(keep) = key.change else { continue };
            // Compared with the first file and not with the running value, which the command line may have set.
            if keep(&mut config, &self.first) {
                waiting.push(key.path);
            }
            keep(&mut config, running);
        }
        Ok(ReloadedConfig { config, changes, waiting })
    }
}

/// Reads the file and the one that it names; each is added to `files` before it is read, so that a change in between is
/// found at the next check.
fn read(path: &Path, files: &mut FileSet) -> Result<(Config, YamlNode), Problems> {
    files.add([path.to_owned()]);
    let text = super::read_argument(path)?;
    let (mut config, tree) = super::parse(&text, &path.display().to_string())?;
    files.add(config.web.dcgm_counters.clone());
    config.read_dcgm_counters()?;
    config.read_node_labels()?;
    Ok((config, tree))
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_loses_all_its_keys_is_refused_and_one_that_never_had_any_is_not() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let path = file.path();
        let (mut source, config) = ConfigFile::open(path).unwrap();
        assert!(source.is_blank());
        assert!(source.read_again(&config).is_ok());
        std::fs::write(path, "{}").unwrap();
        assert!(!ConfigFile::open(path).unwrap().0.is_blank(), "it says so");
        std::fs::write(path, "limits: {processes: 1}").unwrap();
        let running = source.read_again(&config).unwrap().config;
        for emptied in ["", "# limits:\n", "limits:\n", "{}"] {
            std::fs::write(path, emptied).unwrap();
            let refused = source.read_again(&running).unwrap_err().to_string();
            assert!(
                refused.contains("has no key with a value any more; put them back, or restart"),
                "{refused}"
            );
        }
        std::fs::write(path, "limits: {processes: 2}").unwrap();
        assert_eq!(source.read_again(&running).unwrap().config.limits.processes, 2);
    }

    #[test]
    fn a_link_that_points_elsewhere_is_a_changed_file() {
        let directory = tempfile::tempdir().unwrap();
        let [one, two, link, new] = ["one", "two", "link", "new"].map(|name| directory.path().join(name));
        std::fs::write(&one, "limits: {processes: 1}").unwrap();
        std::fs::write(&two, "limits: {processes: 2}").unwrap();
        std::os::unix::fs::symlink(&one, &link).unwrap();
        let (mut source, config) = ConfigFile::open(&link).unwrap();
        assert!(!source.has_changed());
        std::os::unix::fs::symlink(&two, &new).unwrap();
        std::fs::rename(&new, &link).unwrap();
        assert!(!source.has_changed() && source.has_changed());
        let ReloadedConfig { config: changed, changes, waiting } = source.read_again(&config).unwrap();
        assert_eq!((changed.limits.processes, waiting), (2, vec![]));
        assert_eq!(changes, ["limits.processes"]);
        assert!(!source.has_changed());
        std::fs::remove_file(&two).unwrap();
        assert!(!source.has_changed() && source.has_changed());
        assert!(source.read_again(&changed).is_err());
        assert!(!source.has_changed(), "a missing file is reported once");
    }

    #[test]
    fn a_file_of_counters_is_watched_from_when_it_is_named_even_if_it_is_broken() {
        let directory = tempfile::tempdir().unwrap();
        let [path, counters] = ["config.yaml", "counters.csv"].map(|name| directory.path().join(name));
        std::fs::write(&path, "limits: {processes: 1}").unwrap();
        let (mut source, config) = ConfigFile::open(&path).unwrap();
        std::fs::write(&counters, "DCGM_FI_DEV_GPU_UTIL, gauge\n").unwrap();
        std::fs::write(&path, format!("web: {{dcgm_counters: {}}}", counters.display())).unwrap();
        assert!(!source.has_changed() && source.has_changed());
        assert!(source.read_again(&config).is_err());
        assert!(!source.has_changed());
        std::fs::write(&counters, "DCGM_FI_DEV_GPU_UTIL, gauge, GPU utilization (in %).\n").unwrap();
        assert!(!source.has_changed() && source.has_changed());
        let read = source.read_again(&config).unwrap();
        assert_eq!(read.config.dcgm_counters.len(), 1);
    }

    #[test]
    fn a_file_has_changed_once_two_checks_in_a_row_find_the_same_state() {
        use std::io::Write;

        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("c.yaml");
        std::fs::write(&path, "limits: {processes: 1}").unwrap();
        let (mut source, config) = ConfigFile::open(&path).unwrap();
        // Written piece by piece; the first piece alone would be a valid file without standing holdings.
        let mut file = std::fs::File::create(&path).unwrap();
        for piece in ["limits: {processes: 2}\n", "attribution:\n  standing:\n", "    - user: alice\n"] {
            file.write_all(piece.as_bytes()).unwrap();
            assert!(!source.has_changed(), "{piece}");
        }
        file.write_all(b"      gpu: 0\n").unwrap();
        assert!(!source.has_changed() && source.has_changed());
        let ReloadedConfig { config: changed, .. } = source.read_again(&config).unwrap();
        assert_eq!((changed.limits.processes, changed.attribution.standing.len()), (2, 1));
        assert!(!source.has_changed());
    }

    #[test]
    fn keys_that_need_a_restart_are_named_and_keep_their_values() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let path = file.path();
        std::fs::write(path, "web: {listen: \"127.0.0.1:1\"}").unwrap();
        let (mut source, mut running) = ConfigFile::open(path).unwrap();
        // As set by the command line.
        running.web.listen = vec!["127.0.0.1:2".parse().unwrap()];
        std::fs::write(path, "web: {listen: \"127.0.0.1:1\", created: true}").unwrap();
        let ReloadedConfig { config, waiting, .. } = source.read_again(&running).unwrap();
        assert_eq!(waiting, Vec::<&str>::new());
        assert_eq!((config.web.listen, config.web.created), (running.web.listen.clone(), true));
        std::fs::write(path, "ledger: {path: /elsewhere}\nweb: {listen: \"127.0.0.1:3\"}").unwrap();
        let ReloadedConfig { config, waiting, .. } = source.read_again(&running).unwrap();
        assert_eq!(waiting, ["ledger.path", "web.listen"]);
        assert_eq!((config.web.listen, config.ledger), (running.web.listen, running.ledger));
    }

    #[test]
    fn a_key_is_given_also_where_its_value_is_the_default() {
        let file = tempfile::NamedTempFile::new().unwrap();
        for (text, is_given) in [
            ("web: {listen: \"[::]:9855\"}\n", true),
            ("web: {listen: [\"[::]:9855\"]}\n", true),
            ("web: {open_probes: true}\n", false),
        ] {
            std::fs::write(file.path(), text).unwrap();
            assert_eq!(ConfigFile::open(file.path()).unwrap().0.gives("web.listen"), is_given, "{text}");
        }
    }
}
