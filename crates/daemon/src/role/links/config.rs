//! `[links]`: how networks of this host that are silent are found.

use std::time::Duration;

use serde::Deserialize;
use toml::Value;
use whimbrel_protocol::{SilenceMode, SilenceThresholds};

use crate::config::document::{ConfigError, Document};
use crate::config::value::{Written, choose, limit, read};

/// In milliseconds.
const LONGEST: u32 = 60_000;

/// `[links]`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Links {
    /// When they are looked for.
    #[serde(deserialize_with = "read")]
    pub mode: SilenceMode,
    /// Milliseconds without a word until the peer is asked, in vigilant mode.
    #[serde(deserialize_with = "limit::<_, _, LONGEST>")]
    pub sh1: u32,
    /// Milliseconds of silence until the network is left.
    #[serde(deserialize_with = "limit::<_, _, LONGEST>")]
    pub sh2: u32,
}

impl Default for Links {
    fn default() -> Self {
        let SilenceThresholds { first, second } = SilenceThresholds::default();
        let ms = |threshold: Duration| u32::try_from(threshold.as_millis()).unwrap_or(LONGEST);
        Self { mode: SilenceMode::Idle, sh1: ms(first), sh2: ms(second) }
    }
}

impl Links {
    pub(crate) fn check(&self, document: &Document<'_>) -> Result<(), ConfigError> {
        let Self { sh1, sh2, .. } = self;
        if sh2 <= sh1 {
            let key = if document.has("links.sh2") { "links.sh2" } else { "links.sh1" };
            let why = "a network is left after more than the silence after which it is asked";
            let sentence = format!("`sh2`, which is {sh2}, must be above `sh1`, which is {sh1}: {why}");
            return Err(document.wrong(key, sentence));
        }
        Ok(())
    }

    /// As the node is told it.
    pub(crate) fn of_node(&self) -> whimbrel_protocol::Links {
        let [first, second] = [self.sh1, self.sh2].map(|ms| Duration::from_millis(ms.into()));
        whimbrel_protocol::Links { mode: self.mode, thresholds: SilenceThresholds { first, second } }
    }
}

impl Written for SilenceMode {
    fn read(value: &Value) -> Result<Self, String> {
        choose(value, &[("off", Self::Off), ("idle", Self::Idle), ("vigilant", Self::Vigilant)])
    }
}
