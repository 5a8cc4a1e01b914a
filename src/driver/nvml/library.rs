//! Opening, initialising and closing the driver library.

use std::io::ErrorKind;
use std::mem::ManuallyDrop;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use nvml_wrapper::Nvml;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper_sys::bindings::NvmlLib;
use rustix::process::geteuid;
use thiserror::Error;

use super::driver_api::CallSlot;
use super::driver_budget::NodeDemand;
use super::file_ownership::{self, OwnershipError};
use super::recording::Recorder;
use crate::model::CallInFlight;
use crate::runtime::clock::Clock;
use crate::runtime::file;

/// The loader is tried first, with `LD_LIBRARY_PATH` and its own cache.
const SONAME: &str = "libnvidia-ml.so.1";

/// Where installers put the library, in the order of trial. Containers without the runtime's hook have
/// `/usr/local/nvidia` (Google) or a mounted host, where the loader does not look.
const DIRECTORIES: &[&str] = &[
    MULTIARCH,
    "/usr/lib64",
    "/usr/lib",
    "/usr/local/nvidia/lib64",
    DRIVER_CONTAINER,
    "/run/nvidia/driver/usr/lib64",
    "/home/kubernetes/bin/nvidia/lib64",
    "/usr/lib/wsl/lib",
    "/run/opengl-driver/lib",
];

#[cfg(target_arch = "aarch64")]
const MULTIARCH: &str = "/usr/lib/aarch64-linux-gnu";
#[cfg(not(target_arch = "aarch64"))]
const MULTIARCH: &str = "/usr/lib/x86_64-linux-gnu";

#[cfg(target_arch = "aarch64")]
const DRIVER_CONTAINER: &str = "/run/nvidia/driver/usr/lib/aarch64-linux-gnu";
#[cfg(not(target_arch = "aarch64"))]
const DRIVER_CONTAINER: &str = "/run/nvidia/driver/usr/lib/x86_64-linux-gnu";

/// A symbol that only the simulated library exports.
const SIMULATED: &[u8] = b"gpumeter_simulated\0";

/// The driver library cannot be used.
#[derive(Debug, Error)]
pub enum OpenError {
    /// There is none at the given path.
    #[error(
        "driver library {path}: {reason}; is the NVIDIA driver installed? give its path with --nvml-library"
    )]
    Missing {
        path: PathBuf,
        /// The loader's message.
        reason: String,
    },
    /// There is none where installers put it.
    #[error(
        "no driver library: {tried}; is the NVIDIA driver installed? give the path of libnvidia-ml.so.1 with --nvml-library"
    )]
    Nowhere {
        /// Every place, with the loader's message if there is a file.
        tried: String,
    },
    #[error(
        "driver library {path}: not an NVML library: it has no nvmlInit_v2; give the path of libnvidia-ml.so.1 with --nvml-library"
    )]
    NotNvml { path: PathBuf },
    #[error(
        "driver library {path}: not loaded as root, because {at} {why}; give the library and the directories above it to root, writable by root alone, or give another path with --nvml-library"
    )]
    Untrusted {
        path: PathBuf,
        /// The file, link or directory that another user controls.
        at: PathBuf,
        /// Who owns it, or who can write it.
        why: String,
    },
    /// It exists, and the caller did not allow its initialisation.
    #[error("driver library {path}: not initialised")]
    NotAllowed { path: PathBuf },
    #[error("driver library {path}: nvmlInit: {reason}")]
    Refused { path: PathBuf, reason: String },
    #[error(
        "driver library {path}: nvmlInit: it is of another version than the kernel's driver; after an upgrade load the new module, or restart a container that still has the old library"
    )]
    Mismatch { path: PathBuf },
}

/// An initialised driver library, shared by the samplers; the last reference shuts it down.
pub struct Library {
    nvml: ManuallyDrop<Nvml>,
    path: PathBuf,
    simulated: bool,
    recorder: OnceLock<Arc<Recorder>>,
    driver_demand: Arc<NodeDemand>,
}

impl std::fmt::Debug for Library {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Library").field("simulated", &self.simulated).finish_non_exhaustive()
    }
}

impl Library {
    /// Opens and initialises the library at that path; without a path, the first that works of the loader's own
    /// and the installers' places.
    pub fn open(path: Option<&Path>) -> Result<Arc<Self>, OpenError> {
        Self::open_if(path, &mut |_| true)
    }

    /// Like [`open`](Self::open), and `slot` shows `nvmlInit_v2` while it lasts, since a faulty driver hangs its
    /// first caller and a dead mount hangs the loader. `may_init` is called before the initialisation with
    /// whether the library is simulated.
    pub fn open_seen(
        path: Option<&Path>,
        (slot, clock): (&CallSlot, &Clock),
        may_init: &mut dyn FnMut(bool) -> bool,
    ) -> Result<Arc<Self>, OpenError> {
        let init = CallInFlight { function: "nvmlInit_v2", since: clock.now().boottime };
        slot.during(init, || Self::open_if(path, may_init))
    }

    fn open_if(path: Option<&Path>, may_init: &mut dyn FnMut(bool) -> bool) -> Result<Arc<Self>, OpenError> {
        match path {
            Some(path) => Self::at(path, may_init),
            None => first(places(), |path| Self::at(path, may_init)),
        }
    }

    fn at(path: &Path, may_init: &mut dyn FnMut(bool) -> bool) -> Result<Arc<Self>, OpenError> {
        check_trust(path)?;
        check_kind(path)?;
        let simulated = is_simulated(path)?;
        if !may_init(simulated) {
            return Err(OpenError::NotAllowed { path: path.into() });
        }
        let nvml = Nvml::builder().lib_path(path.as_os_str()).init().map_err(|error| refused(path, error))?;
        Ok(Arc::new(Self {
            nvml: ManuallyDrop::new(nvml),
            path: path.into(),
            simulated,
            recorder: OnceLock::new(),
            driver_demand: Arc::default(),
        }))
    }

    /// The path by which it was opened; a bare name is one that the loader resolved.
    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn is_simulated(&self) -> bool {
        self.simulated
    }

    /// Records all calls of this library from now on; only the first recorder is used.
    pub fn record(&self, recorder: Arc<Recorder>) {
        // A second recorder would get half of the calls.
        let _ = self.recorder.set(recorder);
    }

    pub(super) fn recorder(&self) -> Option<&Recorder> {
        self.recorder.get().map(|recorder| &**recorder)
    }

    pub(super) fn driver_demand(&self) -> Arc<NodeDemand> {
        Arc::clone(&self.driver_demand)
    }

    pub(super) fn table(&self) -> &NvmlLib {
        self.nvml.lib()
    }
}

impl Drop for Library {
    /// A sampler that is stuck in the library holds a reference, so no shutdown waits for its call.
    fn drop(&mut self) {
        // Without the function the crate's own drop would panic, so the library is leaked.
        if self.table().nvmlShutdown.is_ok() {
            // SAFETY: dropped here alone, and not used after.
            unsafe { ManuallyDrop::drop(&mut self.nvml) };
        }
    }
}

/// Refuses to load as root what another user could replace. In a user namespace it only warns, since the host's
/// root may own the library under an unmapped user id.
fn check_trust(path: &Path) -> Result<(), OpenError> {
    const OWNERS: &[u32] = &[0];
    if !geteuid().is_root() {
        return Ok(());
    }
    let checked = match path.to_str().filter(|name| !name.contains('/')) {
        Some(name) => file_ownership::check_name(name, std::env::var_os("LD_LIBRARY_PATH"), OWNERS),
        None => file_ownership::check_path(path, OWNERS),
    };
    let path = PathBuf::from(path);
    match checked {
        Ok(()) => Ok(()),
        Err(OwnershipError::Unreadable(error)) => Err(OpenError::Missing { path, reason: error.to_string() }),
        Err(OwnershipError::Replaceable { at, why }) => {
            let error = OpenError::Untrusted { path, at, why };
            if file_ownership::is_hosts_root(std::fs::read_to_string("/proc/self/uid_map").ok().as_deref()) {
                return Err(error);
            }
            tracing::warn!(
                "{error}; loaded all the same, since user 0 of this namespace is not the host's root"
            );
            Ok(())
        }
    }
}

/// Refuses what the loader would wait for, such as a named pipe; it resolves a bare name itself.
fn check_kind(path: &Path) -> Result<(), OpenError> {
    match file::check(path) {
        Err(error) if error.kind() == ErrorKind::InvalidInput && path.parent() != Some(Path::new("")) => {
            Err(OpenError::Missing { path: path.into(), reason: error.to_string() })
        }
        _ => Ok(()),
    }
}

/// Whether the library is simulated; it is loaded, and none of its functions is called.
fn is_simulated(path: &Path) -> Result<bool, OpenError> {
    // SAFETY: loading runs the initialisers of the library that is to be used; its path was checked.
    let table = unsafe { NvmlLib::new(path) }.map_err(|error| refused(path, error.into()))?;
    // SAFETY: the symbol is only looked up; its address is not read.
    Ok(unsafe { table.__library.get::<*const u32>(SIMULATED) }.is_ok())
}

/// The loader's own place, then those of installers.
fn places() -> impl Iterator<Item = PathBuf> {
    let named = DIRECTORIES.iter().map(|directory| Path::new(directory).join(SONAME));
    std::iter::once(SONAME.into()).chain(named)
}

/// The first library that opens; else the error of one that exists; else every place that was tried.
fn first<T>(
    places: impl Iterator<Item = PathBuf>,
    mut open: impl FnMut(&Path) -> Result<T, OpenError>,
) -> Result<T, OpenError> {
    let mut tried = Vec::new();
    let mut there = None;
    for place in places {
        match open(&place) {
            Ok(library) => return Ok(library),
            Err(OpenError::Missing { path, reason }) => {
                let words = if path.exists() { format!(" ({reason})") } else { String::new() };
                tried.push(format!("{}{words}", path.display()));
            }
            Err(OpenError::NotNvml { path }) => {
                tried.push(format!("{} (not an NVML library)", path.display()))
            }
            Err(error) => there = there.or(Some(error)),
        }
    }
    Err(there.unwrap_or_else(|| OpenError::Nowhere { tried: format!("tried {}", tried.join(", ")) }))
}

fn refused(path: &Path, error: NvmlError) -> OpenError {
    let path = PathBuf::from(path);
    match error {
        NvmlError::LibloadingError(reason) => OpenError::Missing { path, reason: reason.to_string() },
        NvmlError::FailedToLoadSymbol(_) => OpenError::NotNvml { path },
        NvmlError::LibRmVersionMismatch => OpenError::Mismatch { path },
        other => OpenError::Refused { path, reason: other.to_string() },
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]
mod tests {
    use super::*;

    fn missing(path: &Path) -> Result<PathBuf, OpenError> {
        Err(OpenError::Missing { path: path.into(), reason: "no such file".into() })
    }

    #[test]
    fn the_loaders_own_comes_first_and_then_the_installers_places_in_order() {
        let mut tried = Vec::new();
        let taken = first(places(), |path| {
            tried.push(path.to_owned());
            if path.starts_with("/usr/lib/wsl") { Ok(path.to_owned()) } else { missing(path) }
        });
        assert_eq!(taken.unwrap(), Path::new("/usr/lib/wsl/lib/libnvidia-ml.so.1"));
        assert_eq!(tried[0], Path::new(SONAME));
        assert_eq!(tried.len(), 9, "{tried:?}");
    }

    #[test]
    fn an_error_says_every_place_that_was_tried() {
        let Err(error) = first(places(), missing) else { panic!("there is none") };
        let text = error.to_string();
        for directory in DIRECTORIES {
            assert!(text.contains(directory), "{directory} in {text}");
        }
        assert!(text.contains("--nvml-library"));
    }

    #[test]
    fn the_error_of_a_library_that_exists_outranks_missing_ones() {
        let Err(error) = first(places(), |path| {
            if path.starts_with("/usr/lib64") {
                return Err(OpenError::Refused { path: path.into(), reason: "not loaded".into() });
            }
            missing(path)
        }) else {
            panic!("there is none")
        };
        assert!(matches!(error, OpenError::Refused { path, .. } if path.starts_with("/usr/lib64")));
    }
}
