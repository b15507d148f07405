//! ModemManager: whether modems have a network, by which technology, and how well they hear it.

use std::collections::{BTreeMap, HashMap};

use zbus::{OwnedObjectPath, OwnedVariant};

use super::{LinkReport, MOST, Query, Service, changed, property};
use crate::BusError;
use crate::message::{Body, Properties, Signal};

const AT: &str = "/org/freedesktop/ModemManager1";
const OBJECTS: &str = "org.freedesktop.DBus.ObjectManager";
const MODEM: &str = "org.freedesktop.ModemManager1.Modem";
const NETWORK: &str = "org.freedesktop.ModemManager1.Modem.Modem3gpp";
const SIGNAL: &str = "org.freedesktop.ModemManager1.Modem.Signal";
const BEARER: &str = "org.freedesktop.ModemManager1.Bearer";
const INTERFACES: [&str; 3] = [MODEM, NETWORK, SIGNAL];

/// `MM_MODEM_PORT_TYPE_NET`.
const NET: u32 = 2;
/// `MM_MODEM_STATE_*`.
const FAILED: i32 = -1;
const DISABLING: i32 = 4;
const DISCONNECTING: i32 = 9;
/// `MM_MODEM_3GPP_REGISTRATION_STATE_*` without a network: idle, searching, denied. What is not known says nothing.
const UNREGISTERED: [u32; 3] = [0, 2, 3];

/// What technologies give at the most as networks usually have them, in Mbit/s; `MM_MODEM_ACCESS_TECHNOLOGY_*`, the
/// best first.
const RATES: [(u32, u32); 12] = [
    (1 << 15, 1000), // 5G NR
    (1 << 14, 150),  // LTE
    (1 << 9, 42),    // HSPA+
    (1 << 8, 14),    // HSPA
    (1 << 7, 5),     // HSUPA
    (1 << 6, 14),    // HSDPA
    (1 << 12, 3),    // EV-DO A
    (1 << 11, 2),    // EV-DO 0
    (1 << 5, 1),     // UMTS
    (1 << 4, 1),     // EDGE
    (1 << 3, 1),     // GPRS
    (1 << 1, 1),     // GSM
];

/// Of what a modem measures by technology: what comes nearest to the strength that Wi-Fi names too.
const MEASURED: [(&str, [&str; 2]); 6] = [
    ("Lte", ["rssi", "rsrp"]),
    ("Umts", ["rssi", "rscp"]),
    ("Gsm", ["rssi", "rssi"]),
    ("Evdo", ["rssi", "rssi"]),
    ("Cdma", ["rssi", "rssi"]),
    ("Nr5g", ["rsrp", "rsrp"]),
];

type Objects = HashMap<OwnedObjectPath, HashMap<String, Properties>>;

/// Its modems, by their paths.
#[derive(Debug, Default)]
pub(crate) struct ModemManager {
    modems: BTreeMap<String, Modem>,
}

#[derive(Debug, Default)]
struct Modem {
    state: i32,
    registration: Option<u32>,
    technologies: u32,
    percent: Option<u32>,
    measured: BTreeMap<&'static str, i16>,
    /// Interfaces that are its ports.
    ports: Vec<String>,
    /// And those of its connections, which may be others, by their paths.
    bearers: BTreeMap<String, String>,
}

impl Modem {
    fn take(&mut self, interface: &str, properties: &Properties) {
        match interface {
            MODEM => {
                self.state = property(properties, "State").unwrap_or(self.state);
                self.technologies = property(properties, "AccessTechnologies").unwrap_or(self.technologies);
                self.percent = as_pair(properties, "SignalQuality").map(|(percent, _)| percent).or(self.percent);
                if let Some(ports) = as_ports(properties) {
                    self.ports = ports.into_iter().filter(|(_, kind)| *kind == NET).map(|(name, _)| name).collect();
                }
                if let Some(paths) = as_paths(properties) {
                    self.bearers.retain(|path, _| paths.contains(path));
                    for path in paths.into_iter().take(MOST) {
                        self.bearers.entry(path).or_default();
                    }
                }
            }
            NETWORK => self.registration = property(properties, "RegistrationState").or(self.registration),
            SIGNAL => {
                for (technology, names) in MEASURED {
                    if let Some(values) = as_values(properties, technology) {
                        match names.iter().find_map(|name| dbm(&values, name)) {
                            Some(measured) => self.measured.insert(technology, measured),
                            None => self.measured.remove(technology),
                        };
                    }
                }
            }
            _ => {}
        }
    }

    fn report(&self) -> LinkReport {
        let unregistered = self.registration.is_some_and(|state| UNREGISTERED.contains(&state));
        let leaves = matches!(self.state, FAILED | DISABLING | DISCONNECTING);
        let measured = MEASURED.iter().find_map(|(technology, _)| self.measured.get(technology).copied());
        LinkReport {
            leaving: leaves || unregistered,
            signal: measured.or(self.percent.and_then(estimated)),
            rate: RATES.iter().find(|(technology, _)| self.technologies & technology != 0).map(|(_, rate)| *rate),
            ..LinkReport::default()
        }
    }

    /// What is not known of its connections yet.
    fn unknown(&self) -> Vec<Query> {
        let unnamed = self.bearers.iter().filter(|(_, name)| name.is_empty());
        unnamed.map(|(path, _)| Query::all(path, BEARER)).collect()
    }
}

/// The strength that ModemManager has made this percentage of: from -113 to -51 dBm.
fn estimated(percent: u32) -> Option<i16> {
    // It says 0 where it does not know.
    (1..=100).contains(&percent).then(|| i16::try_from(percent * 62 / 100).unwrap_or(0) - 113)
}

/// A strength that can be one.
fn dbm(values: &HashMap<String, OwnedVariant>, name: &str) -> Option<i16> {
    let value = f64::try_from(values.get(name)?.try_clone().ok()?).ok()?;
    // What is not known is a number far below.
    #[expect(clippy::cast_possible_truncation, reason = "it is within what fits")]
    (-200.0..0.0).contains(&value).then(|| value.round() as i16)
}

fn structured<T>(properties: &Properties, name: &str) -> Option<T>
where
    T: TryFrom<OwnedVariant>,
{
    property(properties, name)
}

fn as_pair(properties: &Properties, name: &str) -> Option<(u32, bool)> {
    let pair: zbus::Structure<'static> = structured(properties, name)?;
    <(u32, bool)>::try_from(pair).ok()
}

fn as_ports(properties: &Properties) -> Option<Vec<(String, u32)>> {
    let ports: zbus::Array<'static> = structured(properties, "Ports")?;
    let port = |port: &zbus::Variant<'_>| match port {
        zbus::Variant::Structure(port) => match port.fields() {
            [zbus::Variant::Str(name), zbus::Variant::U32(kind)] => Some((name.to_string(), *kind)),
            _ => None,
        },
        _ => None,
    };
    Some(ports.iter().take(MOST).filter_map(port).collect())
}

fn as_paths(properties: &Properties) -> Option<Vec<String>> {
    let paths: zbus::Array<'static> = structured(properties, "Bearers")?;
    let path = |path: &zbus::Variant<'_>| match path {
        zbus::Variant::ObjectPath(path) => Some(path.to_string()),
        _ => None,
    };
    Some(paths.iter().take(MOST).filter_map(path).collect())
}

fn as_values(properties: &Properties, name: &str) -> Option<HashMap<String, OwnedVariant>> {
    let values: zbus::Dict<'static, 'static> = structured(properties, name)?;
    HashMap::try_from(values).ok()
}

impl Service for ModemManager {
    fn bus_name(&self) -> &'static str {
        "org.freedesktop.ModemManager1"
    }

    fn name(&self) -> &'static str {
        "ModemManager"
    }

    fn rules(&self) -> &'static [&'static str] {
        &[
            "interface='org.freedesktop.DBus.Properties',member='PropertiesChanged',\
             path_namespace='/org/freedesktop/ModemManager1/Modem'",
            "interface='org.freedesktop.DBus.Properties',member='PropertiesChanged',\
             path_namespace='/org/freedesktop/ModemManager1/Bearer'",
            "interface='org.freedesktop.ModemManager1.Modem',member='StateChanged'",
            "interface='org.freedesktop.DBus.ObjectManager'",
        ]
    }

    fn begin(&mut self) -> Vec<Query> {
        self.modems.clear();
        vec![Query::new(AT, OBJECTS, "GetManagedObjects")]
    }

    fn on_signal(&mut self, signal: &Signal, body: &Body) -> Result<Vec<Query>, BusError> {
        match (signal.interface.as_str(), signal.member.as_str()) {
            (OBJECTS, "InterfacesAdded") => {
                let (path, interfaces): (OwnedObjectPath, HashMap<String, Properties>) = body.read()?;
                return Ok(self.found(path.as_str(), &interfaces));
            }
            (OBJECTS, "InterfacesRemoved") => {
                let (path, interfaces): (OwnedObjectPath, Vec<String>) = body.read()?;
                if interfaces.iter().any(|interface| interface == MODEM) {
                    self.modems.remove(path.as_str());
                }
                return Ok(Vec::new());
            }
            (MODEM, "StateChanged") => {
                let (_, state, _) = body.read::<(i32, i32, u32)>()?;
                if let Some(modem) = self.modems.get_mut(&signal.path) {
                    modem.state = state;
                }
                return Ok(Vec::new());
            }
            _ => {}
        }
        if let Some((values, _)) = changed(signal, body, BEARER)? {
            self.name_bearer(&signal.path, &values);
        }
        let Some(modem) = self.modems.get_mut(&signal.path) else { return Ok(Vec::new()) };
        for interface in INTERFACES {
            if let Some((values, _)) = changed(signal, body, interface)? {
                modem.take(interface, &values);
            }
        }
        Ok(modem.unknown())
    }

    fn on_answer(&mut self, query: &Query, body: &Body) -> Result<Vec<Query>, BusError> {
        if query.about == Some(BEARER) {
            self.name_bearer(&query.path, &body.read()?);
            return Ok(Vec::new());
        }
        let objects: Objects = body.read()?;
        let found = objects.iter().take(MOST);
        Ok(found.flat_map(|(path, interfaces)| self.found(path.as_str(), interfaces)).collect())
    }

    fn on_refusal(&mut self, _: &Query) {}

    fn reports(&self) -> Vec<(String, LinkReport)> {
        let named = self.modems.values().flat_map(|modem| {
            let names = modem.ports.iter().chain(modem.bearers.values().filter(|name| !modem.ports.contains(*name)));
            names.map(|name| (name.clone(), modem.report()))
        });
        named.filter(|(name, _)| !name.is_empty()).collect()
    }
}

impl ModemManager {
    fn found(&mut self, path: &str, interfaces: &HashMap<String, Properties>) -> Vec<Query> {
        if !interfaces.contains_key(MODEM) || (self.modems.len() >= MOST && !self.modems.contains_key(path)) {
            return Vec::new();
        }
        let modem = self.modems.entry(path.to_owned()).or_default();
        for (interface, properties) in interfaces {
            modem.take(interface, properties);
        }
        modem.unknown()
    }

    fn name_bearer(&mut self, path: &str, properties: &Properties) {
        let Some(name) = property::<String>(properties, "Interface") else { return };
        for modem in self.modems.values_mut() {
            if let Some(known) = modem.bearers.get_mut(path) {
                known.clone_from(&name);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use zbus::{ObjectPath, Variant};

    use super::*;
    use crate::message::told::body;

    fn owned(value: Variant<'_>) -> OwnedVariant {
        value.try_into_owned().unwrap()
    }

    fn told(service: &mut ModemManager, interface: &str, values: Vec<(&str, Variant<'_>)>) -> Vec<Query> {
        let signal = Signal {
            path: "/m/0".into(),
            interface: super::super::PROPERTIES.into(),
            member: "PropertiesChanged".into(),
        };
        let values: Properties = values.into_iter().map(|(name, value)| (name.to_owned(), owned(value))).collect();
        service.on_signal(&signal, &body(&(interface, values, Vec::<String>::new()))).unwrap()
    }

    #[test]
    fn a_modem_says_what_it_has() {
        let mut service = ModemManager::default();
        let list = service.begin().remove(0);
        let modem = Properties::from([
            ("State".to_owned(), owned(11i32.into())),
            ("AccessTechnologies".to_owned(), owned((1u32 << 14).into())),
            ("SignalQuality".to_owned(), owned(Variant::new((50u32, true)))),
            ("Ports".to_owned(), owned(Variant::new(vec![("cdc-wdm0", 6u32), ("wwan0", 2u32)]))),
            ("Bearers".to_owned(), owned(Variant::new(vec![ObjectPath::try_from("/b/1").unwrap()]))),
        ]);
        let network = Properties::from([("RegistrationState".to_owned(), owned(1u32.into()))]);
        let interfaces = HashMap::from([(MODEM.to_owned(), modem), (NETWORK.to_owned(), network)]);
        let path = ObjectPath::try_from("/m/0").unwrap();
        let asked = service.on_answer(&list, &body(&HashMap::from([(path, interfaces)]))).unwrap();
        assert_eq!(asked, [Query::all("/b/1", BEARER)]);
        let bearer = Properties::from([("Interface".to_owned(), owned("qmimux0".into()))]);
        service.on_answer(&asked[0], &body(&bearer)).unwrap();
        let said = |service: &ModemManager| service.reports()[0].1;
        let names: Vec<String> = service.reports().into_iter().map(|(name, _)| name).collect();
        assert_eq!(names, ["wwan0", "qmimux0"]);
        let at_first = LinkReport { signal: Some(-82), rate: Some(150), ..LinkReport::default() };
        assert_eq!(said(&service), at_first);
        let measured = HashMap::from([("rssi", Variant::F64(-71.4)), ("rsrp", Variant::F64(-101.0))]);
        told(&mut service, SIGNAL, vec![("Lte", Variant::new(measured))]);
        assert_eq!(said(&service).signal, Some(-71), "what is measured counts more than a percentage");
        told(&mut service, SIGNAL, vec![("Lte", Variant::new(HashMap::from([("rssi", Variant::F64(f64::MIN))])))]);
        assert_eq!(said(&service).signal, Some(-82));
        told(&mut service, NETWORK, vec![("RegistrationState", 2u32.into())]);
        assert!(said(&service).leaving, "it looks for a network");
        told(&mut service, NETWORK, vec![("RegistrationState", 5u32.into())]);
        assert!(!said(&service).leaving, "it is abroad");
        told(&mut service, MODEM, vec![("State", DISCONNECTING.into())]);
        assert!(said(&service).leaving);
    }
}
