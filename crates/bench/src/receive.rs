//! The receive rows of `cenote-bench send`.
//!
//! `cat` writes a stream into a pipe, from which it is received; the time counts until all of it is on disk. The
//! streams of the three snapshots go into one pool, one after another; each row begins with a fresh import. The peer
//! does the same with `dmu_recv_stream`.
//!
//! The rows `write` make the same files in such a pool through the library; the contents of the large file come through
//! a pipe as well. The row `cp` copies the large file in the file system of the directory.

use crate::measure::{Run, measure};
use crate::mounted::make_image;
use crate::send::{ARC, Contents, POOL, STREAMS, SendArgs, Stream, peer_rows};
use crate::write;
use anyhow::{Context, ensure};
use cenote_dmu::live::LiveObjectSet;
use cenote_dmu::write::{OpenObjectSet, WriteError};
use cenote_engine::change::receive::{NewReceive, Source};
use cenote_engine::change::{Changes, Contents as Fill, Format};
use cenote_engine::{Engine, EngineOptions};
use cenote_format::compress::Compression;
use cenote_pool::{ImportOptions, discover};
use cenote_zpl::NodeKind;
use std::fs::{self, File};
use std::io::{BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::Arc;

/// The rows here, and the peer's rows.
pub fn run(args: &SendArgs) -> anyhow::Result<(Vec<Run>, Vec<Run>)> {
    let (image, plain) = (args.dir.join("receive.img"), args.dir.join("plain"));
    make_image(&image, args.image_bytes())?;
    let mut to = File::create(&plain)?;
    Contents::new(args).file(|_, block| Ok(std::io::Write::write_all(&mut to, block)?))?;
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    for i in 0..args.runs {
        eprintln!("receive: run {} of {} ...", i + 1, args.runs);
        ours.push(copy(args, &plain)?);
        ours.extend(written(args, &image, &plain)?);
        for compressed in [false, true] {
            let streams: Vec<Stream> =
                STREAMS.into_iter().filter(|s| s.compressed == compressed).collect();
            ours.extend(received(args, &image, &streams)?);
            if let Some(program) = &args.peer {
                theirs.extend(peer(program, args, &image, &streams)?);
            }
        }
    }
    let streams = STREAMS.iter().map(|stream| stream.file(args));
    streams.chain([image, plain]).try_for_each(fs::remove_file)?;
    Ok((ours, theirs))
}

/// A file that comes through a pipe.
struct Piped {
    cat: Child,
    out: ChildStdout,
}

impl Piped {
    fn new(file: &Path) -> anyhow::Result<Piped> {
        let mut cat = Command::new("cat").arg(file).stdout(Stdio::piped()).spawn()?;
        let out = cat.stdout.take().context("no pipe")?;
        Ok(Piped { cat, out })
    }

    fn finish(mut self) -> anyhow::Result<()> {
        drop(self.out);
        ensure!(self.cat.wait()?.success(), "cat failed");
        Ok(())
    }
}

fn copy(args: &SendArgs, plain: &Path) -> anyhow::Result<Run> {
    let to = args.dir.join("copy");
    let run = measure("cp", || {
        ensure!(Command::new("cp").arg(plain).arg(&to).status()?.success(), "cp failed");
        File::open(&to)?.sync_data()?;
        Ok((fs::metadata(&to)?.len(), 1))
    })?;
    fs::remove_file(&to)?;
    Ok(run)
}

fn new_pool(image: &Path) -> anyhow::Result<Arc<Engine>> {
    write::create(image.into(), Compression::Lz4, ARC, &[], EngineOptions::default())
}

/// Exports the pool and imports it, so that nothing is cached.
fn again(engine: Arc<Engine>, args: &SendArgs) -> anyhow::Result<Arc<Engine>> {
    engine.export(false)?;
    drop(engine);
    let found = discover(std::slice::from_ref(&args.dir));
    let pool = found.iter().find(|c| c.name == POOL).context("the pool is gone")?;
    let import = ImportOptions { force: true, arc_bytes: Some(ARC), ..ImportOptions::default() };
    Ok(Engine::import(pool, &import, EngineOptions::default())?)
}

fn written(args: &SendArgs, image: &Path, plain: &Path) -> anyhow::Result<Vec<Run>> {
    let (mut contents, mut rows) = (Contents::new(args), Vec::new());
    let engine = again(new_pool(image)?, args)?;
    let fs = write::open(&engine, 128 << 10)?;
    let ino = fs.create(fs.root(), b"file", &write::node(NodeKind::File))?.ino;
    rows.push(measure("write: the file", || {
        let (mut piped, mut block, mut at) = (Piped::new(plain)?, vec![0; 128 << 10], 0);
        while at < args.size << 20 {
            piped.out.read_exact(&mut block)?;
            fs.write(ino, at, &block, false)?;
            at += block.len() as u64;
        }
        piped.finish()?;
        engine.sync()?;
        Ok((at, 1))
    })?);
    drop(fs);
    let engine = again(engine, args)?;
    let fs = write::open(&engine, 128 << 10)?;
    rows.push(measure("write: 1%", || {
        let blocks = contents.changes(&fs, ino)?;
        engine.sync()?;
        Ok((blocks * (128 << 10), blocks))
    })?);
    drop(fs);
    let engine = again(engine, args)?;
    let fs = write::open(&engine, 128 << 10)?;
    rows.push(measure("write: small files", || {
        let files = contents.small_files(&fs)?;
        engine.sync()?;
        Ok((files * (4 << 10), files))
    })?);
    drop(fs);
    engine.export(false)?;
    Ok(rows)
}

/// Nothing new is filled by a receive.
struct Nothing;

impl Fill for Nothing {
    fn fill(&self, _: &mut OpenObjectSet, _: &Format, _: u64) -> Result<(), WriteError> {
        Ok(())
    }

    fn resize(&self, _: Arc<LiveObjectSet>, _: u64) -> Result<(), WriteError> {
        Ok(())
    }
}

fn received(args: &SendArgs, image: &Path, streams: &[Stream]) -> anyhow::Result<Vec<Run>> {
    let (mut engine, mut rows) = (new_pool(image)?, Vec::new());
    for (number, stream) in streams.iter().enumerate() {
        engine = again(engine, args)?;
        let new = NewReceive { to: format!("{POOL}/to@s{number}"), ..NewReceive::default() };
        let file = stream.file(args);
        rows.push(measure(stream.row, || {
            let mut piped = Piped::new(&file)?;
            // As the command reads.
            receive(&engine, &new, &mut BufReader::with_capacity(1 << 20, &mut piped.out))?;
            piped.finish()?;
            engine.sync()?;
            Ok((fs::metadata(&file)?.len(), 1))
        })?);
    }
    engine.export(false)?;
    Ok(rows)
}

fn receive(
    engine: &Arc<Engine>,
    new: &NewReceive,
    input: &mut (dyn Read + Send),
) -> anyhow::Result<()> {
    let changes = Changes::new(engine.clone(), Arc::new(Nothing), None);
    let mut source = Source::new(input);
    let begin = source.begin()?.context("no stream")?;
    let list = source.list(&begin)?;
    let receiving = changes.receive(new, &begin, &list)?;
    receiving.stream(&mut source, &mut |_| {})?;
    Ok(changes.finish_receive(receiving, false)?)
}

fn peer(
    program: &Path,
    args: &SendArgs,
    image: &Path,
    streams: &[Stream],
) -> anyhow::Result<Vec<Run>> {
    let mut command = Command::new(program);
    command.arg("receive").arg(image);
    for stream in streams {
        let file: PathBuf = stream.file(args);
        command.arg(file).arg(stream.row);
    }
    peer_rows(command)
}
