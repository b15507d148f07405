//! Sockets without another end that go to another host (decision 0022): their connections are flows first, and those
//! that nobody has accepted follow them.

use std::collections::HashSet;
use std::time::Duration;

use whimbrel_wire::FlowTuple;
use whimbrel_wire::moving::{MoveName, Refusal};

use crate::Time;

/// How long connections may come to such a socket that were being opened when it went: a lost word of TCP's is sent
/// again twice meanwhile. Where none are any more it ends at once.
const LINGER: Duration = Duration::from_secs(3);

/// Sockets that are to rest once all of their connections are flows (P-116): what is of none would go where the
/// endpoint goes. What is to be done then is a `T`.
#[derive(Debug)]
pub struct Settling<T> {
    all: Vec<Waiting<T>>,
}

#[derive(Debug)]
struct Waiting<T> {
    what: T,
    /// Connections that are being claimed.
    open: HashSet<FlowTuple>,
    /// Why one of them could not be.
    refused: Option<Refusal>,
}

impl<T> Default for Settling<T> {
    fn default() -> Self {
        Self { all: Vec::new() }
    }
}

impl<T> Settling<T> {
    /// A socket waits for these connections, which are being claimed.
    pub fn begin(&mut self, what: T, open: HashSet<FlowTuple>) {
        self.all.push(Waiting { what, open, refused: None });
    }

    /// A connection is a flow of its anchor's, or cannot be.
    pub fn on_claimed(&mut self, flow: &FlowTuple, outcome: Result<(), Refusal>) {
        for waiting in &mut self.all {
            if waiting.open.remove(flow) {
                waiting.refused = waiting.refused.or(outcome.err());
            }
        }
    }

    /// Whether there is something that waits no more.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.all.iter().any(|waiting| waiting.open.is_empty())
    }

    /// What waits no more, and why it may not rest, where one of its connections could not be claimed.
    pub fn pop(&mut self) -> Option<(T, Option<Refusal>)> {
        let ready = self.all.iter().position(|waiting| waiting.open.is_empty())?;
        let Waiting { what, refused, .. } = self.all.swap_remove(ready);
        Some((what, refused))
    }
}

/// Sockets that listen and have gone, with whom those that nobody has accepted are to follow: a `T`.
#[derive(Debug)]
pub struct Retiring<T> {
    all: Vec<Retired<T>>,
}

/// One of them.
#[derive(Debug)]
pub struct Retired<T> {
    /// Its move.
    pub name: MoveName,
    /// As it was said.
    pub with: T,
    until: Time,
    over: bool,
}

impl<T> Retired<T> {
    /// Whether it ends once its queue is emptied.
    #[must_use]
    pub const fn is_over(&self) -> bool {
        self.over
    }
}

impl<T> Default for Retiring<T> {
    fn default() -> Self {
        Self { all: Vec::new() }
    }
}

impl<T> Retiring<T> {
    /// A socket has gone.
    pub fn begin(&mut self, now: Time, name: MoveName, with: T) {
        self.all.push(Retired { name, with, until: now + LINGER, over: false });
    }

    /// Whether there is any.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// All of them, whose queues are to be emptied; those that are not over are [put back](Self::put_back).
    /// `is_being_opened`: whether connections of one are, which is asked before its queue is emptied, so that none
    /// comes about between.
    pub fn take(&mut self, now: Time, mut is_being_opened: impl FnMut(&MoveName) -> bool) -> Vec<Retired<T>> {
        let mut all = std::mem::take(&mut self.all);
        for of in &mut all {
            of.over = of.until <= now || !is_being_opened(&of.name);
        }
        all
    }

    /// One whose queue is empty for now.
    pub fn put_back(&mut self, retired: Retired<T>) {
        self.all.push(retired);
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use whimbrel_wire::Transport;

    use super::*;

    fn flow(port: u16) -> FlowTuple {
        let end = |port| SocketAddr::from(([192, 0, 2, 1], port));
        FlowTuple { transport: Transport::Tcp, local: end(80), remote: end(port) }
    }

    #[test]
    fn a_socket_rests_once_all_of_its_connections_are_flows_in_whatever_order_and_not_if_one_cannot_be() {
        const ORDERS: [[u16; 3]; 6] = [[1, 2, 3], [1, 3, 2], [2, 1, 3], [2, 3, 1], [3, 1, 2], [3, 2, 1]];
        for order in ORDERS {
            for refused in 0..=3 {
                let mut settling = Settling::default();
                settling.begin("it", order.map(flow).into());
                // Of another, which shares one of them.
                settling.begin("other", [flow(1)].into());
                let mut ready = Vec::new();
                for (number, port) in order.into_iter().enumerate() {
                    let outcome = if port == refused { Err(Refusal::NotLent) } else { Ok(()) };
                    settling.on_claimed(&flow(port), outcome);
                    settling.on_claimed(&flow(port), Err(Refusal::Taken));
                    ready.extend(std::iter::from_fn(|| settling.pop()).map(|(what, why)| (what, why, number)));
                }
                let why = |is| if is { Some(Refusal::NotLent) } else { None };
                assert!(ready.contains(&("it", why(refused != 0), 2)), "{order:?} {refused} {ready:?}");
                let first = order.iter().position(|port| *port == 1).expect("it is there");
                assert!(ready.contains(&("other", why(refused == 1), first)), "{order:?} {refused} {ready:?}");
                assert!(!settling.is_ready() && settling.all.is_empty());
            }
        }
    }

    #[test]
    fn a_socket_that_has_gone_is_there_while_connections_of_it_are_being_opened_and_not_for_ever() {
        let name = MoveName { donor: [1; 32], number: 1 };
        for opened_until in 0..6 {
            let (mut retiring, now) = (Retiring::default(), Time::from_micros(1_000_000));
            retiring.begin(now, name, ());
            for second in 0.. {
                let later = now + Duration::from_secs(second);
                let of = retiring.take(later, |_| second < opened_until).pop().expect("it is there");
                if of.is_over() {
                    assert_eq!(second, opened_until.min(LINGER.as_secs()));
                    break;
                }
                retiring.put_back(of);
            }
            assert!(retiring.is_empty());
        }
    }
}
