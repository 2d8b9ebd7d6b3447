//! Whole numbers that come out the same in Rust and in Lua.
//!
//! Each algorithm exists twice, and both must say the same to the last microsecond, or a test of one says nothing of
//! the other. Lua in Redis knows doubles only: integers are exact up to 2^53, and the product of a rate and a time is
//! soon beyond that (10 million a second times a day is 2^59, and 2^32−1 times ten years is 2^80). Lua's own `%` is not
//! used: it is computed as `a - floor(a/b)*b`, which goes wrong where the quotient is rounded up to the next integer. Below
//! 2^53 it is not, but that needs a proof for each use, and `math.fmod` needs none.
//!
//! All that the algorithms need beyond sums and comparisons is one operation, [`muldiv`]: the quotient and the
//! remainder of `x·y/d`. Rust does it in 128 bits. Lua does it so, for `0 <= x, y < 2^53` and `1 <= d < 2^49`:
//!
//! - **Short way**, where the rounded product `p = x·y` is below 2^53. Rounding is monotonic and 2^53 is a double, so
//!   the true product is below 2^53 too and `p` is exact. `fmod` is exact for all doubles (IEEE 754 and C say so), and
//!   `(p - r)/d` is the quotient of a multiple of `d` by `d`, an integer below 2^53, which a correctly rounded division
//!   returns exactly.
//! - **Long way** else. With `y = ya·d + yb`, `x·y/d = x·ya + x·yb/d`. The second term is a long division in base 8,
//!   over the octal digits `c` of `x` from the top: `v = 8·r + c·yb; r = v mod d; q = 8·q + (v - r)/d`. As `r` and `yb`
//!   are below `d` and `c` is at most 7, `v < 15·d < 15·2^49 < 2^53`: exact. `q` never exceeds the digits of `x` read so
//!   far, since `yb < d`: exact. (With `d` below 2^50 and two-bit digits the bound would hold as well, at half again as
//!   many steps; four-bit digits would need `d < 2^48`, and ten years of microseconds are 2^48.2.)
//! - **Saturation.** The sum `x·ya + q` is compared with 2^52. If the true sum is below, both terms are, and the
//!   computed sum is exact. If not, the rounded one is not below either, since rounding is monotonic. Then the answer
//!   is (2^52, 0), on both sides and in both ways. So nobody has to ask whether an overflow happened first.
//!
//! Digits are cut off with divisions by powers of 8, which doubles do exactly.

use crate::limit::WAIT_MAX_US;

/// The last microsecond there is, in the year 2255: the largest integer below which all are doubles. Clocks that say
/// more are read as this.
pub const TIME_MAX_US: u64 = (1 << 53) - 1;

/// The quotient and the remainder of `x·y/d`; `(WAIT_MAX_US, 0)` where the quotient is `WAIT_MAX_US` or more.
///
/// For `x, y < 2^53` and `1 <= d < 2^49`, the range in which `scripts/spend.lua` does the same exactly.
pub fn muldiv(x: u64, y: u64, d: u64) -> (u64, u64) {
    debug_assert!(x < 1 << 53 && y < 1 << 53 && (1..1 << 49).contains(&d), "{x}·{y}/{d} is out of range");
    let (quotient, remainder) = match x.checked_mul(y) {
        Some(product) => (product / d, product % d),
        None => {
            let (product, d) = (u128::from(x) * u128::from(y), u128::from(d));
            // A quotient beyond 64 bits is far beyond saturation; a remainder is below `d`.
            (u64::try_from(product / d).unwrap_or(u64::MAX), (product % d) as u64)
        }
    };
    if quotient >= WAIT_MAX_US { (WAIT_MAX_US, 0) } else { (quotient, remainder) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_product_beyond_64_bits_is_divided_exactly() {
        let (x, y, d) = ((1 << 53) - 1, (1 << 49) + 12_345, (1 << 49) - 1);
        let product = u128::from(x) * u128::from(y);
        let saturated = muldiv(x, y, d);
        assert_eq!(saturated, (WAIT_MAX_US, 0));
        let (q, r) = muldiv(x >> 2, y, d);
        assert_eq!(u128::from(q) * u128::from(d) + u128::from(r), u128::from(x >> 2) * u128::from(y));
        assert!(product > u128::from(u64::MAX));
    }

    #[test]
    fn a_quotient_saturates_at_the_longest_wait_and_not_before() {
        assert_eq!(muldiv(WAIT_MAX_US - 1, 1, 1), (WAIT_MAX_US - 1, 0));
        assert_eq!(muldiv(WAIT_MAX_US, 1, 1), (WAIT_MAX_US, 0));
        assert_eq!(muldiv(WAIT_MAX_US, 3, 2), (WAIT_MAX_US, 0));
        assert_eq!(muldiv(2 * WAIT_MAX_US - 1, 1, 2), (WAIT_MAX_US - 1, 1));
    }
}
