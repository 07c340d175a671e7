//! Objects of the MOS, read and written as structures.
