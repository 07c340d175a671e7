//! Streams of snapshots: `zfs send` to any writer, `zfs receive` from any reader.
//!
//! A [`Stream`] says what is sent and how: one snapshot, what has changed since another one or a bookmark, or a package of many datasets
//! with their properties and holds. [`Stream::send`] writes it. [`Pool::receive`] takes one stream or a package; [`Receive`] says what is
//! forced, renamed or left out. A receive that was interrupted can leave a token, with which [`Pool::resume_send`] writes the rest.
//!
//! Both are operations of `cenote-admin`. Snapshots that are sent have a hold meanwhile. A receive keeps other operations out only at
//! the beginning and the end of each stream, since its input may stall.

use crate::{Dataset, Pool, Result};
use cenote_admin::send::{Send as How, decode_token};
use cenote_dsl::send::SendOptions;
use std::io::{self, Read, Write};

pub use cenote_admin::receive::Receive;

/// What was received.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Received {
    /// Full names of the snapshots, in the order in which they came.
    pub snapshots: Vec<String>,
    /// What of it was not taken over, in words: properties that could not be set, as one that is not known here.
    pub warnings: Vec<String>,
}

/// What is sent, and how. Without further ado: one full stream.
///
/// ```
/// # let dir = tempfile::tempdir()?;
/// # let pool = cenote::Pool::create_in_file(dir.path().join("disk"), "tank", 128 << 20)?;
/// use cenote::{Receive, Stream};
///
/// pool.create_filesystem("tank/home", &[("compression", "zstd")])?;
/// pool.create_filesystem("tank/home/alice", &[])?;
/// pool.root()?.snapshot_all("one")?;
/// pool.root()?.snapshot_all("two")?;
///
/// // All of tank/home with its properties, up to @one; then what came after.
/// let (mut first, mut second) = (Vec::new(), Vec::new());
/// let home = pool.dataset("tank/home@one")?;
/// Stream::of(&home).replicate().send(&mut first)?;
/// let later = pool.dataset("tank/home@two")?;
/// Stream::of(&later).replicate().from(&home).send(&mut second)?;
///
/// pool.receive("tank/copy", &mut first.as_slice())?;
/// let how = Receive { force: true, ..Receive::default() };
/// let received = pool.receive_with("tank/copy", &how, &mut second.as_slice())?;
/// assert_eq!(received.snapshots, ["tank/copy@two", "tank/copy/alice@two"]);
/// assert_eq!(pool.dataset("tank/copy")?.property("compression")?.unwrap(), "zstd");
/// # Ok::<(), cenote::Error>(())
/// ```
#[derive(Clone)]
pub struct Stream {
    of: Dataset,
    from: Option<Dataset>,
    how: How,
}

impl Stream {
    /// The stream of a snapshot; or of a file system or volume that is not open, as it is now.
    pub fn of(dataset: &Dataset) -> Stream {
        Stream { of: dataset.clone(), from: None, how: How::default() }
    }

    /// What has changed since another snapshot, or a bookmark, of the same dataset or of what it is a clone of.
    pub fn from(mut self, from: &Dataset) -> Stream {
        self.from = Some(from.clone());
        self
    }

    /// Blocks as they are on disk: compressed, embedded, and larger than 128 KiB. The receiver needs the same features.
    pub fn as_stored(mut self) -> Stream {
        let SendOptions { large_blocks, embedded, compressed, .. } = &mut self.how.options;
        (*large_blocks, *embedded, *compressed) = (true, true, true);
        self
    }

    /// A package with all datasets below, their properties, and all snapshots up to this one, or from the start on
    /// (`zfs send -R`).
    pub fn replicate(mut self) -> Stream {
        self.how.wanted.replicate = true;
        self
    }

    /// A package with all snapshots in between (`zfs send -I`).
    pub fn with_snapshots_between(mut self) -> Stream {
        self.how.wanted.all_snapshots = true;
        self
    }

    /// With the properties of the dataset (`zfs send -p`).
    pub fn with_properties(mut self) -> Stream {
        self.how.wanted.props = true;
        self
    }

    /// With holds (`zfs send -h`).
    pub fn with_holds(mut self) -> Stream {
        self.how.wanted.holds = true;
        self
    }

    /// Without this dataset and all below it, in a package of many (`zfs send -X`).
    pub fn without(mut self, name: impl Into<String>) -> Stream {
        self.how.wanted.exclude.push(name.into());
        self
    }

    /// Writes the stream. The snapshots are kept from being destroyed meanwhile.
    ///
    /// # Errors
    /// [`Error::Admin`](crate::Error::Admin): the start is not earlier, or in another dataset; the dataset is open; it cannot be
    /// read. [`Error::Io`](crate::Error::Io): `out` cannot be written. What was written before is no whole stream.
    pub fn send(&self, mut out: impl Write) -> Result<()> {
        let (of, from) = self.names()?;
        let pool = self.of.pool();
        pool.session(None, |session| session.send(&of, from.as_deref(), &self.how, &mut out))
    }

    /// The names of what is sent and of what the stream starts from, as they are now.
    fn names(&self) -> Result<(String, Option<String>)> {
        let from = self.from.as_ref().map(Dataset::present).transpose()?;
        Ok((self.of.present()?.name, from.map(|from| from.name)))
    }

    /// About how many bytes the stream will have.
    ///
    /// # Errors
    /// As [`Stream::send`]; one of several streams cannot be estimated.
    pub fn estimate(&self) -> Result<u64> {
        let how = How { dry_run: true, estimate: true, ..self.how.clone() };
        let (of, from) = self.names()?;
        let ((), told) = self
            .of
            .pool()
            .telling(None, |session| session.send(&of, from.as_deref(), &how, &mut io::sink()))?;
        // The sum lacks what failed.
        told.failed.into_iter().next().map_or(Ok(told.total), |e| Err(e.into()))
    }
}

/// # Sending
impl Dataset {
    /// Writes all of a snapshot as a stream. For everything else there is [`Stream`].
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let pool = cenote::Pool::create_in_file(dir.path().join("disk"), "tank", 128 << 20)?;
    /// let home = pool.create_filesystem("tank/home", &[])?;
    /// home.filesystem()?.write("notes", "first")?;
    /// let monday = home.snapshot("monday")?;
    /// let mut stream = Vec::new();
    /// monday.send(&mut stream)?;
    ///
    /// let received = pool.receive("tank/copy", &mut stream.as_slice())?;
    /// assert_eq!(received.snapshots, ["tank/copy@monday"]);
    /// assert_eq!(pool.dataset("tank/copy")?.filesystem()?.read("notes")?, b"first");
    /// # Ok::<(), cenote::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Stream::send`].
    pub fn send(&self, out: impl Write) -> Result<()> {
        Stream::of(self).send(out)
    }

    /// Writes what has changed since a snapshot or bookmark as a stream.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let pool = cenote::Pool::create_in_file(dir.path().join("disk"), "tank", 128 << 20)?;
    /// let home = pool.create_filesystem("tank/home", &[])?;
    /// let monday = home.snapshot("monday")?;
    /// let mut first = Vec::new();
    /// monday.send(&mut first)?;
    /// let since = monday.bookmark("monday")?;
    /// monday.destroy()?;
    ///
    /// home.filesystem()?.write("notes", "second")?;
    /// let mut second = Vec::new();
    /// home.snapshot("tuesday")?.send_from(&since, &mut second)?;
    /// pool.receive("tank/copy", &mut first.as_slice())?;
    /// pool.receive("tank/copy", &mut second.as_slice())?;
    /// assert_eq!(pool.dataset("tank/copy")?.filesystem()?.read("notes")?, b"second");
    /// # Ok::<(), cenote::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Stream::send`].
    pub fn send_from(&self, from: &Dataset, out: impl Write) -> Result<()> {
        Stream::of(self).from(from).send(out)
    }
}

/// # Receiving
impl Pool {
    /// Receives a stream, or a package of streams, into the dataset `into`, which is new, or has the snapshot that the stream
    /// starts from and was not changed since.
    ///
    /// # Errors
    /// As [`Pool::receive_with`].
    pub fn receive(&self, into: &str, input: impl Read + Send) -> Result<Received> {
        self.receive_with(into, &Receive::default(), input)
    }

    /// As [`Pool::receive`]. What is forced, renamed, left out, kept for later: `how` says it. Properties that come with the
    /// stream and cannot be set are no error: they are among [`Received::warnings`].
    ///
    /// # Errors
    /// [`Error::Admin`](crate::Error::Admin): the stream is damaged or ends early; it does not fit what is there; the dataset is open;
    /// a property is not right. What of a package was received before stays.
    pub fn receive_with(
        &self,
        into: &str,
        how: &Receive,
        mut input: impl Read + Send,
    ) -> Result<Received> {
        let done = self.telling(None, |session| session.receive(into, how, &mut input));
        self.properties_changed();
        let (received, told) = done?;
        Ok(Received { snapshots: received.snapshots, warnings: told.warnings })
    }

    /// Writes the rest of a stream. A receiver that was interrupted, and was told to keep what had come
    /// ([`Receive::resumable`]), has a token that says where it goes on
    /// ([`RECEIVE_RESUME_TOKEN`](crate::property::RECEIVE_RESUME_TOKEN)).
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let pool = cenote::Pool::create_in_file(dir.path().join("disk"), "tank", 128 << 20)?;
    /// use cenote::{Receive, property};
    ///
    /// let home = pool.create_filesystem("tank/home", &[])?;
    /// home.filesystem()?.write("file", vec![7; 1 << 20])?;
    /// let mut stream = Vec::new();
    /// home.snapshot("s")?.send(&mut stream)?;
    ///
    /// let how = Receive { resumable: true, ..Receive::default() };
    /// let cut = &stream[..stream.len() / 2];
    /// pool.receive_with("tank/copy", &how, cut).unwrap_err();
    /// let token = pool.dataset("tank/copy")?.get(property::RECEIVE_RESUME_TOKEN)?.unwrap();
    ///
    /// let mut rest = Vec::new();
    /// pool.resume_send(&token.value, &mut rest)?;
    /// pool.receive_with("tank/copy", &how, rest.as_slice())?;
    /// assert_eq!(pool.dataset("tank/copy")?.filesystem()?.metadata("file")?.size, 1 << 20);
    /// # Ok::<(), cenote::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Admin`](crate::Error::Admin): the text is not a token, or what it names is not there any more; the
    /// errors of [`Stream::send`].
    pub fn resume_send(&self, token: &str, mut out: impl Write) -> Result<()> {
        let token = decode_token(token)?;
        let how = How::default();
        self.session(None, |session| session.resume_send(&token, &how, &mut out))
    }

    /// Gives up what an interrupted receive into the dataset `name` left.
    ///
    /// # Errors
    /// [`Error::Admin`](crate::Error::Admin): nothing was left.
    pub fn abort_receive(&self, name: &str) -> Result<()> {
        self.administer(|session| session.abort_receive(name))
    }
}
