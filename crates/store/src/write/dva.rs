//! The second stage of a write: DVA allocation, where the bytes go (`zio_dva_allocate`,
//! `zio_write_gang_block`).
//!
//! A [`DvaAllocation`] collects, for one block, the writes that make it up, the space that was taken
//! for them, and in the end its pointer. If there is no room for a block, all its space is given back.
//!
//! # Gang blocks
//!
//! If no free segment holds a block, it is divided behind a header (see [`crate::gang`] for the layout), into as many
//! parts as that has pointers: three, or more once [large headers](super::headers) are allowed. Each part takes the largest segment there is, if that leaves
//! no more for the rest than they can hold between them in equal parts; else it gets its equal
//! share as a gang block of its own. So a block is divided into no more parts than it has to be
//! for as long as there are few.

use cenote_format::ByteOrder;
use cenote_format::abd::Abd;
use cenote_format::blkptr::{BlockPointer, Dva};
use cenote_format::checksum;
use cenote_format::compress::Compression;
use cenote_format::dmu::DmuType;
use cenote_format::encode::blkptr::{
    BlockProps, OLD_GANG_HEADER, encode_gang_header, gang_pointers,
};
use cenote_format::invariant;
use cenote_vdev::BlockWrite;

use super::pack::Physical;
use super::{WriteError, WriteProps, WriteRequest, Writer};
use crate::alloc::{AllocError, Class, Request};
use crate::gang::GANG_DEPTH;
use crate::tunables;

/// The allocators of data and of metadata. A batch of data goes to one place, so that its writes
/// join; and so does metadata, of which the next groups write most again: kept apart from data,
/// which stays, it leaves whole metaslabs free behind it.
const DATA: usize = 0;
const METADATA: usize = 1;

/// A block on its way to the devices.
pub(super) struct DvaAllocation<'a> {
    writer: &'a Writer,
    props: &'a WriteProps,
    txg: u64,
    allocator: usize,
    /// A number that looks random and is the same for the same block.
    spread: u64,
    /// The block is divided although there may be room for it in one piece.
    forced: bool,
    /// Its pointer has half a checksum, so its gang header has half a one.
    is_half: bool,
    /// A larger gang header would have served it better.
    wants_header: bool,
    pub writes: Vec<BlockWrite>,
    /// Space taken for it.
    pub taken: Vec<Dva>,
}

impl<'a> DvaAllocation<'a> {
    pub(super) fn new(
        writer: &'a Writer,
        request: &'a WriteRequest,
        txg: u64,
    ) -> DvaAllocation<'a> {
        let at = &request.at;
        let region = at.objset ^ at.object.rotate_left(20) ^ at.blkid >> 20;
        let mix = |n: u64| n.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 48;
        let spread = mix(region ^ at.blkid ^ txg);
        let (props, writes, taken) = (&request.props, Vec::new(), Vec::new());
        let metadata = props.level > 0 || props.object_type.is_metadata();
        let allocator = if metadata { METADATA } else { DATA };
        DvaAllocation {
            writer,
            props,
            txg,
            allocator,
            spread,
            forced: false,
            is_half: false,
            wants_header: false,
            writes,
            taken,
        }
    }

    /// Finds space for the block; its pointer.
    pub(super) fn allocate_block(
        &mut self,
        physical: &Physical,
    ) -> Result<BlockPointer, WriteError> {
        let class = self.class(physical);
        self.is_half = self.has_half_a_checksum(physical);
        self.forced = self.is_forced(physical.psize());
        let whole = match self.forced {
            true => Err(AllocError::NoSegment { largest: 0 }),
            false => self.allocate(class, physical.psize(), self.props.copies),
        };
        let dvas = match whole {
            Ok((_, dvas)) => Ok(dvas),
            Err(AllocError::NoSegment { .. }) if physical.psize() > self.writer.unit() => {
                self.gang(class, &physical.data, 0)
            }
            Err(e) => Err(e.into()),
        };
        let pointer = dvas.and_then(|dvas| {
            if !dvas.iter().any(|dva| dva.gang) {
                self.write(&dvas, &physical.data);
            }
            self.pointer(physical, &dvas)
        });
        if pointer.is_ok() && self.wants_header {
            self.writer.gang_headers().want();
        }
        pointer.inspect_err(|_| self.undo())
    }

    /// Finds space for so many copies of the block, in one piece.
    pub(super) fn allocate_whole(
        &mut self,
        physical: &Physical,
        copies: usize,
    ) -> Result<Vec<Dva>, WriteError> {
        let (_, dvas) = self.allocate(self.class(physical), physical.psize(), copies)?;
        self.write(&dvas, &physical.data);
        Ok(dvas)
    }

    /// Whether a block of this size is one that is divided for the sake of a test.
    fn is_forced(&self, psize: u64) -> bool {
        psize >= tunables::FORCE_GANGING.get()
            && psize > self.writer.unit()
            && self.spread % 100 < tunables::FORCE_GANGING_PCT.get()
    }

    /// See [`crate::verify`].
    fn has_half_a_checksum(&self, physical: &Physical) -> bool {
        physical.protection.is_some() && self.props.object_type != DmuType::OBJSET
    }

    /// Where the block should go, now that its size is known (`spa_preferred_class`).
    fn class(&self, physical: &Physical) -> Class {
        let small = physical.psize() <= self.props.small;
        if self.props.class != Class::Normal || !small {
            return self.props.class;
        }
        let special = self.writer.allocator.figures(Class::Special);
        let open = special.space / 100 * (100 - tunables::SPECIAL_RESERVE_PCT.get());
        if special.allocated < open { Class::Special } else { Class::Normal }
    }

    /// Gives back the space of a block that nothing was written of.
    fn undo(&mut self) {
        self.writes.clear();
        for dva in self.taken.drain(..) {
            let back = self.writer.allocator.unallocate(self.txg, &dva);
            invariant!(back.is_ok(), "{dva:?} cannot be given back: {back:?}");
        }
    }

    fn allocate(
        &mut self,
        class: Class,
        psize: u64,
        copies: usize,
    ) -> Result<(Class, Vec<Dva>), AllocError> {
        let allocator = self.allocator;
        let request =
            Request { psize, copies, class, allocator, gang: false, near: None, among: None };
        let found = self.writer.allocator.allocate(self.txg, &request)?;
        self.taken.extend(&found.1);
        Ok(found)
    }

    fn write(&mut self, dvas: &[Dva], data: &Abd) {
        let (txg, content) = (self.txg, self.props.content);
        self.writes.extend(dvas.iter().map(|dva| {
            let (vdev, offset) = (dva.vdev.into(), dva.offset);
            BlockWrite { vdev, offset, data: data.clone(), txg, content, sides: Vec::new() }
        }));
    }

    fn pointer(&self, physical: &Physical, dvas: &[Dva]) -> Result<BlockPointer, WriteError> {
        let bp = BlockPointer::new(&BlockProps {
            kind: self.props.object_type,
            level: self.props.level,
            checksum: self.props.checksum,
            compression: physical.compression,
            lsize: physical.lsize,
            psize: physical.psize(),
            dedup: false,
            dvas,
            logical_birth: self.txg,
            physical_birth: 0,
            fill: self.props.fill,
            sum: physical.sum,
        })?;
        Ok(match &physical.protection {
            Some(protection) => protection.mark(bp)?,
            None => bp,
        })
    }

    /// The pointer in a gang header to a part of the block.
    fn part(&self, data: &Abd, dvas: &[Dva]) -> Result<BlockPointer, WriteError> {
        let checksum = self.props.checksum;
        let salt = self.writer.store.salt();
        Ok(BlockPointer::new(&BlockProps {
            kind: DmuType::NONE,
            level: 0,
            checksum,
            compression: Compression::Off,
            lsize: data.len() as u64,
            psize: data.len() as u64,
            dedup: false,
            dvas,
            logical_birth: self.txg,
            physical_birth: 0,
            fill: 0,
            sum: checksum::compute(checksum, data, ByteOrder::Little, &salt)?,
        })?)
    }

    /// Divides `data`; the DVAs of the header. Each counts the bytes of that copy of all parts, too
    /// (`zio_write_gang_member_ready`).
    fn gang(&mut self, class: Class, data: &Abd, depth: usize) -> Result<Vec<Dva>, WriteError> {
        if depth >= GANG_DEPTH {
            return Err(AllocError::NoSpace.into());
        }
        // The header is as precious as all that is behind it.
        let copies = self.props.gang_copies.max(self.props.copies);
        let (class, mut header) = self.allocate(class, OLD_GANG_HEADER as u64, copies)?;
        header.iter_mut().for_each(|dva| dva.gang = true);
        let headers = self.writer.gang_headers();
        let vdevs = self.writer.store.vdevs();
        let missing = header.iter().find(|dva| vdevs.top(dva.vdev.into()).is_none());
        invariant!(missing.is_none(), "space for a gang header is on no vdev: {missing:?}");
        // As large as what was allocated: no more space is taken for it.
        let room = self.writer.store.header_size(header.iter().copied()) as usize;
        let size = if headers.are_allowed() { room } else { OLD_GANG_HEADER };
        let mut whole = header.clone();
        let mut parts = Vec::new();
        let (mut at, pointers) = (0, gang_pointers(size));
        while at < data.len() {
            let left = (data.len() - at) as u64;
            let share = left.div_ceil((pointers - parts.len()).max(1) as u64);
            let share = share.next_multiple_of(self.writer.unit()).min(left);
            let (len, found) = self.allocate_part(class, share, left)?;
            let part = slice(data, at, len as usize)?;
            let dvas = match found {
                Some(dvas) => {
                    self.write(&dvas, &part);
                    dvas
                }
                None => {
                    self.wants_header |= room > size;
                    self.gang(class, &part, depth + 1)?
                }
            };
            whole.iter_mut().zip(&dvas).for_each(|(whole, dva)| whole.asize += dva.asize);
            parts.push(self.part(&part, &dvas)?);
            at += part.len();
        }
        self.write_header(&parts, &header, size, depth)?;
        Ok(whole)
    }

    /// Allocates as much as there is between `share` and `left` bytes; without DVAs if there is
    /// not that much in one piece.
    fn allocate_part(
        &mut self,
        class: Class,
        share: u64,
        left: u64,
    ) -> Result<(u64, Option<Vec<Dva>>), WriteError> {
        let unit = self.writer.unit();
        if self.forced && self.is_forced(share) {
            return Ok((share, None));
        }
        let mut size = if self.forced { share } else { left };
        loop {
            match self.allocate(class, size, self.props.copies) {
                Ok((_, dvas)) => return Ok((size, Some(dvas))),
                Err(AllocError::NoSegment { largest }) => {
                    // One segment may be there, but not one for each copy.
                    let fits = (largest / unit * unit).min(size.saturating_sub(unit));
                    size = match fits >= share {
                        true => fits,
                        false if size > share => share,
                        false if share > unit => return Ok((share, None)),
                        false => return Err(AllocError::NoSpace.into()),
                    };
                }
                Err(e) => return Err(e.into()),
            }
        }
    }

    fn write_header(
        &mut self,
        parts: &[BlockPointer],
        dvas: &[Dva],
        size: usize,
        depth: usize,
    ) -> Result<(), WriteError> {
        let first = dvas.first().ok_or(AllocError::NoSpace)?;
        // Pointers to parts say nothing of protection.
        let is_half = self.is_half && depth == 0;
        let header = encode_gang_header(parts, size, (first, self.txg), is_half)?;
        self.write(dvas, &Abd::from_vec(header));
        Ok(())
    }

    /// Writes new contents of the same size to where the block is already (`zio_rewrite`); its new pointer.
    pub(super) fn rewrite(
        &mut self,
        previous: &BlockPointer,
        physical: &Physical,
        request: &WriteRequest,
    ) -> Result<BlockPointer, WriteError> {
        let dvas: Vec<Dva> = previous.dvas().collect();
        self.is_half = self.has_half_a_checksum(physical);
        if previous.is_gang() {
            self.rewrite_gang(previous, &physical.data, request, 0)?;
        } else {
            self.write(&dvas, &physical.data);
        }
        self.pointer(physical, &dvas)
    }

    fn rewrite_gang(
        &mut self,
        gang: &BlockPointer,
        data: &Abd,
        request: &WriteRequest,
        depth: usize,
    ) -> Result<(), WriteError> {
        if depth >= GANG_DEPTH {
            return Err(AllocError::NoSpace.into());
        }
        let (mut parts, mut at) = (Vec::new(), 0);
        let (children, size) = self.writer.store.gang_header(gang, request.at)?;
        for child in children.iter().filter(|child| !child.is_hole()) {
            let part = slice(data, at, child.psize() as usize)?;
            let dvas: Vec<Dva> = child.dvas().collect();
            if child.is_gang() {
                self.rewrite_gang(child, &part, request, depth + 1)?;
            } else {
                self.write(&dvas, &part);
            }
            parts.push(self.part(&part, &dvas)?);
            at += part.len();
        }
        self.write_header(&parts, &gang.dvas().collect::<Vec<_>>(), size, depth)
    }
}

fn slice(data: &Abd, at: usize, len: usize) -> Result<Abd, WriteError> {
    let why = || cenote_format::DecodeError::invalid("gang block", "parts beyond the whole");
    Ok(data.slice(at, len).ok_or_else(why)?)
}
