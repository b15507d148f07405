//! What can be booted: a series of Debian's kernels on a processor.

use std::env;
use std::fmt;
use std::path::Path;
use std::process::Command;
use std::str::FromStr;

use crate::failure::{Failure, OnObject};

/// The kernels of a processor that are booted if only the processor is named.
const USUAL_SERIES: &str = "6.12";

/// A series of kernels (`6.1`) on a processor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct System {
    pub(crate) series: String,
    pub(crate) processor: Processor,
    pub(crate) flavour: Flavour,
}

/// Which of a series' kernels is booted, and with what.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Flavour {
    /// Debian's for machines in clouds, the smallest.
    Cloud,
    /// Debian's for all machines, which knows Wi-Fi, with simulated radios and what drives them.
    Wifi,
}

/// What a guest with radios is called after.
const WIFI: &str = "wifi";

/// Whose programs a guest runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Processor {
    /// That of this machine.
    X86,
    /// For which everything is cross-built.
    Arm,
}

impl FromStr for System {
    type Err = String;

    /// `6.1`, `6.1-arm64`, `arm64` or `6.1-wifi`.
    fn from_str(text: &str) -> Result<Self, String> {
        let (series, processor, flavour) = match text.split_once('-') {
            _ if text == Processor::Arm.debian() => (USUAL_SERIES, Processor::Arm, Flavour::Cloud),
            None => (text, Processor::X86, Flavour::Cloud),
            Some((series, WIFI)) => (series, Processor::X86, Flavour::Wifi),
            Some((series, name)) if name == Processor::Arm.debian() => (series, Processor::Arm, Flavour::Cloud),
            Some((series, name)) if name == Processor::X86.debian() => (series, Processor::X86, Flavour::Cloud),
            Some((_, other)) => return Err(format!("no guest is made for {other}; there are amd64, arm64 and {WIFI}")),
        };
        let numbers = series.split('.').all(|part| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit()));
        if !numbers || !series.contains('.') {
            return Err(format!("{series} is no series of kernels; one is 6.1, 6.12, 6.1-arm64, 6.1-wifi, or arm64"));
        }
        Ok(Self { series: series.to_owned(), processor, flavour })
    }
}

impl fmt::Display for System {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.processor, self.flavour) {
            (Processor::X86, Flavour::Cloud) => f.write_str(&self.series),
            (_, Flavour::Wifi) => write!(f, "{}-{WIFI}", self.series),
            (Processor::Arm, Flavour::Cloud) => write!(f, "{}-{}", self.series, self.processor.debian()),
        }
    }
}

impl Processor {
    /// What Debian calls it.
    pub(crate) fn debian(self) -> &'static str {
        match self {
            Self::X86 => "amd64",
            Self::Arm => "arm64",
        }
    }

    /// What GNU's tools and Debian's directories of libraries are called after.
    pub(crate) fn gnu(self) -> &'static str {
        match self {
            Self::X86 => "x86_64-linux-gnu",
            Self::Arm => "aarch64-linux-gnu",
        }
    }

    /// What programs are built for with `--target`, if that has to be said.
    pub(crate) fn rust(self) -> Option<&'static str> {
        match self {
            Self::X86 => None,
            Self::Arm => Some("aarch64-unknown-linux-gnu"),
        }
    }

    /// The emulator and its machine.
    pub(crate) fn qemu(self) -> (&'static str, &'static [&'static str]) {
        match self {
            // Software emulation everywhere: it boots in 4 s, and a KVM that is there need not work (nested ones abort
            // QEMU). Without cmpxchg16b, after which QEMU 7.2 now and then returns to a 6.12 kernel with flags that it
            // never had.
            Self::X86 => ("qemu-system-x86_64", &["-machine", "pc,accel=tcg", "-cpu", "max,cx16=off"]),
            Self::Arm => ("qemu-system-aarch64", &["-machine", "virt,accel=tcg", "-cpu", "neoverse-n1"]),
        }
    }

    /// The kernel's name of the serial port that QEMU's machine has.
    pub(crate) fn console(self) -> &'static str {
        match self {
            Self::X86 => "ttyS0",
            Self::Arm => "ttyAMA0",
        }
    }

    /// Removes what is only for debuggers from programs.
    pub(crate) fn strip(self) -> &'static str {
        match self {
            Self::X86 => "strip",
            Self::Arm => "aarch64-linux-gnu-strip",
        }
    }

    /// Whether this machine has what makes and runs such a guest; if not, what it lacks and what to do.
    pub(crate) fn ready(self) -> Result<(), Failure> {
        let (qemu, _) = self.qemu();
        let mut tools = vec![qemu];
        let Some(target) = self.rust() else { return there(&tools) };
        tools.extend(["aarch64-linux-gnu-gcc", self.strip()]);
        there(&tools)?;
        let mut ask = Command::new(env::var_os("RUSTC").unwrap_or_else(|| "rustc".into()));
        let output = ask.args(["--print", "target-libdir", "--target", target]).output().failed("run", "rustc")?;
        let library = String::from_utf8_lossy(&output.stdout).trim().to_owned();
        if !output.status.success() || !Path::new(&library).is_dir() {
            return Err(Failure::new(format!(
                "Rust's library for {target} is not installed. `rustup target add {target}` installs it, and so does \
                 ./setup test-kernels where Rust came with rustup."
            )));
        }
        Ok(())
    }
}

fn there(tools: &[&str]) -> Result<(), Failure> {
    match tools.iter().find(|tool| super::guest::find(tool).is_none()) {
        Some(tool) => Err(Failure::new(format!("there is no {tool}; run ./setup test-kernels"))),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn systems_have_names() {
        let system = |text: &str| text.parse::<System>();
        let of = |series: &str, processor, flavour| Ok(System { series: series.to_owned(), processor, flavour });
        let made = |series: &str, processor| of(series, processor, Flavour::Cloud);
        assert_eq!(system("6.1"), made("6.1", Processor::X86));
        assert_eq!(system("6.1-amd64"), made("6.1", Processor::X86));
        assert_eq!(system("6.1-arm64"), made("6.1", Processor::Arm));
        assert_eq!(system("arm64"), made(USUAL_SERIES, Processor::Arm));
        assert_eq!(system("6.1-wifi"), of("6.1", Processor::X86, Flavour::Wifi));
        for text in ["6.1", "6.12-arm64", "6.1-wifi"] {
            assert_eq!(system(text).unwrap().to_string(), text);
        }
        for wrong in ["", "6", "6.1-riscv64", "-arm64", "6..1", "amd64", "x.y", "6.1-", "wifi"] {
            assert!(system(wrong).is_err(), "{wrong}");
        }
    }
}
