use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::PathBuf;

use proptest::prelude::*;

use super::log::{PASSED_OVER_MOST, SLACK};
use super::*;

table! {
    Words = "word": u8 => String
}

table! {
    Pairs = "pair": (u8, u8) => Vec<u8>
}

/// What two tables hold.
type State = (BTreeMap<u8, String>, BTreeMap<(u8, u8), Vec<u8>>);

pub(crate) struct Folder(pub(crate) PathBuf);

impl Folder {
    pub(crate) fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("whimbrel-store-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(&path).expect("a folder");
        Self(path)
    }

    pub(crate) fn file(&self) -> PathBuf {
        self.0.join("journal")
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn open(folder: &Folder) -> (Log, State) {
    let text = read(&folder.file()).expect("read");
    let mut found = Found::parse(&folder.file(), &text).expect("of this release");
    let state = state(&mut found);
    (Log::open(&folder.file(), &found).expect("open"), state)
}

fn state(found: &mut Found<'_>) -> State {
    (found.rows::<Words>().into_iter().collect(), found.rows::<Pairs>().into_iter().collect())
}

fn said(text: &[u8]) -> State {
    state(&mut Found::parse("a test".as_ref(), text).expect("of this release"))
}

fn word(key: u8) -> Change {
    Change::default().put::<Words>(&key, &format!("{key} \"words\"\n"))
}

#[derive(Clone, Debug)]
enum Said {
    Words(Vec<(u8, Option<String>)>),
    /// Of both tables, together.
    Pair(u8, Option<Vec<u8>>),
    Again,
}

fn anything() -> impl Strategy<Value = Said> {
    prop_oneof![
        6 => prop::collection::vec((0..4_u8, prop::option::of(".{0,8}")), 1..3).prop_map(Said::Words),
        6 => (0..4_u8, prop::option::of(prop::collection::vec(any::<u8>(), 0..3))).prop_map(|(key, row)| Said::Pair(key, row)),
        1 => Just(Said::Again),
    ]
}

fn change(said: &Said, (words, pairs): &mut State) -> Change {
    match said {
        Said::Words(all) => all.iter().fold(Change::default(), |change, (key, row)| match row {
            Some(row) => {
                words.insert(*key, row.clone());
                change.put::<Words>(key, row)
            }
            None => {
                words.remove(key);
                change.remove::<Words>(key)
            }
        }),
        Said::Pair(key, Some(row)) => {
            words.insert(*key, "of a pair".to_owned());
            pairs.insert((*key, 7), row.clone());
            Change::default().put::<Words>(key, &"of a pair".to_owned()).put::<Pairs>(&(*key, 7), row)
        }
        Said::Pair(key, None) => {
            words.remove(key);
            pairs.remove(&(*key, 7));
            Change::default().remove::<Pairs>(&(*key, 7)).remove::<Words>(key)
        }
        Said::Again => Change::default(),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    /// What is there after a kill at any byte, before and after the file was written anew, was so at some moment, and
    /// later with each byte more; whatever stands where the next line was begun.
    #[test]
    fn any_beginning_of_the_file_tells_what_was_so_at_some_moment(
        all in prop::collection::vec(anything(), 1..24),
        torn in prop::collection::vec(any::<u8>(), 0..12),
        kept in any::<bool>(),
    ) {
        let folder = Folder::new("prefix");
        let (mut log, mut now) = open(&folder);
        let mut states = vec![State::default()];
        for one in &all {
            if let Said::Again = one {
                drop(log);
                let (again, found) = open(&folder);
                prop_assert_eq!(&found, &now);
                log = again;
                continue;
            }
            let change = change(one, &mut now);
            states.push(now.clone());
            if kept {
                log.keep(vec![change]).expect("kept");
            } else {
                log.append(change);
                log.flush().expect("written");
            }
        }
        let text = fs::read(folder.file()).expect("read");
        prop_assert_eq!(said(&text), now.clone());
        let mut moment = 0;
        for length in 0..=text.len() {
            let mut text = text[..length].to_vec();
            text.extend(torn.iter().map(|byte| if *byte == b'\n' { b' ' } else { *byte }));
            let found = said(&text);
            let later = states[moment..].iter().position(|state| *state == found);
            prop_assert!(later.is_some(), "{length} bytes tell of {found:?}, which never was after {:?}", states[moment]);
            moment += later.unwrap_or_default();
        }
    }
}

#[test]
fn a_line_that_makes_no_sense_costs_that_line_alone() {
    let folder = Folder::new("senseless");
    let (mut log, _) = open(&folder);
    [1, 2].into_iter().for_each(|key| log.append(word(key)));
    log.flush().expect("written");
    drop(log);
    let text = fs::read_to_string(folder.file()).expect("read");
    let text =
        text + "what is this?\n{\"neither\":1}\n[[\"word\",\"no number\",\"words\"]]\n[[\"word\",1]]\n[[\"torn\",1";
    fs::write(folder.file(), &text).expect("write");
    let mut found = Found::parse(&folder.file(), text.as_bytes()).expect("of this release");
    assert_eq!((found.rows::<Words>().len(), found.skipped()), (1, 3));
    drop(Log::open(&folder.file(), &found).expect("open"));
    let text = read(&folder.file()).expect("read");
    assert_eq!(Found::parse(&folder.file(), &text).expect("of this release").skipped(), 0, "it is gone by now");
    assert_eq!(said(&text).0.into_keys().collect::<Vec<_>>(), [2]);
}

#[test]
fn what_a_table_of_another_release_says_stays() {
    let folder = Folder::new("other");
    let (mut log, _) = open(&folder);
    log.append(word(1));
    log.flush().expect("written");
    let text = fs::read_to_string(folder.file()).expect("read");
    fs::write(folder.file(), text + "[[\"of another\",[1],{\"a\":1}]]\n").expect("write");
    drop(open(&folder));
    assert!(fs::read_to_string(folder.file()).expect("read").contains("[[\"of another\",[1],{\"a\":1}]]\n"));
}

#[test]
fn a_later_release_s_file_is_refused() {
    let folder = Folder::new("later");
    let text = "{\"whimbrel\":\"store\",\"version\":3,\"rows\":0,\"more\":1}\n";
    fs::write(folder.file(), text).expect("write");
    let refusal = Found::parse(&folder.file(), text.as_bytes()).expect_err("later").to_string();
    let path = folder.file();
    assert!(refusal.starts_with(&format!("{} was written by a later release", path.display())), "{refusal}");
    assert!(refusal.contains("`whimbrel clean`") && refusal.contains("format 3"), "{refusal}");
}

#[test]
fn a_file_that_breaks_off_within_its_first_rows_is_not_used() {
    let folder = Folder::new("broken-off");
    let (mut log, _) = open(&folder);
    [1, 2].into_iter().for_each(|key| log.append(word(key)));
    log.flush().expect("written");
    drop(log);
    drop(open(&folder));
    let text = fs::read(folder.file()).expect("read");
    let cut = text.len() - 2;
    assert_eq!((said(&text).0.len(), said(&text[..cut]).0.len()), (2, 0));
    assert!(Found::parse(&folder.file(), &text[..cut]).expect("of this release").skipped() > 0);
}

#[test]
fn the_file_does_not_grow_with_rows_that_came_and_went() {
    let folder = Folder::new("growth");
    let (mut log, _) = open(&folder);
    log.append(word(255));
    for round in 0..20_000_u32 {
        let key = u8::try_from(round % 100).expect("small");
        log.append(word(key));
        log.append(Change::default().remove::<Words>(&key));
        log.flush().expect("flush");
    }
    let lines = fs::read_to_string(folder.file()).expect("read").lines().count();
    assert!(lines < 2 * SLACK, "{lines} lines");
    assert_eq!(open(&folder).1.0.len(), 1);
}

/// Neither the file can be written nor another be made, until the folder that this gives is removed.
fn block(folder: &Folder, log: &mut Log) -> PathBuf {
    let blocked = folder.file().with_extension("new");
    fs::create_dir(&blocked).expect("a folder");
    log.file = File::open(folder.file()).expect("open");
    blocked
}

#[test]
fn what_cannot_be_written_is_not_decided() {
    let folder = Folder::new("not-decided");
    let (mut log, _) = open(&folder);
    log.keep(vec![word(1)]).expect("kept");
    let blocked = block(&folder, &mut log);
    log.append(word(9));
    assert!(log.flush().is_err());
    for _ in 0..3 {
        assert!(log.keep(vec![word(2)]).is_err());
    }
    fs::remove_dir(blocked).expect("remove");
    log.keep(vec![word(3)]).expect("kept");
    let kept: Vec<u8> = open(&folder).1.0.into_keys().collect();
    assert_eq!(kept, [1, 3, 9], "what was said is there, what failed is not");
}

#[test]
fn what_was_said_is_written_when_there_is_room() {
    let folder = Folder::new("room");
    let (mut log, _) = open(&folder);
    log.append(word(255));
    log.flush().expect("written");
    let blocked = block(&folder, &mut log);
    let mut refused = 0;
    for number in 0..50_000_u32 {
        log.append(word(u8::try_from(number % 200).expect("small")));
        refused += usize::from(log.flush().is_err());
    }
    log.append(Change::default().remove::<Words>(&255));
    assert!((2..100).contains(&refused), "it was tried {refused} times");
    assert!(log.waiting() < 1 << 18, "{} bytes wait", log.waiting());
    fs::remove_dir(blocked).expect("remove");
    for _ in 0..PASSED_OVER_MOST {
        log.flush().expect("flush");
    }
    let kept: Vec<u8> = open(&folder).1.0.into_keys().collect();
    assert_eq!(kept, (0..200).collect::<Vec<_>>());
}

#[test]
fn a_file_that_cannot_be_written_anew_serves_as_it_is() {
    let folder = Folder::new("as-it-is");
    let (mut log, _) = open(&folder);
    log.keep(vec![word(1)]).expect("kept");
    let mut text = fs::read(folder.file()).expect("read");
    text.extend_from_slice(b"[[\"word\",\"no number\",\"words\"]]\n[[\"torn");
    fs::write(folder.file(), text).expect("tear");
    fs::create_dir(folder.file().with_extension("new")).expect("a folder");
    let (mut log, found) = open(&folder);
    assert_eq!(found.0.len(), 1);
    log.keep(vec![word(2)]).expect("kept");
    let text = read(&folder.file()).expect("read");
    let mut found = Found::parse(&folder.file(), &text).expect("of this release");
    assert_eq!((state(&mut found).0.len(), found.skipped()), (2, 0), "what made no sense was removed");
}
