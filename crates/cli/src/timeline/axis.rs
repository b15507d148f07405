//! The axis: where moments are drawn. Long stretches in which nothing happens are cut short, so that a hand-off of
//! milliseconds can be seen beside an absence of days.

use std::time::{Duration, UNIX_EPOCH};

use whimbrel_ipc::rfc3339;

use super::story::Millis;

/// A stretch is cut where it is so many times as long as all shorter ones together.
const LONG: Millis = 3.0;
/// What the shorter ones count at the least, so that a log of a moment is not cut to pieces.
const SHORTEST: Millis = 1_000.0;
/// Cuts at the most.
const CUTS: usize = 8;
/// The width of a cut.
pub(super) const CUT: f64 = 44.0;
/// What is left of a stretch that is cut, on either side: a part of the mean of those that are not, and of itself at
/// the most.
const MARGIN: f64 = 0.15;
const MARGIN_MOST: f64 = 0.25;
/// The least that is drawn between two cuts.
const NARROWEST: f64 = 76.0;
/// Between two ticks.
const STEP: f64 = 92.0;
/// A character of a label, and the room between two labels.
const CHARACTER: f64 = 6.4;
const GAP: f64 = 8.0;

/// Part of the axis.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Stretch {
    pub(super) from: Millis,
    pub(super) to: Millis,
    pub(super) left: f64,
    pub(super) right: f64,
    /// Whether it is cut short.
    pub(super) cut: bool,
}

/// A line across the lanes and what stands above it, where there is room.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Tick {
    pub(super) x: f64,
    pub(super) label: String,
}

/// The axis, from its first moment to its last.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Axis {
    pub(super) stretches: Vec<Stretch>,
}

impl Axis {
    /// An axis between two horizontal positions, for moments at which something happens, of which there are at least
    /// the first and the last.
    pub(super) fn new(mut moments: Vec<Millis>, left: f64, right: f64) -> Self {
        moments.sort_unstable_by(f64::total_cmp);
        moments.dedup();
        let gaps: Vec<(Millis, Millis)> = moments.windows(2).map(|pair| (pair[0], pair[1])).collect();
        let cuts = cuts(&gaps);
        let count = cuts.iter().filter(|cut| **cut).count();
        let shown: Millis = gaps.iter().zip(&cuts).filter(|(_, cut)| !**cut).map(|((from, to), _)| to - from).sum();
        let margin = MARGIN * shown.max(SHORTEST) / (count + 1) as f64;

        let begin = moments.first().copied().unwrap_or(0.0);
        let stretch = |from, to, cut| Stretch { from, to, left, right, cut };
        let mut stretches = vec![stretch(begin, begin, false)];
        for ((from, to), cut) in gaps.into_iter().zip(cuts) {
            let last = stretches.len() - 1;
            if cut {
                let margin = margin.min((to - from) * MARGIN_MOST);
                stretches[last].to = from + margin;
                stretches.push(stretch(from + margin, to - margin, true));
                stretches.push(stretch(to - margin, to, false));
            } else {
                stretches[last].to = to;
            }
        }
        // Between cuts each has a scale of its own: a move of milliseconds is to be seen beside a minute of others.
        let whole = right - left - CUT * count as f64;
        let least = NARROWEST.min(whole / (2 * count + 2) as f64);
        let weight = |stretch: &Stretch| if stretch.cut { 0.0 } else { (stretch.to - stretch.from).sqrt() };
        let weights: f64 = stretches.iter().map(weight).sum();
        let mut x = left;
        for stretch in &mut stretches {
            let part = if weights > 0.0 { weight(stretch) / weights } else { 1.0 };
            let width = if stretch.cut { CUT } else { least + (whole - least * (count + 1) as f64) * part };
            (stretch.left, stretch.right) = (x, x + width);
            x += width;
        }
        Self { stretches }
    }

    /// Where a moment is.
    pub(super) fn x(&self, at: Millis) -> f64 {
        let index = self.stretches.partition_point(|stretch| stretch.to < at).min(self.stretches.len() - 1);
        let Stretch { from, to, left, right, .. } = self.stretches[index];
        let part = if to > from { (at - from) / (to - from) } else { 0.0 };
        left + part.clamp(0.0, 1.0) * (right - left)
    }

    /// Lines at round times of the wall clock. `clock`: moments and what it showed then.
    pub(super) fn ticks(&self, clock: &[(Millis, u64)]) -> Vec<Tick> {
        let mut ticks = Vec::new();
        let (mut day, mut free) = (String::new(), f64::NEG_INFINITY);
        let mut tick = |x: f64, wall: u64, step: u64| {
            let mut other = day.clone();
            let label = label(wall, step, &mut other);
            let half = label.chars().count() as f64 * CHARACTER / 2.0;
            if x - half < free {
                return Tick { x, label: String::new() };
            }
            (day, free) = (other, x + half + GAP);
            Tick { x, label }
        };
        for stretch in self.stretches.iter().filter(|stretch| !stretch.cut && stretch.to > stretch.from) {
            let (length, width) = (stretch.to - stretch.from, stretch.right - stretch.left);
            let least = length * STEP / width;
            let days = || (least / DAY as f64).ceil() as u64 * DAY;
            let step = STEPS.into_iter().find(|step| *step as f64 >= least).unwrap_or_else(days);
            let (at, wall) = clock_at(clock, stretch.from);
            let first = wall.saturating_add((stretch.from - at) as u64);
            let mut next = first.next_multiple_of(step);
            let mut drawn = false;
            while stretch.from + (next - first) as f64 <= stretch.to {
                let x = self.x(stretch.from + (next - first) as f64);
                // What is at the edge is beside what is cut out.
                if x <= stretch.right - GAP {
                    ticks.push(tick(x, next, step));
                    drawn = true;
                }
                next += step;
            }
            if !drawn {
                let (middle, half) = ((stretch.left + stretch.right) / 2.0, (length / 2.0) as u64);
                ticks.push(tick(middle, first + half, if length < 60_000.0 { 1 } else { 1_000 }));
            }
        }
        ticks
    }
}

/// Steps between ticks, in milliseconds.
const STEPS: [u64; 26] = [
    1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000, 15_000, 30_000, 60_000, 120_000, 300_000, 600_000,
    900_000, 1_800_000, 3_600_000, 7_200_000, 10_800_000, 21_600_000, 43_200_000,
];
const DAY: u64 = 86_400_000;

/// Which gaps are cut: the longest ones, where each is long beside all that remains.
fn cuts(gaps: &[(Millis, Millis)]) -> Vec<bool> {
    let mut order: Vec<usize> = (0..gaps.len()).collect();
    let length = |index: &usize| gaps[*index].1 - gaps[*index].0;
    order.sort_unstable_by(|one, other| length(one).total_cmp(&length(other)));
    let mut cut = vec![false; gaps.len()];
    let mut shorter = 0.0;
    for (rank, index) in order.iter().enumerate() {
        if rank > 0 && rank + CUTS >= order.len() && length(index) > LONG * Millis::max(shorter, SHORTEST) {
            order[rank..].iter().for_each(|index| cut[*index] = true);
            break;
        }
        shorter += length(index);
    }
    cut
}

/// The last moment not after `at` of which the wall clock is known.
fn clock_at(clock: &[(Millis, u64)], at: Millis) -> (Millis, u64) {
    let index = clock.partition_point(|(known, _)| *known <= at);
    clock.get(index.saturating_sub(1)).copied().unwrap_or((0.0, 0))
}

/// A time as exact as the step asks for; with the day where it is another than before.
fn label(wall: u64, step: u64, day: &mut String) -> String {
    let text = rfc3339(UNIX_EPOCH + Duration::from_millis(wall));
    let (date, time) = (&text[5..10], &text[11..]);
    let shown = match step {
        DAY.. => "",
        60_000.. => &time[..5],
        1_000.. => &time[..8],
        _ => &time[..12],
    };
    let other = !day.is_empty() && *day != date;
    *day = date.to_owned();
    match (shown, other) {
        ("", _) => date.to_owned(),
        (_, true) => format!("{date} {shown}"),
        (_, false) => shown.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_long_stretches_the_axis_is_even() {
        let axis = Axis::new(vec![0.0, 1_000.0, 2_500.0, 4_000.0], 100.0, 500.0);
        assert_eq!(axis.stretches.len(), 1);
        assert_eq!([0.0, 1_000.0, 4_000.0, 9_000.0].map(|at| axis.x(at)), [100.0, 200.0, 500.0, 500.0]);
    }

    #[test]
    fn an_absence_does_not_hide_a_hand_off() {
        let day = 86_400_000.0;
        let axis = Axis::new(vec![0.0, 1_000.0, 1_041.0, 2_000.0, day, day + 500.0], 0.0, 1_000.0);
        let cut: Vec<_> = axis.stretches.iter().filter(|stretch| stretch.cut).collect();
        assert_eq!(cut.len(), 1);
        assert!(cut[0].from > 2_000.0 && cut[0].from < 2_500.0 && cut[0].to > day - 500.0 && cut[0].to < day);
        assert!((cut[0].right - cut[0].left - CUT).abs() < 1e-9);
        assert!(axis.x(1_041.0) - axis.x(1_000.0) > 10.0);
        assert!((axis.x(day + 500.0) - 1_000.0).abs() < 1e-9);
    }

    #[test]
    fn no_more_is_cut_than_can_be_looked_at() {
        let moments: Vec<Millis> = (0..100).flat_map(|n| [f64::from(n) * 1e7, f64::from(n) * 1e7 + 40.0]).collect();
        let axis = Axis::new(moments, 0.0, 1_000.0);
        assert!(axis.stretches.iter().filter(|stretch| stretch.cut).count() <= CUTS);
    }

    #[test]
    fn one_moment_is_an_axis() {
        let axis = Axis::new(vec![5.0], 0.0, 10.0);
        assert_eq!(axis.x(5.0), 0.0);
        assert!(axis.ticks(&[(5.0, 0)]).is_empty());
    }

    #[test]
    fn ticks_stand_at_round_times_and_name_a_new_day() {
        // 1970-01-01T23:59:50Z
        let axis = Axis::new(vec![0.0, 20_000.0], 0.0, 400.0);
        let ticks: Vec<_> = axis.ticks(&[(0.0, 86_390_000)]).into_iter().map(|tick| (tick.x, tick.label)).collect();
        let label = |x: f64, label: &str| (x, label.to_owned());
        assert_eq!(
            ticks,
            [
                label(0.0, "23:59:50"),
                label(100.0, "23:59:55"),
                label(200.0, "01-02 00:00:00"),
                label(300.0, "00:00:05")
            ]
        );
    }
}
