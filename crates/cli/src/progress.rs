//! A bar on the user's terminal, with rate and time left. The terminal may be at the other end of a socket: what is
//! drawn is collected and goes out through the command's standard error.
//!
//! A [`Bar`] draws to a `Screen`, a terminal that only collects the text. After each step the text is sent, as one
//! piece. A [`Drawn`] is the same for a thread that has standard error to itself. There is a bar only if standard
//! error is a terminal; without one, [`Seldom`] says every ten seconds that a line is due.
//!
//! Messages may have names of a pool in them, and are made printable before they are drawn: no name can move the
//! cursor. A user that is gone is no error here, since the command is cancelled by other means.

use crate::context::Context;
use cenote_command::output::{Output, printable};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle, TermLike};
use parking_lot::Mutex;
use std::fmt::Display;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The bar's line.
const FORM: &str = "{bar:24} {percent:>3}% {binary_bytes} of {binary_total_bytes}  \
                    {binary_bytes_per_sec}  {eta} left";

/// The line where the number of bytes is not known before their end.
const FORM_WITHOUT_END: &str = "{binary_bytes}  {binary_bytes_per_sec}  {elapsed} so far";

/// The line of a bar that says itself how far things are.
const FORM_OF_OTHERS: &str = "{bar:24} {percent:>3}%  {msg}";
/// Without a terminal, a line is written this often.
const SELDOM: Duration = Duration::from_secs(10);

/// Says when a line is due where there is no bar.
pub struct Seldom(Instant);

impl Seldom {
    /// The first line is due after the usual time.
    pub fn begin() -> Seldom {
        Seldom(Instant::now())
    }

    /// Whether it is time for a line.
    pub fn is_due(&mut self) -> bool {
        let due = self.0.elapsed() >= SELDOM;
        if due {
            self.0 = Instant::now();
        }
        due
    }
}

/// A bar, of bytes unless it was made otherwise.
pub struct Bar {
    bar: ProgressBar,
    screen: Screen,
}

impl Bar {
    /// A bar, if standard error is a terminal.
    pub fn on_terminal(ctx: &Context) -> Option<Bar> {
        Bar::with_form(FORM, ctx)
    }

    /// A bar of something else, with a message beside it, if standard error is a terminal.
    pub fn with_message(ctx: &Context) -> Option<Bar> {
        Bar::with_form(FORM_OF_OTHERS, ctx)
    }

    fn with_form(form: &str, ctx: &Context) -> Option<Bar> {
        ctx.caller.terminal.err.then(|| Bar::on_screen(form, ctx.caller.terminal.width))
    }

    fn on_screen(form: &str, width: Option<u16>) -> Bar {
        let screen = Screen::new(width.unwrap_or(80));
        let target = ProgressDrawTarget::term_like(Box::new(screen.clone()));
        let bar = ProgressBar::with_draw_target(Some(0), target);
        if let Ok(style) = ProgressStyle::with_template(form) {
            bar.set_style(style);
        }
        Bar { bar, screen }
    }

    /// There are so many bytes more to do.
    pub fn expect(&self, bytes: u64) {
        self.bar.set_length(self.bar.length().unwrap_or(0).saturating_add(bytes));
    }

    /// So many bytes are done.
    pub fn advance(&self, bytes: u64, ctx: &mut Context) {
        self.bar.inc(bytes);
        self.screen.show(ctx);
    }

    /// So many bytes are done, out of so many.
    pub fn set(&self, done: u64, total: u64, ctx: &mut Context) {
        self.bar.set_length(total);
        self.bar.set_position(done);
        self.screen.show(ctx);
    }

    /// So much is done, out of so much; `message` says what.
    pub fn tell(&self, done: u64, total: u64, message: String, ctx: &mut Context) {
        self.bar.set_message(printable(&message));
        self.set(done, total, ctx);
    }

    /// Writes a line above the bar.
    pub fn say(&self, message: impl Display, ctx: &mut Context) {
        self.bar.suspend(|| self.screen.text(&format!("{}\n", printable(&message.to_string()))));
        self.screen.show(ctx);
    }

    /// Takes the bar away.
    pub fn finish(&self, ctx: &mut Context) {
        self.bar.finish_and_clear();
        self.screen.show(ctx);
    }
}

/// A bar of bytes for a thread that has standard error to itself.
pub struct Drawn(Bar);

impl Drawn {
    /// A bar on a terminal of so many columns, of so many bytes in all.
    pub fn new(width: Option<u16>, total: u64) -> Drawn {
        let bar = Bar::on_screen(FORM, width);
        bar.expect(total);
        Drawn(bar)
    }

    /// A line on a terminal of so many columns, of bytes whose number is not known before their end.
    pub fn without_end(width: Option<u16>) -> Drawn {
        Drawn(Bar::on_screen(FORM_WITHOUT_END, width))
    }

    /// So many bytes are done. What is more than there should be lets the bar grow.
    pub fn draw(&self, done: u64, err: &mut Output) {
        let Drawn(Bar { bar, screen }) = self;
        bar.set_length(bar.length().unwrap_or(0).max(done));
        bar.set_position(done);
        screen.send(err);
    }

    /// Takes the bar away.
    pub fn finish(&self, err: &mut Output) {
        let Drawn(Bar { bar, screen }) = self;
        bar.finish_and_clear();
        screen.send(err);
    }
}

/// A terminal for the bar that collects what is drawn, to be sent to the user's own terminal,
/// which may be at the other end of a socket.
#[derive(Clone, Debug)]
struct Screen {
    width: u16,
    text: Arc<Mutex<String>>,
}

impl Screen {
    fn new(width: u16) -> Screen {
        Screen { width: width.max(20), text: Arc::default() }
    }

    fn text(&self, text: &str) {
        self.text.lock().push_str(text);
    }

    /// Sends what has been drawn. A user that is gone cancels the command by other means.
    fn show(&self, ctx: &mut Context) {
        self.send(&mut ctx.err);
    }

    fn send(&self, err: &mut Output) {
        let text = std::mem::take(&mut *self.text.lock());
        if !text.is_empty() {
            // Names in it were made printable before.
            let err = err.raw();
            let _ = err.write_all(text.as_bytes()).and_then(|()| err.flush());
        }
    }

    /// Moves the cursor: `A` up, `B` down, `C` right, `D` left.
    fn step(&self, n: usize, direction: char) -> io::Result<()> {
        if n > 0 {
            self.text(&format!("\x1b[{n}{direction}"));
        }
        Ok(())
    }
}

impl TermLike for Screen {
    fn width(&self) -> u16 {
        self.width
    }

    fn move_cursor_up(&self, n: usize) -> io::Result<()> {
        self.step(n, 'A')
    }

    fn move_cursor_down(&self, n: usize) -> io::Result<()> {
        self.step(n, 'B')
    }

    fn move_cursor_right(&self, n: usize) -> io::Result<()> {
        self.step(n, 'C')
    }

    fn move_cursor_left(&self, n: usize) -> io::Result<()> {
        self.step(n, 'D')
    }

    fn write_line(&self, s: &str) -> io::Result<()> {
        self.text(&format!("{s}\n"));
        Ok(())
    }

    fn write_str(&self, s: &str) -> io::Result<()> {
        self.text(s);
        Ok(())
    }

    fn clear_line(&self) -> io::Result<()> {
        self.text("\r\x1b[2K");
        Ok(())
    }

    fn flush(&self) -> io::Result<()> {
        Ok(())
    }
}
