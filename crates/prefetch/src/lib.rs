//! Asking the processor to bring memory into its cache before it is needed.
//!
//! ```text
//!   prefetch(a)  prefetch(b)  prefetch(c)      one after the other, none waits
//!       ╲            ╲            ╲            the latencies overlap
//!        read a       read b       read c      each finds its line in the cache
//! ```
//!
//! Reading a little of each value ahead does nearly the same, but a read that misses holds back
//! what was begun after it once the processor's window is full; a prefetch holds back nothing. It
//! stands in a crate of its own because it is the only thing in its users that safe Rust does not
//! offer.

#![no_std]

/// Bytes of a cache line; where they are fewer or more, a line is asked for twice or left out,
/// which costs only speed.
const LINE: usize = 64;

/// Of one value, no more lines than this are asked for.
pub const LINES_MAX: usize = 4;

/// Asks for the first [`LINES_MAX`] cache lines that `value` lies in. Nothing is read, and nothing
/// happens on processors other than x86-64.
#[inline]
pub fn prefetch<T: ?Sized>(value: &T) {
    let bytes = size_of_val(value);
    if bytes == 0 {
        return;
    }
    let first = core::ptr::from_ref(value).cast::<u8>();
    let lines = (first.addr() % LINE + bytes).div_ceil(LINE);
    for line in 0..lines.min(LINES_MAX) {
        line_at(first.wrapping_add(line * LINE));
    }
}

#[inline]
fn line_at(place: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch is a hint: it reads and writes nothing that the program can see, and is
    // allowed for any address, mapped or not.
    unsafe {
        use core::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(place.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = place;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_of_any_size_and_place_can_be_asked_for() {
        let bytes = [7u8; 1000];
        for from in 0..130 {
            for to in from..=bytes.len() {
                prefetch(&bytes[from..to]);
            }
        }
        prefetch(&());
        prefetch("");
        assert_eq!(bytes, [7; 1000]);
    }
}
