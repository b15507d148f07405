//! What `whimbrel doctor` finds; it needs no running daemon, so this never passes the socket.

use std::fmt;

use serde::{Deserialize, Serialize};

/// One thing that was looked at.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Finding {
    /// What it belongs to: `kernel`, `privileges`, `firewall`, `network`, `daemon`.
    pub area: String,
    /// What was looked at, e.g. `BTF`, `rp_filter on eth0`.
    pub check: String,
    /// How it is.
    pub verdict: Verdict,
    /// What was found.
    pub found: String,
    /// What does not work because of it; absent where all is well.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lost: Option<String>,
    /// How to mend it: a command where one exists.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mend: Option<String>,
}

impl Finding {
    /// What was found of one thing, with neither loss nor advice.
    pub fn new(area: &str, check: impl Into<String>, verdict: Verdict, found: impl Into<String>) -> Self {
        Self { area: area.into(), check: check.into(), verdict, found: found.into(), lost: None, mend: None }
    }

    /// What is as it should be.
    pub fn ok(area: &str, check: impl Into<String>, found: impl Into<String>) -> Self {
        Self::new(area, check, Verdict::Ok, found)
    }

    /// What costs something.
    pub fn warning(area: &str, check: impl Into<String>, found: impl Into<String>) -> Self {
        Self::new(area, check, Verdict::Warning, found)
    }

    /// What keeps Whimbrel from working.
    pub fn problem(area: &str, check: impl Into<String>, found: impl Into<String>) -> Self {
        Self::new(area, check, Verdict::Problem, found)
    }

    /// With what does not work because of it.
    #[must_use]
    pub fn lost(mut self, lost: impl Into<String>) -> Self {
        self.lost = Some(lost.into());
        self
    }

    /// With how to mend it.
    #[must_use]
    pub fn mend(mut self, mend: impl Into<String>) -> Self {
        self.mend = Some(mend.into());
        self
    }
}

/// How something is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// As it should be.
    Ok,
    /// Whimbrel works, with less.
    Warning,
    /// Whimbrel does not work.
    Problem,
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Ok => "ok",
            Self::Warning => "warning",
            Self::Problem => "problem",
        })
    }
}
