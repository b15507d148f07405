//! Notifications on a user's desktop (the Desktop Notifications Specification, 1.2).

use std::collections::HashMap;
use std::time::Duration;

use zbus::Variant;

use crate::BusError;
use crate::address::Address;
use crate::connection::Connection;
use crate::message::Call;

const WITHIN: Duration = Duration::from_secs(5);

/// Where notifications are shown.
#[derive(Debug)]
pub struct Desktop {
    connection: Connection,
}

/// What is shown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Notification {
    /// In a few words.
    pub summary: String,
    /// In sentences.
    pub body: String,
    /// Somebody may have to do something.
    pub urgent: bool,
}

impl Desktop {
    /// That of a bus.
    ///
    /// # Errors
    /// When no bus answers there.
    pub fn open(address: &Address) -> Result<Self, BusError> {
        Ok(Self { connection: Connection::open(address, WITHIN)? })
    }

    /// Shows it, in place of the one with this number where that is not 0. Gives its own number.
    ///
    /// # Errors
    /// When nothing on the bus shows notifications, or does not answer in time.
    pub fn show(&mut self, notification: &Notification, replaces: u32) -> Result<u32, BusError> {
        let Notification { summary, body, urgent } = notification;
        let call = Call {
            destination: "org.freedesktop.Notifications",
            path: "/org/freedesktop/Notifications",
            interface: "org.freedesktop.Notifications",
            member: "Notify",
            starts: true,
        };
        let hints = HashMap::from([
            ("urgency", Variant::U8((*urgent).into())),
            ("category", Variant::from("network")),
            ("desktop-entry", Variant::from("whimbrel")),
        ]);
        // Servers may read it as markup.
        let body = body.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
        let actions: Vec<&str> = Vec::new();
        let shown = ("Whimbrel", replaces, "network-transmit-receive", summary, body, actions, hints, -1i32);
        self.connection.call(&call, &shown, WITHIN)?.read()
    }
}
