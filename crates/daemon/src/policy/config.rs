//! `[[policy]]` sections.

use serde::de::{Deserializer, Error};
use toml::Value;
use whimbrel_protocol::View;

use crate::config::conditions::section_of_connections;
use crate::config::document::{ConfigError, Document};
use crate::config::value::{Written, choose};
use crate::policy::{Policy, Treatment};

section_of_connections! {
    /// A section as it is written.
    struct Section {
        protect: Option<bool>,
        #[serde(deserialize_with = "crate::config::value::read")]
        view: Option<View>,
        #[serde(deserialize_with = "gives_way")]
        conflict: Option<bool>,
    }
}

impl Section {
    /// What it says. `at`: which part of the file it is.
    pub(crate) fn policy(mut self, document: &Document<'_>, at: &str) -> Result<Policy, ConfigError> {
        let wrong = |key: &str, sentence| Err(document.wrong(&format!("{at}.{key}"), sentence));
        let mut treatment = Treatment::default();
        treatment.protect = self.protect.unwrap_or(treatment.protect);
        treatment.manner.view = self.view.unwrap_or(treatment.manner.view);
        treatment.manner.gives_way = self.conflict.unwrap_or(treatment.manner.gives_way);
        if treatment.manner.view == View::Lasting && self.program.is_none() {
            let sentence = "`view` = \"lasting\" needs `program`, whose later connections it is about";
            return wrong("view", sentence.to_owned());
        }
        if self.protect.is_none() && self.view.is_none() && self.conflict.is_none() {
            let sentence = "this policy says nothing; it must have `protect`, `view` or `conflict`";
            return Err(document.wrong(at, sentence));
        }
        let given = [("view", self.view.is_some()), ("conflict", self.conflict.is_some())];
        if let Some((key, _)) = given.iter().find(|(_, given)| *given && !treatment.protect) {
            let why = "means nothing where `protect` is false: such connections are never moved";
            return wrong(key, format!("`{key}` {why}"));
        }
        Ok(Policy { line: document.line(at), matcher: self.matcher(), treatment })
    }
}

impl Written for View {
    fn read(value: &Value) -> Result<Self, String> {
        choose(value, &[("virtual", Self::Virtual), ("real", Self::Real), ("lasting", Self::Lasting)])
    }
}

fn gives_way<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<bool>, D::Error> {
    choose(&crate::config::value::value(deserializer), &[("pre-empt", false), ("abort", true)])
        .map(Some)
        .map_err(D::Error::custom)
}
