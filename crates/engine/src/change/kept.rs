//! Properties that are kept for other systems, and have no effect here: tools set them as a matter of course, so they
//! are not refused, but a user that sets one is told.

use super::props::find;

const NO_DEVICES: &str = "volumes are not served as block devices";

/// Why a property of a dataset has no effect with this value; `None`: it has one, or asks for what is so anyway.
pub fn without_effect(name: &str, value: &str) -> Option<&'static str> {
    match (find(name)?.name, value) {
        ("sharenfs" | "sharesmb", "off") => None,
        ("sharenfs", _) => Some("nothing is shared by NFS"),
        ("sharesmb", _) => Some("nothing is shared by SMB"),
        ("prefetch", "none" | "metadata") => Some("files are read ahead all the same"),
        ("volmode", "full" | "geom" | "dev") | ("snapdev", "visible") => Some(NO_DEVICES),
        ("volthreading", "off") => Some(NO_DEVICES),
        ("vscan", "on") => Some("files are not scanned for viruses"),
        ("nbmand", "on") => Some("there are no mandatory locks"),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cenote_dsl::props::table::{PROPERTIES, Type};

    #[test]
    fn defaults_go_without_a_word() {
        for property in PROPERTIES {
            let default = match property.kind {
                Type::Index(number, _) => property.value_name(number).unwrap_or_default(),
                Type::Text(text) => text.unwrap_or_default(),
                Type::Number(_) => "0",
            };
            assert_eq!(without_effect(property.name, default), None, "{}", property.name);
        }
        assert_eq!(without_effect("sharenfs", "rw"), Some("nothing is shared by NFS"));
        assert_eq!(without_effect("acltype", "posix"), None);
        assert_eq!(without_effect("acltype", "nfsv4"), None);
        assert_eq!(without_effect("aclmode", "passthrough"), None);
        assert_eq!(without_effect("volmode", "none"), None);
        assert_eq!(without_effect("org.example:x", "y"), None);
    }
}
