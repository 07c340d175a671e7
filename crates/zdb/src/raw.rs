//! `zdb -R`: blocks by address, without a block pointer (`zdb_read_block`); `-E`: a block that lies in its pointer
//! (`zdb_embedded_block`).
//!
//! A specifier is `vdev:offset:lsize[/psize][:flags]`, with numbers in hexadecimal. A top-level vdev is read
//! wherever its bytes are; a leaf is read on its own device, behind the labels at its front. The flags say what the
//! bytes are: dump them, byte-swap them, decompress them, take them for an indirect block, a gang header or one
//! block pointer, or checksum them by every function.
//!
//! Decompression is by trial (`zdb_decompress_block`): every function, to the size that is given, or to every
//! larger one. It ends when the user interrupts it. Bytes that cannot be a block pointer of this pool are refused,
//! not followed.

use super::args::Args;
use super::print::blkptr;
use super::{Surroundings, Zdb, failed};
use cenote_command::outcome::{Outcome, Stop, fail, usage};
use cenote_format::abd::Abd;
use cenote_format::blkptr::{BLKPTR_SIZE, BlockPointer};
use cenote_format::checksum::{self, Checksum, Salt};
use cenote_format::compress::{self, Compression};
use cenote_format::encode::blkptr::gang_pointers;
use cenote_format::{ByteOrder, Bytes, LABEL_START, MAX_BLOCK, SECTOR};
use cenote_vdev::{ReadReq, Vdev};
use std::sync::Arc;

/// A specifier taken apart: `vdev:offset:lsize[/psize][:flags]`.
#[derive(Debug, PartialEq, Eq)]
struct Spec {
    vdev: String,
    offset: u64,
    lsize: u64,
    psize: u64,
    flags: Flags,
}

#[derive(Debug, Default, PartialEq, Eq)]
struct Flags {
    /// `b`: a block pointer at this offset of the block.
    pointer: Option<usize>,
    checksums: bool,
    decompress: bool,
    swap: bool,
    gang: bool,
    indirect: bool,
    raw: bool,
    verbose: bool,
    /// Letters that are no flags.
    ignored: Vec<char>,
}

impl Spec {
    fn parse(text: &str) -> Result<Spec, String> {
        let mut parts = text.splitn(4, ':');
        let hex = |t: &str| u64::from_str_radix(t.trim_start_matches("0x"), 16).ok();
        let vdev = parts.next().unwrap_or_default().to_string();
        let offset = parts.next().and_then(hex).unwrap_or(0);
        let sizes = parts.next().unwrap_or_default();
        let (lsize, psize) = match sizes.split_once('/') {
            Some((l, p)) => (hex(l), hex(p)),
            None => (hex(sizes), hex(sizes)),
        };
        let bad = |why: &str| Err(format!("Invalid block specifier: {text}  - {why}"));
        let (Some(lsize), Some(psize)) = (lsize, psize) else { return bad("invalid size(s)") };
        if psize == 0 || psize > lsize || lsize > MAX_BLOCK {
            return bad("invalid size(s)");
        }
        if !psize.is_multiple_of(SECTOR) || !lsize.is_multiple_of(SECTOR) {
            return bad("size must be a multiple of sector size");
        }
        if !offset.is_multiple_of(SECTOR) {
            return bad("offset must be a multiple of sector size");
        }
        let flags = Flags::parse(parts.next().unwrap_or_default())?;
        Ok(Spec { vdev, offset, lsize, psize, flags })
    }
}

impl Flags {
    fn parse(text: &str) -> Result<Flags, String> {
        let (mut flags, mut known) = (Flags::default(), false);
        let mut rest = text.chars().peekable();
        while let Some(c) = rest.next() {
            match c {
                'b' => {
                    let mut digits = String::new();
                    // Letters that are flags too cannot be digits of the offset.
                    while let Some(d) =
                        rest.next_if(|d| d.is_ascii_hexdigit() && !"bcde".contains(*d))
                    {
                        digits.push(d);
                    }
                    let at = usize::from_str_radix(&digits, 16).unwrap_or(0);
                    if !at.is_multiple_of(BLKPTR_SIZE) {
                        return Err(format!(
                            "Block pointer offset 0x{at:x} must be divisible by 0x{BLKPTR_SIZE:x}"
                        ));
                    }
                    flags.pointer = Some(at);
                }
                'c' => flags.checksums = true,
                'd' => flags.decompress = true,
                'e' => flags.swap = true,
                'g' => flags.gang = true,
                'i' => flags.indirect = true,
                'r' => flags.raw = true,
                'v' => flags.verbose = true,
                ':' => continue,
                other => {
                    flags.ignored.push(other);
                    continue;
                }
            }
            known = true;
        }
        if !known && !text.is_empty() {
            return Err(format!("Invalid flag arg: '{text}'"));
        }
        Ok(flags)
    }
}

impl Zdb<'_> {
    /// `-R pool vdev:offset:size[:flags] …`
    pub fn read_blocks(&mut self) -> Outcome {
        let things = self.args.operands.get(1..).unwrap_or_default().to_vec();
        let mut code = 0;
        for thing in &things {
            match Spec::parse(thing) {
                Ok(spec) => {
                    if !self.read_block(thing, &spec)? {
                        code = 1;
                    }
                }
                Err(why) => {
                    writeln!(self.out(), "{why}")?;
                    code = 1;
                }
            }
        }
        Ok(code)
    }

    /// The vdev of a path of numbers such as `0.1`, or of a device's name (`zdb_vdev_lookup`).
    fn find_vdev(&self, name: &str) -> Option<Arc<Vdev>> {
        let vdevs = self.pool.store().vdevs();
        let root = vdevs.root();
        let mut at = root.clone();
        let mut numbers = name.split('.').map(str::parse::<usize>);
        if numbers.clone().all(|n| n.is_ok()) {
            return numbers.try_fold(at, |v, n| v.children().get(n.ok()?).cloned());
        }
        let mut todo = vec![root.clone()];
        while let Some(v) = todo.pop() {
            let file = v.path().and_then(|p| p.file_name()).and_then(|f| f.to_str());
            if v.path().and_then(|p| p.to_str()) == Some(name) || file == Some(name) {
                at = v;
                return Some(at);
            }
            todo.extend(v.children().iter().rev().cloned());
        }
        None
    }

    /// Reads what one specifier names, and shows it (`zdb_read_block`).
    fn read_block(&mut self, thing: &str, spec: &Spec) -> Result<bool, Stop> {
        for flag in &spec.flags.ignored {
            writeln!(self.out(), "***Ignoring flag: {flag}")?;
        }
        let Some(vdev) = self.find_vdev(&spec.vdev) else {
            writeln!(self.out(), "***Invalid vdev: {}", spec.vdev)?;
            return Ok(false);
        };
        let found = match vdev.path() {
            Some(path) => format!("Found vdev: {}", path.display()),
            None => format!("Found vdev type: {}", vdev.kind()),
        };
        self.ctx.complain(found);
        let data = match self.fetch(&vdev, spec) {
            Ok(data) => data,
            Err(why) => {
                writeln!(self.out(), "Read of {thing} failed, error: {why}")?;
                return Ok(false);
            }
        };
        let mut plain = data.clone();
        plain.resize(spec.lsize as usize, 0);
        let pointers = spec.flags.pointer.is_some() || spec.flags.indirect;
        let block = if spec.flags.decompress {
            match self.decompress(&data, spec)? {
                Some(block) => block,
                None => {
                    writeln!(self.out(), "Decompress of {thing} failed")?;
                    return Ok(false);
                }
            }
        } else if pointers && !self.is_pointer(&plain, spec) {
            // It may be compressed, though no flag says so.
            match self.decompress(&data, spec)?.filter(|block| self.is_pointer(block, spec)) {
                Some(block) => block,
                None => {
                    writeln!(self.out(), "invalid block pointer at this DVA")?;
                    return Ok(false);
                }
            }
        } else {
            plain
        };
        self.show_block(thing, spec, block)?;
        if spec.flags.checksums && !spec.flags.raw && !spec.flags.gang {
            self.show_checksums(data)?;
        }
        Ok(true)
    }

    /// Whether what stands where a block pointer is asked for can be one of this pool (`zfs_blkptr_verify`).
    fn is_pointer(&self, block: &[u8], spec: &Spec) -> bool {
        let order = if spec.flags.swap { ByteOrder::Big } else { ByteOrder::Little };
        let at = spec.flags.pointer.unwrap_or(0);
        let Ok(bp) = BlockPointer::decode(&Bytes::new(block, order, "block"), at) else {
            return false;
        };
        if bp.is_hole() {
            return true;
        }
        if Compression::from_u8(bp.compression()).is_err() || bp.lsize() > MAX_BLOCK {
            return false;
        }
        if bp.is_embedded() {
            return bp.embedded_payload().is_ok();
        }
        let vdevs = self.pool.store().vdevs();
        let fits = |dva: cenote_format::blkptr::Dva| {
            let end = dva.offset.checked_add(dva.asize);
            let top = vdevs.top(dva.vdev.into());
            top.is_some_and(|top| end.is_some_and(|end| top.asize() == 0 || end <= top.asize()))
        };
        let sizes = bp.psize() <= MAX_BLOCK && Checksum::from_u8(bp.checksum_type()).is_ok();
        sizes && bp.dva(0).is_some() && bp.dvas().all(fits)
    }

    /// The bytes at the address: of a top-level vdev wherever they are, of a leaf on the device.
    fn fetch(&self, vdev: &Arc<Vdev>, spec: &Spec) -> Result<Vec<u8>, String> {
        let vdevs = self.pool.store().vdevs();
        let top = vdevs.root().children().iter().find(|t| Arc::ptr_eq(t, vdev));
        if let Some(top) = top {
            let data = vdevs.read(top.id(), spec.offset, spec.psize, 4, &|_: &Abd| true);
            return data.map(|d| d.bytes().into_owned()).map_err(|e| e.to_string());
        }
        let device = vdev.device().ok_or("no such device")?;
        let offset = spec.offset.checked_add(LABEL_START).ok_or("offset too large")?;
        let mut reqs = [ReadReq::new(offset, spec.psize as usize)];
        device.read_batch(&mut reqs);
        let [req] = reqs;
        req.take().map(|bytes| bytes.to_vec()).map_err(|e| e.to_string())
    }

    /// Tries every way of decompression (`zdb_decompress_block`): to the size given, or to every larger one.
    fn decompress(&mut self, data: &[u8], spec: &Spec) -> Result<Option<Vec<u8>>, Stop> {
        use Compression::{Gzip1, Lz4, Lzjb, Zle, Zstd};
        let sizes = match spec.lsize == spec.psize {
            true => (spec.psize + SECTOR..=MAX_BLOCK).step_by(SECTOR as usize),
            false => (spec.lsize..=spec.lsize).step_by(SECTOR as usize),
        };
        let no_zle = self.ctx.caller.var("ZDB_NO_ZLE").is_some();
        let mut buffer = vec![0; MAX_BLOCK as usize];
        // Zero-length encoding accepts almost anything, so it comes last.
        for kinds in [&[Lz4, Lzjb, Gzip1, Zstd][..], &[Zle][..]] {
            if kinds == [Zle] && no_zle {
                break;
            }
            for size in sizes.clone() {
                if self.ctx.cancel.is_cancelled() {
                    return Ok(None);
                }
                for kind in kinds {
                    let Some(to) = buffer.get_mut(..size as usize) else { continue };
                    if spec.flags.verbose {
                        self.ctx.complain(format_args!(
                            "Trying {:05x} -> {size:05x} ({})",
                            spec.psize,
                            kind.name()
                        ));
                    }
                    if compress::decompress(*kind, data, to).is_ok() {
                        if *kind == Zle {
                            let note = "\nZLE decompression was selected. If you suspect the results \
                                        are wrong,\ntry avoiding ZLE by setting and exporting \
                                        ZDB_NO_ZLE=\"true\"";
                            writeln!(self.out(), "{note}")?;
                        }
                        return Ok(Some(to.to_vec()));
                    }
                }
            }
        }
        Ok(None)
    }

    /// Shows the bytes of a block as they were asked for (`zdb_dump_block`).
    fn show_block(&mut self, thing: &str, spec: &Spec, mut block: Vec<u8>) -> Result<(), Stop> {
        let flags = &spec.flags;
        let order = if flags.swap { ByteOrder::Big } else { ByteOrder::Little };
        if let Some(at) = flags.pointer {
            return self.show_pointers(&block, at, 1, order);
        }
        if flags.raw {
            if flags.swap {
                block.as_chunks_mut::<8>().0.iter_mut().for_each(|w| w.reverse());
            }
            self.out().write_all(&block)?;
            return Ok(());
        }
        if flags.indirect {
            let count = (spec.lsize as usize).min(block.len()) / BLKPTR_SIZE;
            return self.show_pointers(&block, 0, count, order);
        }
        if flags.gang {
            let size = (spec.lsize as usize).min(block.len());
            return self.show_pointers(&block, 0, gang_pointers(size), order);
        }
        let columns = match flags.swap {
            true => " 7 6 5 4 3 2 1 0   f e d c b a 9 8",
            false => " 0 1 2 3 4 5 6 7   8 9 a b c d e f",
        };
        writeln!(self.out(), "\n{thing}\n{:>6}   {columns}  0123456789abcdef", "")?;
        let (rows, _) = block.as_chunks::<16>();
        for (i, row) in rows.iter().enumerate() {
            let word = |half: usize| {
                let bytes: [u8; 8] = std::array::from_fn(|j| row[half * 8 + j]);
                if flags.swap { u64::from_le_bytes(bytes) } else { u64::from_be_bytes(bytes) }
            };
            let shown: String = row
                .iter()
                .map(|b| if (0x20..0x7f).contains(b) { *b as char } else { '.' })
                .collect();
            writeln!(self.out(), "{:06x}:  {:016x}  {:016x}  {shown}", i * 16, word(0), word(1))?;
        }
        Ok(())
    }

    fn show_pointers(
        &mut self,
        block: &[u8],
        at: usize,
        count: usize,
        order: ByteOrder,
    ) -> Result<(), Stop> {
        let b = Bytes::new(block, order, "block");
        for i in 0..count {
            match BlockPointer::decode(&b, at + i * BLKPTR_SIZE) {
                Ok(bp) => writeln!(self.out(), "{}", blkptr(&bp))?,
                Err(_) => {
                    writeln!(self.out(), "invalid block pointer at this DVA")?;
                    break;
                }
            }
        }
        Ok(())
    }

    /// `c`: what each function makes of the physical bytes.
    fn show_checksums(&mut self, data: Vec<u8>) -> Result<(), Stop> {
        let mut bytes = [0; 32];
        if let Some(salt) =
            self.directory()?.lookup(b"org.illumos:checksum_salt").map_err(failed)?
        {
            bytes.iter_mut().zip(salt.bytes()).for_each(|(a, b)| *a = b);
        }
        let (salt, data) = (Salt::new(bytes), Abd::from_vec(data));
        writeln!(self.out())?;
        use Checksum::{Blake3, Edonr, Fletcher2, Fletcher4, Sha256, Sha512, Skein};
        for kind in [Fletcher2, Fletcher4, Sha256, Sha512, Skein, Edonr, Blake3] {
            let [a, b, c, d] =
                checksum::compute(kind, &data, ByteOrder::Little, &salt).map_err(failed)?;
            let name = kind.name();
            writeln!(self.out(), "{name:>12}\tcksum={a:016x}:{b:016x}:{c:016x}:{d:016x}")?;
        }
        Ok(())
    }
}

/// `-E word0:word1:…:word15`: the block in an embedded block pointer, as it is (`zdb_embedded_block`).
pub fn embedded_block(args: &Args, ctx: &mut Surroundings<'_>) -> Outcome {
    let [text] = &args.operands[..] else { return usage("") };
    let hex = |word: &str| u64::from_str_radix(word.trim_start_matches("0x"), 16).ok();
    let words: Option<Vec<u64>> = text.split(':').map(hex).collect();
    let Some(Ok(words)) = words.map(<[u64; 16]>::try_from) else {
        return fail("invalid input format");
    };
    let block = decode_embedded(&BlockPointer(words));
    ctx.out.write_all(&block.map_err(|why| Stop::Fail(format!("decode failed: {why}")))?)?;
    Ok(0)
}

/// The bytes of the block in a pointer (`decode_embedded_bp`).
fn decode_embedded(bp: &BlockPointer) -> Result<Vec<u8>, String> {
    if !bp.is_embedded() {
        return Err("the block pointer is not an embedded one".into());
    }
    let size = bp.lsize();
    if size > MAX_BLOCK {
        return Err(format!("a block of {size} bytes"));
    }
    let payload = bp.embedded_payload().map_err(|e| e.to_string())?;
    let mut block = vec![0; size as usize];
    match Compression::from_u8(bp.compression()).map_err(|e| e.to_string())? {
        Compression::Off => block.iter_mut().zip(&payload).for_each(|(to, from)| *to = *from),
        kind => compress::decompress(kind, &payload, &mut block).map_err(|e| e.to_string())?,
    }
    Ok(block)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn specifiers() {
        let s = Spec::parse("0.1:1000:2000/200:dv").unwrap();
        assert_eq!((s.vdev.as_str(), s.offset, s.lsize, s.psize), ("0.1", 0x1000, 0x2000, 0x200));
        assert!(s.flags.decompress && s.flags.verbose && !s.flags.raw);
        assert_eq!(Spec::parse("0:0:400:b80").unwrap().flags.pointer, Some(0x80));
        let s = Spec::parse("0:0:400:d:b80").unwrap();
        assert!(s.flags.decompress && s.flags.pointer == Some(0x80));
        assert_eq!(Spec::parse("0:0:400:dx").unwrap().flags.ignored, ['x']);
        for wrong in ["0", "0:0:0", "0:0:1", "0:1:200", "0:0:200/400", "0:0:200:x", "0:0:200:b1"] {
            assert!(Spec::parse(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn blocks_in_their_pointers() {
        let mut words = [0; 16];
        words[0] = u64::from_le_bytes(*b"hello\0\0\0");
        // Little-endian, a plain file, embedded, not compressed, 5 bytes of 8.
        words[6] = (1 << 63) | (19 << 48) | (1 << 39) | (2 << 32) | (4 << 25) | 7;
        assert_eq!(decode_embedded(&BlockPointer(words)).unwrap(), b"hello\0\0\0");
        words[6] |= (1 << 25) - 1;
        assert!(decode_embedded(&BlockPointer(words)).is_err());
        assert!(decode_embedded(&BlockPointer([0; 16])).is_err());
    }
}
