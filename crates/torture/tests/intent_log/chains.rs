//! Chains of log blocks that lie side by side take far fewer reads than they have blocks, on every kind of vdev.

use crate::world;
use crate::{SHAPES, recover};
use cenote_dsl::zil::{End, Item, walk};
use cenote_torture::live::disk::Image;
use cenote_torture::live::lab::{Logs, disks, judge, lab};
use cenote_zpl::{NewNode, NodeKind};

#[test]
fn log_blocks_are_read_together() {
    for shape in &SHAPES {
        let disks = disks(&vec![Image::new(shape.size); shape.disks], None);
        let engine = lab(&disks).create_with(shape, Logs::On).unwrap();
        let fs = world::root(&engine, true);
        let (kind, mode, umask, uid, gid) = (NodeKind::File, 0o644, 0, 1, 2);
        let node = NewNode { kind, mode, umask, uid, gid, keep_setgid: true };
        let ino = fs.create(fs.root(), b"file", &node).unwrap().ino;
        engine.commit(fs.objset().id()).unwrap();
        for n in 0..200_u64 {
            fs.write(ino, n * 100, &[n as u8; 1000], false).unwrap();
            engine.commit_objects(fs.objset().id(), &[ino]).unwrap();
        }
        let pool = lab(&disks).look().unwrap();
        let header = pool.dsl().open_objset(&pool.dsl().root().unwrap()).unwrap().phys().zil;
        let reads = || pool.store().vdevs().root().io_stats().0;
        let (mut blocks, mut records, before) = (0, 0, reads());
        let end = walk(pool.store(), &header, &mut |item| {
            match item {
                Item::Block(_) => blocks += 1,
                Item::Record(_) => records += 1,
            }
            true
        });
        let reads = reads() - before;
        println!("{shape:?}: {blocks} blocks, {reads} reads");
        assert!(matches!(end, End::Unreadable), "{end:?}");
        assert!(
            blocks > 100 && records >= 200 && reads < blocks / 2,
            "{shape:?}: {reads}, {blocks}"
        );
        let images: Vec<Image> = disks.iter().map(|disk| disk.image()).collect();
        let left = cenote_torture::live::lab::disks(&images, None);
        let (again, replayed) = recover(&left, 1);
        assert!(replayed >= 200);
        let mut data = vec![0; 20_900];
        assert_eq!(world::root(&again, true).read(ino, 0, &mut data).unwrap(), 20_900);
        assert!(data.iter().enumerate().all(|(at, byte)| *byte == (at / 100).min(199) as u8));
        again.export(false).unwrap();
        judge(&left.iter().map(|disk| disk.image()).collect::<Vec<_>>()).unwrap();
        engine.export(false).unwrap();
    }
}
