//! What is counted of cache devices, named as OpenZFS's `arcstats`.
//!
//! Counts are a pool's while it is imported; what pools had counted that are gone is kept for the process ([`gone`]).

use super::index::{ENTRY, Index, SLOT, Sums};
use cenote_format::less;
use parking_lot::Mutex;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Something that is counted.
#[derive(Debug, Default)]
pub(super) struct Count(AtomicU64);

impl Count {
    pub fn add(&self, n: u64) {
        self.0.fetch_add(n, Relaxed);
    }

    fn now(&self) -> u64 {
        self.0.load(Relaxed)
    }

    fn take(&self) -> u64 {
        self.0.swap(0, Relaxed)
    }
}

macro_rules! counts {
    ($($(#[$doc:meta])* $field:ident $name:literal;)*) => {
        /// Counts of cache devices.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct L2Counts { $($(#[$doc])* pub $field: u64,)* }

        impl L2Counts {
            /// Each with its name in `arcstats`.
            pub fn named(&self) -> Vec<(&'static str, u64)> {
                vec![$(($name, self.$field),)*]
            }

            /// These and others.
            pub fn plus(mut self, other: &L2Counts) -> L2Counts {
                $(self.$field += other.$field;)*
                self
            }
        }

        /// See the [module](self).
        #[derive(Default)]
        pub(super) struct Figures {
            $(pub $field: Count,)*
            logs: Mutex<Logs>,
        }

        impl Figures {
            fn counts(&self) -> L2Counts {
                L2Counts { $($field: self.$field.now(),)* }
            }

            fn take(&self) -> L2Counts {
                L2Counts { $($field: self.$field.take(),)* }
            }
        }
    };
}

counts! {
    /// Blocks that were found.
    hits "l2_hits";
    /// Blocks that were looked for and not found, or not right.
    misses "l2_misses";
    /// Times that a thread looked for something to write.
    feeds "l2_feeds";
    /// Reads of a device that was being written to.
    rw_clash "l2_rw_clash";
    /// Bytes read.
    read_bytes "l2_read_bytes";
    /// Bytes written, log blocks too.
    write_bytes "l2_write_bytes";
    /// Batches of writes that were begun.
    writes_sent "l2_writes_sent";
    /// Those that are done.
    writes_done "l2_writes_done";
    /// Those that failed.
    writes_error "l2_writes_error";
    /// Blocks whose places were given up while a reader was there.
    evict_reading "l2_evict_reading";
    /// Times that the index had taken all of its share of the ARC.
    abort_lowmem "l2_abort_lowmem";
    /// Blocks that were wrong.
    cksum_bad "l2_cksum_bad";
    /// Reads that failed, or were not answered in time.
    io_error "l2_io_error";
    /// Log blocks written.
    log_blk_writes "l2_log_blk_writes";
    /// Devices of which all was found that log blocks say.
    rebuild_success "l2_rebuild_success";
    /// Devices without a header that fits.
    rebuild_unsupported "l2_rebuild_unsupported";
    /// Log blocks that could not be read.
    rebuild_io_errors "l2_rebuild_io_errors";
    /// Headers that could not be read or were wrong.
    rebuild_dh_errors "l2_rebuild_dh_errors";
    /// Log blocks that were wrong.
    rebuild_cksum_lb_errors "l2_rebuild_cksum_lb_errors";
    /// Times that there was no room in memory for more.
    rebuild_lowmem "l2_rebuild_lowmem";
    /// Bytes of blocks that were found, unpacked.
    rebuild_size "l2_rebuild_size";
    /// The same as they lie there.
    rebuild_asize "l2_rebuild_asize";
    /// Blocks that were found.
    rebuild_bufs "l2_rebuild_bufs";
    /// Those that were there already.
    rebuild_bufs_precached "l2_rebuild_bufs_precached";
    /// Log blocks that were read.
    rebuild_log_blks "l2_rebuild_log_blks";
}

/// Log blocks that are there, and averages that move by an eighth (`ARCSTAT_F_AVG`).
#[derive(Clone, Copy, Debug, Default)]
struct Logs {
    count: u64,
    bytes: u64,
    average: u64,
    ratio: u64,
    /// Blocks that devices know in the order in which they lie.
    slots: u64,
}

/// What is known of all cache devices of a pool.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct L2Figures {
    /// Counts.
    pub counts: L2Counts,
    /// What is there.
    pub sums: Sums,
    /// Bytes of memory that it takes to know that (`l2_hdr_size`).
    pub hdr_size: u64,
    /// Log blocks (`l2_log_blk_count`).
    pub log_count: u64,
    /// Their bytes (`l2_log_blk_asize`).
    pub log_bytes: u64,
    /// Bytes of one as an average of the last ones (`l2_log_blk_avg_asize`).
    pub log_average: u64,
    /// Bytes of blocks to one of log blocks (`l2_data_to_meta_ratio`).
    pub ratio: u64,
}

fn average(of: &mut u64, value: u64) {
    *of = if *of == 0 { value } else { *of - *of / 8 + value / 8 };
}

impl Figures {
    pub fn now(&self, index: &Index) -> L2Figures {
        let (sums, logs) = (index.sums(), *self.logs.lock());
        L2Figures {
            counts: self.counts(),
            sums,
            hdr_size: sums.blocks * ENTRY + logs.slots * SLOT,
            log_count: logs.count,
            log_bytes: logs.bytes,
            log_average: logs.average,
            ratio: logs.ratio,
        }
    }

    /// A log block of so many bytes is there, with so many bytes of blocks before it.
    pub fn log_comes(&self, bytes: u64, payload: u64) {
        let mut logs = self.logs.lock();
        logs.count += 1;
        logs.bytes += bytes;
        average(&mut logs.average, bytes);
        average(&mut logs.ratio, payload / bytes.max(1));
    }

    /// So many log blocks are given up, of so many bytes.
    pub fn logs_go(&self, (count, bytes): (u64, u64)) {
        let mut logs = self.logs.lock();
        logs.count = less!(logs.count, count, "L2ARC: log blocks");
        logs.bytes = less!(logs.bytes, bytes, "L2ARC: bytes of log blocks");
    }

    /// A device knows the order of `now` blocks, and before of `before`.
    pub fn slots(&self, before: u64, now: u64) {
        let mut logs = self.logs.lock();
        logs.slots = less!(logs.slots + now, before, "L2ARC: blocks of a device");
    }

    /// The pool goes: what it counted stays.
    pub fn goes(&self) {
        let mut gone = GONE.lock();
        *gone = gone.plus(&self.take());
    }
}

static GONE: LazyLock<Mutex<L2Counts>> = LazyLock::new(Mutex::default);

/// What pools of this process counted that are gone.
pub fn gone() -> L2Counts {
    *GONE.lock()
}
