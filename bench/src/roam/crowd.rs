//! More connections than one process may have: several of them at either end.

use std::net::IpAddr;
use std::time::Duration;

use whimbrel_lab::{EchoServer, Host, Many, MonoTime, Whimbrel, wait_for};

use crate::Result;

/// A process may have 20,000 descriptors on some machines.
const EACH: usize = 17_000;

/// Connections between two hosts, on which a byte goes to and fro.
pub(crate) struct Crowd {
    many: Vec<Many>,
    /// Of each client process; one port could not be connected to so often from one address.
    _servers: Vec<EchoServer>,
    count: usize,
}

/// What came of a byte each way on every connection.
#[derive(Clone, Debug)]
pub(crate) struct Echoes {
    /// When the first was written.
    pub(crate) started: MonoTime,
    /// When each was back that came back, the first one first.
    pub(crate) answered: Vec<MonoTime>,
    /// How many never came back.
    pub(crate) lost: usize,
}

impl Echoes {
    /// From the first byte written to the last one back; nothing if one is missing.
    pub(crate) fn all(&self) -> Option<Duration> {
        if self.lost > 0 {
            return None;
        }
        self.answered.last().map(|last| last.since(self.started))
    }
}

impl Crowd {
    /// Opens them.
    pub(crate) fn open(client: &Host, server: &Host, address: IpAddr, count: usize) -> Result<Self> {
        let processes = count.div_ceil(EACH);
        let servers: whimbrel_lab::Result<Vec<_>> =
            (0..processes).map(|_| EchoServer::start(server, address)).collect();
        let servers = servers?;
        // Those that come first have one more where it does not divide.
        let share = |process: usize| count / processes + usize::from(process < count % processes);
        let many: whimbrel_lab::Result<Vec<_>> = std::thread::scope(|scope| {
            let opening: Vec<_> = servers
                .iter()
                .enumerate()
                .map(|(process, server)| scope.spawn(move || Many::open(client, server, share(process))))
                .collect();
            opening.into_iter().map(|thread| thread.join().expect("does not panic")).collect()
        });
        Ok(Self { many: many?, _servers: servers, count })
    }

    /// Waits until a daemon has introduced them all.
    pub(crate) fn wait_introduced(&self, daemon: &Whimbrel) -> Result<()> {
        let patience = Duration::from_secs(60) + Duration::from_millis(3) * self.count as u32;
        let mut last = 0;
        let waited = wait_for(patience, &format!("{} connections are introduced", self.count), || {
            std::thread::sleep(Duration::from_millis(100));
            last = daemon.status()?.counts.introduced;
            Ok((last >= self.count).then_some(()))
        });
        waited.map_err(|error| format!("{error}; {last} are, on {}", daemon.host().name()).into())
    }

    /// Sends a byte on each and waits for its echo, at most for `timeout`.
    pub(crate) fn echo(&mut self, timeout: Duration) -> Result<Echoes> {
        for many in &mut self.many {
            many.start_echo(timeout)?;
        }
        let (mut started, mut answered) = (Vec::new(), Vec::with_capacity(self.count));
        for many in &mut self.many {
            let report = many.finish_echo(timeout)?;
            let from = report.started.ok_or("the echoes have no time")?;
            answered.extend(report.answered_us.iter().flatten().map(|us| from + Duration::from_micros(*us)));
            started.push(from);
        }
        answered.sort_unstable();
        let started = started.into_iter().min().ok_or("there are no connections")?;
        Ok(Echoes { started, lost: self.count - answered.len(), answered })
    }
}
