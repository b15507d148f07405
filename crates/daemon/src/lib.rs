//! The daemon: runs the protocol's [`Node`] on a real kernel.
//!
//! ```text
//! reactor.rs      waits for what registers itself
//! event_loop/     the control thread: tells the node what has happened, and drains it
//! effects/        hands what the node asks for to whoever does it
//! host/           what is done on this host, one file for each concern; inventory/ is what there is
//! role/           what hosts do for each other: each role's executor, its part of the API and of the configuration
//! link/           the networks that this host is attached to
//! api/            the local API: its socket, whom it answers, and what it tells
//! policy/         what the configuration wants for which connections
//! store/          what outlives the daemon on disk, as host/table.rs and a role's table.rs declare it
//! installed.rs    the flows that are in force, for all who have to know of them
//! events.rs       what is told of what happens; event_log.rs tells it in a file
//! metrics/        figures for monitoring, and the endpoint that serves them
//! doctor/         what is wrong with a host; needs no daemon
//! clean.rs        removes what a stopped daemon has left
//! ```
#![forbid(unsafe_code)]

pub mod apart;
mod api;
pub mod clean;
mod clock;
mod closing;
pub mod community_file;
pub mod config;
pub mod doctor;
mod effects;
mod event_log;
mod event_loop;
mod events;
mod host;
mod installed;
mod link;
mod log;
mod metrics;
pub mod name_server;
pub mod policy;
mod reactor;
mod role;
mod shown;
pub mod store;
mod work;

use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::time::SystemTime;

use rustix::event::{EventfdFlags, eventfd};
use rustix::process::DumpableBehavior;
use sd_notify::NotifyState;
use whimbrel_datapath::Datapath;
use whimbrel_handshake::StaticKey;
use whimbrel_ipc::socket_path;
use whimbrel_kernel::network::NetworkMonitor;
use whimbrel_kernel::peer_route::PeerRoutes;
use whimbrel_kernel::privilege::{Capabilities, Capability};
use whimbrel_kernel::signals::Signals;
use whimbrel_kernel::sock_diag::SockDiag;
use whimbrel_kernel::tun::Tun;
use whimbrel_kernel::udp::UdpSocket;
use whimbrel_protocol::Node;
use whimbrel_tunnel::Tunnel;
use whimbrel_wire::FlowTuple;

use crate::api::desk::Desk;
pub use crate::api::server;
use crate::api::server::Server;
use crate::api::socket_names::SocketNames;
use crate::community_file::CommunityFile;
use crate::config::{Config, Level};
use crate::effects::Effects;
use crate::effects::restored::Restored;
use crate::event_log::EventLog;
use crate::event_loop::{EventLoop, Parts, Settings};
use crate::host::inventory::left_behind::LeftBehind;
use crate::host::table::{Home, SavedHome};
use crate::host::{DEFAULT_MTU, Host, MARK};
use crate::installed::Installed;
use crate::instance::{Instance, StateLock};
use crate::known_keys::KnownKeys;
use crate::link::route_lookup::RouteLookup;
use crate::metrics::{Endpoint, Tally};
use crate::role::gateway::table::keep_lasting;
pub use crate::role::helpers;
use crate::role::helpers::Helpers;
use crate::role::relocation::executor::adopt::FoundMoves;
pub use crate::role::relocation::process::helper::serve as serve_criu;
use crate::role::rendezvous::names::NameLookups;
use crate::store::Store;
use crate::store::place::Place;
pub use crate::store::{identity, instance, known_keys};

/// Permission bits of the control socket until it is given to whom it is for.
const ROOT_ONLY: u32 = 0o600;

/// The TUN device. Names of devices belong to their network namespace, so daemons do not meet there.
const DEVICE: &str = "whimbrel0";

/// How a daemon is started.
#[derive(Clone, Debug)]
pub struct Options {
    /// The configuration file; [`config::DEFAULT_PATH`], if it is there, where absent.
    pub config: Option<PathBuf>,
    /// Where the control socket and the store are; [`instance::DEFAULT_RUN_DIR`] for a machine's only daemon.
    pub run_dir: PathBuf,
    /// Where the key is; [`identity::DEFAULT_STATE_DIR`] for a machine's only daemon.
    pub state_dir: PathBuf,
}

/// Why a daemon does not run (any more).
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The configuration is wrong.
    #[error(transparent)]
    Config(#[from] config::ConfigError),
    /// This process may not do what the daemon does.
    #[error(
        "Whimbrel needs root: run it with sudo. This process lacks {}; directories of its own make no difference",
        .0.iter().map(|capability| capability.name()).collect::<Vec<_>>().join(", ")
    )]
    Privileges(Vec<Capability>),
    /// The run directory cannot be used.
    #[error(transparent)]
    Instance(#[from] instance::InstanceError),
    /// What a daemon left for a network namespace that is gone cannot be removed.
    #[error(transparent)]
    Orphans(Box<clean::CleanError>),
    /// The host's key cannot be used.
    #[error(transparent)]
    Identity(#[from] identity::IdentityError),
    /// The remembered keys cannot be used.
    #[error(transparent)]
    KnownKeys(#[from] known_keys::KnownKeysError),
    /// The community's file cannot be used.
    #[error(transparent)]
    Community(#[from] community_file::CommunityFileError),
    /// The store cannot be used.
    #[error(transparent)]
    Store(#[from] store::StoreError),
    /// The control socket cannot be made.
    #[error(transparent)]
    Server(#[from] server::ServerError),
    /// The data plane cannot be loaded.
    #[error("the data plane cannot be loaded: {0}. `whimbrel doctor` tells what the kernel lacks")]
    Datapath(#[from] whimbrel_datapath::Error),
    /// There is no bpffs, and this process may not mount one.
    #[error(
        "cannot mount a bpffs at {}: {source}. There is none at /sys/fs/bpf, and mounting one takes CAP_SYS_ADMIN: run \
         as root, or let root `mount -t bpf bpf /sys/fs/bpf` first", .path.display()
    )]
    Mount {
        /// Where it was to be mounted.
        path: PathBuf,
        /// What mount(2) said.
        source: std::io::Error,
    },
    /// The log of events cannot be written.
    #[error("{}`event_log` {path} cannot be written: {source}", spot(.at))]
    EventLog {
        /// Where the configuration names it.
        at: Option<config::Spot>,
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// Figures cannot be served.
    #[error("{}cannot `listen` at {listen} for metrics: {source}", spot(.at))]
    Metrics {
        /// Where the configuration names it.
        at: Option<config::Spot>,
        /// The address and port.
        listen: SocketAddr,
        /// What the system said.
        source: std::io::Error,
    },
    /// Another program has the port.
    #[error(
        "UDP port {0} is taken by another program. `ss -lunp sport = :{0}` shows which: end it, or set another `port` on \
         all hosts"
    )]
    PortTaken(u16),
    /// Another daemon works in this network namespace.
    #[error(
        "a daemon with another run directory works in this network namespace already: it has the device {DEVICE} open. One \
         is enough, whatever port it has; another one needs a network namespace of its own"
    )]
    DeviceTaken,
    /// The kernel refused something.
    #[error("{0}. `whimbrel doctor` tells what is missing")]
    Kernel(#[from] whimbrel_kernel::Error),
    /// The tunnel cannot be started.
    #[error(transparent)]
    Tunnel(#[from] whimbrel_tunnel::StartError),
    /// A pump of the tunnel has ended; its log line says why.
    #[error("the tunnel does not work any more: somebody removed its device {DEVICE}, or its socket failed")]
    TunnelEnded,
    /// The control thread cannot go on.
    #[error(transparent)]
    Loop(#[from] reactor::LoopError),
    /// What a daemon before this one left cannot be taken over.
    #[error("what was left by a former daemon cannot be taken over: {0}")]
    Adopt(#[source] Box<dyn std::error::Error + Send + Sync>),
}

/// Runs a daemon in the foreground, in the network namespace of the calling thread, until SIGTERM or SIGINT.
///
/// # Errors
/// When it cannot start, or cannot go on.
pub fn run(options: Options) -> Result<(), Error> {
    // Before there is any secret: no core file, and nobody but root looks in. It is only lost where the kernel lacks
    // it.
    if let Err(error) = rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable) {
        eprintln!("whimbrel: keys may get into core files (prctl PR_SET_DUMPABLE: {error})");
    }
    let config = config::read(options.config.as_deref())?;
    let set_log_level = log::start(config.log);
    event_loop::warn_of(&config);
    let lacking = lacking(Capabilities::effective()?);
    if !lacking.is_empty() {
        return Err(Error::Privileges(lacking));
    }
    // Before there are other threads, so that they block the signals too.
    let signals = Signals::open()?;
    let run_dir = options.run_dir.clone();
    let instance = Instance::lock(&run_dir, host::table::has_flows)?;
    if instance.is_orphaned() {
        let removed = clean::remove_orphans(&instance, &run_dir).map_err(|error| Error::Orphans(Box::new(error)))?;
        tracing::info!(?removed, "a daemon before this one worked in a network namespace that is gone");
    }
    let _state = StateLock::lock(&options.state_dir)?;
    let key = identity::load_or_create(&options.state_dir)?;
    let known_keys = KnownKeys::open(&options.state_dir.join(known_keys::KNOWN_KEYS))?;
    let (mut store, mut restored) = Restored::open(&options.run_dir.join(store::JOURNAL))?;
    store.put::<Home>(&(), &SavedHome::of(&options));
    let lasting = options.state_dir.join("gateway");
    let memory = if config.gateway.behind.is_empty() {
        // What is not kept up to date is not to be believed later.
        store::remove(&lasting)?;
        0
    } else {
        let random = identity::random_bytes()?;
        let fresh = random.iter().take(8).fold(0, |number, byte| number << 8 | u64::from(*byte)).max(1);
        keep_lasting(&mut store, &lasting, fresh, &mut restored.peers, &mut restored.flows)?
    };
    let event_log = config.event_log.as_ref().map(|path| {
        let path = options.state_dir.join(path);
        EventLog::open(&path).map_err(|source| Error::EventLog { at: config.event_log_at.clone(), path, source })
    });
    let event_log = event_log.transpose()?;
    let unheard = |listen, source| Error::Metrics { at: config.metrics.listen_at.clone(), listen, source };
    let endpoint = config.metrics.listen.map(|listen| Endpoint::bind(listen).map_err(|source| unheard(listen, source)));
    let endpoint = endpoint.transpose()?;

    let udp = UdpSocket::bind(config.port).map_err(|error| match error.raw_os_error() {
        Some(libc::EADDRINUSE) => Error::PortTaken(config.port),
        _ => error.into(),
    })?;
    if !config.gateway.behind.is_empty() {
        udp.speak_for_others()?;
    }
    instance.record_namespace(&run_dir)?;
    let place = Place::find(&options.run_dir)?;
    let parts = Start {
        options,
        config,
        set_log_level,
        signals,
        key,
        known_keys,
        store,
        restored,
        memory,
        udp,
        event_log,
        endpoint,
    };
    let (mut event_loop, flows, moves) = match start(parts, &place) {
        Ok(started) => started,
        Err(error) => {
            if place.is_fresh() {
                instance.forget_namespace(&run_dir);
            }
            place.abandon();
            return Err(error);
        }
    };
    let begun = event_loop.begin(&flows, &moves);
    if begun.is_ok() {
        notify(NotifyState::Ready);
    }
    let result = begun.and_then(|()| event_loop.run());
    notify(NotifyState::Stopping);
    if event_loop.shut_down() {
        place.leave();
        instance.forget_namespace(&run_dir);
    }
    drop(instance);
    result
}

/// What a daemon cannot start without and does not have. CAP_SYS_ADMIN stands for the two of BPF (capabilities(7)).
fn lacking(held: Capabilities) -> Vec<Capability> {
    let has = |capability| {
        let of_bpf = matches!(capability, Capability::Bpf | Capability::Perfmon);
        held.has(capability) || of_bpf && held.has(Capability::SysAdmin)
    };
    let needed = [Capability::NetAdmin, Capability::NetRaw, Capability::Bpf, Capability::Perfmon];
    needed.into_iter().filter(|capability| !has(*capability)).collect()
}

/// What a start has before it makes anything that would stay.
struct Start {
    options: Options,
    config: Config,
    set_log_level: Box<dyn Fn(Level)>,
    signals: Signals,
    key: StaticKey,
    known_keys: KnownKeys,
    store: Store,
    restored: Restored,
    memory: u64,
    udp: UdpSocket,
    event_log: Option<EventLog>,
    endpoint: Option<Endpoint>,
}

/// Loads the data plane and starts the tunnel. The caller takes down what is pinned where this fails.
fn start(start: Start, place: &Place) -> Result<(EventLoop, Vec<FlowTuple>, FoundMoves), Error> {
    let mut datapath = Datapath::open(place.pins())?;
    datapath.track(true)?;
    if start.config.ask.handshake_option
        && let Err(error) = datapath.greet(true)
    {
        let what = "the handshakes of TCP say nothing of this host, and other hosts are asked as without the option";
        tracing::warn!(%error, "`handshake_option`: {what}; `whimbrel doctor` says what is missing");
    }
    let tunnel_wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
        .and_then(|wake| Ok((rustix::io::fcntl_dupfd_cloexec(&wake, 0)?, wake)))
        .map_err(reactor::LoopError::new("eventfd"))?;
    let tun = Tun::open(DEVICE, DEFAULT_MTU).map_err(|error| match error.raw_os_error() {
        Some(libc::EBUSY) => Error::DeviceTaken,
        _ => error.into(),
    })?;
    let started = start_on(start, tun, datapath, tunnel_wake);
    if started.is_err() && place.is_fresh() {
        // It outlives the descriptor.
        let _ = Tun::open(DEVICE, DEFAULT_MTU).and_then(Tun::remove);
    }
    started
}

/// The part of a start that has a TUN device.
fn start_on(
    start: Start,
    tun: Tun,
    datapath: Datapath,
    tunnel_wake: (OwnedFd, OwnedFd),
) -> Result<(EventLoop, Vec<FlowTuple>, FoundMoves), Error> {
    let Start { options, config, key, restored, .. } = start;
    let tunnel = Tunnel::start(tun, start.udp, tunnel_wake.1)?;
    let adopting = |failure: host::Failure| Error::Adopt(Box::new(failure));
    let helpers =
        Helpers::new(&options.run_dir, config.helpers.clone()).map_err(|source| Error::Adopt(Box::new(source)))?;
    let community_file = CommunityFile::new(&options.state_dir);
    let community = community_file.read()?;
    let forged = community_file.forged();
    let flows = Installed::restored(&restored.flows, restored.peers.values());
    let (kick, windows) = (config.kick, config.windows);
    let host = Host::new(datapath, tunnel, start.store, flows, &options.run_dir, kick, windows);
    let mut host = host.map_err(adopting)?;
    let named = config.peers.iter().filter_map(|peer| Some((peer.key, peer.name.as_deref()?, peer.name_server)));
    let names = NameLookups::new(named).map_err(|source| Error::Adopt(Box::new(source)))?;
    let effects = Effects::new(&mut host, start.known_keys, community_file, helpers, names, &options.run_dir);
    let mut effects = effects.map_err(adopting)?;
    let moves = effects.adopt_moves(&mut host, clock::now(), &key.public(), &restored.flows, &restored.moves);
    effects.adopt(&mut host, clock::now(), &restored.flows).map_err(adopting)?;
    if config.stand_in {
        effects.proxy.serve(config.port).map_err(host::Failure::from).map_err(adopting)?;
    }
    effects.gateway.speak_for(&mut host, &config.gateway.behind, config.port).map_err(adopting)?;
    host.set_policies(&config.policies);
    let tcp_port = config.listen_tcp.map_or(0, |at| host.listen_tcp(at));
    effects.relocation.set_rights(config.privileged_options);
    effects.lender.set_lendable(config.anchor.as_ref().map(config::Anchor::lendable));

    let socket_names = SocketNames::new(key.to_bytes().as_slice());
    let of_node =
        whimbrel_protocol::Config { memory: start.memory, tcp_port, ..node_config(&config, &effects.known_keys) };
    let mut node = Node::new(of_node, key, identity::random_bytes()?);
    let flows: Vec<_> = restored.flows.keys().copied().collect();
    let now = clock::now();
    node.restore(now, restored.peers.into_values().collect(), restored.flows.into_iter().collect());
    node.restore_left(now, restored.left.into_iter().collect());
    if restored.suspended {
        node.restore_suspended(now);
    }

    if let Some(saved) = community {
        node.restore_community(now, &saved).map_err(|_| forged)?;
    }

    // Listening begins before anything is looked at, so that no change is missed in between.
    let monitor = NetworkMonitor::open()?;
    let server = Server::bind(&socket_path(&options.run_dir), ROOT_ONLY)?;
    grant(&server, config.control_mode);
    if let (Some(endpoint), Some(listen)) = (start.endpoint, config.metrics.listen) {
        let at = config.metrics.listen_at.clone();
        endpoint.serve(options.run_dir.clone()).map_err(|source| Error::Metrics { at, listen, source })?;
    }
    let event_loop = EventLoop::new(Parts {
        desk: Desk::new(
            node,
            host,
            RouteLookup::new(PeerRoutes::open(MARK)?),
            server,
            socket_names,
            start.event_log,
            Tally::new(SystemTime::now(), event_loop::tellers::kinds()),
        )
        .with_names(config.names()),
        effects,
        monitor,
        sockets: SockDiag::open()?,
        signals: start.signals,
        tunnel_wake: tunnel_wake.0,
        settings: Settings {
            config,
            config_path: options.config,
            run_dir: options.run_dir,
            state_dir: options.state_dir,
            set_log_level: start.set_log_level,
        },
        left: LeftBehind::restored(clock::now(), restored.gone),
    })?;
    Ok((event_loop, flows, moves))
}

/// Opens the control socket to whom it is for. `mode`: permission bits, where some are configured.
fn grant(server: &Server, mode: Option<u32>) {
    if let Err(error) = api::access::Access::of(mode).grant(server.path()) {
        tracing::warn!(%error, "the control socket is not given to the group `whimbrel`: only root, and whom `control_mode` names, may ask the daemon");
    }
}

fn node_config(config: &Config, known_keys: &KnownKeys) -> whimbrel_protocol::Config {
    let mut keys = known_keys.all().clone();
    // What is configured goes before what was remembered.
    keys.extend(config.peers.iter().filter_map(|peer| Some((peer.address?, peer.key))));
    whimbrel_protocol::Config {
        trust: config.trust,
        psk: config.psk.clone(),
        known_keys: keys,
        ask: whimbrel_protocol::Ask { allow: config.ask.allow.clone(), deny: config.ask.deny.clone() },
        carriers: config.carriers,
        tunnel_sealed: config.tunnel_sealed,
        masked_updates: config.masked_updates,
        prefer_aes: whimbrel_transform::Algorithm::preferred() == whimbrel_transform::Algorithm::Aes256Gcm,
        port: config.port,
        drawn_ports: host::inventory::flows::ephemeral_ports(),
        wall_clock_at_zero: clock::wall_clock_at_zero(),
        life: identity::life(),
        questions_per_second: config.limits.questions,
        rendezvous: config.rendezvous.clone(),
        serve_rendezvous: config.serve_rendezvous,
        community_rendezvous: config.community_rendezvous,
        named: config.peers.iter().filter_map(|peer| peer.address).take(config::MOST_RENDEZVOUS).collect(),
        with_names: config.peers.iter().filter(|peer| peer.name.is_some()).map(|peer| peer.key).collect(),
        neighbour_proxy: config.stand_in,
        links: config.links.of_node(),
        behind: config.gateway.behind.clone(),
        late: config.late_introductions,
        flows: config.limits.connections as usize,
        flows_per_peer: config.limits.connections_per_peer as usize,
        // Whose sockets are taken is told by the community.
        moving: whimbrel_protocol::Moving {
            enabled: true,
            processes: config.processes,
            lending: config.anchor.as_ref().map(|anchor| whimbrel_protocol::Lending {
                to: anchor.to.clone(),
                most: anchor.leases as usize,
                lifetime: anchor.lifetime,
                ports: anchor.ports.iter().map(|range| (*range.start(), *range.end())).collect(),
            }),
            ..whimbrel_protocol::Moving::default()
        },
        ..whimbrel_protocol::Config::default()
    }
}

/// Where something stands in the configuration, before what is said of it.
fn spot(at: &Option<config::Spot>) -> String {
    at.as_ref().map(|at| format!("{at}: ")).unwrap_or_default()
}

/// Tells the service manager, where there is one.
fn notify(state: NotifyState<'_>) {
    if let Err(error) = sd_notify::notify(&[state]) {
        tracing::warn!(%error, "cannot tell the service manager");
    }
}
