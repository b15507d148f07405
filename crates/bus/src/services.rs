//! What services say of this host's links: each knows its own objects, asks for them, and says what they come to.
//!
//! No I/O here: a service is told what was signalled and answered, and gives what it wants to ask.

mod modem_manager;
mod network_manager;
mod networkd;

use std::collections::BTreeMap;
use std::fmt::Debug;

use serde::Deserialize;
use zbus::OwnedVariant;
use zbus::wire::Type;

use crate::BusError;
use crate::message::{Body, Properties, Signal};

pub(crate) use modem_manager::ModemManager;
pub(crate) use network_manager::NetworkManager;
pub(crate) use networkd::Networkd;

/// Objects of a service that are looked at: no host has so many links.
const MOST: usize = 256;

const PROPERTIES: &str = "org.freedesktop.DBus.Properties";

/// What is said of a link.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LinkReport {
    /// It is being taken down, or can carry nothing any more: what goes by it goes elsewhere while that is possible.
    pub leaving: bool,
    /// Something has changed for the worse, and nothing is sure.
    pub doubtful: bool,
    /// Whether what is beyond it can be had.
    pub connectivity: Connectivity,
    /// What goes by it costs.
    pub metered: bool,
    /// In dBm.
    pub signal: Option<i16>,
    /// What its technology gives at the most, in Mbit/s.
    pub rate: Option<u32>,
}

/// Whether what is beyond a link can be had, as somebody has tried.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Connectivity {
    /// Nobody has, or all of it can be had.
    #[default]
    Usual,
    /// A portal wants something from the user first.
    Portal,
    /// The network is there, and nothing beyond it.
    Limited,
}

impl LinkReport {
    /// Both of what two services say.
    pub(crate) fn and(self, other: Self) -> Self {
        Self {
            leaving: self.leaving || other.leaving,
            doubtful: self.doubtful || other.doubtful,
            connectivity: match self.connectivity {
                Connectivity::Usual => other.connectivity,
                said => said,
            },
            metered: self.metered || other.metered,
            signal: self.signal.or(other.signal),
            rate: self.rate.or(other.rate),
        }
    }
}

/// How a service is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ServiceState {
    /// It is not there.
    #[default]
    Absent,
    /// It is there, and has not answered yet.
    Asked,
    /// It is listened to.
    Heard,
    /// It is there, and does not answer, or nothing that makes sense.
    Silent,
    /// It looks after another network namespace than this one.
    Elsewhere,
}

/// A question to a service.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Query {
    pub(crate) path: String,
    pub(crate) interface: &'static str,
    pub(crate) member: &'static str,
    /// What it is about, where it is about something.
    pub(crate) about: Option<&'static str>,
}

impl Query {
    fn new(path: impl Into<String>, interface: &'static str, member: &'static str) -> Self {
        Self { path: path.into(), interface, member, about: None }
    }

    /// For all properties of an object's interface.
    fn all(path: impl Into<String>, interface: &'static str) -> Self {
        Self { about: Some(interface), ..Self::new(path, PROPERTIES, "GetAll") }
    }
}

/// A service that is listened to.
pub(crate) trait Service: Debug + Send {
    /// What the bus knows it by.
    fn bus_name(&self) -> &'static str;
    /// What people call it.
    fn name(&self) -> &'static str;
    /// Which of its signals are wanted, as match rules without their sender.
    fn rules(&self) -> &'static [&'static str];
    /// It is there from now on: what is asked at first. Nothing is known of it.
    fn begin(&mut self) -> Vec<Query>;
    /// It has signalled.
    fn on_signal(&mut self, signal: &Signal, body: &Body) -> Result<Vec<Query>, BusError>;
    /// It has answered.
    fn on_answer(&mut self, query: &Query, body: &Body) -> Result<Vec<Query>, BusError>;
    /// It could not: the object is gone, or it is older than what was asked for.
    fn on_refusal(&mut self, query: &Query);
    /// What it says of links, by the names of interfaces.
    fn reports(&self) -> Vec<(String, LinkReport)>;
}

/// What services say together.
pub(crate) fn reports<'a>(services: impl Iterator<Item = &'a dyn Service>) -> BTreeMap<String, LinkReport> {
    let mut links: BTreeMap<String, LinkReport> = BTreeMap::new();
    for (name, report) in services.flat_map(Service::reports) {
        let of = links.entry(name).or_default();
        *of = of.and(report);
    }
    // Of most links nothing is said that anybody would have to know.
    links.retain(|_, report| *report != LinkReport::default());
    links
}

/// A property, where it is there and of this type.
fn property<T: TryFrom<OwnedVariant>>(properties: &Properties, name: &str) -> Option<T> {
    T::try_from(properties.get(name)?.try_clone().ok()?).ok()
}

/// What has changed of an object's properties, where that is of this interface: values, and names of those that are to
/// be asked for.
fn changed(signal: &Signal, body: &Body, interface: &str) -> Result<Option<(Properties, Vec<String>)>, BusError> {
    if signal.interface != PROPERTIES || signal.member != "PropertiesChanged" {
        return Ok(None);
    }
    let (of, values, invalid): (String, Properties, Vec<String>) = body.read()?;
    Ok((of == interface).then_some((values, invalid)))
}

/// A list of paths, of which no more are taken than there could be.
fn paths<'a, T: Deserialize<'a> + Type + IntoIterator<Item = zbus::OwnedObjectPath>>(
    body: &'a Body,
) -> Result<Vec<String>, BusError> {
    Ok(body.read::<T>()?.into_iter().take(MOST).map(|path| path.to_string()).collect())
}
