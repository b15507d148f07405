//! Reading the configuration again.

use crate::clock;
use crate::config::{self, Config};
use crate::events::{Report, told};
use crate::role::links::wishes::conditions;

use super::EventLoop;

impl EventLoop {
    /// Reads the configuration again, and asks again who was silent: something may have been mended. What the node was
    /// told once stays until the next start.
    pub(super) fn reload(&mut self) {
        self.desk.node.ask_again(clock::now());
        let config = match config::read(self.settings.config_path.as_deref()) {
            Ok(config) => config,
            Err(error) => {
                self.desk.tell(told!(ReloadFailed {}, "the configuration is kept as it was: {error}"));
                return;
            }
        };
        (self.settings.set_log_level)(config.log);
        warn_of(&config);
        self.desk.host.senders.set_kick(config.kick);
        self.desk.host.senders.set_windows(config.windows);
        crate::grant(&self.desk.server, config.control_mode);
        self.desk.host.set_policies(&config.policies);
        let differing = self.settings.config.differences(&config);
        (self.settings.config.log, self.settings.config.kick, self.settings.config.control_mode) =
            (config.log, config.kick, config.control_mode);
        self.settings.config.windows = config.windows;
        self.settings.config.policies = config.policies;
        self.settings.config.preferences = config.preferences;
        let network = self.desk.host.network.clone();
        self.wish_for_links(&network);
        let (policies, conditions) =
            (self.settings.config.policies.clone(), conditions(&self.settings.config.preferences));
        self.judge.replace(policies, conditions, &mut self.desk.node, clock::now());
        self.desk.tell(reloaded(&differing));
    }
}

/// What a reload has taken in, and what has to wait for a start.
fn reloaded(differing: &[&'static str]) -> Report {
    let (taken, waiting): (Vec<&str>, Vec<&str>) = differing.iter().partition(|key| config::RELOADED.contains(key));
    let list = |keys: &[&str]| keys.iter().map(|key| format!("`{key}`")).collect::<Vec<_>>().join(", ");
    let mut sentence = "the configuration was read again, and silent hosts are asked again".to_owned();
    match (taken.as_slice(), waiting.as_slice()) {
        ([], []) => sentence.push_str("; nothing in it has changed"),
        ([], waiting) => sentence.push_str(&format!("; changed, but only from the next start on: {}", list(waiting))),
        (taken, []) => sentence.push_str(&format!("; changed now: {}", list(taken))),
        (taken, waiting) => sentence.push_str(&format!(
            "; changed now: {}; only from the next start on: {}",
            list(taken),
            list(waiting)
        )),
    }
    told!(Reloaded { changed: taken, restart: waiting }, "{sentence}")
}

/// Warns where others than root can read the pre-shared key, and of what can hardly be meant or does not work now.
pub(crate) fn warn_of(config: &Config) {
    for doubt in &config.doubts {
        tracing::warn!("{doubt}");
    }
    if let Some(path) = &config.psk_open {
        tracing::warn!("others can read {}: `chmod 600 {}`", path.display(), path.display());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reload_says_what_it_has_changed() {
        let said = |keys: &[&'static str]| reloaded(keys).sentence;
        assert!(said(&[]).ends_with("nothing in it has changed"));
        assert!(said(&["log"]).ends_with("; changed now: `log`"));
        assert!(said(&["trust", "port"]).ends_with("; changed, but only from the next start on: `trust`, `port`"));
        assert!(said(&["log", "port"]).ends_with("; changed now: `log`; only from the next start on: `port`"));
    }
}
