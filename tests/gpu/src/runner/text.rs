//! Text for people: one line of anything, numbers, durations, tables in columns.

use std::fmt::Write;
use std::time::Duration;

/// Text as one line of at most `max` characters: control characters become spaces, what is longer is cut.
pub(super) fn one_line(text: &str, max: usize) -> String {
    let mut chars = text.trim().chars();
    let mut line: String = chars.by_ref().take(max).map(|c| if c.is_control() { ' ' } else { c }).collect();
    if chars.next().is_some() {
        line.pop();
        line.push('…');
    }
    line
}

/// A number with 4 significant digits; whole numbers below a milliard in full, as they are counts and sizes.
pub(super) fn digits(value: f64) -> String {
    if !value.is_finite() {
        return "not a number".to_owned();
    }
    if value.fract() == 0.0 && value.abs() < 1e9 {
        return format!("{:.0}", value + 0.0);
    }
    let scientific = format!("{value:.3e}");
    let exponent: i32 = scientific.split('e').nth(1).and_then(|e| e.parse().ok()).unwrap_or(0);
    let rounded: f64 = scientific.parse().unwrap_or(value);
    match exponent {
        -4..=5 => format!("{rounded:.*}", usize::try_from(3 - exponent).unwrap_or(0)),
        _ => scientific,
    }
}

pub(super) fn seconds(duration: Duration) -> String {
    format!("{} s", duration.as_secs_f64())
}

/// Rows of equally many cells, the first of which is the head.
pub(super) struct Grid {
    rows: Vec<Vec<String>>,
    /// Which columns hold numbers, which stand at the right.
    numbers: Vec<bool>,
}

impl Grid {
    /// Columns as names and whether they hold numbers.
    pub fn new(columns: impl IntoIterator<Item = (String, bool)>) -> Grid {
        let (head, numbers) = columns.into_iter().map(|(name, number)| (cell(&name), number)).unzip();
        Grid { rows: vec![head], numbers }
    }

    pub fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        self.rows.push(cells.into_iter().map(|text| cell(&text)).collect());
    }

    /// The table in Markdown, its columns padded so that it also reads as plain text.
    pub fn markdown(&self) -> String {
        let width = |column: usize| {
            let cells = self.rows.iter().filter_map(|row| row.get(column));
            cells.map(|cell| cell.chars().count()).max().unwrap_or(0).max(3)
        };
        let widths: Vec<usize> = (0..self.numbers.len()).map(width).collect();
        let mut text = String::new();
        for (at, row) in self.rows.iter().enumerate() {
            for ((cell, width), number) in row.iter().zip(&widths).zip(&self.numbers) {
                // Writing to a string cannot fail.
                let _ = if *number { write!(text, "| {cell:>width$} ") } else { write!(text, "| {cell:<width$} ") };
            }
            text.push_str("|\n");
            if at == 0 {
                for (width, number) in widths.iter().zip(&self.numbers) {
                    let _ = write!(text, "|{}{}", "-".repeat(width + 1), if *number { ':' } else { '-' });
                }
                text.push_str("|\n");
            }
        }
        text
    }
}

fn cell(text: &str) -> String {
    one_line(text, 200).replace('|', "\\|")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_four_significant_digits() {
        let cases = [
            (0.0, "0"),
            (-0.0, "0"),
            (2890.123, "2890"),
            (2.5, "2.500"),
            (-0.012_345_67, "-0.01235"),
            (0.000_123_449, "0.0001234"),
            (1.234_56e-5, "1.235e-5"),
            (99_999.6, "100000"),
            (123_456.7, "123500"),
            (1_234_567.8, "1.235e6"),
            (1_048_576.0, "1048576"),
            (1e300, "1.000e300"),
            (f64::NAN, "not a number"),
        ];
        for (value, text) in cases {
            assert_eq!(digits(value), text);
        }
    }

    #[test]
    fn a_line_is_one_line_of_bounded_length() {
        assert_eq!(one_line(" a\n\x1b[31mb\t", 100), "a  [31mb");
        assert_eq!(one_line("äöüß", 4), "äöüß");
        assert_eq!(one_line("äöüßx", 4), "äöü…");
    }

    #[test]
    fn tables_are_aligned() {
        let mut grid = Grid::new([("name".to_owned(), false), ("GB/s".to_owned(), true)]);
        grid.row(["a|b".to_owned(), "1".to_owned()]);
        assert_eq!(grid.markdown(), "| name | GB/s |\n|------|-----:|\n| a\\|b |    1 |\n");
    }
}
