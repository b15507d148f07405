//! `[[helper]]` sections.

use std::ops::Range;
use std::time::Duration;

use toml::Spanned;
use whimbrel_kernel::child::Account;
use whimbrel_wire::Transport;

use super::conditions::matcher;
use super::doubt::{Doubted, dead};
use super::value::{Mistake, Section, Value, array, boolean, choice, limit, string, subtable};
use crate::helpers::section::{self, Kind, Program, Scope, Sections};
use crate::policy::Matcher;

const KINDS: [(&str, Named); 4] =
    [("hold", Named::Hold), ("keepalive", Named::Keepalive), ("stop", Named::Stop), ("program", Named::Program)];
/// The most bytes that can be kept: TCP's numbers must stay apart.
const MOST_KEPT: u32 = 1 << 30;
const MOST_ANSWERED: u32 = 1 << 24;
const MOST_STALL: u32 = 86_400;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Named {
    Hold,
    Keepalive,
    Stop,
    Program,
}

/// All of them.
///
/// What does not work is only doubted where that is not the file's fault: a program may be installed later.
pub(super) fn sections(
    value: Value<'_, '_>,
    doubts: &mut Vec<Doubted>,
    line_of: &dyn Fn(usize) -> u32,
) -> Result<Sections, Mistake> {
    let mut places = Vec::new();
    let mut read: Vec<section::Section> = Vec::new();
    for element in array(value, "helper", "written as [[helper]] sections")? {
        let (section, command) = section(element)?;
        if let (Kind::Program(program), Some(at)) = (&section.kind, command)
            && let Some(why) = program.unusable()
        {
            let sentence = format!("the helper `{}` cannot be started: {why}", section.name);
            doubts.push(Doubted { at, sentence, lost: "its connections only wait while their peer is away" });
        }
        places.push((element.span(), section.matcher == Matcher::default()));
        if read.iter().any(|other| other.name == section.name) {
            let sentence = format!("there is a helper `{}` already; each needs a name of its own", section.name);
            return Err(Mistake::new(element.span(), sentence));
        }
        read.push(section);
    }
    doubts.extend(dead("helper", &places, line_of));
    Ok(Sections::new(read))
}

/// A section, and where its command stands.
fn section(value: Value<'_, '_>) -> Result<(section::Section, Option<Range<usize>>), Mistake> {
    let mut section = Section::new(subtable(value, "helper")?);
    let missing = |key: &str, what: &str| Mistake::new(value.span(), format!("this helper has no `{key}`: {what}"));
    let name = section.take("name").ok_or_else(|| missing("name", "what `whimbrel connections` is to call it"))?;
    let name = word(name)?;
    let kinds = "\"hold\", \"keepalive\", \"stop\" or \"program\"";
    let kind = section.take("kind").ok_or_else(|| missing("kind", kinds))?;
    let kind = choice(kind, "kind", &KINDS)?;
    let transport = section.take("transport");
    let matcher = matcher(&mut section)?;
    if let Some(value) = transport.filter(|_| matcher.transport == Some(Transport::Udp)) {
        let right = "`transport` can only be \"tcp\" here: helpers are for TCP, UDP has nobody who would give up";
        return Err(Mistake::new(value.span(), right));
    }
    let command = section.take("command");
    let of_program = ["user", "keep", "answer", "lines", "stall"].map(|key| (key, section.take(key)));
    let scope = section.take("scope");
    section.finish()?;
    let of_others = [("command", command)].into_iter().chain(of_program).filter(|_| kind != Named::Program);
    let of_others = of_others.chain([("scope", scope)].into_iter().filter(|_| kind != Named::Stop));
    for (key, value) in of_others {
        if let Some(value) = value {
            let kind = if key == "scope" { "stop" } else { "program" };
            return Err(Mistake::new(value.span(), format!("`{key}` belongs to helpers of kind = \"{kind}\" alone")));
        }
    }
    let [(_, user), (_, keep), (_, answer), (_, lines), (_, stall)] = of_program;
    let kind = match kind {
        Named::Hold => Kind::Hold,
        Named::Keepalive => Kind::Keepalive,
        Named::Stop => {
            let scopes = [("process", Scope::Process), ("cgroup", Scope::Cgroup)];
            Kind::Stop(scope.map(|value| choice(value, "scope", &scopes)).transpose()?.unwrap_or_default())
        }
        Named::Program => {
            let what = "the program's absolute path and its arguments, such as [\"/usr/lib/whimbrel/irc-pong\"]";
            let bytes = |value: Option<_>, name, most, usual| {
                value.map_or(Ok(usual), |value| limit(value, name, most).map(u64::from))
            };
            Kind::Program(Program {
                command: command_line(command.ok_or_else(|| missing("command", what))?)?,
                account: user.map_or_else(|| usual_account(value), account)?,
                keep: bytes(keep, "keep", MOST_KEPT, section::KEEP)?,
                answer: bytes(answer, "answer", MOST_ANSWERED, section::ANSWER)?,
                lines: lines.map_or(Ok(false), |value| boolean(value, "lines"))?,
                stall: Duration::from_secs(bytes(stall, "stall", MOST_STALL, section::STALL.as_secs())?),
            })
        }
    };
    Ok((section::Section { name, matcher, kind }, command.map(Spanned::span)))
}

fn word(value: Value<'_, '_>) -> Result<String, Mistake> {
    let text = string(value, "name", "a word")?;
    let fits = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    if text.is_empty() || text.len() > 32 || !text.chars().all(fits) {
        let right = "`name` must be a word of letters, digits, `-`, `_` and `.`, such as \"irc\"";
        return Err(Mistake::new(value.span(), right));
    }
    Ok(text.to_owned())
}

fn command_line(value: Value<'_, '_>) -> Result<Vec<String>, Mistake> {
    let right = "a list of the program's absolute path and its arguments, such as [\"/usr/lib/whimbrel/irc-pong\"]";
    let elements = array(value, "command", right)?;
    let words: Vec<&str> =
        elements.iter().map(|element| string(element, "command", "words")).collect::<Result<_, _>>()?;
    match words.first() {
        Some(program) if program.starts_with('/') && words.iter().all(|word| !word.contains('\0')) => {
            Ok(words.into_iter().map(str::to_owned).collect())
        }
        _ => Err(Mistake::new(value.span(), format!("`command` must be {right}"))),
    }
}

fn account(value: Value<'_, '_>) -> Result<Account, Mistake> {
    let text = string(value, "user", "the name of a user")?;
    let account = section::account(text)
        .ok_or_else(|| Mistake::new(value.span(), format!("there is no user `{text}`; `getent passwd` lists them")))?;
    if account.uid == 0 {
        let right = "`user` must not be root: a helper is handed what others send; leave it out for \"nobody\"";
        return Err(Mistake::new(value.span(), right));
    }
    Ok(account)
}

fn usual_account(value: Value<'_, '_>) -> Result<Account, Mistake> {
    let missing = || format!("this helper has no `user`, and there is none called \"{}\" here", section::USER);
    section::account(section::USER).ok_or_else(|| Mistake::new(value.span(), missing()))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::super::{ConfigError, parse};
    use super::*;

    fn read(text: &str) -> Result<Sections, ConfigError> {
        parse(Path::new("/etc/w.toml"), text).map(|config| config.helpers)
    }

    #[test]
    fn sections_are_read_with_their_limits() {
        let sections = read(
            "[[helper]]\nname = 'irc'\nkind = 'program'\ncommand = ['/usr/lib/whimbrel/irc-pong', '-v']\n\
             user = 'daemon'\nkeep = 4096\nanswer = 100\nlines = true\nstall = 5\nlocal_port = 6667\n\
             [[helper]]\nname = 'forks'\nkind = 'stop'\nscope = 'cgroup'\nprogram = 'in.telnetd'\n\
             [[helper]]\nname = 'quiet'\nkind = 'keepalive'\n[[helper]]\nname = 'rest'\nkind = 'hold'\n",
        );
        let sections = sections.expect("valid");
        let Kind::Program(program) = &sections.named("irc").expect("there").kind else { panic!("is a program") };
        assert_eq!(program.command, ["/usr/lib/whimbrel/irc-pong", "-v"]);
        assert_eq!((program.keep, program.answer, program.stall), (4096, 100, Duration::from_secs(5)));
        assert!(program.lines);
        assert_ne!(program.account.uid, 0);
        assert_eq!(sections.named("forks").expect("there").kind, Kind::Stop(Scope::Cgroup));
        assert_eq!(sections.named("quiet").expect("there").kind.name(), "keepalive");
        assert!(sections.asks_for_holders());
        let usual = read("[[helper]]\nname = 'x'\nkind = 'program'\ncommand = ['/bin/cat']\n").expect("valid");
        let Kind::Program(program) = &usual.named("x").expect("there").kind else { panic!("is a program") };
        assert_eq!((program.keep, program.answer, program.stall), (section::KEEP, section::ANSWER, section::STALL));
        assert!(!program.lines);
    }

    #[test]
    fn the_section_that_is_shipped_as_an_example_shows_the_defaults() {
        let shipped = include_str!("../../../../packaging/whimbrel.toml");
        let lines = shipped.lines().skip_while(|line| *line != "#[[helper]]").take_while(|line| !line.is_empty());
        let text: Vec<&str> = lines.filter_map(|line| line.strip_prefix('#')).collect();
        let sections = read(&text.join("\n")).expect("valid");
        let Kind::Program(program) = &sections.named("irc").expect("there").kind else { panic!("is a program") };
        assert_eq!((program.keep, program.answer, program.stall), (section::KEEP, section::ANSWER, section::STALL));
        assert_eq!(Some(program.account), section::account(section::USER));
    }

    #[test]
    fn what_cannot_be_started_or_never_counts_is_doubted() {
        let doubts = |text: &str| -> Vec<String> {
            let config = parse(Path::new("/etc/w.toml"), text).expect("valid");
            config.doubts.iter().map(ToString::to_string).collect()
        };
        let program = |command: &str| {
            format!("[[helper]]\nname = 'x'\nkind = 'program'\nlocal_port = 25\ncommand = ['{command}']\n")
        };
        assert_eq!(
            doubts(&program("/no/such")),
            ["/etc/w.toml:5:11: the helper `x` cannot be started: /no/such: No such file or directory (os error 2)"]
        );
        assert_eq!(doubts(&program("/etc"))[0], "/etc/w.toml:5:11: the helper `x` cannot be started: /etc is no file");
        let doubted = &doubts(&program("/etc/passwd"))[0];
        assert!(doubted.contains("/etc/passwd cannot be executed by its `user`"), "{doubted}");
        assert_eq!(doubts(&program("/bin/sh")), [""; 0]);
        let all = "[[helper]]\nname = 'all'\nkind = 'hold'\n";
        assert_eq!(doubts(&format!("{}{all}", program("/bin/sh"))), [""; 0]);
        let doubted = doubts(&format!("{all}{}", program("/bin/sh")));
        assert!(doubted[0].starts_with("/etc/w.toml:1:1: this [[helper]] has no condition"), "{doubted:?}");
    }

    #[test]
    fn complaints_say_what_would_be_right() {
        let program = "[[helper]]\nname = 'x'\nkind = 'program'\ncommand = ['/bin/cat']\n";
        for (text, right) in [
            ("helper = 1".to_owned(), "1:10: `helper` must be written as [[helper]] sections, not an integer"),
            ("[[helper]]\nkind = 'hold'".to_owned(), "1:1: this helper has no `name`: what `whimbrel connections`"),
            ("[[helper]]\nname = 'x'".to_owned(), "1:1: this helper has no `kind`: \"hold\", \"keepalive\""),
            ("[[helper]]\nname = 'a b'\nkind = 'hold'".to_owned(), "2:8: `name` must be a word of letters"),
            ("[[helper]]\nname = 'x'\nkind = 'holt'".to_owned(), "3:8: `kind` must be one of"),
            ("[[helper]]\nname = 'x'\nkind = 'program'".to_owned(), "1:1: this helper has no `command`: the program's"),
            (
                "[[helper]]\nname = 'x'\nkind = 'hold'\nkeep = 5".to_owned(),
                "4:8: `keep` belongs to helpers of kind = \"program\" alone",
            ),
            (
                "[[helper]]\nname = 'x'\nkind = 'hold'\nscope = 'process'".to_owned(),
                "4:9: `scope` belongs to helpers of kind = \"stop\" alone",
            ),
            (
                "[[helper]]\nname = 'x'\nkind = 'stop'\nscope = 'all'".to_owned(),
                "4:9: `scope` must be one of \"process\", \"cgroup\"",
            ),
            (program.replace("/bin/cat", "cat"), "4:11: `command` must be a list of the program's absolute path"),
            (program.replace("['/bin/cat']", "[]"), "4:11: `command` must be a list of the program's absolute path"),
            (
                program.replace("['/bin/cat']", "'/bin/cat'"),
                "4:11: `command` must be a list of the program's absolute path",
            ),
            (format!("{program}user = 'root'"), "5:8: `user` must not be root"),
            (
                format!("{program}user = 'no-such-user'"),
                "5:8: there is no user `no-such-user`; `getent passwd` lists them",
            ),
            (format!("{program}keep = 0"), "5:8: `keep` must be a number from 1 to 1073741824"),
            (format!("{program}answer = '1M'"), "5:10: `answer` must be a number from 1 to 16777216"),
            (format!("{program}lines = 1"), "5:9: `lines` must be true or false"),
            (format!("{program}stall = 100000"), "5:9: `stall` must be a number from 1 to 86400"),
            (format!("{program}comand = 1"), "5:1: unknown key `comand`; did you mean `command`?"),
            (format!("{program}{program}"), "5:1: there is a helper `x` already"),
            (format!("{program}transport = 'udp'"), "5:13: `transport` can only be \"tcp\" here: helpers are for TCP"),
            (format!("{program}local_port = 0"), "5:14: `local_port` must be a port such as 21"),
        ] {
            let complaint = read(&text).expect_err(&text).to_string();
            assert!(complaint.starts_with(&format!("/etc/w.toml:{right}")), "{complaint}");
        }
    }
}
