//! `zpool checkpoint`, and `zpool import --rewind-to-checkpoint`.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // A failure fails the test.

mod common;

use common::tank::Tank;

#[test]
fn a_pool_goes_back_to_its_checkpoint() {
    let tank = Tank::unmounted();
    let s = &tank.session;
    let get = |name: &str| s.run(&format!("zpool get -Hpo value {name} tank")).ok();
    s.run("zfs create -u tank/before").ok();
    assert_eq!(get("checkpoint").trim(), "-");
    s.run("zpool checkpoint tank").ok();
    let guid = get("guid").trim().to_string();
    s.run("zfs destroy tank/before").ok();
    s.run("zfs create -u tank/after").ok();
    s.run("zpool set comment=later tank").ok();
    let kept: u64 = get("checkpoint").trim().parse().unwrap();
    assert!(kept > 0, "{kept}");
    let status = s.run("zpool status tank").ok();
    let line = status.lines().find(|line| line.starts_with("checkpoint: created ")).unwrap();
    assert!(line.contains(", consumes "), "{line}");
    let json = s.run("zpool status -j --json-int tank").ok();
    assert!(json.contains("\"checkpoint_stats\""), "{json}");
    for (line, why) in [
        ("checkpoint tank", "cannot checkpoint 'tank': checkpoint exists"),
        ("reguid tank", "cannot reguid 'tank': checkpoint exists"),
        ("checkpoint nosuch", "cannot open 'nosuch': no such pool"),
    ] {
        assert_eq!(s.run(&format!("zpool {line}")).fails(1), why);
    }
    for (line, why) in [
        ("checkpoint", "missing pool argument"),
        ("checkpoint tank b", "too many arguments"),
        ("checkpoint -w tank", "--wait only valid when --discard also specified"),
        ("checkpoint -x tank", "invalid option 'x'"),
    ] {
        let said = s.run(&format!("zpool {line}")).fails(2);
        assert_eq!(said.lines().next(), Some(why), "{said}");
        assert!(said.contains("usage:\n\tcheckpoint [-d [-w]] <pool> ..."), "{said}");
    }
    let said = s.run("zpool checkpoint tank/after").fails(1);
    assert!(said.contains("'zpool checkpoint' doesn't work on datasets."), "{said}");
    s.run("zpool export tank").ok();

    let datasets = || s.run("zfs list -Ho name").ok();
    s.run("zpool import -N -d . -o readonly=on --rewind-to-checkpoint tank").ok();
    assert_eq!(datasets(), "tank\ntank/before\n");
    s.run("zpool export tank").ok();
    s.run("zpool import -N -d . tank").ok();
    assert_eq!(datasets(), "tank\ntank/after\n");
    let zdb = s.run("zdb -d tank").ok();
    assert!(zdb.contains("\nCheckpointed uberblock found:\n"), "{zdb}");
    s.run("zpool export tank").ok();
    let zdb = s.run("zdb -e -p . -kd tank").ok();
    assert!(zdb.contains("tank_CHECKPOINTED_UNIVERSE/before"), "{zdb}");
    s.run("zdb -e -p . -d tank").ok();
    s.run(&format!("zdb -e -p . -d {guid}")).ok();
    let said = s.run("zpool import -aN -d . --rewind-to-checkpoint").fails(2);
    assert!(said.starts_with("--rewind-to-checkpoint is incompatible with -a"), "{said}");
    s.run("zpool import -N -d . --rewind-to-checkpoint tank").ok();
    assert_eq!(datasets(), "tank\ntank/before\n");
    assert_eq!((get("checkpoint").trim(), get("comment").trim()), ("-", "-"));
    assert!(!s.run("zpool status tank").ok().contains("checkpoint:"));
    s.run("zpool export tank").ok();
    let why = "cannot import 'tank': checkpoint does not exist";
    assert_eq!(s.run("zpool import -N -d . --rewind-to-checkpoint tank").fails(1), why);
    s.run("zpool import -N -d . tank").ok();
    let history = s.run("zpool history -i tank").ok();
    assert!(!history.contains("spa checkpoint"), "{history}");
}

#[test]
fn a_checkpoint_is_discarded() {
    let tank = Tank::unmounted();
    let s = &tank.session;
    let why = "cannot discard checkpoint in 'tank': checkpoint does not exist";
    assert_eq!(s.run("zpool checkpoint -d tank").fails(1), why);
    s.run("zpool checkpoint tank").ok();
    s.run("zfs create -u tank/after").ok();
    s.run("zpool checkpoint --discard --wait tank").ok();
    assert!(!s.run("zpool status tank").ok().contains("checkpoint:"));
    s.run("zpool checkpoint tank").ok();
    s.run("zpool checkpoint -d tank").ok();
    s.run("zpool wait -t discard tank").ok();
    s.run("zpool checkpoint tank").ok();
    let history = s.run("zpool history -i tank").ok();
    for what in [
        "spa checkpoint checkpointed uberblock txg=",
        "spa discard checkpoint started discarding checkpointed state from the pool",
        "spa discard checkpoint finished discarding checkpointed state from the pool",
        "zpool checkpoint --discard --wait tank",
    ] {
        assert!(history.contains(what), "{what}: {history}");
    }
}
