mod opened;
use cenote_pool::metaslab::{PoolSpace, AllocClass};
use cenote_pool::traverse::*;
#[test]
fn go() {
    let only = std::env::var("POOL").ok();
    for name in cenote_testpools::names() {
        if name == "dr1" || only.as_ref().is_some_and(|o| *o != name) { continue; }
        let p = cenote_testpools::pool(&name);
        let o = match std::panic::catch_unwind(|| opened::open(&p)) { Ok(o) => o, Err(_) => { println!("{name}: cannot open"); continue } };
        let space = match PoolSpace::load(&o.mos, &o.config) { Ok(s) => s, Err(e) => { println!("{name}: {e}"); continue } };
        let m = &p.manifest()["pool_props"];
        println!("{name}: {:?} manifest size {} alloc {} frag {}", space.pool(), m["size"], m["allocated"], m["fragmentation"]);
        for v in &space.vdevs { println!("   {:?} {:?}", v.class, v.stats()); }
        for l in &space.logs { println!("   log {} {} {}/{}", l.txg, l.object, l.valid, l.entries); }
        let t = std::time::Instant::now();
        let r = run(&o.subject(), &space, &Options { verify: Verify::All, leaks: true, workers: 2 }, &|e| match e {
            Event::Unreadable { at, bp, errors } => println!("   unreadable {at:?} {bp:?} {errors:?}"),
            Event::NotClaimed { at, bp, why } => println!("   not claimed {at:?} {bp:?} {why:?}"),
            Event::Damaged(e) => println!("   damaged {e}"),
            _ => {}
        }, &|| false);
        let r = match r { Ok(r) => r, Err(e) => { println!("   {e}"); continue } };
        println!("   count {} l {} p {} a {} dedup {:?} clone {:?} found {} alloc {} leaks {} obsolete {:?} emb {:?} same {} {} clean {} {:?}", r.blocks.total().count, r.blocks.total().lsize, r.blocks.total().psize, r.blocks.total().asize, r.deduped, r.cloned, r.found(), r.allocated, r.leaks.len(), r.obsolete, r.blocks.embedded, r.blocks.total().ditto_same_vdev, r.blocks.total().ditto_same_metaslab, r.is_clean(), t.elapsed());
        for l in r.leaks.iter().take(5) { println!("   {l:?}"); }
        for l in p.zdb_section(" -bcc ").lines().filter(|l| l.contains("bp ") || l.contains("class") || l.contains("Ditto") || l.contains("addit")) { println!("     {l}"); }
        let _ = AllocClass::Normal;
    }
}
