//! Compiles the eBPF programs of `bpf/` with clang.

use std::env;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

use libbpf_cargo::SkeletonBuilder;

const PROGRAMS: [&str; 8] = ["datapath", "sockets", "probes", "names", "leases", "greetings", "windows", "layout"];

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let source = Path::new(&env::var_os("CARGO_MANIFEST_DIR").ok_or("no CARGO_MANIFEST_DIR")?).join("../../bpf");
    let out = PathBuf::from(env::var_os("OUT_DIR").ok_or("no OUT_DIR")?);
    println!("cargo:rerun-if-changed={}", source.display());
    for program in PROGRAMS {
        SkeletonBuilder::new()
            .source(source.join(format!("{program}.bpf.c")))
            .obj(out.join(format!("{program}.bpf.o")))
            .clang_args(clang_args())
            .build()?;
    }
    Ok(())
}

/// Debian keeps `asm/types.h` in a directory of the host's architecture, which clang does not search for the bpf
/// target. It says the same for all processors that the programs may be loaded on.
fn clang_args() -> Vec<OsString> {
    let architecture = env::consts::ARCH;
    // -mcpu=v3 (Linux 5.12): 32-bit operations and atomics that return the value before.
    let mut arguments: Vec<OsString> = ["-O2", "-mcpu=v3", "-Wall", "-Wextra", "-Werror"].map(Into::into).into();
    arguments.push(format!("-I/usr/include/{architecture}-linux-gnu").into());
    arguments
}
