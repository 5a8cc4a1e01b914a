//! Opening, initialising and closing the driver library.

use std::ffi::OsStr;
use std::mem::ManuallyDrop;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use nvml_wrapper::Nvml;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper_sys::bindings::NvmlLib;
use thiserror::Error;

use super::recording::Recorder;

/// Where the library is looked for when no path is given: the loader's own search, by soname.
const SONAME: &str = "libnvidia-ml.so.1";

/// A static that only the simulated library exports.
const SIMULATED: &[u8] = b"gpumeter_simulated\0";

/// The driver library cannot be used.
#[derive(Debug, Error)]
pub enum OpenError {
    /// There is none.
    #[error(
        "driver library {path}: {reason}; is the NVIDIA driver installed? give its path with --nvml-library"
    )]
    Missing {
        /// What was looked for.
        path: PathBuf,
        /// The loader's words.
        reason: String,
    },
    /// The file is a library, but not this one.
    #[error(
        "driver library {path}: is no NVML: it has no nvmlInit_v2; give the path of libnvidia-ml.so.1 with --nvml-library"
    )]
    NotNvml {
        /// What was opened.
        path: PathBuf,
    },
    /// It is there and refuses.
    #[error("driver library {path}: nvmlInit: {reason}")]
    Refused {
        /// What was opened.
        path: PathBuf,
        /// The driver's words.
        reason: String,
    },
}

/// An initialised driver library, shared by the lanes; the last reference shuts it down.
pub struct Library {
    nvml: ManuallyDrop<Nvml>,
    simulated: bool,
    recorder: OnceLock<Arc<Recorder>>,
}

impl std::fmt::Debug for Library {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Library").field("simulated", &self.simulated).finish_non_exhaustive()
    }
}

impl Library {
    /// Opens and initialises the library at that path, or the one that the loader finds.
    pub fn open(path: Option<&Path>) -> Result<Arc<Self>, OpenError> {
        let name = path.map_or_else(|| OsStr::new(SONAME), Path::as_os_str);
        let nvml = Nvml::builder().lib_path(name).init().map_err(|error| refused(name, error))?;
        // SAFETY: the symbol is only looked up; its address is not read.
        let marker = unsafe { nvml.lib().__library.get::<*const u32>(SIMULATED) }.is_ok();
        Ok(Arc::new(Self { nvml: ManuallyDrop::new(nvml), simulated: marker, recorder: OnceLock::new() }))
    }

    /// Whether its numbers are made up.
    pub fn is_simulated(&self) -> bool {
        self.simulated
    }

    /// Takes down from now on what passes the doors of this library; the first to ask for it wins.
    pub fn record(&self, recorder: Arc<Recorder>) {
        // A second one would take down half of the answers.
        let _ = self.recorder.set(recorder);
    }

    /// Who takes down what passes, if anybody does.
    pub(super) fn recorder(&self) -> Option<&Recorder> {
        self.recorder.get().map(|recorder| &**recorder)
    }

    /// The raw function table.
    pub(super) fn table(&self) -> &NvmlLib {
        self.nvml.lib()
    }
}

impl Drop for Library {
    /// A lane that is stuck in the library holds a reference, so no shutdown waits for its call.
    fn drop(&mut self) {
        // Without the function the crate's own drop would panic: the library is forgotten.
        if self.table().nvmlShutdown.is_ok() {
            // SAFETY: dropped here alone, and not used after.
            unsafe { ManuallyDrop::drop(&mut self.nvml) };
        }
    }
}

fn refused(name: &OsStr, error: NvmlError) -> OpenError {
    let path = PathBuf::from(name);
    match error {
        NvmlError::LibloadingError(reason) => OpenError::Missing { path, reason: reason.to_string() },
        NvmlError::FailedToLoadSymbol(_) => OpenError::NotNvml { path },
        other => OpenError::Refused { path, reason: other.to_string() },
    }
}
