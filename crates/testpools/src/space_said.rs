//! What `zdb -m` says of metaslabs and log space maps, taken out of its text.

/// A metaslab.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct MetaslabSaid {
    /// Top-level vdev.
    pub vdev: u64,
    /// First byte.
    pub offset: u64,
    /// Object of its space map; 0 if it has none.
    pub space_map: u64,
    /// Bytes of entries in the space map.
    pub length: u64,
    /// Bytes allocated according to the space map's header: without unflushed changes.
    pub alloc: i64,
    /// Since when its changes are in log space maps; 0 without the feature.
    pub unflushed_txg: u64,
}

/// A log space map.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LogSaid {
    /// Transaction group that wrote it.
    pub txg: u64,
    /// The object.
    pub object: u64,
    /// Bytes of entries.
    pub length: u64,
    /// Entries that are not obsolete.
    pub valid: u64,
    /// All entries.
    pub entries: u64,
}

/// What `zdb -m` says.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SpaceSaid {
    /// By vdev and place.
    pub metaslabs: Vec<MetaslabSaid>,
    /// Oldest first.
    pub logs: Vec<LogSaid>,
    /// Valid entries and all entries of all logs.
    pub total: (u64, u64),
}

fn hex(text: &str) -> u64 {
    let digits = text.trim_start_matches("0x");
    u64::from_str_radix(digits, 16).unwrap_or_else(|e| panic!("{text}: {e}"))
}

fn decimal(text: &str) -> u64 {
    text.parse().unwrap_or_else(|e| panic!("{text}: {e}"))
}

impl SpaceSaid {
    /// Takes the text apart. What is not about metaslabs and logs is skipped.
    pub fn of(text: &str) -> SpaceSaid {
        let mut said = SpaceSaid::default();
        let mut vdev = 0;
        for line in text.lines() {
            let words: Vec<&str> = line.split_whitespace().collect();
            match words[..] {
                // What the vdev is for, if that is something special. Newer versions say more of it
                // in the same line.
                ["vdev", id]
                | ["vdev", id, "log" | "special" | "dedup" | "ms_unflushed_phys", ..] => {
                    vdev = decimal(id);
                }
                ["vdev", id, ..] if line.contains("  metaslab shift ") => vdev = decimal(id),
                ["metaslab", _, "offset", offset, "spacemap", object, ..] => {
                    let (offset, space_map) = (hex(offset), decimal(object));
                    let new = MetaslabSaid { vdev, offset, space_map, ..Default::default() };
                    said.metaslabs.push(new);
                }
                ["Log", "Spacemap", "object", object, "txg", txg] => {
                    let (object, txg) = (decimal(object), decimal(txg));
                    said.logs.push(LogSaid { object, txg, ..Default::default() });
                }
                ["smp_length", "=", length] => said.length(hex(length)),
                ["smp_alloc", "=", alloc] => said.alloc(hex(alloc).cast_signed()),
                [n, "valid", "entries", "out", "of", all, "-", ref which @ ..] => {
                    said.valid((decimal(n), decimal(all)), which);
                }
                ["unflushed", since] => {
                    let txg = since.strip_prefix("txg=").unwrap_or_else(|| panic!("{line}"));
                    if let Some(ms) = said.metaslabs.last_mut() {
                        ms.unflushed_txg = decimal(txg);
                    }
                }
                _ => {}
            }
        }
        said
    }

    fn length(&mut self, length: u64) {
        match (self.logs.last_mut(), self.metaslabs.last_mut()) {
            (Some(log), _) => log.length = length,
            (None, Some(ms)) => ms.length = length,
            (None, None) => {}
        }
    }

    fn alloc(&mut self, alloc: i64) {
        if let (true, Some(ms)) = (self.logs.is_empty(), self.metaslabs.last_mut()) {
            ms.alloc = alloc;
        }
    }

    fn valid(&mut self, counts: (u64, u64), which: &[&str]) {
        match which {
            ["total"] => self.total = counts,
            ["txg", txg] => {
                let txg = decimal(txg);
                let log = self.logs.iter_mut().find(|log| log.txg == txg);
                let log = log.unwrap_or_else(|| panic!("no log of txg {txg}"));
                (log.valid, log.entries) = counts;
            }
            _ => panic!("{which:?}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_taken_apart() {
        let said = SpaceSaid::of(&crate::pool("fraglogsm").zdb_section(" -m "));
        assert!(said.metaslabs.len() > 4 && said.logs.len() > 4);
        assert!(said.metaslabs.iter().any(|ms| ms.alloc > 0 && ms.length > 0));
        assert!(said.metaslabs.iter().any(|ms| ms.unflushed_txg > 0));
        let sum = said.logs.iter().fold((0, 0), |s, l| (s.0 + l.valid, s.1 + l.entries));
        assert_eq!(said.total, sum);
        assert!(sum.0 > 0 && sum.1 > sum.0);
    }
}
