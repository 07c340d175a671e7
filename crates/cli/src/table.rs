//! Columns of text: the layout that the listings of `zpool` and `zfs` share.
//!
//! Columns are two spaces apart; a column's width is a minimum that wide values stretch only where
//! the caller says so; the last column is not padded when it is left-aligned. In scripted mode
//! (`-H`) there are no headers and one tab between columns.

use crate::colour::{Colour, Text};
use std::io::{self, Write};

/// A column.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Column {
    /// Text above the column.
    pub header: String,
    /// Width in characters.
    pub width: usize,
    /// Whether values stand at the right edge.
    pub right: bool,
    /// Whether the width grows with the values (or is fixed, and wide values push the rest).
    pub flexible: bool,
}

impl Column {
    /// A left-aligned column that grows, as wide as its header.
    pub fn text(header: impl Into<String>) -> Column {
        let header = header.into();
        Column { width: header.chars().count(), header, right: false, flexible: true }
    }

    /// Makes room for `value` if the column grows (or `literal` values are shown, which makes
    /// every column grow).
    pub fn fit(&mut self, value: &str, literal: bool) {
        if self.flexible || literal {
            self.width = self.width.max(value.chars().count());
        }
    }
}

/// Writes rows of columns.
#[derive(Clone, Debug)]
pub struct Table {
    /// The columns.
    pub columns: Vec<Column>,
    /// Tabs, no header.
    pub scripted: bool,
}

impl Table {
    /// Writes the headers; nothing in scripted mode.
    pub fn header(&self, out: &mut dyn Write) -> io::Result<()> {
        if self.scripted {
            return Ok(());
        }
        let headers: Vec<&str> = self.columns.iter().map(|c| c.header.as_str()).collect();
        self.line(out, &headers)
    }

    /// Writes one row.
    pub fn row<S: AsRef<str>>(&self, out: &mut dyn Write, values: &[S]) -> io::Result<()> {
        let values: Vec<&str> = values.iter().map(AsRef::as_ref).collect();
        if self.scripted {
            return writeln!(out, "{}", values.join("\t"));
        }
        self.line(out, &values)
    }

    /// A row of which column `at` has a colour.
    pub(crate) fn painted(&self, values: &[String], (at, colour): (usize, Colour)) -> Text {
        let mut text = Text::default();
        for (i, value) in values.iter().enumerate() {
            let between = if self.scripted { "\t" } else { "  " };
            text.push(if i > 0 { between } else { "" });
            let cell = if self.scripted { value.clone() } else { self.cell(i, value) };
            text.paint((i == at).then_some(colour), cell);
        }
        text.push("\n");
        text
    }

    fn line(&self, out: &mut dyn Write, values: &[&str]) -> io::Result<()> {
        for (i, value) in values.iter().enumerate() {
            write!(out, "{}{}", if i > 0 { "  " } else { "" }, self.cell(i, value))?;
        }
        writeln!(out)
    }

    /// A value, as wide as its column.
    fn cell(&self, at: usize, value: &str) -> String {
        let Some(Column { width, right, .. }) = self.columns.get(at) else { return String::new() };
        match right {
            true => format!("{value:>width$}"),
            false if at + 1 == self.columns.len() => value.to_string(),
            false => format!("{value:<width$}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn alignment_and_script() {
        let number = Column { header: "USED".into(), width: 5, right: true, flexible: false };
        let mut name = Column::text("NAME");
        name.fit("tank/home", false);
        let mut table =
            Table { columns: vec![name, number, Column::text("MOUNT")], scripted: false };
        let mut out = Vec::new();
        table.header(&mut out).unwrap();
        table.row(&mut out, &["tank", "1.5K", "/tank"]).unwrap();
        table.scripted = true;
        table.header(&mut out).unwrap();
        table.row(&mut out, &["tank", "1.5K", "/tank"]).unwrap();
        let text = String::from_utf8(out).unwrap();
        assert_eq!(text, "NAME        USED  MOUNT\ntank        1.5K  /tank\ntank\t1.5K\t/tank\n");
    }
}
