//! Builds the simulated driver library with a nested cargo call, so that `gpumeter demo` can carry it.
//!
//! A file found beside the executable or `include_bytes!` of `deps/` breaks under `cargo install` or
//! `--target`; an artifact in OUT_DIR works everywhere.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

fn main() {
    for path in [
        "build.rs",
        "simulator/Cargo.toml",
        "simulator/build.rs",
        "simulator/src",
        "Cargo.toml",
        "Cargo.lock",
    ] {
        println!("cargo::rerun-if-changed={path}");
    }
    let out = PathBuf::from(variable("OUT_DIR"));
    let carried = out.join("libnvidia-ml.so.1");
    // Clippy, whose OUT_DIR is its own, runs nothing: the library may be empty.
    let done = match env::var_os("CLIPPY_ARGS") {
        Some(_) => fs::write(&carried, ""),
        None => fs::copy(build(&out.join("simulator")), &carried).map(drop),
    };
    if let Err(error) = done {
        fail(&format!("{}: {error}", carried.display()));
    }
}

/// Builds the library, optimised as this package is, and returns its file.
fn build(directory: &Path) -> PathBuf {
    let target = variable("TARGET");
    // `debug` or `release`; profiles of other names inherit one of them.
    let (profile, folder) = match &*variable("PROFILE") {
        "release" => ("release", "release"),
        _ => ("dev", "debug"),
    };
    let status = Command::new(variable("CARGO"))
        .args(["build", "--profile", profile, "--locked", "--package", "gpumeter-simulator"])
        .args(["--target", &target, "--target-dir"])
        .arg(directory)
        // Built once and carried in the binary: neither debug information nor a later, faster build is of use.
        .env("CARGO_PROFILE_DEV_DEBUG", "0")
        // Tests make millions of calls.
        .env("CARGO_PROFILE_DEV_OPT_LEVEL", "1")
        .env("CARGO_PROFILE_RELEASE_STRIP", "symbols")
        .env("CARGO_INCREMENTAL", "0")
        // Sharing the outer build directory would wait for its lock for ever.
        .env("CARGO_BUILD_BUILD_DIR", directory)
        .status();
    match status {
        Ok(status) if status.success() => directory.join(target).join(folder).join("libnvidia_ml.so"),
        Ok(status) => fail(&format!("building the simulated driver library ended with {status}")),
        Err(error) => fail(&format!("cargo could not be started: {error}")),
    }
}

fn variable(name: &str) -> String {
    env::var(name).unwrap_or_else(|_| fail(&format!("{name} is not set; cargo sets it for build scripts")))
}

fn fail(message: &str) -> ! {
    println!("cargo::error={message}");
    std::process::exit(1)
}
