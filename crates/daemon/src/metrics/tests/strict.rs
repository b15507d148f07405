//! Reads the text that Prometheus reads (exposition format 0.0.4), and takes less than that does: only what the format
//! and the naming conventions ask for, in the order that they recommend.

use std::collections::{BTreeMap, BTreeSet};

type Labels = BTreeMap<String, String>;

/// Figures by name and labels.
pub(crate) type Read = BTreeMap<(String, Labels), f64>;

/// The figures of a text.
pub(crate) fn parse(text: &str) -> Result<Read, String> {
    if !text.ends_with('\n') || text.contains('\r') {
        return Err("the text is not made of lines that end in a line feed".to_owned());
    }
    let mut read = Read::new();
    let mut seen = BTreeSet::new();
    let mut lines = text.lines().peekable();
    while let Some(line) = lines.next() {
        let (name, help) = comment(line, "HELP")?;
        let kind = comment(lines.next().unwrap_or(""), "TYPE")?;
        check(kind.0 == name, "HELP is followed by the TYPE of another", line)?;
        check(is_name(name) && name.starts_with("whimbrel_"), "this is no name", line)?;
        check(seen.insert(name.to_owned()), "it is there twice", line)?;
        check(help.ends_with('.') && is_escaped(help, "\\n"), "this explains nothing", line)?;
        check(["counter", "gauge", "histogram"].contains(&kind.1), "there is no such type", line)?;
        check(name.ends_with("_total") == (kind.1 == "counter"), "counters, and they alone, end in _total", line)?;
        let unit = name.strip_suffix("_total").unwrap_or(name);
        let odd = ["_ms", "_milliseconds", "_micros", "_minutes", "_percent", "_kilobytes"];
        check(!odd.iter().any(|odd| unit.ends_with(odd)), "this is no base unit", line)?;
        let mut samples = Vec::new();
        while let Some(line) = lines.next_if(|line| !line.starts_with('#')) {
            let (sample, labels, value) = sample(line)?;
            let suffix = sample.strip_prefix(name).ok_or_else(|| format!("not of {name}: {line}"))?;
            let known = if kind.1 == "histogram" { &["_bucket", "_sum", "_count"][..] } else { &[""] };
            check(known.contains(&suffix), "this is not of its metric", line)?;
            check(kind.1 == "gauge" || value >= 0.0, "a counter is below nothing", line)?;
            samples.push((suffix.to_owned(), labels.clone(), value));
            check(read.insert((sample, labels), value).is_none(), "it is there twice", line)?;
        }
        check(!samples.is_empty(), "it has no figures", line)?;
        if kind.1 == "histogram" {
            histogram(&samples).map_err(|error| format!("{name}: {error}"))?;
        }
    }
    Ok(read)
}

fn check(holds: bool, what: &str, line: &str) -> Result<(), String> {
    if holds { Ok(()) } else { Err(format!("{what}: {line}")) }
}

/// `# HELP name rest`
fn comment<'a>(line: &'a str, word: &str) -> Result<(&'a str, &'a str), String> {
    let rest = line.strip_prefix("# ").and_then(|rest| rest.strip_prefix(word)).and_then(|rest| rest.strip_prefix(' '));
    rest.and_then(|rest| rest.split_once(' ')).ok_or_else(|| format!("this is no {word}: {line:?}"))
}

fn is_name(text: &str) -> bool {
    let letter = |byte: u8| byte.is_ascii_alphabetic() || byte == b'_';
    text.bytes().next().is_some_and(letter) && text.bytes().all(|byte| letter(byte) || byte.is_ascii_digit())
}

/// Whether each backslash is followed by another or by one of these letters.
fn is_escaped(text: &str, letters: &str) -> bool {
    let mut characters = text.chars();
    while let Some(character) = characters.next() {
        if character == '\\' && !characters.next().is_some_and(|next| next == '\\' || letters[1..].contains(next)) {
            return false;
        }
    }
    true
}

/// `name{label="value",…} figure`
fn sample(line: &str) -> Result<(String, Labels, f64), String> {
    let wrong = |what: &str| format!("{what}: {line}");
    let end = line.find(['{', ' ']).ok_or_else(|| wrong("no figure"))?;
    let (name, mut rest) = line.split_at(end);
    check(is_name(name), "this is no name", line)?;
    let mut labels = Labels::new();
    if let Some(inner) = rest.strip_prefix('{') {
        rest = inner;
        loop {
            let (label, value) = rest.split_once("=\"").ok_or_else(|| wrong("no label"))?;
            check(is_name(label) && !label.starts_with("__"), "this is no label", line)?;
            let mut escaped = false;
            let quote = value.find(|character| {
                let ends = character == '"' && !escaped;
                escaped = character == '\\' && !escaped;
                ends
            });
            let quote = quote.ok_or_else(|| wrong("a label without end"))?;
            check(is_escaped(&value[..quote], "\\n\""), "this is not escaped", line)?;
            check(labels.insert(label.to_owned(), value[..quote].to_owned()).is_none(), "a label twice", line)?;
            match value[quote + 1..].split_at_checked(1) {
                Some((",", more)) => rest = more,
                Some(("}", more)) => {
                    rest = more;
                    break;
                }
                _ => return Err(wrong("labels without end")),
            }
        }
    }
    let figure = rest.strip_prefix(' ').ok_or_else(|| wrong("no figure"))?;
    let digits = |c: char| c.is_ascii_digit() || ['.', '-', 'e'].contains(&c);
    let value = match figure {
        "+Inf" => f64::INFINITY,
        "-Inf" => f64::NEG_INFINITY,
        "NaN" => f64::NAN,
        figure if figure.chars().all(digits) => figure.parse().map_err(|_| wrong("this is no figure"))?,
        _ => return Err(wrong("this is no figure")),
    };
    Ok((name.to_owned(), labels, value))
}

fn histogram(samples: &[(String, Labels, f64)]) -> Result<(), String> {
    let of = |suffix: &'static str| samples.iter().filter(move |(of, ..)| of == suffix);
    let buckets: Vec<(f64, f64)> = of("_bucket")
        .map(|(_, labels, value)| {
            let bound = labels.get("le").ok_or("a bucket without a bound")?;
            Ok((if bound == "+Inf" { f64::INFINITY } else { bound.parse().map_err(|_| "no bound")? }, *value))
        })
        .collect::<Result<_, &str>>()?;
    let rise = buckets.windows(2).all(|pair| pair[0].0 < pair[1].0 && pair[0].1 <= pair[1].1);
    let last = buckets.last().filter(|(bound, _)| bound.is_infinite()).ok_or("it does not end in +Inf")?;
    let counts: Vec<f64> = of("_count").map(|(.., value)| *value).collect();
    match rise && counts == [last.1] && of("_sum").count() == 1 {
        true => Ok(()),
        false => Err("its figures contradict one another".to_owned()),
    }
}

#[test]
fn what_is_not_of_the_format_is_refused() {
    let good =
        "# HELP whimbrel_a_total A \\\\ thing.\n# TYPE whimbrel_a_total counter\nwhimbrel_a_total{b=\"c\\\"\"} 1\n";
    assert_eq!(parse(good).map(|read| read.len()), Ok(1));
    for (from, to) in [
        ("counter", "count"),
        ("counter", "gauge"),
        ("_total", ""),
        ("HELP", "HLEP"),
        ("thing.", ""),
        ("\\\\", "\\"),
        ("\\\"", "\\q"),
        ("} 1", "}"),
        ("} 1", "} one"),
        ("} 1", "} -1"),
        ("} 1", "} inf"),
        ("b=", "1b="),
        ("c\\\"\"", "c"),
        ("\n", "\r\n"),
        ("\n", "\n\n"),
        ("whimbrel_", "w-"),
    ] {
        let bad = good.replace(from, to);
        assert_ne!(bad, good);
        assert!(parse(&bad).is_err(), "{bad}");
    }
    assert!(parse(&good.repeat(2)).is_err());
    assert!(parse(good.trim_end()).is_err());
    let twice = format!("{good}whimbrel_a_total{{b=\"c\\\"\"}} 2\n");
    assert!(parse(&twice).is_err());
    let histogram = "# HELP whimbrel_h A thing.\n# TYPE whimbrel_h histogram\nwhimbrel_h_bucket{le=\"1\"} 1\n\
                     whimbrel_h_bucket{le=\"+Inf\"} 3\nwhimbrel_h_sum 4\nwhimbrel_h_count 3\n";
    assert_eq!(parse(histogram).map(|read| read.len()), Ok(4));
    for (from, to) in
        [("count 3", "count 4"), ("+Inf", "2"), ("} 1", "} 5"), ("whimbrel_h_sum 4\n", ""), ("le=", "ge=")]
    {
        assert!(parse(&histogram.replace(from, to)).is_err(), "{from}");
    }
}
