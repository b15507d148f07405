//! `[gateway]`: hosts that this one speaks for.

use serde::Deserialize;
use whimbrel_protocol::{Prefix, Trust};

use crate::config::document::{ConfigError, Document};
use crate::config::value::list;

/// Each costs a rule of routing.
const MOST: usize = 64;

/// `[gateway]`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Gateway {
    /// Hosts that this one is the router of, and speaks for.
    #[serde(deserialize_with = "list")]
    pub behind: Vec<Prefix>,
    /// Whoever has a session may come through to them, whoever that is.
    pub anybody: bool,
}

impl Gateway {
    pub(crate) fn check(&self, trust: Trust, document: &Document<'_>) -> Result<(), ConfigError> {
        if self.behind.len() > MOST {
            return Err(document.wrong("gateway.behind", format!("`behind` must have at most {MOST} prefixes")));
        }
        if let Some(index) = self.behind.iter().position(|prefix| prefix.length == 0) {
            let sentence = "`behind` names everybody; it must name the hosts behind this one";
            return Err(document.wrong(&format!("gateway.behind.{index}"), sentence));
        }
        if document.has("gateway.behind") && !self.anybody && trust == Trust::Tofu {
            let sentence = "`behind` with trust = \"tofu\" lets anybody past this router's forwarding rules to these hosts: set trust to \"pinned\" or \"psk\", or `anybody = true` if that is meant";
            return Err(document.wrong("gateway.behind", sentence));
        }
        Ok(())
    }
}
