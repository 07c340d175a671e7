//! SKELETON
use std::borrow::Cow;
/// Payload.
#[derive(Clone, Debug)]
pub struct Abd;
impl Abd {
    /// Takes a vector as a linear buffer; no copy.
    pub fn from_vec(_v: Vec<u8>) -> Abd { todo!() }
    /// Bytes.
    pub fn len(&self) -> usize { todo!() }
    /// Whether empty.
    pub fn is_empty(&self) -> bool { todo!() }
    /// Bytes `at..at+len` (panics never: clamps? returns None out of range), no copy.
    pub fn slice(&self, _at: usize, _len: usize) -> Option<Abd> { todo!() }
    /// The contiguous pieces in order.
    pub fn chunks(&self) -> impl Iterator<Item = &[u8]> { std::iter::empty() }
    /// The bytes as one slice: borrowed if contiguous, else a (counted) copy.
    pub fn bytes(&self) -> Cow<'_, [u8]> { todo!() }
    /// As `bytes`, when contiguous.
    pub fn as_contiguous(&self) -> Option<&[u8]> { todo!() }
    /// Copies `at..at+dst.len()` into dst; counted. None if out of range.
    pub fn copy_to(&self, _at: usize, _dst: &mut [u8]) -> Option<()> { todo!() }
    /// A gang of others.
    pub fn gang(_parts: Vec<Abd>) -> Abd { todo!() }
}
