//! The arguments of `zpool create` and `zpool add` (`construct_spec`, `is_grouping`).
//!
//! ```text
//! DEVICE                                a vdev without redundancy
//! mirror|raidz[1-3] DEVICE...           a vdev of the devices up to the next word of this table
//! draid[1-3][:Nd][:Nc][:Ns] DEVICE...   the same: data disks of a group, children, distributed spares
//! log|special|dedup                     the class of the vdevs that follow
//! spare|cache DEVICE...                 devices of that use; vdevs after them are normal ones
//! ```
//!
//! The result is a [`Layout`]. Devices are not looked at here, only counted: each kind of vdev has its least
//! number, and a log may not be RAID-Z or dRAID. Errors have the words of `zpool`.

use super::{Class, CreateError, Layout, Redundancy, VdevSpec, draid};
use std::path::PathBuf;

/// Most devices in a RAID-Z or dRAID vdev.
const MAX_RAIDZ: usize = 255;

/// A word that begins a group of devices.
enum Group {
    Vdev(Redundancy),
    /// dRAID with so much parity.
    Draid(u8),
    Class(Class),
    Spares,
    Caches,
}

/// What kind of group a word begins; `None`: it is a device.
fn group(word: &str) -> Option<Group> {
    Some(match word {
        "mirror" => Group::Vdev(Redundancy::Mirror),
        "raidz" | "raidz1" => Group::Vdev(Redundancy::RaidZ(1)),
        "raidz2" => Group::Vdev(Redundancy::RaidZ(2)),
        "raidz3" => Group::Vdev(Redundancy::RaidZ(3)),
        "log" => Group::Class(Class::Log),
        "special" => Group::Class(Class::Special),
        "dedup" => Group::Class(Class::Dedup),
        "spare" => Group::Spares,
        "cache" => Group::Caches,
        _ => Group::Draid(draid::parity(word)?),
    })
}

/// What the arguments that name vdevs ask for.
///
/// # Errors
/// [`CreateError::Spec`], in the words of `zpool`.
pub fn parse(args: &[String]) -> Result<Layout, CreateError> {
    let mut layout = Layout::default();
    let mut class = Class::Normal;
    let (mut seen_logs, mut seen_spares, mut seen_caches) = (false, false, false);
    let mut rest = args;
    while let Some((word, after)) = rest.split_first() {
        let Some(group) = group(word) else {
            let devices = vec![PathBuf::from(word)];
            layout.tops.push(VdevSpec { class, ..VdevSpec::new(Redundancy::Single, devices) });
            rest = after;
            continue;
        };
        if let Group::Class(new) = group {
            if new == Class::Log && std::mem::replace(&mut seen_logs, true) {
                return Err(once("log"));
            }
            class = new;
            rest = after;
            continue;
        }
        let (devices, after) = devices(after);
        rest = after;
        match group {
            Group::Spares => {
                if std::mem::replace(&mut seen_spares, true) {
                    return Err(once("spare"));
                }
                enough(word, devices.len(), 1)?;
                (layout.spares, class) = (devices, Class::Normal);
            }
            Group::Caches => {
                if std::mem::replace(&mut seen_caches, true) {
                    return Err(once("cache"));
                }
                enough(word, devices.len(), 1)?;
                (layout.caches, class) = (devices, Class::Normal);
            }
            Group::Vdev(redundancy) => {
                check_group(word, redundancy, devices.len(), class)?;
                layout.tops.push(VdevSpec { class, ..VdevSpec::new(redundancy, devices) });
            }
            Group::Draid(parity) => {
                if class == Class::Log {
                    return Err(CreateError::spec("unsupported 'log' device: draid"));
                }
                enough(word, devices.len(), usize::from(parity) + 1)?;
                at_most(word, devices.len())?;
                let shape = draid::shape(word, parity, devices.len())?;
                let redundancy = Redundancy::Draid(shape);
                layout.tops.push(VdevSpec { class, ..VdevSpec::new(redundancy, devices) });
            }
            Group::Class(_) => {}
        }
    }
    if layout == Layout::default() && !seen_logs {
        return Err(CreateError::spec("at least one toplevel vdev must be specified"));
    }
    if seen_logs && !layout.tops.iter().any(|t| t.class == Class::Log) {
        return Err(CreateError::spec("log requires at least 1 device"));
    }
    Ok(layout)
}

/// The devices up to the next group.
fn devices(args: &[String]) -> (Vec<PathBuf>, &[String]) {
    let mut count = args.len();
    for (i, word) in args.iter().enumerate() {
        if group(word).is_some() {
            count = i;
            break;
        }
    }
    let (devices, rest) = args.split_at(count);
    (devices.iter().map(PathBuf::from).collect(), rest)
}

fn check_group(
    word: &str,
    redundancy: Redundancy,
    devices: usize,
    class: Class,
) -> Result<(), CreateError> {
    match redundancy {
        Redundancy::RaidZ(parity) => {
            if class == Class::Log {
                return Err(CreateError::spec("unsupported 'log' device: raidz"));
            }
            enough(word, devices, usize::from(parity) + 1)?;
            at_most(word, devices)
        }
        _ => enough(word, devices, 2),
    }
}

fn at_most(word: &str, devices: usize) -> Result<(), CreateError> {
    if devices <= MAX_RAIDZ {
        return Ok(());
    }
    Err(CreateError::spec(format!("{word} supports no more than {MAX_RAIDZ} devices")))
}

fn once(what: &str) -> CreateError {
    CreateError::spec(format!("'{what}' can be specified only once"))
}

fn enough(word: &str, devices: usize, least: usize) -> Result<(), CreateError> {
    if devices >= least {
        return Ok(());
    }
    Err(CreateError::spec(format!("{word} requires at least {least} devices")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(line: &str) -> Result<Layout, CreateError> {
        let args: Vec<String> = line.split_whitespace().map(String::from).collect();
        parse(&args)
    }

    #[test]
    fn layouts() {
        let l =
            parsed("mirror /a /b raidz2 /c /d /e log /f cache /g /h spare /i special mirror /j /k")
                .unwrap();
        let shape: Vec<(Redundancy, usize, Class)> =
            l.tops.iter().map(|t| (t.redundancy, t.devices.len(), t.class)).collect();
        assert_eq!(
            shape,
            [
                (Redundancy::Mirror, 2, Class::Normal),
                (Redundancy::RaidZ(2), 3, Class::Normal),
                (Redundancy::Single, 1, Class::Log),
                (Redundancy::Mirror, 2, Class::Special),
            ]
        );
        assert_eq!((l.spares.len(), l.caches.len()), (1, 2));
        assert_eq!(parsed("/a /b log mirror /c /d").unwrap().tops.len(), 3);
    }

    #[test]
    fn nonsense_is_refused() {
        for (line, why) in [
            ("", "at least one toplevel vdev must be specified"),
            ("mirror /a", "mirror requires at least 2 devices"),
            ("raidz3 /a /b /c", "raidz3 requires at least 4 devices"),
            ("/a log", "log requires at least 1 device"),
            ("/a log /b log /c", "'log' can be specified only once"),
            ("/a spare /b spare /c", "'spare' can be specified only once"),
            ("/a log raidz /b /c", "unsupported 'log' device: raidz"),
            ("draid2:4d:8c:1s /a /b", "draid2:4d:8c:1s requires at least 3 devices"),
            ("/a log draid /b /c", "unsupported 'log' device: draid"),
        ] {
            let text = parsed(line).unwrap_err().to_string();
            assert_eq!(text, format!("invalid vdev specification: {why}"), "{line}");
        }
    }
}
