//! SKELETON
/// `enum zio_compress`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
#[allow(missing_docs)]
pub enum Compression { Inherit=0, On=1, Off=2, Lzjb=3, Empty=4, Gzip1=5, Gzip2=6, Gzip3=7, Gzip4=8, Gzip5=9, Gzip6=10, Gzip7=11, Gzip8=12, Gzip9=13, Zle=14, Lz4=15, Zstd=16 }
impl Compression {
    /// From the number in a block pointer.
    pub fn from_u8(_n: u8) -> crate::Result<Compression> { todo!() }
    /// Name as `zdb`/`zfs` print it ("lz4", "uncompressed" for zdb is special-cased by the caller).
    pub fn name(self) -> &'static str { todo!() }
}
/// Decompresses `src` (psize bytes, maybe padded) into exactly `dst.len()` bytes. Never panics; error if it does not fit.
pub fn decompress(_kind: Compression, _src: &[u8], _dst: &mut [u8]) -> crate::Result<()> { todo!() }
