//! `whimbrel events --plot`: what happened, as a drawing (SVG). Pure: events in, a document out.
//!
//! ```text
//! story.rs      events in, spans of time out: what was so, and from when to when
//! incident.rs   hand-offs, absences and the like: the table under the lanes
//! axis.rs       where on the page a moment is
//! lanes.rs      the page: one lane for each peer and its connections
//! svg.rs        the elements that it is drawn with
//! ```

mod axis;
mod incident;
mod lanes;
mod story;
mod svg;

use whimbrel_ipc::EventRecord;

/// Draws events, which are in the order of their happening. `until`: what the wall clock shows now, in milliseconds
/// since 1970, where the drawing should go on to now.
pub(crate) fn plot(events: &[EventRecord], until: Option<u64>) -> String {
    lanes::draw(story::read(events, until).as_ref())
}

#[cfg(test)]
mod tests;
