//! Holds the header to the crate.

use std::fs;
use std::path::Path;

#[test]
fn the_header_is_current() {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR"));
    let config = cbindgen::Config::from_file(directory.join("cbindgen.toml")).expect("cbindgen.toml");
    let bindings = cbindgen::Builder::new().with_crate(directory).with_config(config).generate().expect("a header");
    let mut text = Vec::new();
    bindings.write(&mut text);
    // What Rust calls safe, C does not need to hear of.
    let text = String::from_utf8(text).expect("text");
    let mut lines: Vec<&str> = Vec::new();
    let mut safety = false;
    for line in text.lines() {
        safety = line.trim() == "* # Safety" || safety && !line.trim_start().starts_with("*/");
        if safety {
            continue;
        }
        if line.trim_start() == "*/" && lines.last().is_some_and(|last| last.trim() == "*") {
            lines.pop();
        }
        lines.push(line.trim_end());
    }
    let text = lines.join("\n") + "\n";
    let path = directory.join("include/whimbrel.h");
    if std::env::var_os("WHIMBREL_BLESS").is_some() {
        fs::write(&path, &text).expect("written");
    }
    let there = fs::read_to_string(&path).unwrap_or_default();
    assert_eq!(there, text, "renew it: WHIMBREL_BLESS=1 cargo test -p whimbrel-capi --test header");
}

#[test]
fn the_manual_page_has_all_of_it() {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR"));
    let manual = fs::read_to_string(directory.join("../../docs/man/whimbrel.3")).expect("the manual page");
    let header = fs::read_to_string(directory.join("include/whimbrel.h")).expect("the header");
    let words = header.split(|c: char| !c.is_alphanumeric() && c != '_');
    let is_called = |word: &&str| word.starts_with("wb_") && header.contains(&format!("{word}("));
    let functions: Vec<&str> = words.filter(is_called).collect();
    assert!(functions.len() > 20);
    for name in functions {
        assert!(manual.contains(&format!(".Fn {name} ")), "{name}");
    }
    // What functions say of errno, the page has.
    for word in header.split(|c: char| !c.is_ascii_alphanumeric()) {
        let is_errno = word.len() > 3 && word.starts_with('E') && word.bytes().all(|byte| byte.is_ascii_uppercase());
        assert!(!is_errno || manual.contains(&format!("Er {word}")), "{word}");
    }
}
