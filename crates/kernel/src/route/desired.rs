//! Making tables and rules of our own equal to what is wanted.

use std::collections::BTreeSet;

use super::{RouteSocket, Rule, TableRoute};
use crate::error::{Effect, Error};

/// The routes of some tables, and the rules that lead to them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Desired {
    pub(crate) routes: BTreeSet<TableRoute>,
    pub(crate) rules: BTreeSet<Rule>,
}

type Undo = Box<dyn FnOnce(&mut RouteSocket) -> Result<(), Error>>;

impl RouteSocket {
    /// Makes the routes of the tables that `ours` says yes to, and Whimbrel's own rules that lead to them, equal to
    /// what is wanted; returns whether anything had to be changed. What is new is there before what is no longer wanted
    /// goes. If a step fails, those before it are undone.
    ///
    /// # Errors
    /// [`Error::Call`] of the step that failed. Its effect is [`Effect::Partial`] only where undoing failed as well;
    /// apply again then.
    pub(crate) fn establish(&mut self, ours: impl Fn(u32) -> bool, wanted: &Desired) -> Result<bool, Error> {
        let present = Desired {
            routes: self.routes(&ours)?.into_iter().collect(),
            rules: self.own_rules()?.into_iter().filter(|rule| ours(rule.table)).collect(),
        };
        let mut undo: Vec<Undo> = Vec::new();
        if let Err(error) = self.replace(&present, wanted, &mut undo) {
            let failures = undo.into_iter().rev().filter_map(|step| step(self).err()).count();
            return Err(if failures > 0 { error.with_effect(Effect::Partial) } else { error });
        }
        Ok(!undo.is_empty())
    }

    fn replace(&mut self, present: &Desired, wanted: &Desired, undo: &mut Vec<Undo>) -> Result<(), Error> {
        let same =
            |a: &TableRoute, b: &TableRoute| (a.table, a.destination, a.metric) == (b.table, b.destination, b.metric);
        for new in wanted.routes.difference(&present.routes) {
            self.set_route(new)?;
            match present.routes.iter().find(|old| same(old, new)).cloned() {
                Some(old) => undo.push(Box::new(move |socket| socket.set_route(&old))),
                None => {
                    let new = new.clone();
                    undo.push(Box::new(move |socket| socket.delete_route(&new).map(drop)));
                }
            }
        }
        for &rule in wanted.rules.difference(&present.rules) {
            self.set_rule(&rule)?;
            undo.push(Box::new(move |socket| socket.delete_rule(&rule).map(drop)));
        }
        for &rule in present.rules.difference(&wanted.rules) {
            self.delete_rule(&rule)?;
            undo.push(Box::new(move |socket| socket.set_rule(&rule)));
        }
        let over = present.routes.difference(&wanted.routes);
        for old in over.filter(|old| !wanted.routes.iter().any(|new| same(old, new))) {
            self.delete_route(old)?;
            let old = old.clone();
            undo.push(Box::new(move |socket| socket.set_route(&old)));
        }
        Ok(())
    }
}
