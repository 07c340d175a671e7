//! `zpool reguid`: labels, config and cache file have the new guid, and a copy of the devices can be imported beside.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // A failure fails the test.

mod common;

use common::tank::Tank;
use std::fs;

#[test]
fn a_pool_gets_another_guid() {
    let tank = Tank::unmounted();
    let s = &tank.session;
    let guid = || s.run("zpool get -Hpo value guid tank").ok().trim().parse::<u64>().unwrap();
    let old = guid();
    s.run("zpool reguid tank").ok();
    let random = guid();
    assert_ne!(random, old);
    s.run("zpool reguid -g -1 tank").ok();
    assert_eq!(guid(), u64::MAX);
    s.run("zpool reguid -g 4711 tank").ok();
    assert_eq!(guid(), 4711);
    let history = s.run("zpool history -i tank").ok();
    let changes = [format!("old={random} new={}", u64::MAX), format!("old={} new=4711", u64::MAX)];
    for change in changes {
        assert!(history.contains(&format!("guid change {change}")), "{history}");
    }
    assert!(history.contains("zpool reguid -g 4711 tank"), "{history}");
    let vdev = s.run("zpool get -Hpo value guid tank all-vdevs").ok();
    let own = vdev.lines().last().unwrap().to_string();
    for (line, why) in [
        ("reguid -g 4711 tank", "cannot reguid 'tank': pool already exists"),
        (&format!("reguid -g {own} tank"), "cannot reguid 'tank': pool already exists"),
        ("reguid -g 0 tank", "cannot reguid 'tank': Invalid argument"),
        ("reguid nosuch", "cannot open 'nosuch': no such pool"),
    ] {
        assert_eq!(s.run(&format!("zpool {line}")).fails(1), why);
    }
    assert!(s.run("zpool reguid -g 1x tank").fails(2).starts_with("invalid GUID: 1x\n"));
    assert!(s.run("zpool reguid").fails(2).starts_with("missing pool name\n"));

    // A copy of the devices can be imported beside the pool, once one of them has another guid.
    s.run("zpool export tank").ok();
    fs::create_dir(s.path("copy")).unwrap();
    fs::copy(s.path("disk"), s.path("copy/disk")).unwrap();
    let dir = s.path("").display().to_string();
    let import = |options: &str| s.run(&format!("zpool import -N -d {dir}{options}"));
    import(" tank").ok();
    assert_ne!(import("/copy tank other").code, 0);
    s.run("zpool reguid tank").ok();
    import("/copy tank other").ok();
    assert_eq!(s.run("zpool get -Hpo value guid other").ok(), "4711\n");
    s.run("zpool export other").ok();
    cenote_testpools::judge(&s.path("copy"), "other");
    let (new, text) = (guid(), cenote_testpools::zdb(&s.path(""), "tank", &["-C"]));
    assert!(text.contains(&format!("pool_guid: {new}")), "{text}");
    tank.finish();
}
