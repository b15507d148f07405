//! Who tells of what: of most events of the node's `events` does, of a role's its own table.

use whimbrel_protocol::Event;

use crate::events::{self, Kind, Report};
use crate::role::{anchor, community, helpers, relocation};

/// All kinds of events that there are.
pub(crate) fn kinds() -> impl Iterator<Item = Kind> {
    let of_roles = [anchor::events::KINDS, community::events::KINDS, helpers::events::KINDS, relocation::events::KINDS];
    std::iter::once(events::KINDS).chain(of_roles).flatten().copied()
}

/// What is told of an event of the node's. Of what moves it is told where more is known.
pub(crate) fn report(event: &Event) -> Option<Report> {
    match event {
        Event::Community(event) => community::events::report(event),
        event => events::report(event),
    }
}
