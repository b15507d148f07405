//! systemd-networkd: which of its links have what they need to be online.

use std::collections::BTreeMap;

use zbus::OwnedObjectPath;

use super::{LinkReport, MOST, Query, Service, changed, property};
use crate::BusError;
use crate::message::{Body, Properties, Signal};

const MANAGER: &str = "org.freedesktop.network1.Manager";
const AT: &str = "/org/freedesktop/network1";
const LINK: &str = "org.freedesktop.network1.Link";

/// Its links, by their paths.
#[derive(Debug, Default)]
pub(crate) struct Networkd {
    links: BTreeMap<String, Link>,
}

#[derive(Debug, Default)]
struct Link {
    name: String,
    /// Nothing where it is not asked to be online.
    online: Option<String>,
    operational: Option<String>,
    /// It has been online.
    was_online: bool,
}

impl Link {
    fn take(&mut self, properties: &Properties) {
        let text = |name: &str| property::<String>(properties, name);
        self.online = text("OnlineState").or(self.online.take());
        self.operational = text("OperationalState").or(self.operational.take());
        self.was_online |= self.is_online();
    }

    fn is_online(&self) -> bool {
        self.online.as_deref() == Some("online")
    }

    /// A link that was online and lacks something now is to be asked at once; what never was is as it is meant to be.
    fn is_doubtful(&self) -> bool {
        let says = |state: &Option<String>, words: &[&str]| state.as_deref().is_some_and(|word| words.contains(&word));
        self.was_online && (says(&self.online, &["partial", "offline"]) || says(&self.operational, &["dormant"]))
    }
}

impl Service for Networkd {
    fn bus_name(&self) -> &'static str {
        "org.freedesktop.network1"
    }

    fn name(&self) -> &'static str {
        "systemd-networkd"
    }

    fn rules(&self) -> &'static [&'static str] {
        &["interface='org.freedesktop.DBus.Properties',member='PropertiesChanged',arg0='org.freedesktop.network1.Link'"]
    }

    fn begin(&mut self) -> Vec<Query> {
        self.links.clear();
        vec![Query::new(AT, MANAGER, "ListLinks")]
    }

    fn on_signal(&mut self, signal: &Signal, body: &Body) -> Result<Vec<Query>, BusError> {
        let Some((values, _)) = changed(signal, body, LINK)? else { return Ok(Vec::new()) };
        match self.links.get_mut(&signal.path) {
            Some(link) => {
                link.take(&values);
                Ok(Vec::new())
            }
            // It tells of new links by nothing else.
            None => Ok(vec![Query::new(AT, MANAGER, "ListLinks")]),
        }
    }

    fn on_answer(&mut self, query: &Query, body: &Body) -> Result<Vec<Query>, BusError> {
        if query.member == "ListLinks" {
            let found: Vec<(i32, String, OwnedObjectPath)> = body.read()?;
            let mut known = std::mem::take(&mut self.links);
            let mut new = Vec::new();
            for (_, name, path) in found.into_iter().take(MOST) {
                let link = known.remove(path.as_str()).filter(|link| link.name == name).unwrap_or_else(|| {
                    new.push(Query::all(path.as_str(), LINK));
                    Link { name, ..Link::default() }
                });
                self.links.insert(path.to_string(), link);
            }
            return Ok(new);
        }
        let values = body.read::<Properties>()?;
        if let Some(link) = self.links.get_mut(&query.path) {
            link.take(&values);
        }
        Ok(Vec::new())
    }

    fn on_refusal(&mut self, query: &Query) {
        self.links.remove(&query.path);
    }

    fn reports(&self) -> Vec<(String, LinkReport)> {
        let report =
            |link: &Link| (link.name.clone(), LinkReport { doubtful: link.is_doubtful(), ..LinkReport::default() });
        self.links.values().map(report).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::told::body;

    #[test]
    fn a_link_that_lost_something_is_doubtful() {
        let mut service = Networkd::default();
        let list = service.begin().remove(0);
        let path = zbus::ObjectPath::try_from("/org/freedesktop/network1/link/_32").unwrap();
        let asked = service.on_answer(&list, &body(&vec![(2, "eth0", path.clone())])).unwrap();
        assert_eq!(asked, [Query::all(path.as_str(), LINK)]);
        let mut say = |online: &str| {
            let state = zbus::Variant::from(online.to_owned()).try_into_owned().unwrap();
            let properties = Properties::from([("OnlineState".to_owned(), state)]);
            service.on_answer(&asked[0], &body(&properties)).unwrap();
            service.reports()[0].1.doubtful
        };
        assert!(!say("offline"), "it never was");
        assert!(!say("online"));
        assert!(say("partial") && say("offline") && !say(""));
    }

    #[test]
    fn only_new_links_are_asked_for() {
        let mut service = Networkd::default();
        let list = service.begin().remove(0);
        let path = |path: &str| zbus::ObjectPath::try_from(path.to_owned()).unwrap();
        let [first, second] = [path("/org/freedesktop/network1/link/_32"), path("/org/freedesktop/network1/link/_33")];
        let answer = body(&vec![(2, "eth0", first.clone())]);
        assert_eq!(service.on_answer(&list, &answer).unwrap().len(), 1);
        let answer = body(&vec![(2, "eth0", first), (3, "eth1", second.clone())]);
        assert_eq!(service.on_answer(&list, &answer).unwrap(), [Query::all(second.as_str(), LINK)]);
    }
}
