//! NetworkManager: what its devices are about to do, whether there is anything beyond them, and whether that costs.

use std::collections::BTreeMap;

use zbus::OwnedObjectPath;

use super::{Connectivity, LinkReport, MOST, Query, Service, changed, paths, property};
use crate::BusError;
use crate::message::{Body, Properties, Signal};

const MANAGER: &str = "org.freedesktop.NetworkManager";
const AT: &str = "/org/freedesktop/NetworkManager";
const DEVICE: &str = "org.freedesktop.NetworkManager.Device";

/// `NM_DEVICE_STATE_DEACTIVATING`, and `_FAILED` after it.
const DEACTIVATING: u32 = 110;
const FAILED: u32 = 120;
/// `NM_CONNECTIVITY_*`.
const PORTAL: u32 = 2;
const LIMITED: u32 = 3;
const FULL: u32 = 4;
/// `NM_METERED_YES`, and `_GUESS_YES`.
const METERED: [u32; 2] = [1, 3];

/// Its devices, by their paths.
#[derive(Debug, Default)]
pub(crate) struct NetworkManager {
    devices: BTreeMap<String, Device>,
}

#[derive(Debug, Default)]
struct Device {
    interface: String,
    /// That which has the addresses, where it is another one.
    ip_interface: String,
    state: u32,
    connectivity: [u32; 2],
    metered: u32,
}

impl Device {
    fn take(&mut self, properties: &Properties) {
        let set = |into: &mut u32, name: &str| {
            if let Some(value) = property(properties, name) {
                *into = value;
            }
        };
        set(&mut self.state, "State");
        set(&mut self.connectivity[0], "Ip4Connectivity");
        set(&mut self.connectivity[1], "Ip6Connectivity");
        set(&mut self.metered, "Metered");
        for (into, name) in [(&mut self.interface, "Interface"), (&mut self.ip_interface, "IpInterface")] {
            if let Some(value) = property(properties, name) {
                *into = value;
            }
        }
    }

    fn report(&self) -> LinkReport {
        let is = |state: u32| self.connectivity.contains(&state);
        // One family that leads everywhere is enough, and what is not tried or has no route says nothing.
        let connectivity = match () {
            () if is(FULL) => Connectivity::Usual,
            () if is(PORTAL) => Connectivity::Portal,
            () if is(LIMITED) => Connectivity::Limited,
            () => Connectivity::Usual,
        };
        LinkReport {
            leaving: matches!(self.state, DEACTIVATING | FAILED),
            connectivity,
            metered: METERED.contains(&self.metered),
            ..LinkReport::default()
        }
    }
}

impl Service for NetworkManager {
    fn bus_name(&self) -> &'static str {
        MANAGER
    }

    fn name(&self) -> &'static str {
        "NetworkManager"
    }

    fn rules(&self) -> &'static [&'static str] {
        &[
            "interface='org.freedesktop.DBus.Properties',member='PropertiesChanged',\
             arg0='org.freedesktop.NetworkManager.Device'",
            "interface='org.freedesktop.NetworkManager.Device',member='StateChanged'",
            "interface='org.freedesktop.NetworkManager',member='DeviceAdded'",
            "interface='org.freedesktop.NetworkManager',member='DeviceRemoved'",
        ]
    }

    fn begin(&mut self) -> Vec<Query> {
        self.devices.clear();
        vec![Query::new(AT, MANAGER, "GetDevices")]
    }

    fn on_signal(&mut self, signal: &Signal, body: &Body) -> Result<Vec<Query>, BusError> {
        match (signal.interface.as_str(), signal.member.as_str()) {
            (MANAGER, "DeviceAdded") => {
                let path = body.read::<OwnedObjectPath>()?.to_string();
                return Ok(vec![Query::all(path, DEVICE)]);
            }
            (MANAGER, "DeviceRemoved") => {
                self.devices.remove(body.read::<OwnedObjectPath>()?.as_str());
            }
            (DEVICE, "StateChanged") => {
                let (state, _, _) = body.read::<(u32, u32, u32)>()?;
                if let Some(device) = self.devices.get_mut(&signal.path) {
                    device.state = state;
                }
            }
            _ => {
                if let Some((values, _)) = changed(signal, body, DEVICE)?
                    && let Some(device) = self.devices.get_mut(&signal.path)
                {
                    device.take(&values);
                }
            }
        }
        Ok(Vec::new())
    }

    fn on_answer(&mut self, query: &Query, body: &Body) -> Result<Vec<Query>, BusError> {
        if query.member == "GetDevices" {
            let found = paths::<Vec<OwnedObjectPath>>(body)?;
            return Ok(found.into_iter().map(|path| Query::all(path, DEVICE)).collect());
        }
        let values = body.read::<Properties>()?;
        if self.devices.len() < MOST || self.devices.contains_key(&query.path) {
            self.devices.entry(query.path.clone()).or_default().take(&values);
        }
        Ok(Vec::new())
    }

    fn on_refusal(&mut self, query: &Query) {
        self.devices.remove(&query.path);
    }

    fn reports(&self) -> Vec<(String, LinkReport)> {
        let devices = self.devices.values();
        let named = devices.flat_map(|device| {
            let other = Some(&device.ip_interface).filter(|name| **name != device.interface);
            [Some(&device.interface), other].into_iter().flatten().map(|name| (name.clone(), device.report()))
        });
        named.filter(|(name, _)| !name.is_empty()).collect()
    }
}

#[cfg(test)]
mod tests {
    use zbus::OwnedVariant;

    use super::*;
    use crate::message::told::body;

    fn device(service: &mut NetworkManager, path: &str, values: &[(&str, u32)]) {
        let mut properties: Properties =
            values.iter().map(|(name, value)| ((*name).to_owned(), OwnedVariant::from(*value))).collect();
        let name = zbus::Variant::from("wlan0").try_into_owned().unwrap();
        properties.insert("Interface".into(), name);
        service.on_answer(&Query::all(path, DEVICE), &body(&properties)).unwrap();
    }

    #[test]
    fn devices_say_what_they_are_about_to_do() {
        let mut service = NetworkManager::default();
        let listed = body(&vec![zbus::ObjectPath::try_from("/d/1").unwrap()]);
        let asked = service.on_answer(&service.begin_query(), &listed).unwrap();
        assert_eq!(asked, [Query::all("/d/1", DEVICE)]);
        device(&mut service, "/d/1", &[("State", 100), ("Ip4Connectivity", PORTAL), ("Metered", 3)]);
        let said = |service: &NetworkManager| service.reports()[0].1;
        let here = said(&service);
        assert!(!here.leaving && here.metered && here.connectivity == Connectivity::Portal, "{here:?}");
        device(&mut service, "/d/1", &[("Ip6Connectivity", FULL), ("Metered", 4)]);
        assert_eq!(said(&service), LinkReport::default(), "the other family leads everywhere");
        let signal = Signal { path: "/d/1".into(), interface: DEVICE.into(), member: "StateChanged".into() };
        service.on_signal(&signal, &body(&(DEACTIVATING, 100u32, 0u32))).unwrap();
        assert!(said(&service).leaving);
        assert!(service.on_signal(&signal, &body(&"nonsense")).is_err());
        service.on_refusal(&Query::all("/d/1", DEVICE));
        assert!(service.reports().is_empty());
    }

    impl NetworkManager {
        fn begin_query(&self) -> Query {
            Self::default().begin().remove(0)
        }
    }
}
