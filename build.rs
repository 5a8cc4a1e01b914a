//! Builds the simulated driver library with a nested cargo call, so that `gpumeter demo` can carry it.
//!
//! A file found beside the executable or `include_bytes!` of `deps/` breaks under `cargo install` or
//! `--target`; an artifact in OUT_DIR works everywhere.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

fn main() {
    for path in ["build.rs", "simulator", "Cargo.lock"] {
        println!("cargo::rerun-if-changed={path}");
    }
    let out = PathBuf::from(variable("OUT_DIR"));
    let directory = out.join("simulator");
    let target = variable("TARGET");
    build(&directory, &target);
    let built = directory.join(&target).join("release/libnvidia_ml.so");
    if let Err(error) = fs::copy(&built, out.join("libnvidia-ml.so.1")) {
        fail(&format!("{}: {error}", built.display()));
    }
}

fn build(directory: &Path, target: &str) {
    let status = Command::new(variable("CARGO"))
        .args(["build", "--release", "--locked", "--package", "gpumeter-simulator"])
        .args(["--target", target, "--target-dir"])
        .arg(directory)
        // Under clippy these would lint the nested build and fail it.
        .env_remove("RUSTC_WORKSPACE_WRAPPER")
        .env_remove("CLIPPY_ARGS")
        // The same driver in every profile, or the budgets of instructions would depend on the profile.
        .env("CARGO_PROFILE_RELEASE_LTO", "thin")
        .env("CARGO_PROFILE_RELEASE_CODEGEN_UNITS", "1")
        // Sharing the outer build directory would wait for its lock for ever.
        .env("CARGO_BUILD_BUILD_DIR", directory)
        .status();
    match status {
        Ok(status) if status.success() => {}
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
