//! `zdb -l`: the four labels of a device.
//!
//! Equal configs (and with `-u` equal uberblocks) are shown once, with the labels that have them.

use super::args::Args;
use super::cache::{self, Cached};
use super::print;
use crate::Surroundings;
use cenote_command::clock;
use cenote_command::outcome::Outcome;
use cenote_format::label::{self, CONFIG_OFFSET, CONFIG_SIZE, LABELS, Uberblock};
use cenote_format::nvlist::{NvList, NvValue};
use cenote_vdev::deadline::ask;
use cenote_vdev::{Device, Partition, ReadReq, open_device, partitions, read_labels};
use std::path::Path;
use std::sync::Arc;

/// Byte offset of the uberblock ring in a label.
const RING_OFFSET: u64 = 128 << 10;
/// Bytes of the ring.
const RING_SIZE: usize = 128 << 10;
/// Slots at the end of the ring that multihost writes use.
const MMP_SLOTS: usize = 1;

/// The state in the label of a cache device (`POOL_STATE_L2CACHE`).
const L2CACHE: u64 = 4;

/// Exit code where a device has no label.
pub const NO_LABEL: i32 = 2;

struct Label {
    readable: bool,
    checksum_ok: bool,
    config: Option<NvList>,
    uberblocks: Vec<Option<Uberblock>>,
    shown: bool,
}

/// `zdb -l device` (`dump_label`).
pub fn run(args: &Args, ctx: &mut Surroundings<'_>) -> Outcome {
    let name = args.operands.first().cloned().unwrap_or_default();
    let path = ctx.caller.path(&name);
    let looked = match ask(&path, all) {
        // The short name of a device (`zfs_resolve_shortname`).
        Err(e) if e.kind() == std::io::ErrorKind::NotFound && !name.contains('/') => {
            ask(&Path::new("/dev").join(&name), all).map_err(|_| e)
        }
        looked => looked,
    };
    let (mut labels, cached) = match looked {
        Ok(labels) => labels,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound && !name.starts_with('/') => {
            writeln!(
                ctx.out,
                "failed to find device {name}, try specifying absolute path instead"
            )?;
            return Ok(1);
        }
        Err(e) => {
            writeln!(ctx.out, "cannot open '{name}': {}", reason(&e))?;
            return Ok(1);
        }
    };
    let configs: Vec<Option<NvList>> = labels.iter().map(|l| l.config.clone()).collect();
    let rings: Vec<Vec<Option<Uberblock>>> = labels.iter().map(|l| l.uberblocks.clone()).collect();
    for (i, label) in labels.iter_mut().enumerate() {
        if !label.readable {
            if !args.has('q') {
                writeln!(ctx.out, "failed to read label {i}")?;
            }
            continue;
        }
        show_config(args, ctx, label, i, &configs)?;
        if args.has('u') {
            show_uberblocks(args, ctx, label, i, &rings)?;
        }
    }
    let found = configs.iter().any(Option::is_some);
    let mut error = configs.iter().any(Option::is_none);
    if let Some(cached) = &cached {
        error |= cache::show(args, ctx, cached)?;
    }
    Ok(if !found { NO_LABEL } else { i32::from(error) })
}

/// The labels of the device at a path; of a cache device what is on it as well.
fn all(path: &Path) -> std::io::Result<(Vec<Label>, Option<Cached>)> {
    let device = open_labelled(path)?;
    let mut ashift = 9;
    let labels: Vec<Label> = (0..LABELS).map(|i| read(&*device, i, &mut ashift)).collect();
    let of_cache = |label: &Label| {
        label.config.as_ref().is_some_and(|config| config.u64("state") == Some(L2CACHE))
    };
    let bytes = |offset, len| read_at(&*device, offset, len);
    let cached = labels.iter().any(of_cache).then(|| cache::read(&bytes));
    Ok((labels, cached))
}

/// The device at a path; where that has a partition table, its first partition with a label.
fn open_labelled(path: &Path) -> std::io::Result<Arc<dyn Device>> {
    let device = open_device(path)?;
    if read_labels(&*device).is_ok_and(|labels| labels.is_none()) {
        let labelled = |part: &Partition| {
            let device = open_device(&part.path(path)).ok()?;
            read_labels(&*device).ok()?.map(|_| device)
        };
        if let Some(part) = partitions(&*device).iter().find_map(labelled) {
            return Ok(part);
        }
    }
    Ok(device)
}

/// The text of an error as C's `strerror` has it.
fn reason(e: &std::io::Error) -> String {
    let text = e.to_string();
    text.split(" (os error").next().unwrap_or_default().to_string()
}

fn read_at(device: &dyn Device, offset: u64, len: usize) -> Option<Vec<u8>> {
    let mut reqs = [ReadReq::new(offset, len)];
    device.read_batch(&mut reqs);
    let [req] = reqs;
    Some(req.take().ok()?.to_vec())
}

fn read(device: &dyn Device, index: usize, ashift: &mut u32) -> Label {
    let mut label = Label {
        readable: false,
        checksum_ok: false,
        config: None,
        uberblocks: Vec::new(),
        shown: false,
    };
    let Some(base) = label::label_offset(device.size(), index) else { return label };
    let Some(data) = read_at(device, base + CONFIG_OFFSET, CONFIG_SIZE) else { return label };
    let Some(ring) = read_at(device, base + RING_OFFSET, RING_SIZE) else { return label };
    label.readable = true;
    match label::decode_config(&data, base + CONFIG_OFFSET) {
        Ok(Some(config)) => {
            label.checksum_ok = true;
            label.config = Some(config);
        }
        Ok(None) => label.config = NvList::decode(&data).ok().filter(|c| !c.pairs.is_empty()),
        Err(_) => label.checksum_ok = true,
    }
    if let Some(config) = &label.config {
        let value = config.list("vdev_tree").and_then(|t| t.u64("ashift")).unwrap_or(9);
        *ashift = u32::try_from(value).unwrap_or(9);
    }
    let slot = label::slot_size(*ashift);
    let slots = ring.chunks_exact(slot).zip(0u64..);
    label.uberblocks = slots
        .map(|(data, i)| {
            label::decode_slot(data, base + RING_OFFSET + i * slot as u64).ok().flatten()
        })
        .collect();
    label
}

fn header(
    args: &Args,
    ctx: &mut Surroundings<'_>,
    label: &mut Label,
    index: usize,
) -> std::io::Result<()> {
    if args.has('q') || label.shown {
        return Ok(());
    }
    label.shown = true;
    let bad = if label.checksum_ok { "" } else { "(Bad label cksum)" };
    writeln!(ctx.out, "------------------------------------")?;
    writeln!(ctx.out, "LABEL {index} {bad}")?;
    writeln!(ctx.out, "------------------------------------")
}

/// The labels whose item equals `item`, as `0 1 2 3 `.
fn same<T: PartialEq>(items: impl Iterator<Item = Option<T>>, item: &T) -> (usize, String) {
    let with: Vec<usize> =
        items.enumerate().filter(|(_, i)| i.as_ref() == Some(item)).map(|(n, _)| n).collect();
    let list: String = with.iter().map(|n| format!("{n} ")).collect();
    (with.first().copied().unwrap_or(0), list)
}

/// The config of a label (`dump_config_from_label`).
fn show_config(
    args: &Args,
    ctx: &mut Surroundings<'_>,
    label: &mut Label,
    index: usize,
    configs: &[Option<NvList>],
) -> std::io::Result<()> {
    if args.has('q') {
        return Ok(());
    }
    let Some(config) = label.config.clone() else {
        return writeln!(ctx.out, "failed to unpack label {index}");
    };
    let (first, list) = same(configs.iter().map(Option::as_ref), &&config);
    if args.level('l') < 3 && first != index {
        return Ok(());
    }
    header(args, ctx, label, index)?;
    print::nvlist(&mut *ctx.out, &config, 4)?;
    writeln!(ctx.out, "    labels = {list}")?;
    if args.level('l') >= 2 {
        show_stats(args, ctx, &config)?;
    }
    Ok(())
}

/// The uberblocks in the labels (`dump_label_uberblocks`).
fn show_uberblocks(
    args: &Args,
    ctx: &mut Surroundings<'_>,
    label: &mut Label,
    index: usize,
    rings: &[Vec<Option<Uberblock>>],
) -> std::io::Result<()> {
    let level = args.level('u');
    let slots = label.uberblocks.len();
    for i in 0..slots {
        let Some(ub) = label.uberblocks[i].clone() else {
            if level >= 2 {
                header(args, ctx, label, index)?;
                writeln!(ctx.out, "    Uberblock[{i}] invalid")?;
            }
            continue;
        };
        let (first, list) = same(rings.iter().map(|r| r.get(i).and_then(Option::as_ref)), &&ub);
        if level < 3 && first != index {
            continue;
        }
        if level < 4 && ub.mmp_valid() && ub.mmp_delay != 0 && i + MMP_SLOTS >= slots {
            continue;
        }
        header(args, ctx, label, index)?;
        writeln!(ctx.out, "    Uberblock[{i}]")?;
        let time = clock::ctime(ctx.caller, ub.timestamp);
        print::uberblock(&mut *ctx.out, &ub, &time, level >= 4)?;
        writeln!(ctx.out, "        labels = {list}")?;
    }
    Ok(())
}

/// Pairs of one type in a config and everything below it.
#[derive(Default)]
struct Stats {
    integers: NvList,
    strings: NvList,
    booleans: NvList,
    lists: usize,
    leaf_count: usize,
    leaf_total: usize,
    leaf_largest: usize,
}

/// Bytes of a list in XDR, without the 4 bytes of its header.
fn size(list: &NvList) -> usize {
    list.encode().len()
}

impl Stats {
    fn collect(&mut self, list: &NvList) {
        self.lists += 1;
        for (name, value) in &list.pairs {
            let to = match value {
                NvValue::String(_) => &mut self.strings,
                NvValue::Uint64(_) => &mut self.integers,
                NvValue::Boolean => &mut self.booleans,
                NvValue::NvList(inner) => {
                    self.collect(inner);
                    continue;
                }
                NvValue::NvListArray(inner) => {
                    for l in inner {
                        self.collect(l);
                        if name == "children" {
                            self.leaf_count += 1;
                            self.leaf_total += size(l);
                            self.leaf_largest = self.leaf_largest.max(size(l));
                        }
                    }
                    continue;
                }
                _ => continue,
            };
            to.pairs.push((name.clone(), value.clone()));
        }
    }
}

/// How the bytes of a label's config are used.
fn show_stats(args: &Args, ctx: &mut Surroundings<'_>, config: &NvList) -> std::io::Result<()> {
    // The area that a config is packed into: a label's without its checksum.
    let capacity = CONFIG_SIZE - 40;
    let out = &mut ctx.out;
    let total = size(config);
    let percent = |n: usize| 100.0 * n as f64 / total.max(1) as f64;
    writeln!(out, "\n\nZFS Label NVList Config Stats:")?;
    let used = 100.0 * total as f64 / capacity as f64;
    let free = capacity.saturating_sub(total);
    writeln!(out, "  {total} bytes used, {free} bytes free (using {used:4.1}%)\n")?;
    let mut stats = Stats::default();
    stats.collect(config);
    let noise = size(&NvList::default());
    let mut rest = total;
    for (name, list) in [
        ("integers:", &stats.integers),
        ("strings:", &stats.strings),
        ("booleans:", &stats.booleans),
    ] {
        let bytes = size(list) - noise;
        rest = rest.saturating_sub(bytes);
        let count = list.pairs.len();
        writeln!(out, "{name:>12} {count:4} {bytes:6} bytes ({:5.2}%)", percent(bytes))?;
    }
    writeln!(
        out,
        "{:>12} {:4} {rest:6} bytes ({:5.2}%)\n",
        "nvlists:",
        stats.lists,
        percent(rest)
    )?;
    if let Some(average) = stats.leaf_total.checked_div(stats.leaf_count) {
        let count = stats.leaf_count;
        writeln!(out, "{:>12} {count:4} {average:6} bytes average", "leaf vdevs:")?;
        writeln!(out, "{:24} bytes largest", stats.leaf_largest)?;
        if args.level('l') >= 3 && average > 0 {
            writeln!(out, "  space for {} additional leaf vdevs", free / average)?;
        }
    }
    writeln!(out)
}
