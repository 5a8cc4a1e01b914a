//! Checks that only root could have placed or replaced a library file.
//!
//! It checks every directory and symbolic link on the way, so that both the path as given and the resolved one
//! are covered, and returns the first that another user owns or can write.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::fs::{self, Metadata};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path, PathBuf};

/// The dynamic loader's cache, written by root.
const LOADER_CACHE: &str = "/etc/ld.so.cache";

/// As many symbolic links as the kernel follows in one path.
const MOST_LINKS: u32 = 40;

/// Write permission of the group and of others.
const WRITABLE_BY_GROUP: u32 = 0o020;
const WRITABLE_BY_OTHERS: u32 = 0o002;
const STICKY: u32 = 0o1000;

#[derive(Debug)]
pub(super) enum OwnershipError {
    /// Another user can replace the library here.
    Replaceable {
        /// The file, link or directory.
        at: PathBuf,
        /// Who owns it, or who can write it.
        why: String,
    },
    /// The path does not exist, or cannot be read.
    Unreadable(io::Error),
}

/// Checks a library path; files of `owners` are trusted.
pub(super) fn check_path(path: &Path, owners: &[u32]) -> Result<(), OwnershipError> {
    let mut rest = components(&std::path::absolute(path).map_err(OwnershipError::Unreadable)?);
    let mut current = PathBuf::from("/");
    let mut links = 0;
    check_entry(&current, owners)?;
    while let Some(name) = rest.pop_front() {
        if name == ".." {
            // Links are resolved already, so the kernel takes the same parent.
            current.pop();
            continue;
        }
        let next = current.join(name);
        if check_entry(&next, owners)?.is_symlink() {
            links += 1;
            if links > MOST_LINKS {
                return Err(OwnershipError::Unreadable(io::ErrorKind::InvalidInput.into()));
            }
            let target = fs::read_link(&next).map_err(OwnershipError::Unreadable)?;
            if target.is_absolute() {
                current = PathBuf::from("/");
            }
            for name in components(&target).into_iter().rev() {
                rest.push_front(name);
            }
        } else {
            current = next;
        }
    }
    Ok(())
}

/// Checks every place where the loader looks for that name before its default directories, which are root's: the
/// directories of `LD_LIBRARY_PATH` and its cache.
pub(super) fn check_name(name: &str, search: Option<OsString>, owners: &[u32]) -> Result<(), OwnershipError> {
    let search = search.unwrap_or_default();
    let directories =
        search.as_bytes().split(|byte| matches!(byte, b':' | b';')).filter(|_| !search.is_empty());
    let searched = directories.map(|directory| match directory {
        // The loader reads an empty entry as the current directory.
        b"" => PathBuf::from("."),
        directory => path(directory),
    });
    let searched = searched.map(|directory| directory.join(name));
    // A system without the cache has no cached libraries.
    let cache = fs::read(LOADER_CACHE).unwrap_or_default();
    for place in searched.chain(cached(&cache, name)) {
        match check_path(&place, owners) {
            Ok(()) => {}
            // A missing file is not loaded, unless another user can add it before the loader looks.
            Err(OwnershipError::Unreadable(_)) => check_closed(&place)?,
            replaceable => return replaceable,
        }
    }
    Ok(())
}

/// Checks that other users cannot add a missing file; a sticky directory does not prevent that.
fn check_closed(missing: &Path) -> Result<(), OwnershipError> {
    let nearest = missing.ancestors().skip(1).find_map(|path| Some((path, fs::metadata(path).ok()?)));
    match nearest {
        Some((path, metadata)) if metadata.mode() & WRITABLE_BY_OTHERS != 0 => {
            let why = "every user can add a file in it".into();
            Err(OwnershipError::Replaceable { at: path.into(), why })
        }
        _ => Ok(()),
    }
}

/// Whether user 0 is the host's, by the text of `/proc/self/uid_map`. In a user namespace, files of the host's
/// root may belong to an unmapped user. Without the file the kernel has no user namespaces.
pub(super) fn is_hosts_root(uid_map: Option<&str>) -> bool {
    uid_map.is_none_or(|map| map.lines().any(|line| line.split_ascii_whitespace().take(2).eq(["0", "0"])))
}

/// Checks one file, link or directory; in a sticky directory other users can replace only their own files.
fn check_entry(path: &Path, owners: &[u32]) -> Result<Metadata, OwnershipError> {
    let metadata = fs::symlink_metadata(path).map_err(OwnershipError::Unreadable)?;
    let replaceable = |why: String| OwnershipError::Replaceable { at: path.into(), why };
    if !owners.contains(&metadata.uid()) {
        return Err(replaceable(format!("belongs to user {}", metadata.uid())));
    }
    let mode = metadata.mode();
    // The mode of a link has no effect.
    if metadata.is_symlink() || (metadata.is_dir() && mode & STICKY != 0) {
        return Ok(metadata);
    }
    if mode & WRITABLE_BY_OTHERS != 0 {
        return Err(replaceable("can be written by every user".into()));
    }
    if mode & WRITABLE_BY_GROUP != 0 {
        return Err(replaceable(format!("can be written by group {}", metadata.gid())));
    }
    Ok(metadata)
}

/// The components of a path, without the root.
fn components(path: &Path) -> VecDeque<OsString> {
    let named = |component: &Component<'_>| matches!(component, Component::Normal(_) | Component::ParentDir);
    path.components().filter(named).map(|component| component.as_os_str().to_owned()).collect()
}

/// The paths of that name in the loader's cache, whose strings end in NUL.
fn cached<'a>(cache: &'a [u8], name: &'a str) -> impl Iterator<Item = PathBuf> + 'a {
    let of_name =
        move |text: &&[u8]| Path::new(std::ffi::OsStr::from_bytes(text)).file_name() == Some(name.as_ref());
    cache.split(|byte| *byte == 0).filter(|text| text.starts_with(b"/")).filter(of_name).map(path)
}

fn path(bytes: &[u8]) -> PathBuf {
    std::ffi::OsStr::from_bytes(bytes).into()
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test that cannot set up its files may panic")]
mod tests {
    use std::os::unix::fs::{PermissionsExt, chown, symlink};

    use rustix::process::geteuid;

    use super::*;

    /// Root and the user of the test, since only root can make files of root.
    fn owners() -> [u32; 2] {
        [0, geteuid().as_raw()]
    }

    /// A directory that nobody else can write, with a library in `lib`.
    fn node() -> (tempfile::TempDir, PathBuf) {
        let directory = tempfile::tempdir().unwrap();
        let library = directory.path().join("lib/libnvidia-ml.so.1");
        fs::create_dir(directory.path().join("lib")).unwrap();
        fs::write(&library, "").unwrap();
        set_mode(library.parent().unwrap(), 0o755);
        set_mode(&library, 0o644);
        (directory, library)
    }

    fn set_mode(path: &Path, mode: u32) {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    }

    fn replaceable(path: &Path) -> Option<PathBuf> {
        match check_path(path, &owners()) {
            Err(OwnershipError::Replaceable { at, .. }) => Some(at),
            Err(OwnershipError::Unreadable(error)) => panic!("{}: {error}", path.display()),
            Ok(()) => None,
        }
    }

    #[test]
    fn a_library_is_trusted_below_a_sticky_directory_and_not_below_one_that_others_can_write() {
        let (directory, library) = node();
        assert_eq!(replaceable(&library), None);
        for (path, mode, trusted) in [
            (library.parent().unwrap(), 0o777, false),
            (library.parent().unwrap(), 0o775, false),
            (directory.path(), 0o777, false),
            (directory.path(), 0o1777, true),
            (&*library, 0o646, false),
            (&*library, 0o664, false),
        ] {
            let before = fs::metadata(path).unwrap().mode();
            set_mode(path, mode);
            assert_eq!(replaceable(&library), (!trusted).then(|| path.to_owned()), "{mode:o}");
            set_mode(path, before);
        }
    }

    #[test]
    fn what_belongs_to_another_user_is_replaceable_even_behind_links() {
        // Only root can give a file away.
        if !geteuid().is_root() {
            return;
        }
        let (directory, library) = node();
        let [home, link, first] = ["home", "home/link", "first"].map(|name| directory.path().join(name));
        fs::create_dir(&home).unwrap();
        chown(&home, Some(12_345), None).unwrap();
        // The given path and the resolved one are root's, but a directory between them is not.
        symlink(library.parent().unwrap(), &link).unwrap();
        symlink("home/link", &first).unwrap();
        assert_eq!(replaceable(&first.join("libnvidia-ml.so.1")), Some(home));
        chown(&library, Some(12_345), None).unwrap();
        assert_eq!(replaceable(&library), Some(library));
    }

    #[test]
    fn a_link_is_followed_as_the_kernel_does() {
        let (directory, library) = node();
        let link = directory.path().join("lib/link");
        symlink("../lib/./libnvidia-ml.so.1", &link).unwrap();
        assert_eq!(replaceable(&link), None);
        symlink("loop", directory.path().join("loop")).unwrap();
        let end = check_path(&directory.path().join("loop"), &owners());
        assert!(matches!(end, Err(OwnershipError::Unreadable(_))), "{end:?}");
        set_mode(library.parent().unwrap(), 0o777);
        assert_eq!(replaceable(&link).as_deref(), library.parent());
    }

    #[test]
    fn a_bare_name_is_checked_where_the_loader_is_told_to_look() {
        let (directory, library) = node();
        let name = "libnvidia-ml.so.1";
        let search = |path: &Path| Some(format!("/nowhere:{}", path.display()).into());
        assert!(check_name(name, search(library.parent().unwrap()), &owners()).is_ok());
        // The result is the same whether the directory has such a library or not.
        for path in [library.parent().unwrap(), directory.path()] {
            set_mode(path, 0o777);
            let checked = check_name(name, search(path), &owners());
            assert!(matches!(checked, Err(OwnershipError::Replaceable { .. })), "{}", path.display());
            set_mode(path, 0o755);
        }
        // In a sticky directory, or in one that could be made in it, any user can add a library.
        set_mode(directory.path(), 0o1777);
        for path in [directory.path(), &directory.path().join("missing")] {
            let checked = check_name(name, search(path), &owners());
            assert!(matches!(checked, Err(OwnershipError::Replaceable { .. })), "{}", path.display());
        }
        let cache =
            b"glibc-ld.so.cache1.1\0\x07\0libc.so.6\0/lib/libc.so.6\0/opt/a/libnvidia-ml.so.1\0libx.so";
        assert_eq!(cached(cache, name).collect::<Vec<_>>(), [Path::new("/opt/a/libnvidia-ml.so.1")]);
    }

    #[test]
    fn root_of_a_user_namespace_is_not_the_hosts() {
        assert!(is_hosts_root(Some("         0          0 4294967295\n")));
        assert!(!is_hosts_root(Some("         0       1000          1\n         1     100000      65536\n")));
        assert!(is_hosts_root(None));
    }
}
