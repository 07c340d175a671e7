//! Colours on the user's terminal, as OpenZFS has them (`printf_color`): for users with `ZFS_COLOR` set.

use crate::context::Context;
use std::ffi::OsStr;
use std::io;

/// Ends a colour.
pub const PLAIN: &[u8] = b"\x1b[0m";

/// How text is shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Colour {
    Bold,
    Red,
    Green,
    Yellow,
    Blue,
    BoldBlue,
    Magenta,
    Cyan,
    Gray,
}

impl Colour {
    /// What begins it.
    pub fn code(self) -> &'static [u8] {
        match self {
            Colour::Bold => b"\x1b[1m",
            Colour::Red => b"\x1b[0;31m",
            Colour::Green => b"\x1b[0;32m",
            Colour::Yellow => b"\x1b[0;33m",
            Colour::Blue => b"\x1b[0;34m",
            Colour::BoldBlue => b"\x1b[1;34m",
            Colour::Magenta => b"\x1b[0;35m",
            Colour::Cyan => b"\x1b[0;36m",
            Colour::Gray => b"\x1b[0;37m",
        }
    }

    /// The colour of a pool or vdev in this state (`health_str_to_color`).
    pub fn of_health(state: &str) -> Option<Colour> {
        match state {
            "FAULTED" | "SUSPENDED" | "UNAVAIL" => Some(Colour::Red),
            "OFFLINE" | "DEGRADED" | "REMOVED" => Some(Colour::Yellow),
            _ => None,
        }
    }

    /// The colour of the unit of a size.
    fn of_unit(unit: char) -> Option<Colour> {
        Some(match unit {
            'K' => Colour::Green,
            'M' => Colour::Yellow,
            'G' => Colour::Red,
            'T' => Colour::BoldBlue,
            'P' => Colour::Magenta,
            'E' => Colour::Cyan,
            _ => return None,
        })
    }
}

/// Whether the user wants colours and the terminal has them (`use_color`).
pub fn wanted(ctx: &Context) -> bool {
    let terminal = ctx.var("TERM").and_then(OsStr::to_str).unwrap_or("");
    let has_colours = ctx.caller.terminal.out && !["", "dumb", "unknown"].contains(&terminal);
    has_colours && ctx.caller.is_set("ZFS_COLOR") && !ctx.caller.is_set("NO_COLOR")
}

/// Text of which parts have a colour. Control characters in it are escaped as in other output.
#[derive(Debug, Default)]
pub struct Text {
    pieces: Vec<(Option<Colour>, String)>,
}

impl Text {
    /// Adds text without a colour.
    pub fn push(&mut self, text: impl AsRef<str>) {
        self.paint(None, text);
    }

    /// Adds text in this colour.
    pub fn paint(&mut self, colour: impl Into<Option<Colour>>, text: impl AsRef<str>) {
        let (colour, text) = (colour.into(), text.as_ref());
        match self.pieces.last_mut() {
            _ if text.is_empty() => {}
            Some((last, so_far)) if *last == colour => so_far.push_str(text),
            _ => self.pieces.push((colour, text.to_string())),
        }
    }

    /// Adds lines that begin with a title, up to its colon, which is bold.
    pub fn titled(&mut self, lines: &str) {
        let start = lines.len() - lines.trim_start().len();
        let end = lines.find(':').map_or(start, |colon| colon + 1).max(start);
        let (title, rest) = lines.split_at(end);
        let (indent, title) = title.split_at(start);
        self.push(indent);
        self.paint(Colour::Bold, title);
        self.push(rest);
    }

    /// Adds a figure (`print_stat_color`): zeros are gray, units have the colours of their size.
    pub fn figure(&mut self, figure: &str, width: usize) {
        self.push(format!("{:1$}", "", width.saturating_sub(figure.chars().count())));
        let unit = figure.find(|c| Colour::of_unit(c).is_some()).unwrap_or(figure.len());
        let (number, unit) = figure.split_at(unit);
        self.paint((figure == "0").then_some(Colour::Gray), number);
        self.paint(unit.chars().next().and_then(Colour::of_unit), unit);
    }

    /// Writes it, in colours if they are [wanted].
    ///
    /// # Errors
    /// Those of writing.
    pub fn write(&self, paints: bool, ctx: &mut Context) -> io::Result<()> {
        for (colour, text) in &self.pieces {
            let colour = colour.filter(|_| paints);
            if let Some(colour) = colour {
                ctx.out.raw().write_all(colour.code())?;
            }
            ctx.out.write_all(text.as_bytes())?;
            if colour.is_some() {
                ctx.out.raw().write_all(PLAIN)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn titles_and_figures_are_told_apart_from_what_is_around_them() {
        let mut text = Text::default();
        text.titled("  scan: none requested\n");
        text.figure("0", 3);
        text.figure("1.5K", 6);
        text.figure("-", 3);
        text.titled("no title");
        let piece = |colour, text: &str| (colour, text.to_string());
        let expected = [
            piece(None, "  "),
            piece(Some(Colour::Bold), "scan:"),
            piece(None, " none requested\n  "),
            piece(Some(Colour::Gray), "0"),
            piece(None, "  1.5"),
            piece(Some(Colour::Green), "K"),
            piece(None, "  -no title"),
        ];
        assert_eq!(text.pieces, expected);
    }
}
