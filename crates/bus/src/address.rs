//! Where a bus is: addresses as the D-Bus specification has them, of sockets of this host alone.

use std::env;
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;

use rustix::net::SocketAddrUnix;

use crate::BusError;

/// Where the system's bus is where nobody says otherwise.
const SYSTEM: &str = "unix:path=/run/dbus/system_bus_socket";

/// The address of a bus: several places, of which the first that answers counts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Address {
    text: String,
    places: Vec<Place>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Place {
    Path(PathBuf),
    Abstract(Vec<u8>),
}

impl Address {
    /// The system's bus: what `DBUS_SYSTEM_BUS_ADDRESS` names, or the usual one.
    ///
    /// # Errors
    /// When that names none.
    pub fn system() -> Result<Self, BusError> {
        Self::parse(&said("DBUS_SYSTEM_BUS_ADDRESS").unwrap_or_else(|| SYSTEM.to_owned()))
    }

    /// The bus of this user's session: what `DBUS_SESSION_BUS_ADDRESS` names, or the one that systemd makes.
    ///
    /// # Errors
    /// When there is neither.
    pub fn session() -> Result<Self, BusError> {
        let of_systemd = || Some(format!("unix:path={}/bus", said("XDG_RUNTIME_DIR")?));
        let address = said("DBUS_SESSION_BUS_ADDRESS").or_else(of_systemd);
        Self::parse(&address.ok_or_else(|| BusError::Address(String::new()))?)
    }

    /// Reads one.
    ///
    /// # Errors
    /// When it names no socket of this host.
    pub fn parse(text: &str) -> Result<Self, BusError> {
        let places: Vec<Place> = text.split(';').filter_map(place).collect();
        match places.is_empty() {
            true => Err(BusError::Address(text.to_owned())),
            false => Ok(Self { text: text.to_owned(), places }),
        }
    }

    /// As it was written.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.text
    }

    pub(crate) fn sockets(&self) -> impl Iterator<Item = rustix::io::Result<SocketAddrUnix>> {
        self.places.iter().map(|place| match place {
            Place::Path(path) => SocketAddrUnix::new(path),
            Place::Abstract(name) => SocketAddrUnix::new_abstract_name(name),
        })
    }
}

fn said(variable: &str) -> Option<String> {
    env::var(variable).ok().filter(|value| !value.is_empty())
}

fn place(text: &str) -> Option<Place> {
    let keys = text.strip_prefix("unix:")?.split(',').filter_map(|pair| pair.split_once('='));
    let mut places = keys.filter_map(|(key, value)| match key {
        "path" => Some(Place::Path(OsString::from_vec(unescaped(value)?).into())),
        "abstract" => Some(Place::Abstract(unescaped(value)?)),
        _ => None,
    });
    places.next()
}

/// What is written as `%2f` is one byte.
fn unescaped(text: &str) -> Option<Vec<u8>> {
    let mut bytes = text.bytes();
    let mut plain = Vec::new();
    while let Some(byte) = bytes.next() {
        plain.push(match byte {
            b'%' => {
                let mut digit = || char::from(bytes.next()?).to_digit(16);
                u8::try_from(digit()? * 16 + digit()?).ok()?
            }
            byte => byte,
        });
    }
    Some(plain)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_read_in_their_order() {
        let path = |path: &str| Place::Path(path.into());
        let read = |text: &str| Address::parse(text).map(|address| address.places).ok();
        assert_eq!(read("unix:path=/run/bus"), Some(vec![path("/run/bus")]));
        assert_eq!(read("unix:path=/tmp/a%2cb,guid=00ff"), Some(vec![path("/tmp/a,b")]));
        assert_eq!(
            read("tcp:host=::1,port=1;unix:abstract=bus;unix:guid=1,path=/b"),
            Some(vec![Place::Abstract(b"bus".to_vec()), path("/b")])
        );
        for bad in ["", "unix:", "tcp:host=a", "unix:path=%f", "unix:path=%zz", "unix:runtime=yes", "/run/bus"] {
            assert_eq!(read(bad), None, "{bad}");
        }
    }
}
