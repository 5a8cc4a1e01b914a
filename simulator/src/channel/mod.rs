//! The files through which tests and the demo control the library.
//!
//! In: `scenario`, `faults`, `state` (and `clock`, see the module of that name). Out: `truth`, `calls`,
//! `settled`, `kmsg`, device files, `error`.
//! They lie in the directory from which this library was loaded, so two copies are two nodes.

pub(crate) mod complaints;
pub(crate) mod delays;
pub(crate) mod devices;
pub(crate) mod faults;
pub(crate) mod hardware;
pub(crate) mod incidents;
pub(crate) mod kmsg;
pub(crate) mod layout;
pub(crate) mod pipes;
pub(crate) mod report;
pub(crate) mod scenario;
pub(crate) mod settled;
pub(crate) mod sharing;

use std::ffi::{CStr, CString, OsStr};
use std::fs;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use serde::Serialize;

/// Its address finds this library's file. An exported symbol could resolve to another copy of the library.
static ANCHOR: u8 = 1;

/// The directory of this library's file.
pub(crate) fn directory() -> Option<PathBuf> {
    file()?.parent().map(Path::to_path_buf)
}

/// Whether this library exports a function of that name; true if that cannot be found out.
pub(crate) fn exports(function: &str) -> bool {
    let path = file().and_then(|file| CString::new(file.into_os_string().into_vec()).ok());
    let (Some(path), Ok(function)) = (path, CString::new(function)) else { return true };
    // SAFETY: a NUL-terminated path; the library is there already, so none of its code runs.
    let library = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOLOAD | libc::RTLD_LAZY) };
    if library.is_null() {
        return true;
    }
    // SAFETY: a handle of the loader's and a NUL-terminated name; the symbol is only looked up.
    let found = unsafe { !libc::dlsym(library, function.as_ptr()).is_null() };
    // SAFETY: this function opened the handle; who loaded the library has another one.
    let _ = unsafe { libc::dlclose(library) };
    found
}

/// Replaces a file by rename, so that a reader never sees half of it. Best effort: errors are ignored.
fn replace_file(directory: &Path, name: &str, contents: &impl Serialize) {
    let Ok(text) = serde_json::to_string(contents) else { return };
    let temporary = directory.join(format!(".{name}.{}", std::process::id()));
    if fs::write(&temporary, text).is_ok() {
        let _ = fs::rename(&temporary, directory.join(name));
    }
}

fn file() -> Option<PathBuf> {
    let mut found = libc::Dl_info {
        dli_fname: std::ptr::null(),
        dli_fbase: std::ptr::null_mut(),
        dli_sname: std::ptr::null(),
        dli_saddr: std::ptr::null_mut(),
    };
    // SAFETY: any address may be asked about; `found` is valid for the call to fill.
    let answered = unsafe { libc::dladdr((&raw const ANCHOR).cast(), &raw mut found) };
    if answered == 0 || found.dli_fname.is_null() {
        return None;
    }
    // SAFETY: the loader's own NUL-terminated name, valid while the library is loaded.
    let name = unsafe { CStr::from_ptr(found.dli_fname) };
    std::path::absolute(Path::new(OsStr::from_bytes(name.to_bytes()))).ok()
}
