//! The few elements of SVG that are drawn with.

use std::fmt::Write;

/// A drawing under way.
#[derive(Debug, Default)]
pub(super) struct Svg {
    body: String,
}

/// A rectangle.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Rect {
    pub(super) x: f64,
    pub(super) y: f64,
    pub(super) width: f64,
    pub(super) height: f64,
}

impl Svg {
    /// A rectangle, with what is told where a pointer rests on it (nothing where that is empty).
    pub(super) fn rect(&mut self, rect: Rect, class: &str, told: &str) {
        let Rect { x, y, width, height } = rect;
        self.element(format_args!(
            "<rect class=\"{class}\" x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\"",
            number(x),
            number(y),
            number(width),
            number(height)
        ));
        self.close("rect", told);
    }

    /// A rectangle with round ends.
    pub(super) fn pill(&mut self, rect: Rect, class: &str, told: &str) {
        let Rect { x, y, width, height } = rect;
        self.element(format_args!(
            "<rect class=\"{class}\" x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\" rx=\"{}\"",
            number(x),
            number(y),
            number(width),
            number(height),
            number(height / 2.0)
        ));
        self.close("rect", told);
    }

    pub(super) fn line(&mut self, from: (f64, f64), to: (f64, f64), class: &str) {
        self.element(format_args!(
            "<line class=\"{class}\" x1=\"{}\" y1=\"{}\" x2=\"{}\" y2=\"{}\"",
            number(from.0),
            number(from.1),
            number(to.0),
            number(to.1)
        ));
        self.close("line", "");
    }

    /// A polygon or an open line, depending on the class, through these points.
    pub(super) fn path(&mut self, points: impl IntoIterator<Item = (f64, f64)>, class: &str, told: &str) {
        let mut way = String::new();
        for (x, y) in points {
            let letter = if way.is_empty() { 'M' } else { 'L' };
            let _ = write!(way, "{letter}{},{}", number(x), number(y));
        }
        self.element(format_args!("<path class=\"{class}\" d=\"{way}\""));
        self.close("path", told);
    }

    /// Text whose base line is at `y`. The class says where `x` is of it.
    pub(super) fn text(&mut self, x: f64, y: f64, class: &str, text: &str) {
        self.element(format_args!("<text class=\"{class}\" x=\"{}\" y=\"{}\">", number(x), number(y)));
        self.body.push_str(&escaped(text));
        self.body.push_str("</text>\n");
    }

    /// Draws another drawing over this one.
    pub(super) fn append(&mut self, other: Self) {
        self.body.push_str(&other.body);
    }

    /// The whole document.
    pub(super) fn finish(self, width: f64, height: f64, title: &str, head: &str) -> String {
        let (width, height) = (number(width), number(height));
        format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" viewBox=\"0 0 {width} \
             {height}\" role=\"img\">\n<title>{}</title>\n{head}{}</svg>\n",
            escaped(title),
            self.body
        )
    }

    fn element(&mut self, start: std::fmt::Arguments<'_>) {
        // A string takes whatever is written to it.
        let _ = self.body.write_fmt(start);
    }

    fn close(&mut self, name: &str, told: &str) {
        if told.is_empty() {
            self.body.push_str("/>\n");
        } else {
            let _ = writeln!(self.body, "><title>{}</title></{name}>", escaped(told));
        }
    }
}

/// A coordinate, to a tenth.
fn number(value: f64) -> String {
    let text = format!("{value:.1}");
    text.strip_suffix(".0").map_or(text.clone(), str::to_owned)
}

/// Text that XML takes for nothing else, without what it does not take at all.
pub(super) fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\u{fffe}' | '\u{ffff}' => out.push('\u{fffd}'),
            control if control.is_control() => out.push(' '),
            letter => out.push(letter),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_does_not_break_out() {
        assert_eq!(escaped("a<b & \"c\">\u{1}\n"), "a&lt;b &amp; &quot;c&quot;&gt;  ");
        let mut svg = Svg::default();
        svg.text(1.0, 2.26, "small", "</text>");
        let document = svg.finish(10.0, 20.0, "</title>", "");
        assert!(document.contains("<text class=\"small\" x=\"1\" y=\"2.3\">&lt;/text&gt;</text>"), "{document}");
        assert!(document.contains("<title>&lt;/title&gt;</title>"), "{document}");
    }

    #[test]
    fn coordinates_are_short() {
        assert_eq!([0.0, 12.04, 12.06, 1200.0].map(number), ["0", "12", "12.1", "1200"]);
    }
}
