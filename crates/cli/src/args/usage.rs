//! Usage lines: of each command one, the same in its help and where it is used wrongly.

use clap::{Arg, Command};

use crate::table::WIDTH;

/// What stands before the first.
const BEGIN: &str = "Usage: ";

/// The command with the usage of it and of all that is below it.
pub(crate) fn with_usage(command: Command) -> Command {
    let name = command.get_name().to_owned();
    below(command, &name)
}

/// `called`: how it is called, with the commands above it.
fn below(mut command: Command, called: &str) -> Command {
    let names: Vec<String> = command.get_subcommands().map(|one| one.get_name().to_owned()).collect();
    for name in names {
        command = command.mut_subcommand(&name, |one| below(one, &format!("{called} {name}")));
    }
    let own = line(&command, called);
    let usage = match (command.has_subcommands(), command.is_subcommand_required_set()) {
        (false, _) => own,
        (true, true) => format!("{own} <COMMAND>"),
        (true, false) => format!("{own}\n       {called} <COMMAND>"),
    };
    command.override_usage(usage)
}

fn line(command: &Command, called: &str) -> String {
    let shown = |arg: &&Arg| !arg.is_hide_set() && !["help", "version"].contains(&arg.get_id().as_str());
    let (named, placed): (Vec<&Arg>, Vec<&Arg>) =
        command.get_arguments().filter(shown).partition(|arg| !arg.is_positional());
    // What has to be said comes last, before what is placed.
    let (needed, free): (Vec<&Arg>, Vec<&Arg>) = named.into_iter().partition(|arg| arg.is_required_set());
    let words = free.iter().chain(&needed).map(|arg| option(arg)).chain(placed.iter().map(|arg| placed_as(arg)));
    let mut line = called.to_owned();
    let mut column = BEGIN.len() + length(called);
    for word in words {
        if column + 1 + length(&word) > WIDTH {
            line.extend(["\n", &" ".repeat(BEGIN.len() + 4)]);
            column = BEGIN.len() + 4;
        } else {
            line.push(' ');
            column += 1;
        }
        column += length(&word);
        line.push_str(&word);
    }
    line
}

fn length(text: &str) -> usize {
    text.chars().count()
}

fn option(arg: &Arg) -> String {
    let name = match (arg.get_long(), arg.get_short()) {
        (Some(long), _) => format!("--{long}"),
        (None, short) => format!("-{}", short.unwrap_or('?')),
    };
    let value = if arg.get_action().takes_values() { format!(" <{}>", value(arg)) } else { String::new() };
    let again = if matches!(arg.get_action(), clap::ArgAction::Append) { "..." } else { "" };
    let said = format!("{name}{value}");
    if arg.is_required_set() { format!("{said}{again}") } else { format!("[{said}]{again}") }
}

fn placed_as(arg: &Arg) -> String {
    let again = if matches!(arg.get_action(), clap::ArgAction::Append) { "..." } else { "" };
    let name = value(arg);
    match (arg.is_last_set(), arg.is_required_set()) {
        (true, _) => format!("-- <{name}>{again}"),
        (false, true) => format!("<{name}>{again}"),
        (false, false) => format!("[{name}]{again}"),
    }
}

fn value(arg: &Arg) -> String {
    let named = arg.get_value_names().and_then(|names| names.first()).map(|name| name.as_str().to_owned());
    named.unwrap_or_else(|| arg.get_id().as_str().to_uppercase())
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::super::{Arguments, parse};
    use super::*;

    /// What is told of a wrong command line.
    fn told(words: &[&str]) -> String {
        let words = std::iter::once("whimbrel").chain(words.iter().copied());
        parse(words).expect_err("wrong").to_string()
    }

    #[test]
    fn each_command_has_one_usage_line() {
        let whole = with_usage(Arguments::command());
        for (names, usage) in [
            (&["ping"][..], "Usage: whimbrel ping [--count <COUNT>] [--json] <HOST>"),
            (&["why"], "Usage: whimbrel why [--json] <CONNECTION>"),
            (&["receive"], "Usage: whimbrel receive [--once] [--json] <NAME> -- <PROGRAM>..."),
            (&["peers", "forget"], "Usage: whimbrel peers forget [--force] [--json] <ADDRESS|HOST>"),
            (&["peers"], "Usage: whimbrel peers [--json]\n       whimbrel peers <COMMAND>"),
            (&["community"], "Usage: whimbrel community <COMMAND>"),
        ] {
            let mut command = whole.clone();
            for name in names {
                command = command.find_subcommand(name).expect("a command").clone();
            }
            assert_eq!(command.clone().render_usage().to_string(), usage);
        }
        // Whatever is wrong, the same is told.
        for wrong in
            [&["ping"][..], &["ping", "--nonsense", "x"], &["ping", "x", "--count", "many"], &["ping", "x", "y"]]
        {
            assert!(told(wrong).contains("Usage: whimbrel ping [--count <COUNT>] [--json] <HOST>"), "{}", told(wrong));
        }
        with_usage(Arguments::command()).debug_assert();
        let long = told(&["move"]);
        assert!(long.lines().all(|line| length(line) <= WIDTH) && long.contains("\n           "), "{long}");
    }
}
