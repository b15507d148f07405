//! All that the control thread waits for, and whose it is.

use std::time::Duration;

use whimbrel_datapath::Most;
use whimbrel_protocol::Time;

use super::requests::Suspending;
use super::{DATAGRAMS, EventLoop};
use crate::api::desk::Desk;
use crate::api::pings::Pinging;
use crate::clock;
use crate::reactor::{LoopError, clear};
use crate::role::relocation::api::known;

/// How often opened and closed connections are taken in, since the data plane does not wake us for each where there are
/// very many (P-200). So often roles look after what they have.
const FLOW_TICK: Duration = Duration::from_millis(250);
/// How often UDP sockets are listed.
const UDP_TICK: Duration = Duration::from_secs(5);
/// How often it is asked whether openings and closings were missed.
const LOSS_TICK: Duration = Duration::from_secs(10);
/// What the data plane reports is taken in like datagrams, so much at once. Each of what packets have caused costs a
/// look for a socket.
const REPORTS: Most = Most { sockets: 1024, arrivals: 128 };

impl EventLoop {
    /// Waits for all of it. What is ready together is served in this order, and so are moments that come together.
    ///
    /// # Errors
    /// When the kernel has no room.
    pub(super) fn register(&mut self) -> Result<(), LoopError> {
        self.register_own()?;
        self.register_roles()?;
        let now = clock::now();
        let Self { reactor, desk, answers, .. } = self;
        reactor.on(desk.server.wake(), Self::handle_clients)?;
        reactor.on(answers.wake(), Self::handle_answers)?;
        reactor.every(now, FLOW_TICK, |this, now| this.desk.server.check_again(now));
        reactor.at(|this| this.suspending.as_ref().map(Suspending::until), |_, _| {});
        reactor.at(|this| this.pinging.iter().map(Pinging::due).min(), |_, _| {});
        reactor.at(|this| this.desk.server.has_turns().then_some(this.started), |_, _| {});
        Ok(())
    }

    fn register_own(&mut self) -> Result<(), LoopError> {
        let Self { reactor, monitor, detectors, desk, tunnel_wake, signals, judge, name_updates, started: now, .. } =
            self;
        // Before the network: what this host does to its own wakes it once more, while answers wait.
        reactor.on(&*tunnel_wake, Self::take_in_tunnel)?;
        reactor.on(&*monitor, Self::handle_network_change)?;
        for fd in detectors.fds() {
            reactor.on(fd, |this| this.handle_detectors(clock::now()))?;
        }
        reactor.at(|this| this.detectors.due(), Self::handle_detectors);
        reactor.on(desk.host.datapath.event_fd(), |this| this.unread = true)?;
        reactor.on(desk.host.streams().wake(), Self::handle_streams)?;
        reactor.on(&*signals, Self::take_in_signals)?;
        reactor.on(judge.wake(), |this| {
            clear(this.judge.wake());
            this.judge.take(&mut this.desk.node, clock::now());
        })?;
        reactor.on(desk.host.senders.wake(), |this| {
            this.effects.handle_passes(&mut this.desk.host, clock::now());
        })?;
        if let Some(updates) = name_updates {
            reactor.on(updates.wake(), Self::handle_name_updates)?;
        }
        reactor.at(
            |this| this.desk.node.poll_timeout(),
            |this, now| {
                this.desk.node.handle_timeout(now);
                this.poll_node();
            },
        );
        reactor.at(
            |this| this.effects.poll_timeout(&this.desk.host),
            |this, now| this.effects.handle_timeout(&mut this.desk.host, now),
        );
        reactor.at(|this| this.unread.then_some(this.started), |this, now| this.handle_datapath_events(now, REPORTS));
        reactor.at(|this| this.left.due(), Self::tell_left_behind);
        reactor.at(|this| (!this.due.late.is_empty()).then_some(this.started), |_, _| {});
        // There is something to do then, after all events.
        reactor.at(|this| this.stopping, |_, _| {});
        reactor.every(*now, FLOW_TICK, |this, now| {
            this.handle_datapath_events(now, REPORTS);
            this.judge.look(&mut this.desk.node, now);
            this.desk.host.check_for_ports();
        });
        reactor.every(*now, LOSS_TICK, Self::look_for_losses);
        reactor.every(*now, UDP_TICK, |this, now| {
            this.handle_udp(now);
            let is_rebuilt = |flow: &_| this.effects.processes.rebuilds(flow);
            this.desk.host.check_for_left(is_rebuilt);
        });
        Ok(())
    }

    fn register_roles(&mut self) -> Result<(), LoopError> {
        let now = clock::now();
        let Self { reactor, desk, effects, settings, .. } = self;
        if !settings.config.gateway.behind.is_empty()
            && let Some(tracking) = effects.gateway.track(now, &mut desk.node)
        {
            reactor.on(tracking, |this| this.effects.gateway.handle_tracked(clock::now(), &mut this.desk.node))?;
        }
        if let Some(links) = effects.proxy.fd() {
            reactor.on(links, |this| {
                this.effects.proxy.handle_intercepted(clock::now(), &mut this.desk.node, DATAGRAMS);
            })?;
        }
        reactor.on(effects.names_wake(), |this| {
            this.effects.handle_names(clock::now(), &mut this.desk.node);
        })?;
        reactor.on(effects.helpers.wake(), |this| {
            this.effects.helpers.handle_helpers(&mut this.desk.host, clock::now());
        })?;
        reactor.every(now, FLOW_TICK, |this, now| {
            this.programs.handle_timeout(&mut this.desk, now);
            this.moves.on_waiting_room(&this.desk, &mut this.effects);
        });
        reactor.every(now, FLOW_TICK, |this, now| {
            let (anchors, mut with) = this.anchoring();
            anchors.handle_timeout(&mut with, now);
        });
        reactor.on(effects.processes.wake(), |this| this.handle_processes(clock::now()))?;
        reactor.on(effects.namespaces_wake(), |this| {
            let Desk { node, host, .. } = &mut this.desk;
            let now = clock::now();
            for (id, answer) in this.effects.handle_namespaces(host, now, |key| known(node, key)) {
                node.handle_done(now, id, answer);
            }
        })?;
        reactor.every(now, FLOW_TICK, |this, now| {
            this.handle_processes(now);
            let (moves, mut with) = this.moving();
            moves.retire_listeners(&mut with, now);
        });
        Ok(())
    }

    /// Threads have done something for processes on their way. One that has come may need ports.
    fn handle_processes(&mut self, now: Time) {
        let (moves, mut with) = self.moving();
        let settled = moves.handle_processes(&mut with, now);
        let (anchors, mut with) = self.anchoring();
        for (address, owners) in settled {
            anchors.want_ports(&mut with, address, owners);
        }
    }
}
