//! What this build puts into guests, built for their processor.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use serde_json::Value;

use crate::failure::Failure;
use crate::process::{self, End};
use crate::workspace::{cargo, target};

use super::Part;
use super::package::Apt;
use super::system::{Flavour, Processor};

/// Crates whose tests (those in `tests/`) run in the guest: they load every program and try the system calls.
const TESTED_CRATES: &[&str] = &["whimbrel-datapath", "whimbrel-kernel"];

/// A build that takes longer is stuck.
const BUILD_LIMIT: Duration = Duration::from_secs(20 * 60);

/// What the guests of one processor run.
#[derive(Debug)]
pub(super) struct Programs {
    /// `whimbrel`, `whimbrel-lab`, and the library beside them.
    pub(super) commands: Vec<PathBuf>,
    /// Test programs with their crates.
    pub(super) tests: Vec<(String, PathBuf)>,
    /// Where Debian's packages are unpacked.
    pub(super) userland: PathBuf,
}

impl Programs {
    pub(super) fn build(
        root: &Path,
        apt: &Apt,
        (processor, flavour): (Processor, Flavour),
        part: &Part,
    ) -> Result<Self, Failure> {
        processor.ready()?;
        let mut commands = Vec::new();
        let mut tests = Vec::new();
        let cargo = |arguments: &[&str]| -> Result<Command, Failure> {
            let mut build = Command::new(cargo());
            build.args(arguments).args(["--release", "--locked"]).current_dir(root);
            if let Some(triple) = processor.rust() {
                cross(&mut build, processor, triple, &apt.libraries()?);
            }
            Ok(build)
        };
        if !part.scenarios.is_empty() || !part.commands.is_empty() {
            let packages = ["whimbrel-cli", "whimbrel-capi", "whimbrel-lab"];
            expect_success(cargo(&["build"])?.args(packages.iter().flat_map(|name| ["-p", *name])), |_| {})?;
            let release = target(root).join(processor.rust().unwrap_or_default()).join("release");
            commands.extend(["whimbrel", "whimbrel-lab", "libwhimbrel.so"].map(|name| release.join(name)));
        }
        let names = part.needed_tests();
        if !names.is_empty() {
            let mut build = cargo(&["test", "--no-run", "--message-format=json-render-diagnostics"])?;
            build.args(TESTED_CRATES.iter().flat_map(|name| ["-p", *name]));
            build.args(names.iter().flat_map(|name| ["--test", *name]));
            expect_success(&mut build, |line| tests.extend(test_program(line)))?;
        }
        Ok(Self { commands, tests, userland: apt.userland(flavour)? })
    }
}

/// Has cargo build for another processor, with GNU's compiler for it and these libraries.
fn cross(build: &mut Command, processor: Processor, triple: &str, libraries: &Path) {
    let (compiler, variable) = (format!("{}-gcc", processor.gnu()), triple.replace('-', "_"));
    build
        .args(["--target", triple])
        .env(format!("CARGO_TARGET_{}_LINKER", variable.to_uppercase()), &compiler)
        .env(format!("CC_{variable}"), &compiler)
        .env(format!("CFLAGS_{variable}"), format!("-I{}", libraries.join("usr/include").display()))
        // The links to shared libraries there lead nowhere, so the linker takes the static ones beside them.
        .env(format!("LIBBPF_SYS_LIBRARY_PATH_{variable}"), libraries.join("usr/lib").join(processor.gnu()));
}

fn expect_success(command: &mut Command, look: impl FnMut(&str)) -> Result<(), Failure> {
    match process::run(command, BUILD_LIMIT, look)? {
        End::Success => Ok(()),
        _ => Err(Failure::new("this did not build, so there is nothing to test")),
    }
}

/// The test program that one of cargo's messages tells of, named after its crate and file.
fn test_program(message: &str) -> Option<(String, PathBuf)> {
    let message: Value = serde_json::from_str(message).ok()?;
    if message["reason"] != "compiler-artifact" || message["profile"]["test"] != true {
        return None;
    }
    let executable = PathBuf::from(message["executable"].as_str()?);
    let package = Path::new(message["manifest_path"].as_str()?).parent()?.file_name()?.to_str()?;
    let target = message["target"]["name"].as_str()?;
    Some((format!("{package}/{target}"), executable))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_programs_are_found_in_cargos_messages() {
        let message = |target: &str, test: bool| {
            format!(
                r#"{{"reason":"compiler-artifact","manifest_path":"/w/crates/kernel/Cargo.toml","target":{{"name":"{target}"}},
                "profile":{{"test":{test}}},"executable":"/w/target/debug/deps/x-1"}}"#
            )
        };
        let program = PathBuf::from("/w/target/debug/deps/x-1");
        assert_eq!(test_program(&message("tun", true)), Some(("kernel/tun".into(), program)));
        assert_eq!(test_program(&message("tun", false)), None);
        assert_eq!(test_program("warning: something"), None);
    }
}
