//! Listens to services, in a thread of its own: whatever the bus does, nobody else waits for it.

use std::collections::BTreeMap;
use std::fs;
use std::io::ErrorKind;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, PollFlags, eventfd};

use crate::BusError;
use crate::address::Address;
use crate::connection::{BUS, Connection, Received, Waited, bus, wait};
use crate::message::{Call, Kind, Message, Signal};
use crate::services::{LinkReport, ModemManager, NetworkManager, Networkd, Query, Service, ServiceState, reports};

/// The bus, and a service, are waited for so long.
const WITHIN: Duration = Duration::from_secs(5);
/// So many questions of a service are under way at the most.
const MOST_ASKED: usize = 1024;
/// A service that does not answer is asked again then.
const AGAIN: Duration = Duration::from_secs(60);
/// A bus that is not there is looked for again after the first of these, and then ever more rarely, up to the second.
const LOOK: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(60)];
/// More messages of services than these in ten seconds are a flood.
const MOST_HEARD: u32 = 5000;
const HEARD_WITHIN: Duration = Duration::from_secs(10);
/// News are not told more often than so.
const SPACING: Duration = Duration::from_millis(20);

/// What has been heard.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Heard {
    /// Why there is no bus, where there is none.
    pub absent: Option<String>,
    /// Services that are listened for, by what people call them.
    pub services: BTreeMap<&'static str, ServiceState>,
    /// What they say of links, by the names of interfaces.
    pub links: BTreeMap<String, LinkReport>,
}

/// Listens as long as it is kept.
#[derive(Debug)]
pub struct Watch {
    shared: Arc<Shared>,
    /// The thread stops when this is closed. Nobody waits for that: it may be waiting for a bus that hangs.
    _stop: UnixStream,
}

#[derive(Debug)]
struct Shared {
    news: Mutex<Option<Heard>>,
    wake: OwnedFd,
}

impl Shared {
    fn tell(&self, heard: Heard) {
        // Whoever did not look yet sees the newest.
        *self.news.lock().unwrap_or_else(PoisonError::into_inner) = Some(heard);
        let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
    }
}

impl Watch {
    /// Begins.
    ///
    /// # Errors
    /// When the kernel has no room.
    pub fn start(address: Address) -> Result<Self, BusError> {
        let io = |call: &'static str| {
            move |source: std::io::Error| BusError::Call { call, object: "to listen to a bus".to_owned(), source }
        };
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(BusError::call("eventfd", "to listen to a bus"))?;
        let (stop, stopped) = UnixStream::pair().map_err(io("socketpair"))?;
        let shared = Arc::new(Shared { news: Mutex::new(None), wake });
        let teller = Arc::clone(&shared);
        let listen = move || Listener::new(address, stopped, teller).run();
        std::thread::Builder::new().name("bus".to_owned()).spawn(listen).map_err(io("clone"))?;
        Ok(Self { shared, _stop: stop })
    }

    /// Readable when something has been heard.
    #[must_use]
    pub fn wake(&self) -> BorrowedFd<'_> {
        self.shared.wake.as_fd()
    }

    /// What has been heard in the end, where that is news.
    #[must_use]
    pub fn take(&self) -> Option<Heard> {
        let mut count = [0; 8];
        let _ = rustix::io::read(&self.shared.wake, &mut count);
        self.shared.news.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

/// A service, and how far things have come with it.
#[derive(Debug)]
struct Listened {
    service: Box<dyn Service>,
    /// The name that the bus has given who it is now: nobody else is believed.
    owner: Option<String>,
    state: ServiceState,
    /// When it is asked again.
    again: Option<Instant>,
}

/// What was asked.
#[derive(Debug)]
enum Asked {
    /// Who a service is.
    Owner,
    /// Which process that is.
    Process,
    /// Something of itself.
    Query(Query),
    /// Of the bus, which says no more than that it has done so.
    Match,
}

struct Listener {
    address: Address,
    stop: UnixStream,
    teller: Arc<Shared>,
    told: Heard,
    /// News that wait, until then.
    waits: Option<Instant>,
    told_at: Option<Instant>,
}

impl Listener {
    fn new(address: Address, stop: UnixStream, teller: Arc<Shared>) -> Self {
        Self { address, stop, teller, told: Heard::default(), waits: None, told_at: None }
    }

    fn run(mut self) {
        let [mut pause, longest] = LOOK;
        loop {
            let began = Instant::now();
            // What a library makes of bytes that nobody has thought of must not end the daemon.
            let ended = catch_unwind(AssertUnwindSafe(|| Session::open(&self.address)?.listen(&mut self)));
            let why = match ended {
                Ok(Ok(())) => return,
                Ok(Err(error)) => {
                    if matches!(error, BusError::Flood) {
                        pause = longest;
                    }
                    error.to_string()
                }
                Err(_) => "what comes from the bus was not understood".to_owned(),
            };
            if began.elapsed() > longest {
                pause = LOOK[0];
            }
            if self.told.absent.is_none() {
                tracing::debug!(bus = self.address.as_str(), why, "no bus is listened to");
            }
            self.tell(Heard { absent: Some(why), ..Heard::default() });
            let until = Instant::now() + pause;
            if !matches!(wait(self.stop.as_fd(), PollFlags::IN, until, None), Ok(Waited::Due)) {
                return;
            }
            pause = (pause * 2).min(longest);
        }
    }

    fn tell(&mut self, heard: Heard) {
        self.waits = None;
        if heard != self.told {
            self.told_at = Some(Instant::now());
            self.told = heard.clone();
            self.teller.tell(heard);
        }
    }
}

struct Session {
    connection: Connection,
    services: Vec<Listened>,
    asked: BTreeMap<u32, (usize, Asked, Instant)>,
    /// Messages since then.
    heard: (u32, Instant),
}

impl Session {
    fn open(address: &Address) -> Result<Self, BusError> {
        let connection = Connection::open(address, WITHIN)?;
        let services: [Box<dyn Service>; 3] =
            [Box::<NetworkManager>::default(), Box::<Networkd>::default(), Box::<ModemManager>::default()];
        let listened = |service| Listened { service, owner: None, state: ServiceState::Absent, again: None };
        let services = services.into_iter().map(listened).collect();
        Ok(Self { connection, services, asked: BTreeMap::new(), heard: (0, Instant::now()) })
    }

    /// Listens until it is to stop.
    fn listen(mut self, listener: &mut Listener) -> Result<(), BusError> {
        for at in 0..self.services.len() {
            self.subscribe(at)?;
        }
        loop {
            let due = self.asked.values().map(|(_, _, until)| *until);
            let due = due.chain(self.services.iter().filter_map(|one| one.again)).chain(listener.waits).min();
            let until = due.unwrap_or_else(|| Instant::now() + AGAIN);
            match self.connection.receive(until, Some(listener.stop.as_fd()))? {
                Received::Message(message) => self.take(&message)?,
                Received::Due => {}
                Received::Stopped => return Ok(()),
            }
            self.handle_due()?;
            self.tell(listener);
        }
    }

    /// Asks for a service's signals, for word of its coming and going, and who it is.
    fn subscribe(&mut self, at: usize) -> Result<(), BusError> {
        let name = self.services[at].service.bus_name();
        let owner = format!(
            "type='signal',sender='{BUS}',interface='{BUS}',member='NameOwnerChanged',path='/org/freedesktop/DBus',\
             arg0='{name}'"
        );
        let rules = self.services[at].service.rules().iter();
        let rules: Vec<String> = rules.map(|rule| format!("type='signal',sender='{name}',{rule}")).collect();
        for rule in rules.into_iter().chain([owner]) {
            self.ask(at, Asked::Match, &bus("AddMatch"), &rule)?;
        }
        self.ask(at, Asked::Owner, &bus("GetNameOwner"), &name)
    }

    fn ask<T: serde::Serialize + zbus::wire::Type>(
        &mut self,
        at: usize,
        asked: Asked,
        call: &Call<'_>,
        body: &T,
    ) -> Result<(), BusError> {
        let serial = self.connection.send(call, body, WITHIN)?;
        self.asked.insert(serial, (at, asked, Instant::now() + WITHIN));
        Ok(())
    }

    fn query(&mut self, at: usize, queries: Vec<Query>) -> Result<(), BusError> {
        for query in queries {
            // Whatever was signalled before its answer is in that already.
            let is_asked = |(of, asked, _): &(usize, Asked, Instant)| {
                *of == at && matches!(asked, Asked::Query(asked) if *asked == query)
            };
            if self.asked.values().any(is_asked) {
                continue;
            }
            if self.asked.len() >= MOST_ASKED {
                return self.give_up(at);
            }
            let destination = self.services[at].service.bus_name();
            let path = query.path.clone();
            let Query { interface, member, about, .. } = query;
            let call = Call { destination, path: &path, interface, member, starts: false };
            match about {
                Some(about) => self.ask(at, Asked::Query(query), &call, &about)?,
                None => self.ask(at, Asked::Query(query), &call, &())?,
            }
        }
        Ok(())
    }

    fn take(&mut self, message: &Message) -> Result<(), BusError> {
        // Anybody may send a signal to anybody. Who is the service is known by the bus.
        let sender = message.sender.as_deref();
        if sender != Some(BUS) && !self.services.iter().any(|one| one.owner.is_some() && one.owner.as_deref() == sender)
        {
            return Ok(());
        }
        let (count, since) = &mut self.heard;
        if since.elapsed() > HEARD_WITHIN {
            (*count, *since) = (0, Instant::now());
        }
        *count += 1;
        if *count > MOST_HEARD {
            return Err(BusError::Flood);
        }
        match &message.kind {
            Kind::Return(serial) => self.on_answer(*serial, Some(message)),
            Kind::Error(serial, _) => self.on_answer(*serial, None),
            Kind::Signal(signal) => self.on_signal(signal, message),
            Kind::Call => Ok(()),
        }
    }

    fn on_signal(&mut self, signal: &Signal, message: &Message) -> Result<(), BusError> {
        let Some(sender) = message.sender.as_deref() else { return Ok(()) };
        if sender == BUS {
            if signal.member == "NameOwnerChanged" {
                let (name, _, owner): (String, String, String) = message.body.read()?;
                if let Some(at) = self.services.iter().position(|one| one.service.bus_name() == name) {
                    return self.on_owner(at, Some(owner).filter(|owner| !owner.is_empty()));
                }
            }
            return Ok(());
        }
        let is_heard = |one: &Listened| matches!(one.state, ServiceState::Asked | ServiceState::Heard);
        let heard = |one: &Listened| one.owner.as_deref() == Some(sender) && is_heard(one);
        let Some(at) = self.services.iter().position(heard) else { return Ok(()) };
        match self.services[at].service.on_signal(signal, &message.body) {
            Ok(queries) => self.query(at, queries),
            Err(error) => self.complain(at, &error),
        }
    }

    fn on_answer(&mut self, serial: u32, message: Option<&Message>) -> Result<(), BusError> {
        let Some((at, asked, _)) = self.asked.remove(&serial) else { return Ok(()) };
        // What somebody else answers is no answer: the bus lets nobody do so.
        match (asked, message) {
            (Asked::Match, _) => Ok(()),
            (Asked::Owner, Some(message)) => {
                let owner = message.body.read::<String>()?;
                self.on_owner(at, Some(owner))
            }
            (Asked::Owner, None) => Ok(()),
            (Asked::Process, message) => {
                let process = message.and_then(|message| message.body.read::<u32>().ok());
                if process.is_some_and(is_elsewhere) {
                    self.services[at].state = ServiceState::Elsewhere;
                    return Ok(());
                }
                self.services[at].state = ServiceState::Asked;
                let queries = self.services[at].service.begin();
                self.query(at, queries)
            }
            (Asked::Query(query), None) => {
                self.services[at].state = ServiceState::Heard;
                self.services[at].service.on_refusal(&query);
                Ok(())
            }
            (Asked::Query(query), Some(message)) => match self.services[at].service.on_answer(&query, &message.body) {
                Ok(queries) => {
                    self.services[at].state = ServiceState::Heard;
                    self.query(at, queries)
                }
                Err(error) => self.complain(at, &error),
            },
        }
    }

    /// A service is somebody else from now on, or nobody.
    fn on_owner(&mut self, at: usize, owner: Option<String>) -> Result<(), BusError> {
        let one = &mut self.services[at];
        if one.owner == owner && one.state != ServiceState::Silent {
            return Ok(());
        }
        self.forget(at);
        let one = &mut self.services[at];
        one.owner.clone_from(&owner);
        (one.state, one.again) = (ServiceState::Absent, None);
        tracing::debug!(service = one.service.name(), ?owner, "a service");
        match owner {
            Some(owner) => self.ask(at, Asked::Process, &bus("GetConnectionUnixProcessID"), &owner),
            None => Ok(()),
        }
    }

    /// Forgets what a service has said, and what it was asked.
    fn forget(&mut self, at: usize) {
        let _ = self.services[at].service.begin();
        self.asked.retain(|_, (of, asked, _)| *of != at || matches!(asked, Asked::Match | Asked::Owner));
    }

    fn complain(&mut self, at: usize, error: &BusError) -> Result<(), BusError> {
        tracing::debug!(service = self.services[at].service.name(), %error, "not understood");
        self.give_up(at)
    }

    /// What a service says is of no use for now.
    fn give_up(&mut self, at: usize) -> Result<(), BusError> {
        self.forget(at);
        let one = &mut self.services[at];
        (one.state, one.again) = (ServiceState::Silent, Some(Instant::now() + AGAIN));
        Ok(())
    }

    fn handle_due(&mut self) -> Result<(), BusError> {
        let now = Instant::now();
        let late = self.asked.iter().find(|(_, (_, _, until))| *until <= now);
        if let Some((&serial, &(at, ref asked, _))) = late {
            if !matches!(asked, Asked::Query(_)) {
                return Err(BusError::Silent("the bus"));
            }
            self.asked.remove(&serial);
            self.give_up(at)?;
        }
        for at in 0..self.services.len() {
            let one = &mut self.services[at];
            if one.again.is_some_and(|again| again <= now) {
                one.again = None;
                let owner = one.owner.take();
                self.on_owner(at, owner)?;
            }
        }
        Ok(())
    }

    /// Says what there is to say, where it is news and nobody was told a moment ago.
    fn tell(&self, listener: &mut Listener) {
        let now = Instant::now();
        let next = listener.told_at.map_or(now, |at| at + SPACING);
        if next > now {
            listener.waits = Some(next);
            return;
        }
        let heard = |one: &&Listened| one.state == ServiceState::Heard;
        let links = reports(self.services.iter().filter(heard).map(|one| &*one.service));
        let services = self.services.iter().map(|one| (one.service.name(), one.state)).collect();
        listener.tell(Heard { absent: None, services, links });
    }
}

/// Whether a process is in another network namespace than this one: its links are others, though they may be called the
/// same. So is one that there is not, since a bus counts processes otherwise than a container does that sees it. Where
/// that cannot be told it is not.
fn is_elsewhere(process: u32) -> bool {
    let namespace = |of: &str| fs::metadata(format!("/proc/{of}/ns/net")).map(|found| (found.dev(), found.ino()));
    match (namespace(&process.to_string()), namespace("self")) {
        (Ok(theirs), Ok(own)) => theirs != own,
        (Err(error), Ok(_)) => error.kind() == ErrorKind::NotFound,
        _ => false,
    }
}

#[cfg(test)]
mod tests;
