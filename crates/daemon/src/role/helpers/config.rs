//! `[[helper]]` sections.

use std::time::Duration;

use serde::de::{Deserializer, Error};
use toml::Value;
use whimbrel_kernel::child::Account;
use whimbrel_wire::Transport;

use crate::config::conditions::section_of_connections;
use crate::config::document::{ConfigError, Document, Doubt};
use crate::config::value::{self, Written, choose};
use crate::role::helpers::section;
use crate::role::helpers::section::{Kind, Program, Scope, Sections};

/// The most bytes that can be kept: TCP's numbers must stay apart.
const MOST_KEPT: u32 = 1 << 30;
const MOST_ANSWERED: u32 = 1 << 24;
const MOST_STALL: u32 = 86_400;

section_of_connections! {
    /// A section as it is written.
    struct Section {
        #[serde(deserialize_with = "value::read")]
        name: Option<String>,
        #[serde(deserialize_with = "kind")]
        kind: Option<Name>,
        #[serde(deserialize_with = "value::list")]
        command: Vec<Word>,
        #[serde(deserialize_with = "value::read")]
        user: Option<String>,
        #[serde(deserialize_with = "value::limit::<_, _, MOST_KEPT>")]
        keep: Option<u32>,
        #[serde(deserialize_with = "value::limit::<_, _, MOST_ANSWERED>")]
        answer: Option<u32>,
        lines: bool,
        #[serde(deserialize_with = "value::limit::<_, _, MOST_STALL>")]
        stall: Option<u32>,
        #[serde(deserialize_with = "value::read")]
        scope: Option<Scope>,
    }
}

/// By this name, serde does not take it for text that is borrowed from the file.
type Name = &'static str;

/// One of a command.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Word(String);

const COMMAND: &str =
    "a list of the program's absolute path and its arguments, such as [\"/usr/lib/whimbrel/irc-pong\"]";

fn kind<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Name>, D::Error> {
    let kinds = ["hold", "keepalive", "stop", "program"].map(|kind| (kind, kind));
    choose(&value::value(deserializer), &kinds).map(Some).map_err(D::Error::custom)
}

impl Written for Scope {
    fn read(value: &Value) -> Result<Self, String> {
        choose(value, &[("process", Self::Process), ("cgroup", Self::Cgroup)])
    }
}

impl Written for Word {
    const LIST: &'static str = COMMAND;

    fn read(value: &Value) -> Result<Self, String> {
        value::text(value, "words").map(|text| Self(text.to_owned()))
    }
}

/// All of them.
///
/// What does not work is only doubted where that is not the file's fault: a program may be installed later.
pub(crate) fn sections(
    written: Vec<Section>,
    doubts: &mut Vec<Doubt>,
    document: &Document<'_>,
) -> Result<Sections, ConfigError> {
    let mut read: Vec<section::Section> = Vec::new();
    for (index, written) in written.into_iter().enumerate() {
        let at = format!("helper.{index}");
        let section = written.section(document, &at)?;
        if let Kind::Program(program) = &section.kind
            && let Some(why) = program.unusable()
        {
            let sentence = format!("the helper `{}` cannot be started: {why}", section.name);
            let lost = "its connections only wait while their peer is away";
            doubts.push(Doubt { spot: document.spot(&format!("{at}.command")), sentence, lost });
        }
        if read.iter().any(|other| other.name == section.name) {
            let sentence = format!("there is a helper `{}` already; each needs a name of its own", section.name);
            return Err(document.wrong(&at, sentence));
        }
        read.push(section);
    }
    doubts.extend(document.dead("helper", read.iter().map(|section| &section.matcher)));
    Ok(Sections::new(read))
}

impl Section {
    /// What it says. `at`: which part of the file it is.
    fn section(mut self, document: &Document<'_>, at: &str) -> Result<section::Section, ConfigError> {
        let wrong = |key: &str, sentence: &str| document.wrong(&format!("{at}.{key}"), sentence);
        let missing = |key: &str, what: &str| document.wrong(at, format!("this helper has no `{key}`: {what}"));
        let name = self.name.take().ok_or_else(|| missing("name", "what `whimbrel connections` is to call it"))?;
        let fits = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
        if name.is_empty() || name.len() > 32 || !name.chars().all(fits) {
            let right = "`name` must be a word of letters, digits, `-`, `_` and `.`, such as \"irc\"";
            return Err(wrong("name", right));
        }
        let kinds = "\"hold\", \"keepalive\", \"stop\" or \"program\"";
        let kind = self.kind.ok_or_else(|| missing("kind", kinds))?;
        if self.transport == Some(Transport::Udp) {
            let right = "`transport` can only be \"tcp\" here: helpers are for TCP, UDP has nobody who would give up";
            return Err(wrong("transport", right));
        }
        let of_program = ["command", "user", "keep", "answer", "lines", "stall"].map(|key| (key, "program"));
        for (key, of) in of_program.into_iter().chain([("scope", "stop")]) {
            if kind != of && document.has(&format!("{at}.{key}")) {
                return Err(wrong(key, &format!("`{key}` belongs to helpers of kind = \"{of}\" alone")));
            }
        }
        let kind = match kind {
            "hold" => Kind::Hold,
            "keepalive" => Kind::Keepalive,
            "stop" => Kind::Stop(self.scope.unwrap_or_default()),
            _ if !document.has(&format!("{at}.command")) => {
                let what = "the program's absolute path and its arguments, such as [\"/usr/lib/whimbrel/irc-pong\"]";
                return Err(missing("command", what));
            }
            _ => {
                let command: Vec<String> = self.command.drain(..).map(|Word(word)| word).collect();
                let absolute = command.first().is_some_and(|program| program.starts_with('/'));
                if !absolute || command.iter().any(|word| word.contains('\0')) {
                    return Err(wrong("command", &format!("`command` must be {COMMAND}")));
                }
                Kind::Program(Program {
                    command,
                    account: account(self.user.as_deref()).map_err(|sentence| wrong("user", &sentence))?,
                    keep: self.keep.map_or(section::KEEP, u64::from),
                    answer: self.answer.map_or(section::ANSWER, u64::from),
                    lines: self.lines,
                    stall: self.stall.map_or(section::STALL, |seconds| Duration::from_secs(seconds.into())),
                })
            }
        };
        Ok(section::Section { name, matcher: self.matcher(), kind })
    }
}

/// Whom a program runs as.
fn account(user: Option<&str>) -> Result<Account, String> {
    let Some(name) = user else {
        let missing = || format!("this helper has no `user`, and there is none called \"{}\" here", section::USER);
        return section::account(section::USER).ok_or_else(missing);
    };
    let account = section::account(name);
    let account = account.ok_or_else(|| format!("there is no user `{name}`; `getent passwd` lists them"))?;
    if account.uid == 0 {
        let right = "`user` must not be root: a helper is handed what others send; leave it out for \"nobody\"";
        return Err(right.to_owned());
    }
    Ok(account)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::config::{ConfigError, parse};

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
        let shipped = include_str!("../../../../../packaging/whimbrel.toml");
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
