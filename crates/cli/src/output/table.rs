//! Aligned columns, and text that cannot play tricks on a terminal.

use std::io::{self, Write};

/// Rows that are aligned page by page: columns grow with what comes, and never shrink, so that long lists can stream.
pub(crate) struct Table {
    widths: Vec<usize>,
    head: Option<Vec<String>>,
}

impl Table {
    pub(crate) fn new(head: &[&str]) -> Self {
        let head: Vec<String> = head.iter().map(|name| (*name).to_owned()).collect();
        Self { widths: head.iter().map(String::len).collect(), head: Some(head) }
    }

    /// Writes a page of rows, the first one below the head. The last column is as wide as it likes.
    pub(crate) fn write(&mut self, out: &mut impl Write, rows: &[Vec<String>]) -> io::Result<()> {
        let rows: Vec<Vec<String>> = rows.iter().map(|row| row.iter().map(|cell| plain(cell)).collect()).collect();
        for row in &rows {
            for (width, cell) in self.widths.iter_mut().zip(row) {
                *width = (*width).max(cell.chars().count());
            }
        }
        for row in self.head.take().iter().chain(&rows) {
            let cells = row.iter().zip(&self.widths).map(|(cell, width)| format!("{cell:width$}"));
            let line = cells.collect::<Vec<_>>().join("  ");
            writeln!(out, "{}", line.trim_end())?;
        }
        Ok(())
    }
}

/// Names and values, one a line.
pub(crate) fn pairs(out: &mut impl Write, pairs: &[(&str, String)]) -> io::Result<()> {
    let width = pairs.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
    for (name, value) in pairs {
        writeln!(out, "{name:width$}  {}", plain(value))?;
    }
    Ok(())
}

/// Control characters, which keys and errors may hold, become their escapes.
pub(crate) fn plain(text: &str) -> String {
    if text.contains(char::is_control) {
        let escape = |char: char| if char.is_control() { char.escape_default().to_string() } else { char.to_string() };
        text.chars().map(escape).collect()
    } else {
        text.to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_aligned_and_later_pages_keep_their_widths() {
        let mut out = Vec::new();
        let mut table = Table::new(&["KEY", "N"]);
        table.write(&mut out, &[vec!["long-key".to_owned(), "1".to_owned()]]).unwrap();
        table
            .write(&mut out, &[vec!["ñ".to_owned(), "2".to_owned()], vec!["a\u{1b}[2J".to_owned(), String::new()]])
            .unwrap();
        let text = String::from_utf8(out).unwrap();
        assert_eq!(text, "KEY       N\nlong-key  1\nñ           2\na\\u{1b}[2J\n");
    }
}
