//! The command line: what can be said, and what `--help` teaches.

mod help;
mod usage;

use std::ffi::OsString;
use std::net::IpAddr;
use std::path::PathBuf;

use clap::builder::StyledStr;
use clap::error::{ContextKind, ContextValue};
use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};

#[cfg(feature = "dbus")]
use help::NOTIFY_HELP;
use help::{
    ABOUT, AFTER_HELP, ANCHOR_HELP, CLEAN_HELP, COMMUNITY_HELP, CONNECTIONS_HELP, EVENTS_HELP, HANDOFF_HELP,
    LONG_ABOUT, MOVE_HELP, RECEIVE_HELP, RUN_HELP, SUSPEND_HELP, UP_HELP,
};

/// How many events are shown when nobody says how many.
pub(crate) const EVENTS_SHOWN: usize = 30;

/// Where a daemon keeps what lives as long as it does.
const DEFAULT_RUN_DIR: &str = "/run/whimbrel";

/// Where a daemon keeps what outlives it.
const DEFAULT_STATE_DIR: &str = "/var/lib/whimbrel";

/// How many events are wanted.
fn how_many(text: &str) -> Result<usize, String> {
    text.parse().map_err(|_| format!("it says how many of the newest events, such as {EVENTS_SHOWN}"))
}

/// An address that a program is to have as a whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WholeAddress {
    /// Whichever the anchor has.
    Any,
    /// This one.
    Exactly(IpAddr),
}

fn whole_address(text: &str) -> Result<WholeAddress, String> {
    match text.parse::<IpAddr>() {
        _ if text == "any" => Ok(WholeAddress::Any),
        Ok(address) if !address.is_unspecified() => Ok(WholeAddress::Exactly(address.to_canonical())),
        _ => Err("it is `any`, or an address that the anchor lends, such as 192.0.2.70".to_owned()),
    }
}

/// Reads a command line, the program's name first.
pub(crate) fn parse<T: Into<OsString> + Clone>(words: impl IntoIterator<Item = T>) -> Result<Arguments, clap::Error> {
    let mut command = usage::with_usage(Arguments::command());
    let words: Vec<OsString> = words.into_iter().map(Into::into).collect();
    let matches = command.try_get_matches_from_mut(&words);
    let parsed = matches.and_then(|mut matches| Arguments::from_arg_matches_mut(&mut matches));
    parsed.map_err(|mut error| {
        // Where a value is wrong none is told.
        if error.use_stderr() && error.get(ContextKind::Usage).is_none() {
            let usage = of_command(&mut command, words.get(1..).unwrap_or_default());
            error.insert(ContextKind::Usage, ContextValue::StyledStr(usage));
        }
        error
    })
}

/// The usage of the command that these words call.
fn of_command(command: &mut clap::Command, words: &[OsString]) -> StyledStr {
    let next = words.iter().position(|word| command.find_subcommand(word).is_some());
    if let Some(at) = next
        && let Some(below) = command.find_subcommand_mut(&words[at])
    {
        return of_command(below, &words[at + 1..]);
    }
    command.render_usage()
}

#[derive(Debug, Parser)]
#[command(name = "whimbrel", version, about = ABOUT, long_about = LONG_ABOUT, after_help = AFTER_HELP)]
pub(crate) struct Arguments {
    /// The daemon's run directory: its socket lives there, one directory for each instance
    #[arg(long, global = true, value_name = "DIR", env = "WHIMBREL_RUN_DIR", default_value = DEFAULT_RUN_DIR)]
    pub(crate) run_dir: PathBuf,

    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run the daemon in the foreground
    #[command(after_help = UP_HELP)]
    Up {
        /// The configuration; without this, /etc/whimbrel/whimbrel.toml is read where it exists
        #[arg(long, value_name = "FILE")]
        config: Option<PathBuf>,
        /// Where the key pair and remembered keys are kept
        #[arg(long, value_name = "DIR", default_value = DEFAULT_STATE_DIR)]
        state_dir: PathBuf,
    },
    /// Show how the daemon is; the exit status is 0 once it is ready
    Status {
        /// Print one line of JSON
        #[arg(long)]
        json: bool,
    },
    /// List connections and whether they would survive a move
    #[command(after_help = CONNECTIONS_HELP)]
    Connections {
        /// Only those that have moved
        #[arg(long)]
        moved: bool,
        /// Also the sockets that wait for clients, by the names that `move` knows them by
        #[arg(long, conflicts_with = "moved")]
        servers: bool,
        /// Print one line of JSON
        #[arg(long)]
        json: bool,
    },
    /// List the other hosts that run Whimbrel
    #[command(args_conflicts_with_subcommands = true)]
    Peers {
        #[command(subcommand)]
        command: Option<PeersCommand>,
        /// Print one line of JSON
        #[arg(long)]
        json: bool,
    },
    /// List the paths to peers: addresses, round trips, what carries connections there
    Paths {
        /// Say by which network each peer is reached, why, and what would change it
        #[arg(long)]
        explain: bool,
        /// Say the same as it would be with the [[prefer]] sections of this file; nothing is changed
        #[arg(long, value_name = "FILE", conflicts_with = "explain")]
        dry_run: Option<PathBuf>,
        /// Print one line of JSON
        #[arg(long)]
        json: bool,
    },
    /// Ask another host whether it answers: session, path, NAT at either end, round trip
    Ping {
        /// Its number, key, name in the community, or an address; one that nothing is known of is asked as well
        host: String,
        /// How often
        #[arg(long, short, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=1000))]
        count: u32,
        /// Print one line of JSON for each answer
        #[arg(long)]
        json: bool,
    },
    /// Say of a connection what it is, whether it would survive a move, why (not), and what can be done
    Why {
        /// By an address of either end, with or without its port, or those of a process (pid:NUMBER)
        connection: String,
        /// Print one line of JSON
        #[arg(long)]
        json: bool,
    },
    /// Tell what happened, oldest first, or draw it
    #[command(after_help = EVENTS_HELP)]
    Events {
        /// Go on with what happens from now on, until interrupted
        #[arg(long, short)]
        follow: bool,
        /// At most so many of those that are there already [default: 30, or all with --since, --from or --plot]
        #[arg(long, short = 'n', value_name = "COUNT", value_parser = how_many, allow_negative_numbers = true)]
        last: Option<usize>,
        /// Only those after this number
        #[arg(long, value_name = "NUMBER")]
        since: Option<u64>,
        /// Those of a log, as --json prints it or the daemon writes it (`event_log`), instead of asking the daemon
        #[arg(long, value_name = "LOG", conflicts_with = "follow")]
        from: Option<PathBuf>,
        /// Draw them as a time line (SVG) into this file, or to standard output where it is `-`
        #[arg(long, value_name = "FILE", conflicts_with_all = ["follow", "json"])]
        plot: Option<PathBuf>,
        /// Print a line of JSON for each
        #[arg(long)]
        json: bool,
    },
    /// Print figures for monitoring, as Prometheus reads them
    Metrics {
        /// Print one line of JSON
        #[arg(long)]
        json: bool,
    },
    /// Show peers, connections, rates and events live, in the terminal, until `q` or Ctrl-C
    Watch,
    /// Show hand-offs, and peers that do not answer, as notifications on this user's desktop
    #[cfg(feature = "dbus")]
    #[command(after_help = NOTIFY_HELP)]
    Notify,
    /// Move now, to another address of this host
    #[command(after_help = HANDOFF_HELP)]
    Handoff {
        /// The address of this host to move to; the daemon's choice where left out
        #[arg(long, value_name = "ADDRESS")]
        to: Option<IpAddr>,
        /// Only the connections with this peer: its number, key, address, or name in the community
        #[arg(long, value_name = "PEER")]
        peer: Option<String>,
        /// Do not wait until the peers have answered
        #[arg(long)]
        no_wait: bool,
        /// Print a line of JSON, and one for each event that belongs to it
        #[arg(long)]
        json: bool,
    },
    /// Go away, to sleep or to another network: connections wait, at both ends, until `resume`
    #[command(after_help = SUSPEND_HELP)]
    Suspend {
        /// All connections, which is what happens where none is named
        #[arg(long, conflicts_with = "connections")]
        all: bool,
        /// Connections by an address and port of either end, or those of a process (pid:NUMBER); the host stays
        #[arg(value_name = "CONNECTION")]
        connections: Vec<String>,
        /// Print one line of JSON
        #[arg(long)]
        json: bool,
    },
    /// Be back: connections that wait since `suspend` go on from where this host is now
    Resume {
        /// Connections that were suspended by themselves; without any, all that waits goes on
        #[arg(value_name = "CONNECTION")]
        connections: Vec<String>,
        /// Print one line of JSON
        #[arg(long)]
        json: bool,
    },
    /// Say which hosts are one's own and may hand sockets to one another
    #[command(after_help = COMMUNITY_HELP)]
    Community {
        #[command(subcommand)]
        command: CommunityCommand,
    },
    /// Give open connections to another host, where a program receives them; their other ends notice nothing
    #[command(after_help = MOVE_HELP)]
    Move {
        /// Which: an address and port of either end, pid:NUMBER for all of a process, or listener:ADDRESS:PORT or
        /// udp:ADDRESS:PORT for a server's socket
        #[arg(required_unless_present = "pid", value_name = "CONNECTION")]
        connections: Vec<String>,
        /// The process with this number, as a whole, with its connections
        #[arg(long, value_name = "PID", conflicts_with_all = ["connections", "process"])]
        pid: Option<u32>,
        /// And all its descendants
        // clap asks for nothing that conflicts with what was said: without the second the first is no rule where
        // connections are named.
        #[arg(long, requires = "pid", conflicts_with = "connections")]
        tree: bool,
        /// And all of its cgroup
        #[arg(long, requires = "pid", conflicts_with_all = ["tree", "connections"])]
        cgroup: bool,
        /// With this address, at which it is met, where it could go with several
        #[arg(long, requires = "pid", conflicts_with = "connections", value_name = "ADDRESS")]
        address: Option<IpAddr>,
        /// To whom: its name in the community, or a peer's number, key or address
        #[arg(long, value_name = "HOST")]
        to: String,
        /// The name under which a program there receives them
        #[arg(long, value_name = "NAME")]
        process: Option<String>,
        /// Print JSON, a line for each connection
        #[arg(long)]
        json: bool,
    },
    /// Receive connections from other hosts, and start a program for each
    #[command(after_help = RECEIVE_HELP)]
    Receive {
        /// The name that they are given to
        name: String,
        /// End with the first, and with its program
        #[arg(long)]
        once: bool,
        /// Print JSON, a line for each connection
        #[arg(long)]
        json: bool,
        /// The program, and its arguments
        #[arg(required = true, last = true, value_name = "PROGRAM")]
        program: Vec<String>,
    },
    /// Run a program whose connections have the address of another host, and can move without their other ends noticing
    #[command(after_help = RUN_HELP)]
    Run {
        /// Whose address: a host as for `move`, `nearest`, `stable` or `auto` among those of the community, or `self`
        #[arg(long, value_name = "HOST")]
        anchor: String,
        /// A port that the program is to have there, beside those that the kernel draws; may be said several times
        #[arg(long = "port", value_name = "PORT", value_parser = clap::value_parser!(u16).range(1..))]
        ports: Vec<u16>,
        /// A whole address of those that the anchor lends, with all its ports, which nobody else has there: that one,
        /// or `any` for whichever is free (IPv4, or IPv6 with -6)
        #[arg(long, value_name = "ADDRESS", value_parser = whole_address, conflicts_with = "ports")]
        address: Option<WholeAddress>,
        /// An IPv6 address; IPv4 where left out
        #[arg(long, short = '6')]
        ipv6: bool,
        /// Far ends that run Whimbrel are not told where the program is, and go on by the anchor
        #[arg(long)]
        hidden: bool,
        /// The program, and its arguments
        #[arg(required = true, last = true, value_name = "PROGRAM")]
        program: Vec<String>,
    },
    /// Show what this host lends others and has on lease, and which connections depend on it
    #[command(args_conflicts_with_subcommands = true, after_help = ANCHOR_HELP)]
    Anchor {
        #[command(subcommand)]
        command: Option<AnchorCommand>,
        /// Print one line of JSON
        #[arg(long)]
        json: bool,
    },
    /// Remove what a stopped daemon has left; connections that had moved end
    #[command(after_help = CLEAN_HELP)]
    Clean {
        /// Print one line of JSON
        #[arg(long)]
        json: bool,
    },
    /// Run CRIU for the daemon, which starts this
    #[command(hide = true)]
    CriuHelper,
    /// Check kernel, privileges, firewall and network settings, and say how to mend what is wrong
    Doctor {
        /// The configuration to check; without this, /etc/whimbrel/whimbrel.toml where it exists
        #[arg(long, value_name = "FILE")]
        config: Option<PathBuf>,
        /// Print one line of JSON
        #[arg(long)]
        json: bool,
    },
}

#[derive(Debug, Subcommand)]
pub(crate) enum AnchorCommand {
    /// Lend nothing new, and wait until no connection depends on this host; fails if that is not so in time
    Stop {
        /// How long, in seconds; 0: do not wait
        #[arg(long, value_name = "SECONDS", default_value_t = 60)]
        within: u64,
        /// Print one line of JSON
        #[arg(long)]
        json: bool,
    },
    /// Lend again
    Start {
        /// Print one line of JSON
        #[arg(long)]
        json: bool,
    },
}

#[derive(Debug, Subcommand)]
pub(crate) enum PeersCommand {
    /// Drop the key that is remembered for an address, after that host was set up anew; or forget a host
    Forget {
        /// The address; or a host by its number, key or name: all that is remembered of it and agreed on with it goes
        #[arg(value_name = "ADDRESS|HOST")]
        host: String,
        /// Also where connections with it have moved, which end with that, or where leases depend on it
        #[arg(long)]
        force: bool,
        /// Print one line of JSON
        #[arg(long)]
        json: bool,
    },
}

#[derive(Debug, Subcommand)]
pub(crate) enum CommunityCommand {
    /// Found a community of this host, which is its steward
    Init {
        /// What people call this host; its host name where left out
        #[arg(long, value_name = "NAME")]
        name: Option<String>,
        /// Print one line of JSON
        #[arg(long)]
        json: bool,
    },
    /// Draw a code by which another host joins, good for one try within ten minutes
    Invite {
        /// Let it invite and revoke as well: it is given the community's secret key
        #[arg(long)]
        steward: bool,
        /// Print one line of JSON
        #[arg(long)]
        json: bool,
    },
    /// Join a community by a code that one of its stewards has drawn
    Join {
        /// The code, as in 7-crossover-clockwork-tolerance
        code: String,
        /// Names or addresses of the host that has drawn it; those after the first are tried in turn
        #[arg(required = true, value_name = "HOST")]
        hosts: Vec<String>,
        /// The control port there, where it is not this host's own
        #[arg(long, value_name = "PORT")]
        port: Option<u16>,
        /// What people call this host; its host name where left out
        #[arg(long, value_name = "NAME")]
        name: Option<String>,
        /// Print a line of JSON, and one for what becomes of it
        #[arg(long)]
        json: bool,
    },
    /// List the community's hosts, open codes and grants
    List {
        /// Print one line of JSON
        #[arg(long)]
        json: bool,
    },
    /// Have a host belong to the community no more, or take a code or a grant back
    Revoke {
        /// The host's name or key, or the number of a code or grant
        #[arg(value_name = "HOST|NUMBER")]
        what: String,
        /// Print one line of JSON
        #[arg(long)]
        json: bool,
    },
    /// Forget the community; its stewards go on to count this host until one revokes it
    Leave {
        /// Print one line of JSON
        #[arg(long)]
        json: bool,
    },
    /// Draw a code by which a host of somebody else may be given one connection, once, within an hour
    Grant {
        /// An address and port of either end of the connection
        connection: String,
        /// Print one line of JSON
        #[arg(long)]
        json: bool,
    },
    /// Use such a code, so that this host takes the connection when it comes
    Accept {
        /// The code, as in 7-crossover-clockwork-tolerance
        code: String,
        /// Names or addresses of the host that has drawn it; those after the first are tried in turn
        #[arg(required = true, value_name = "HOST")]
        hosts: Vec<String>,
        /// The control port there, where it is not this host's own
        #[arg(long, value_name = "PORT")]
        port: Option<u16>,
        /// Print a line of JSON, and one for what becomes of it
        #[arg(long)]
        json: bool,
    },
}

impl CommunityCommand {
    /// Whether the answer, or the complaint, is for a program.
    pub(crate) fn json(&self) -> bool {
        match self {
            Self::Init { json, .. }
            | Self::Invite { json, .. }
            | Self::Join { json, .. }
            | Self::List { json }
            | Self::Revoke { json, .. }
            | Self::Leave { json }
            | Self::Grant { json, .. }
            | Self::Accept { json, .. } => *json,
        }
    }
}

impl Command {
    /// Whether the answer, or the complaint, is for a program.
    pub(crate) fn json(&self) -> bool {
        match self {
            #[cfg(feature = "dbus")]
            Self::Notify => false,
            Self::Up { .. } | Self::Watch | Self::Run { .. } | Self::CriuHelper => false,
            Self::Community { command } => command.json(),
            Self::Peers { command: Some(PeersCommand::Forget { json, .. }), .. }
            | Self::Status { json }
            | Self::Connections { json, .. }
            | Self::Peers { json, .. }
            | Self::Paths { json, .. }
            | Self::Ping { json, .. }
            | Self::Why { json, .. }
            | Self::Metrics { json }
            | Self::Events { json, .. }
            | Self::Handoff { json, .. }
            | Self::Suspend { json, .. }
            | Self::Resume { json, .. }
            | Self::Move { json, .. }
            | Self::Receive { json, .. }
            | Self::Anchor { command: None, json }
            | Self::Anchor {
                command: Some(AnchorCommand::Stop { json, .. } | AnchorCommand::Start { json }), ..
            }
            | Self::Clean { json }
            | Self::Doctor { json, .. } => *json,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use clap::CommandFactory;

    #[test]
    fn numbers_that_are_none_are_told_what_they_are_for() {
        let complaint = Arguments::try_parse_from(["whimbrel", "events", "--last", "-3"]).unwrap_err().to_string();
        assert!(complaint.contains("it says how many of the newest events, such as 30"), "{complaint}");
    }

    #[test]
    fn what_is_said_of_a_process_goes_with_one() {
        for said in [&["--tree"][..], &["--cgroup"], &["--address", "192.0.2.7"]] {
            let parse = |which: &[&str]| {
                let common = ["whimbrel", "move", "--to", "tablet"];
                Arguments::try_parse_from(common.iter().chain(which).chain(said))
            };
            for which in [&["192.0.2.7:22"][..], &["pid:4711"], &["192.0.2.7:22", "--process", "web"], &[]] {
                let complaint = parse(which).err().map(|error| (error.exit_code(), error.to_string()));
                let right = complaint.as_ref().is_some_and(|(code, said)| *code == 2 && said.contains("--"));
                assert!(right, "{which:?} {said:?}: {complaint:?}");
            }
            assert!(parse(&["--pid", "4711"]).is_ok(), "{said:?}");
        }
    }

    #[test]
    fn the_definition_is_sound() {
        Arguments::command().debug_assert();
    }

    /// The manual page, as lines of words: a macro's name, and what follows it.
    fn manual() -> &'static str {
        include_str!("../../../docs/man/whimbrel.1")
    }

    /// What the synopsis says of each form of a command: its name, and the options that it has.
    fn synopsis() -> Vec<(String, BTreeSet<String>)> {
        let section = manual().split(".Sh SYNOPSIS").nth(1).and_then(|rest| rest.split(".Sh DESCRIPTION").next());
        let forms = section.expect("a synopsis").split(".Nm\n").skip(1);
        let form = |text: &str| {
            let name = text.lines().find_map(|line| line.strip_prefix(".Cm ")).expect("a command").to_owned();
            let words: Vec<&str> = text.split_whitespace().collect();
            let flag = |pair: &[&str]| (pair[0].trim_start_matches('.') == "Fl").then(|| pair[1].to_owned());
            (
                name,
                words.windows(2).filter_map(flag).filter_map(|flag| Some(flag.strip_prefix('-')?.to_owned())).collect(),
            )
        };
        forms.map(form).collect()
    }

    /// All commands that people can give, with those that they are given by.
    fn commands() -> Vec<(String, clap::Command)> {
        let mut found = Vec::new();
        let mut open = vec![(String::new(), Arguments::command())];
        while let Some((path, command)) = open.pop() {
            for inner in command.get_subcommands().filter(|inner| !inner.is_hide_set()) {
                open.push((format!("{path} {}", inner.get_name()).trim().to_owned(), inner.clone()));
            }
            if !path.is_empty() && !command.is_subcommand_required_set() {
                found.push((path, command));
            }
        }
        found
    }

    #[test]
    fn the_synopsis_has_every_command_with_its_options_and_no_others() {
        let synopsis = synopsis();
        for (path, command) in commands() {
            let forms: Vec<_> = synopsis.iter().filter(|(name, _)| *name == path).map(|(_, options)| options).collect();
            assert!(!forms.is_empty(), "`{path}` is not in the synopsis");
            let said: BTreeSet<&str> = forms.iter().flat_map(|options| options.iter().map(String::as_str)).collect();
            let known: BTreeSet<&str> = command.get_opts().filter_map(|option| option.get_long()).collect();
            let said: BTreeSet<&str> = said.into_iter().filter(|option| !["run-dir", ""].contains(option)).collect();
            assert_eq!(said, known, "{path}");
        }
        let known: BTreeSet<String> = commands().into_iter().map(|(path, _)| path).collect();
        for (name, _) in synopsis {
            assert!(known.contains(&name), "there is no `{name}`");
        }
    }

    #[test]
    fn the_page_on_roaming_says_which_commands_have_no_json() {
        let has = |command: &clap::Command| command.get_opts().any(|option| option.get_long() == Some("json"));
        let without: BTreeSet<String> =
            commands().into_iter().filter(|(_, command)| !has(command)).map(|(path, _)| path).collect();
        assert_eq!(without, ["notify", "run", "up", "watch"].map(str::to_owned).into());
        let page = include_str!("../../../docs/roaming.md");
        assert!(page.contains("All except `up`, `run`, `watch` and `notify` have `--json`"));
    }

    #[test]
    fn the_manual_page_describes_every_command_with_its_options() {
        let section = manual().split(".Sh COMMANDS").nth(1).and_then(|rest| rest.split(".Sh CONFIGURATION").next());
        let items: Vec<&str> = section.expect("commands").split("\n.It Cm ").skip(1).collect();
        for (path, command) in commands() {
            let begins = |item: &&&str| {
                let head = item.lines().next().unwrap_or_default();
                head.strip_prefix(&path).is_some_and(|rest| {
                    rest.is_empty() || rest.starts_with(" O") || rest.starts_with(" Fl") || rest.starts_with(" Ar")
                })
            };
            let heads: Vec<&str> = items.iter().filter(begins).filter_map(|item| item.lines().next()).collect();
            assert!(!heads.is_empty(), "`{path}` is not described");
            for long in command.get_opts().filter_map(|option| option.get_long()) {
                assert!(heads.iter().any(|head| head.contains(&format!("Fl -{long}"))), "{path}: --{long}");
            }
        }
    }

    #[test]
    fn the_manual_page_describes_every_key_of_the_configuration() {
        let section = manual().split(".Sh CONFIGURATION").nth(1).and_then(|rest| rest.split(".Sh FILES").next());
        // What a list is of, or is said at a glance in its text.
        let named: BTreeSet<&str> = section
            .expect("the configuration")
            .lines()
            .filter_map(|line| line.strip_prefix(".It Li ").or_else(|| line.strip_prefix(".Li ")))
            .flat_map(|line| line.split([' ', ',']))
            .map(|key| key.rsplit('.').next().unwrap_or(key))
            .collect();
        for line in include_str!("../../../packaging/whimbrel.toml").lines() {
            let line = line.trim_start_matches('#');
            if let Some((key, _)) = line.split_once(" = ").filter(|(key, _)| !key.contains(' ')) {
                assert!(named.contains(key), "{key}");
            }
        }
    }

    #[test]
    fn help_fits_the_width() {
        let mut command = Arguments::command().term_width(crate::table::WIDTH);
        command.build();
        let mut open = vec![command];
        while let Some(mut command) = open.pop() {
            let help = command.render_long_help().to_string();
            let long = help.lines().find(|line| line.chars().count() > crate::table::WIDTH);
            assert_eq!(long, None, "{}", command.get_name());
            open.extend(command.get_subcommands().cloned());
        }
    }
}
