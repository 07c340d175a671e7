//! The words for dRAID vdevs in the arguments of `zpool create` and `zpool add` (`draid_config_by_type`), and their spares
//! (`vdev_draid_spare_create`).

use super::CreateError;
use cenote_format::nvlist::{NvList, NvValue};
use cenote_pool::config;
use cenote_vdev::draid::{MAX_PARITY, MAX_SPARES, Shape};

/// Most data disks of a group of which the word does not say how many it has.
const DATA_DISKS: u64 = 8;

/// The parity that a word like `draid2:4d:11c:1s` asks for (`get_parity`). `None`: it is a device.
pub(super) fn parity(word: &str) -> Option<u8> {
    let rest = word.strip_prefix("draid")?;
    match rest.split(':').next()? {
        "" => Some(1),
        digits if digits.starts_with(|c: char| c.is_ascii_digit() && c != '0') => {
            digits.parse().ok().filter(|n| u64::from(*n) <= MAX_PARITY)
        }
        _ => None,
    }
}

/// The shape that a word asks for over so many devices.
///
/// # Errors
/// In the words of `zpool`.
pub(super) fn shape(word: &str, parity: u8, devices: usize) -> Result<Shape, CreateError> {
    let fail = |why: String| Err(CreateError::Spec(why));
    let (children, nparity) = (devices as u64, u64::from(parity));
    let (mut ndata, mut nspares) = (None, 0);
    for part in word.split(':').skip(1) {
        let digits = part.trim_start_matches(|c: char| c.is_ascii_digit());
        let (number, suffix) = part.split_at(part.len() - digits.len());
        if number.is_empty() {
            let why = format!("invalid dRAID syntax; expected [:<number><c|d|s>] not '{word}'");
            return fail(why);
        }
        match (number.parse::<u64>(), suffix.chars().next().map(|c| c.to_ascii_lowercase())) {
            (Ok(n), Some('c')) if n != children => {
                return fail(match n > 0 && n < children && children.is_multiple_of(n) {
                    true => "dRAID with failure domains is not supported".into(),
                    false => format!(
                        "invalid number of dRAID disks; multiple of {n} required but {children} provided"
                    ),
                });
            }
            (Ok(n), Some('w')) if n != children => {
                return fail(format!(
                    "invalid number of dRAID disks; {n} required but {children} provided"
                ));
            }
            (Ok(_), Some('c' | 'w')) => {}
            (Ok(n), Some('d')) => ndata = Some(n),
            (Ok(n), Some('s')) => nspares = n,
            _ => {
                return fail(format!(
                    "invalid dRAID syntax; expected [:<number><c|d|s|w>], not '{word}'"
                ));
            }
        }
    }
    let left = children.saturating_sub(nspares);
    let for_data = left.saturating_sub(nparity);
    let Some(ndata) = ndata.or((for_data > 0).then_some(for_data.min(DATA_DISKS))) else {
        return fail(format!(
            "requested number of distributed spares {nspares} and parity level {nparity} leaves no \
             disks available for data"
        ));
    };
    let width = ndata.saturating_add(nparity);
    if ndata == 0 || width > left {
        return fail(format!(
            "requested number of dRAID data disks {ndata} per group is too high,\n\
             at most {for_data} disks are available for data"
        ));
    }
    if nspares > MAX_SPARES {
        return fail(format!(
            "invalid number of dRAID spares {nspares}; additional disks would be required"
        ));
    }
    Shape::new(ndata, nparity, nspares, children)
        .map_or_else(|| fail(format!("{word} cannot be made of {children} devices")), Ok)
}

/// What the config of a vdev says of its shape (`vdev_draid_config_generate`).
pub(super) fn set(list: &mut NvList, shape: &Shape) {
    let numbers = [
        ("nparity", shape.nparity),
        ("draid_ndata", shape.ndata),
        ("draid_nspares", shape.nspares),
        ("draid_ngroups", shape.ngroups),
    ];
    for (name, n) in numbers {
        list.set(name, NvValue::Uint64(n));
    }
}

/// The distributed spares of a new top-level vdev, which has its guid, as the pool is to list them; they have none.
pub(super) fn spares(top: &NvList, shape: &Shape) -> Vec<NvList> {
    let spare = |number: u64| {
        let path = format!("draid{}-{}-{number}", shape.nparity, config::number(top, "id"));
        let mut list = NvList::default();
        list.set("type", NvValue::String("dspare".into()));
        list.set("guid", NvValue::Uint64(0));
        list.set("path", NvValue::String(path));
        let numbers = [
            ("top_guid", config::number(top, "guid")),
            ("spareid", number),
            ("whole_disk", 1),
            ("is_spare", 1),
            ("ashift", config::number(top, "ashift")),
        ];
        for (name, n) in numbers {
            list.set(name, NvValue::Uint64(n));
        }
        list
    };
    (0..shape.nspares).map(spare).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shape_of(word: &str, devices: usize) -> Result<String, String> {
        let parity = parity(word).unwrap();
        shape(word, parity, devices).map(|shape| shape.name()).map_err(|e| e.to_string())
    }

    #[test]
    fn words_and_shapes() {
        for (word, devices, name) in [
            ("draid", 5, "draid1:4d:5c:0s"),
            ("draid2", 20, "draid2:8d:20c:0s"),
            ("draid2:4d:11c:1s", 11, "draid2:4d:11c:1s"),
            ("draid3:2s:3D", 9, "draid3:3d:9c:2s"),
            ("draid:11w:1s", 11, "draid1:8d:11c:1s"),
        ] {
            assert_eq!(shape_of(word, devices).unwrap(), name);
        }
        for word in ["draid4", "draid0", "draid01", "draidx", "raidz", "draid1-0-0", "draid+1"] {
            assert_eq!(parity(word), None, "{word}");
        }
    }

    #[test]
    fn refusals() {
        for (word, devices, why) in [
            ("draid2:x", 9, "invalid dRAID syntax; expected [:<number><c|d|s>] not 'draid2:x'"),
            ("draid2:4", 9, "invalid dRAID syntax; expected [:<number><c|d|s|w>], not 'draid2:4'"),
            (
                "draid2:10c",
                9,
                "invalid number of dRAID disks; multiple of 10 required but 9 provided",
            ),
            ("draid2:10w", 9, "invalid number of dRAID disks; 10 required but 9 provided"),
            ("draid2:3c", 9, "dRAID with failure domains is not supported"),
            (
                "draid2:8d",
                9,
                "requested number of dRAID data disks 8 per group is too high,\n\
                 at most 7 disks are available for data",
            ),
            (
                "draid2:7s",
                9,
                "requested number of distributed spares 7 and parity level 2 leaves no disks \
                 available for data",
            ),
            (
                "draid1:1d:101s",
                120,
                "invalid number of dRAID spares 101; additional disks would be required",
            ),
        ] {
            assert_eq!(shape_of(word, devices).unwrap_err(), why);
        }
    }
}
