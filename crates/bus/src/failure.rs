//! What goes wrong with a bus.

use std::io;

/// A bus, or a service on it, is of no use.
#[derive(Debug, thiserror::Error)]
pub enum BusError {
    /// What names the bus names none.
    #[error("`{0}` is no address of a bus: it must be such as unix:path=/run/dbus/system_bus_socket")]
    Address(String),
    /// A system call has failed.
    #[error("{call} {object}: {source}")]
    Call {
        /// Which.
        call: &'static str,
        /// On what.
        object: String,
        /// Why.
        source: io::Error,
    },
    /// It does not answer in time.
    #[error("{0} does not answer")]
    Silent(&'static str),
    /// The bus has ended the connection.
    #[error("the bus has ended the connection")]
    Closed,
    /// The bus lets this user in by no way that is known here.
    #[error("the bus refuses this user: {0}")]
    Refused(String),
    /// Bytes that mean nothing.
    #[error("what comes from the bus makes no sense: {0}")]
    Nonsense(String),
    /// More comes than any service has to say.
    #[error("more comes from the bus than is listened to")]
    Flood,
    /// A service answers with an error of this name.
    #[error("{0}")]
    Error(String),
}

impl BusError {
    pub(crate) fn call(call: &'static str, object: &str) -> impl Fn(rustix::io::Errno) -> Self {
        move |errno| Self::Call { call, object: object.to_owned(), source: errno.into() }
    }
}

impl From<zbus::Error> for BusError {
    fn from(error: zbus::Error) -> Self {
        Self::Nonsense(error.to_string())
    }
}
