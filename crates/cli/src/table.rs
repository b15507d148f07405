//! Tables for people: columns as wide as they must be, the whole at most [`WIDTH`] characters on a terminal.

use std::sync::atomic::{AtomicUsize, Ordering};

/// The width that every table fits in on a terminal.
pub(crate) const WIDTH: usize = 100;

/// The width that is kept to now.
static KEPT: AtomicUsize = AtomicUsize::new(WIDTH);

/// Breaks and cuts nothing from now on: what is told goes to a file or another program.
pub(crate) fn do_not_break() {
    KEPT.store(usize::MAX, Ordering::Relaxed);
}

/// The width that what is told may have.
pub(crate) fn width() -> usize {
    KEPT.load(Ordering::Relaxed)
}

/// Between two columns.
const GAP: usize = 2;

/// The narrowest that a column is cut to as long as others can be left out for it, and at all.
const READABLE: usize = 14;
const NARROWEST: usize = 6;

/// A column's heading and how it behaves.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Column {
    heading: &'static str,
    right: bool,
    /// Whether its content may be cut, ending in `…`, where the table would be too wide.
    yields: bool,
    /// Where the table would be too wide, columns with the highest number are left out first; never: 0.
    spare: u8,
}

impl Column {
    /// Is left out where there is no room, before those with a lower number.
    pub(crate) const fn spare(self, spare: u8) -> Self {
        Self { spare, ..self }
    }
}

/// A column of text.
pub(crate) const fn text(heading: &'static str) -> Column {
    Column { heading, right: false, yields: false, spare: 0 }
}

/// A column of text that may be cut.
pub(crate) const fn elastic(heading: &'static str) -> Column {
    Column { heading, right: false, yields: true, spare: 0 }
}

/// A column of numbers.
pub(crate) const fn number(heading: &'static str) -> Column {
    Column { heading, right: true, yields: false, spare: 0 }
}

/// The table as lines, heading first. Columns whose every cell is empty are left out.
pub(crate) fn render<const N: usize>(columns: [Column; N], rows: &[[String; N]]) -> String {
    render_in(width(), columns, rows)
}

/// The same on a screen of this width.
pub(crate) fn render_in<const N: usize>(most: usize, columns: [Column; N], rows: &[[String; N]]) -> String {
    let mut widths: [usize; N] = std::array::from_fn(|i| rows.iter().map(|row| length(&row[i])).max().unwrap_or(0));
    for (width, column) in widths.iter_mut().zip(&columns) {
        if *width > 0 {
            *width = (*width).max(length(column.heading));
        }
    }
    shrink(&columns, &mut widths, most);

    let headings = columns.map(|column| column.heading.to_owned());
    let mut out = String::new();
    for row in std::iter::once(&headings).chain(rows) {
        let mut line = String::new();
        for ((cell, column), width) in row.iter().zip(&columns).zip(widths).filter(|(_, width)| *width > 0) {
            if !line.is_empty() {
                line.push_str(&" ".repeat(GAP));
            }
            let cell = cut(cell, width);
            let padding = " ".repeat(width - length(&cell));
            match column.right {
                true => line.extend([padding.as_str(), &cell]),
                false => line.extend([cell.as_str(), &padding]),
            }
        }
        out.push_str(line.trim_end());
        out.push('\n');
    }
    out
}

/// Takes what is more than `most` from the columns that yield, always from the widest, and leaves out what can be
/// spared.
fn shrink<const N: usize>(columns: &[Column; N], widths: &mut [usize; N], most: usize) {
    let mut all = *widths;
    loop {
        *widths = all;
        if narrow(columns, widths, most, READABLE) {
            return;
        }
        let spared = (0..N).filter(|i| columns[*i].spare > 0 && all[*i] > 0).max_by_key(|i| columns[*i].spare);
        match spared {
            Some(i) => all[i] = 0,
            None => break,
        }
    }
    narrow(columns, widths, most, NARROWEST);
}

/// Cuts columns that yield to so many characters at the least. Tells whether the table has room then.
fn narrow<const N: usize>(columns: &[Column; N], widths: &mut [usize; N], most: usize, least: usize) -> bool {
    loop {
        let shown = widths.iter().filter(|width| **width > 0).count();
        if widths.iter().sum::<usize>() + GAP * shown.saturating_sub(1) <= most {
            return true;
        }
        let widest = (0..N).filter(|i| columns[*i].yields && widths[*i] > least).max_by_key(|i| widths[*i]);
        match widest {
            Some(i) => widths[i] -= 1,
            None => return false,
        }
    }
}

/// The text, cut to so many characters, with nothing in it that a terminal would obey: any user may give a program of
/// its own whatever name.
pub(crate) fn cut(text: &str, width: usize) -> String {
    let shown = text.chars().map(|c| if c.is_control() { char::REPLACEMENT_CHARACTER } else { c });
    if length(text) <= width {
        return shown.collect();
    }
    let mut cut: String = shown.take(width.saturating_sub(1)).collect();
    cut.push('…');
    cut
}

/// Breaks text into lines at spaces; lines after the first are indented by so many spaces.
pub(crate) fn wrap(text: &str, width: usize, indent: usize) -> String {
    let mut out = String::new();
    let mut column = indent;
    for (i, word) in text.split_whitespace().enumerate() {
        if i > 0 {
            if column + 1 + length(word) > width {
                out.push('\n');
                out.push_str(&" ".repeat(indent));
                column = indent;
            } else {
                out.push(' ');
                column += 1;
            }
        }
        out.push_str(word);
        column += length(word);
    }
    out
}

fn length(text: &str) -> usize {
    text.chars().count()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row<const N: usize>(cells: [&str; N]) -> [String; N] {
        cells.map(str::to_owned)
    }

    #[test]
    fn columns_line_up() {
        let table =
            render([text("NAME"), number("COUNT"), text("X")], &[row(["a", "1", "b"]), row(["longer", "10", ""])]);
        assert_eq!(table, "NAME    COUNT  X\na           1  b\nlonger     10\n");
    }

    #[test]
    fn empty_columns_are_left_out() {
        assert_eq!(render([text("A"), text("B")], &[row(["x", ""])]), "A\nx\n");
    }

    #[test]
    fn elastic_columns_make_a_table_fit() {
        let long = "w".repeat(90);
        let table = render([elastic("A"), text("B")], &[row([&long, &"k".repeat(40)])]);
        assert!(table.lines().all(|line| line.chars().count() <= WIDTH), "{table}");
        assert!(table.contains('…') && table.contains(&"k".repeat(40)));
    }

    #[test]
    fn what_can_be_spared_is_left_out_before_what_cannot_be_cut() {
        let columns = || [text("A"), number("B").spare(1), elastic("C").spare(2), elastic("D")];
        let cells = [&"a".repeat(20), "17", &"c".repeat(20), &"d".repeat(30)];
        let shown = |most| render_in(most, columns(), &[row(cells)]);
        assert!(shown(80).contains(cells[2]) && shown(80).contains(cells[3]), "all has room");
        // Before anything is left out, what yields is cut; and after that it has the room.
        assert!(shown(62).contains("cc…") && shown(62).contains("17"), "{}", shown(62));
        assert!(!shown(54).contains('c') && shown(54).contains("17"), "{}", shown(54));
        for most in [30, 40, 50, 60] {
            let table = shown(most);
            assert!(table.contains(cells[0]) && table.lines().all(|line| line.chars().count() <= most), "{table}");
        }
        assert!(!shown(30).contains("17"));
    }

    #[test]
    fn nothing_is_cut_where_nothing_has_to_fit() {
        let (columns, mut widths) = ([elastic("A"), text("B")], [300, 40]);
        shrink(&columns, &mut widths, usize::MAX);
        assert_eq!(widths, [300, 40]);
        assert_eq!(wrap(&"word ".repeat(100), usize::MAX, 8).lines().count(), 1);
    }

    #[test]
    fn a_terminal_is_told_nothing_by_what_is_shown() {
        let table = render([text("PROGRAM"), text("X")], &[row(["\x1b]0;mine\x07\n\u{9b}2J", "y"])]);
        assert_eq!(table.lines().count(), 2, "{table:?}");
        assert!(!table.replace('\n', "").contains(char::is_control) && table.contains("]0;mine"), "{table:?}");
        assert_eq!(cut("\x1b[31mred", 5), "\u{fffd}[31…");
    }

    #[test]
    fn text_is_broken_at_spaces() {
        assert_eq!(wrap("one two three", 9, 2), "one two\n  three");
    }
}
