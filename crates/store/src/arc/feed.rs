//! What the cache will evict soon, for the threads that write it to cache devices (`l2arc_write_buffers`).
//!
//! [`ArcCache::near_ends`] goes along the ends of the lists, where what is evicted next is; before anything was evicted
//! from their heads, since all of it stays for now. It goes first through the metadata of both sides, then through the data. The lists are
//! held for [`PIECE`] nodes at once. If they have changed meanwhile such that the way cannot be gone on, it ends there: the
//! next time it begins anew.
//!
//! A thread that found nothing to write sleeps until something is put in ([`ArcCache::sleeps`]).
//!
//! The memory that it takes to know what is on cache devices is part of the budget ([`ArcCache::l2_takes`]).

use super::Key;
use super::cache::{AT_ONCE, ArcCache};
use super::lists::{List, Lists, NIL, Node};
use super::name::{Kind, Name, Value};
use cenote_format::abd::Abd;
use cenote_format::less;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;

/// Nodes that are looked at while the lists are held.
const PIECE: usize = 1024;

/// A block that may be written to a cache device.
#[derive(Clone, Debug)]
pub(crate) struct Fed {
    pub key: Key,
    /// What is known of it: [`cenote_format::l2arc::Props`].
    pub about: u64,
    /// Its bytes as they lie in the pool.
    pub data: Abd,
    /// It is of the frequent side.
    pub frequent: bool,
}

/// Whether a block is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Take {
    Now,
    /// Not yet.
    Later,
    Never,
}

/// What is looked for.
pub(crate) struct Feed<'a> {
    /// Blocks of this pool.
    pub pool: u32,
    /// So many bytes.
    pub bytes: u64,
    /// No block of more bytes than these.
    pub largest: u64,
    /// Among so many bytes of each list; `None`: among all of them.
    pub headroom: Option<u64>,
    /// 1: of the frequent side; 2: data of that side, and all metadata (`l2arc_mfuonly`).
    pub mfu_only: u64,
    /// Also what was read ahead and no reader has wanted.
    pub unread: bool,
    /// It is called with the lists held.
    pub takes: &'a dyn Fn(&Key) -> Take,
}

/// A thread that sleeps until something is put into the cache, or the budget is another one.
pub(crate) trait Sleeper: Send + Sync {
    fn wake(&self);
}

/// How far one came.
struct Way {
    list: List,
    metadata: bool,
    /// The next node, and its name as of when the lists had moved so often.
    next: Option<(u32, Name, u64)>,
    from_head: bool,
    passed: u64,
}

#[derive(Default)]
struct Basket {
    blocks: Vec<Fed>,
    bytes: u64,
    later: bool,
}

impl ArcCache {
    /// Blocks near the ends of the lists (`l2arc_sublist_lock`); whether there are some that may be taken later.
    pub(crate) fn near_ends(&self, feed: &Feed<'_>) -> (Vec<Fed>, bool) {
        let mut basket = Basket::default();
        let from_head = !self.is_warm();
        for metadata in [true, false] {
            for list in [List::Frequent, List::Recent] {
                let left_out =
                    list == List::Recent && (feed.mfu_only == 1 || feed.mfu_only > 1 && !metadata);
                let mut way = Way { list, metadata, next: None, from_head, passed: 0 };
                while !left_out && basket.bytes < feed.bytes {
                    let at_end =
                        self.with_lists(|lists, _| self.go(lists, &mut way, feed, &mut basket));
                    if at_end != Some(false) {
                        break;
                    }
                }
            }
        }
        (basket.blocks, basket.later)
    }

    /// Goes on for a while. Whether the way is at its end.
    fn go(&self, lists: &Lists, way: &mut Way, feed: &Feed<'_>, basket: &mut Basket) -> bool {
        let mut at = match way.next {
            None if way.from_head => lists.of(way.list).head,
            None => lists.of(way.list).tail,
            Some((at, name, moves)) => match lists.nodes.get(at as usize) {
                Some(node)
                    if node.name == name && node.list == way.list && lists.moves == moves =>
                {
                    at
                }
                _ => return true,
            },
        };
        for _ in 0..PIECE {
            let Some(node) = lists.nodes.get(at as usize).filter(|_| at != NIL) else {
                return true;
            };
            if node.metadata == way.metadata && node.name.kind == Kind::Block {
                way.passed += u64::from(node.size);
                if feed.headroom.is_some_and(|most| way.passed > most) {
                    return true;
                }
                if node.name.pool == feed.pool {
                    self.look_at(node, feed, basket);
                }
                if basket.bytes >= feed.bytes {
                    return true;
                }
            }
            at = if way.from_head { node.next } else { node.prev };
        }
        match lists.nodes.get(at as usize) {
            Some(node) => way.next = Some((at, node.name, lists.moves)),
            None => return true,
        }
        false
    }

    fn look_at(&self, node: &Node, feed: &Feed<'_>, basket: &mut Basket) {
        let [dva0, dva1, birth, _] = node.name.words;
        let key = Key { dva0, dva1, birth };
        let entries = self.shard(&node.name).entries.read();
        let Some(entry) = entries.get(&node.name) else { return };
        let is_too_large = u64::from(node.size) > feed.largest;
        if entry.about == 0 || is_too_large || entry.is_unread() && !feed.unread {
            return;
        }
        match (feed.takes)(&key) {
            Take::Never => {}
            Take::Later => basket.later = true,
            Take::Now => {
                let Value::Bytes(data) = &entry.value else { return };
                basket.bytes += data.len() as u64;
                let (about, frequent) = (entry.about, node.list == List::Frequent);
                basket.blocks.push(Fed { key, about, data: data.clone(), frequent });
            }
        }
    }

    /// Whether something was evicted before (`arc_warm`).
    pub(crate) fn is_warm(&self) -> bool {
        self.with_lists(|lists, _| lists.deleted > 0) == Some(true)
    }

    /// How much was put in, counted round and round.
    pub(crate) fn puts(&self) -> u32 {
        self.puts.puts.load(SeqCst)
    }

    /// Has a thread woken when something is put in, or the budget changes. False: something was put in since there were so many `puts`.
    pub(crate) fn sleeps(&self, sleeper: &Arc<dyn Sleeper>, puts: u32) -> bool {
        self.sleepers.lock().push(Arc::downgrade(sleeper));
        self.asleep.store(true, SeqCst);
        self.puts() == puts
    }

    /// Something was put in, or the budget is another one.
    pub(super) fn wake(&self) {
        if self.asleep.load(SeqCst) && self.asleep.swap(false, SeqCst) {
            let sleepers = std::mem::take(&mut *self.sleepers.lock());
            sleepers.iter().filter_map(std::sync::Weak::upgrade).for_each(|sleeper| sleeper.wake());
        }
    }

    /// The budget, bytes. One that is off has none.
    pub(crate) fn budget(&self) -> u64 {
        self.taken_of().1
    }

    /// To know what is on cache devices takes `now` bytes of the budget, and took `before` of it.
    pub(crate) fn l2_takes(&self, before: u64, now: u64) {
        let mut charged = before;
        let mut some = |lists: &mut Lists, gone: &mut Vec<Value>| {
            let l2 = less!(lists.l2 + now, charged, "ARC: memory of L2ARC");
            let room = lists.room_beside(lists.c, l2);
            while lists.taken() > room && gone.len() < AT_ONCE {
                self.evict(lists, gone);
            }
            let fits = lists.taken() <= room;
            // What was evicted is taken at once: others do not fill it up.
            let part = if fits { l2 } else { lists.l2.max(lists.c - lists.taken()) };
            charged = charged + part - lists.l2;
            lists.l2 = part;
            lists.trim_ghosts();
            lists.check();
            !fits
        };
        while self.with_lists(&mut some) == Some(true) {}
    }
}
