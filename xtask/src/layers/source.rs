//! What a source file names and declares, as far as the layers ask for it: a tokenizer and no parser.

use std::collections::BTreeMap;

/// The tokens of a file without comments, strings and what is compiled for tests only.
#[derive(Debug, Default)]
pub(super) struct Source {
    tokens: Vec<String>,
    /// What `use` makes of other modules' names in this one: the name here, the path there.
    imported: BTreeMap<String, Vec<String>>,
    lines: usize,
    /// Functions with how many lines each has.
    functions: Vec<(String, usize)>,
}

impl Source {
    pub(super) fn parse(text: &str) -> Self {
        let tokens = without_tests(tokens(text));
        let mut imported = BTreeMap::new();
        for (at, _) in tokens.iter().enumerate().filter(|(_, token)| *token == "use") {
            for (path, name) in tree(&tokens, at + 1).0 {
                imported.insert(name, path);
            }
        }
        let whole: Vec<&str> = text.lines().collect();
        let lines = whole.iter().position(|line| line.starts_with("#[cfg(test)]")).unwrap_or(whole.len());
        Self { tokens, imported, lines, functions: functions(&whole[..lines]) }
    }

    /// How long the file is without its tests.
    pub(super) fn lines(&self) -> usize {
        self.lines
    }

    /// The functions that are longer, with their length.
    pub(super) fn functions_over(&self, most: usize) -> impl Iterator<Item = String> {
        self.functions.iter().filter(move |(_, lines)| *lines > most).map(|(name, lines)| format!("{name} ({lines})"))
    }

    /// All paths that stand in the file: in `use`, and where something is named by its whole path.
    pub(super) fn paths(&self) -> Vec<Vec<String>> {
        let begins = |at: &usize| {
            let before = at.checked_sub(1).and_then(|before| self.tokens.get(before));
            let path = is_name(&self.tokens[*at]) && self.tokens.get(at + 1).is_some_and(|next| next == "::");
            path && before.is_none_or(|before| before != "::")
        };
        let starts = (0..self.tokens.len()).filter(begins);
        starts.flat_map(|at| tree(&self.tokens, at).0).map(|(path, _)| path).collect()
    }

    /// What a name stands for that `use` has brought here.
    pub(super) fn imported_as(&self, name: &str) -> Option<&Vec<String>> {
        self.imported.get(name)
    }

    /// The names of the methods that the file declares of a type.
    pub(super) fn methods_of(&self, of: &str) -> Vec<&str> {
        let bodies = self.impls(of);
        let names = bodies.iter().flat_map(|body| body.windows(2)).filter(|two| two[0] == "fn");
        names.map(|two| two[1].as_str()).collect()
    }

    /// The methods that those methods call of `self`.
    pub(super) fn calls_within(&self, of: &str) -> Vec<&str> {
        let bodies = self.impls(of);
        let calls = bodies.iter().flat_map(|body| body.windows(4));
        let calls = calls.filter(|four| four[0] == "self" && four[1] == "." && four[3] == "(");
        calls.map(|four| four[2].as_str()).collect()
    }

    /// The types that change: those with a method of `&mut self` in this file.
    pub(super) fn changing(&self) -> Vec<&str> {
        let is_receiver = |at: usize, body: &[String]| {
            let opens = body[..at].iter().rev().take(3).position(|token| token == "&");
            let opens = opens.and_then(|back| body[..at - back - 1].last());
            opens.is_some_and(|token| token == "(")
                && body.get(at + 2).is_some_and(|token| [",", ")"].contains(&token.as_str()))
        };
        let is_changing = |body: &[String]| {
            let mut receivers = body.windows(2).enumerate().filter(|(_, two)| *two == ["mut", "self"]);
            receivers.any(|(at, _)| is_receiver(at, body))
        };
        let starts = self.tokens.iter().enumerate().filter(|(_, token)| *token == "impl");
        let of = starts.filter_map(|(at, _)| {
            let opening = at + self.tokens[at..].iter().position(|token| token == "{")?;
            is_changing(balanced(&self.tokens[opening..])).then(|| implemented(&self.tokens[at + 1..opening]))?
        });
        of.collect()
    }

    /// The fields that are open beyond the module, with the struct of each.
    pub(super) fn open_fields(&self) -> Vec<(&str, String)> {
        let mut found = Vec::new();
        for (at, _) in self.tokens.iter().enumerate().filter(|(_, token)| *token == "struct") {
            let Some(name) = self.tokens.get(at + 1) else { continue };
            let Some(opening) = (at..self.tokens.len()).find(|at| ["{", "(", ";"].contains(&self.tokens[*at].as_str()))
            else {
                continue;
            };
            let body = balanced(&self.tokens[opening..]);
            for (number, field) in fields(body).into_iter().enumerate() {
                let Some(open) = field.iter().position(|token| token == "pub") else { continue };
                let within: usize = match field.get(open + 1..open + 4) {
                    Some([one, of, two]) if (one.as_str(), two.as_str()) == ("(", ")") && of == "crate" => 3,
                    Some([one, ..]) if one == "(" => continue,
                    _ => 0,
                };
                let (first, colon) = (field.get(open + 1 + within), field.get(open + 2 + within));
                let named = first.filter(|_| colon.is_some_and(|colon| colon == ":"));
                found.push((name.as_str(), named.cloned().unwrap_or_else(|| number.to_string())));
            }
        }
        found
    }

    fn impls(&self, of: &str) -> Vec<&[String]> {
        let starts = self.tokens.windows(3).enumerate().filter(|(_, three)| *three == ["impl", of, "{"]);
        starts.map(|(at, _)| balanced(&self.tokens[at + 2..])).collect()
    }
}

/// The type that an `impl` is of, by what stands between that and its brace.
fn implemented(header: &[String]) -> Option<&str> {
    let mut depth = 0_i32;
    let mut last = None;
    for token in header {
        match token.as_str() {
            "<" => depth += 1,
            ">" => depth -= 1,
            "where" if depth == 0 => break,
            name if depth == 0 && name != "for" && is_name(name) => last = Some(name),
            _ => {}
        }
    }
    last
}

/// The functions of a file as rustfmt writes them, each with how many lines it has.
fn functions(lines: &[&str]) -> Vec<(String, usize)> {
    let begins = |(_, line): &(usize, &&str)| {
        let words = line.trim_start().split(' ');
        words
            .take_while(|word| ["pub", "pub(crate)", "pub(super)", "const", "fn"].contains(word))
            .any(|word| word == "fn")
    };
    let length = |(at, line): (usize, &&str)| {
        let indent = line.len() - line.trim_start().len();
        let is_end = |line: &&str| line.len() == indent + 1 && line.ends_with('}');
        if line.ends_with(['}', ';']) {
            return None;
        }
        let end = lines[at..].iter().position(is_end)?;
        let name = line.split("fn ").nth(1)?.split(['(', '<']).next()?;
        Some((name.to_owned(), end + 1))
    };
    lines.iter().enumerate().filter(begins).filter_map(length).collect()
}

/// What stands between an opening bracket, the first token, and its closing one.
fn balanced(tokens: &[String]) -> &[String] {
    let mut depth = 0_usize;
    for (at, token) in tokens.iter().enumerate() {
        match token.as_str() {
            "{" | "(" | "[" => depth += 1,
            "}" | ")" | "]" => depth = depth.saturating_sub(1),
            _ => {}
        }
        if depth == 0 {
            return tokens.get(1..at).unwrap_or_default();
        }
    }
    tokens
}

/// The fields of a struct: what the commas of its body separate, those of types not counted.
fn fields(body: &[String]) -> Vec<&[String]> {
    let mut depth = 0_i32;
    body.split(|token| {
        match token.as_str() {
            "{" | "(" | "[" | "<" => depth += 1,
            "}" | ")" | "]" | ">" => depth -= 1,
            _ => {}
        }
        token == "," && depth == 0
    })
    .collect()
}

/// A path, and the name that its end has.
type Leaf = (Vec<String>, String);

/// The paths of a `use` tree, or of one path in an expression, that begins at a token, and the token behind it.
fn tree(tokens: &[String], mut at: usize) -> (Vec<Leaf>, usize) {
    let token = |at: usize| tokens.get(at).map_or("", String::as_str);
    let mut path = Vec::new();
    loop {
        match token(at) {
            "{" => {
                let mut leaves = Vec::new();
                at += 1;
                while !["}", ""].contains(&token(at)) {
                    let (inner, next) = tree(tokens, at);
                    leaves.extend(inner.into_iter().map(|(rest, name)| ([path.clone(), rest].concat(), name)));
                    at = next.max(at + 1);
                    at += usize::from(token(at) == ",");
                }
                return (leaves, at + 1);
            }
            name if is_name(name) => path.push(name.to_owned()),
            "*" => at += 1,
            _ => {}
        }
        let last = path.last().cloned().unwrap_or_default();
        if token(at) != last {
            return (vec![(path, last)], at);
        }
        match (token(at + 1), token(at + 2)) {
            ("::", _) => at += 2,
            ("as", name) => return (vec![(path, name.to_owned())], at + 3),
            _ => return (vec![(path, last)], at + 1),
        }
    }
}

fn is_name(token: &str) -> bool {
    token.starts_with(|c: char| c.is_alphabetic() || c == '_')
}

/// Leaves out each item behind `#[cfg(test)]`.
fn without_tests(tokens: Vec<String>) -> Vec<String> {
    const MARK: [&str; 7] = ["#", "[", "cfg", "(", "test", ")", "]"];
    let mut kept = Vec::new();
    let mut at = 0;
    while at < tokens.len() {
        if tokens[at..].len() >= MARK.len() && tokens[at..at + MARK.len()] == MARK {
            at += MARK.len();
            while tokens.get(at).is_some_and(|token| token != "{" && token != ";") {
                at += 1;
            }
            at += tokens
                .get(at..)
                .map_or(0, |rest| if rest.first().is_some_and(|t| t == "{") { balanced(rest).len() + 2 } else { 1 });
        } else {
            kept.push(tokens[at].clone());
            at += 1;
        }
    }
    kept
}

/// Names, `::` and single characters; comments, strings and characters are left out.
fn tokens(text: &str) -> Vec<String> {
    let chars: Vec<char> = text.chars().collect();
    let at = |index: usize| chars.get(index).copied().unwrap_or('\0');
    let (mut tokens, mut i) = (Vec::new(), 0);
    while i < chars.len() {
        match (at(i), at(i + 1)) {
            ('/', '/') => i = (i..chars.len()).find(|i| at(*i) == '\n').unwrap_or(chars.len()),
            ('/', '*') => {
                i = (i + 2..chars.len()).find(|i| (at(*i), at(i + 1)) == ('*', '/')).unwrap_or(chars.len()) + 2
            }
            ('"', _) => i = behind_string(&chars, i + 1),
            ('r', '"' | '#') if at(i + 1) == '"' || at(i + 2) == '"' || at(i + 2) == '#' => {
                i = behind_raw_string(&chars, i + 1);
            }
            // A lifetime is no character.
            ('\'', '\\') => i = (i + 3..chars.len()).find(|i| at(*i) == '\'').unwrap_or(chars.len()) + 1,
            ('\'', _) if at(i + 2) == '\'' => i += 3,
            (':', ':') => {
                tokens.push("::".to_owned());
                i += 2;
            }
            (c, _) if c.is_alphanumeric() || c == '_' => {
                let end =
                    (i..chars.len()).find(|i| !(at(*i).is_alphanumeric() || at(*i) == '_')).unwrap_or(chars.len());
                tokens.push(chars[i..end].iter().collect());
                i = end;
            }
            (c, _) => {
                if !c.is_whitespace() {
                    tokens.push(c.to_string());
                }
                i += 1;
            }
        }
    }
    tokens
}

/// The index behind a string, of which the first quote has been read.
fn behind_string(chars: &[char], mut at: usize) -> usize {
    while let Some(c) = chars.get(at) {
        match c {
            '\\' => at += 2,
            '"' => return at + 1,
            _ => at += 1,
        }
    }
    at
}

/// The index behind a raw string, of which the `r` has been read.
fn behind_raw_string(chars: &[char], at: usize) -> usize {
    let hashes = chars[at..].iter().take_while(|c| **c == '#').count();
    let end: Vec<char> = std::iter::once('"').chain(std::iter::repeat_n('#', hashes)).collect();
    let begin = at + hashes + 1;
    let rest = chars.get(begin..).unwrap_or_default();
    rest.windows(end.len()).position(|window| window == end).map_or(chars.len(), |found| begin + found + end.len())
}
