//! Colours: a scale for percentages, one for changes, and one colour per owner.
//!
//! The scale is viridis: even steps of brightness, which people with any colour vision can tell
//! apart, and which keep their order in grey. Changes go from blue over grey to orange. Owners have
//! colours of Okabe and Ito's and Tol's sets, and letters besides.

/// Red, green, blue.
pub type Rgb = [u8; 3];

/// Steps of the scale; step 0 is for 0% only.
pub const STEPS: usize = 21;
/// Colour where nothing is known, or nothing is there.
pub const NOTHING: Rgb = [128, 128, 128];
/// Owners that have a colour of their own.
pub const COLOURED: usize = OWNERS.len();

const VIRIDIS: [Rgb; 11] = [
    [68, 1, 84],
    [72, 36, 117],
    [65, 68, 135],
    [53, 95, 141],
    [42, 120, 142],
    [33, 145, 140],
    [34, 168, 132],
    [68, 191, 112],
    [122, 209, 81],
    [189, 223, 38],
    [253, 231, 37],
];

const LESS: Rgb = [0, 90, 181];
const SAME: Rgb = [150, 150, 150];
const MORE: Rgb = [230, 97, 0];

const OWNERS: [Rgb; 12] = [
    [230, 159, 0],
    [86, 180, 233],
    [0, 158, 115],
    [240, 228, 66],
    [0, 114, 178],
    [213, 94, 0],
    [204, 121, 167],
    [136, 34, 85],
    [153, 153, 51],
    [68, 170, 153],
    [51, 34, 136],
    [170, 68, 153],
];

fn between(a: Rgb, b: Rgb, part: usize, of: usize) -> Rgb {
    let mix = |a: u8, b: u8| {
        let (a, b, part, of) = (i64::from(a), i64::from(b), part as i64, of.max(1) as i64);
        (a + (b - a) * part / of).clamp(0, 255) as u8
    };
    [mix(a[0], b[0]), mix(a[1], b[1]), mix(a[2], b[2])]
}

/// The step of a percentage: 0 for 0, then one for each 5%.
pub fn step(percent: u64) -> usize {
    (percent.min(100).div_ceil(5)) as usize
}

/// The colour of a step: dark is little, bright is much.
pub fn colour(step: usize) -> Rgb {
    let step = step.min(STEPS - 1);
    let at = |i: usize| VIRIDIS.get(i).copied().unwrap_or(NOTHING);
    let low = step / 2;
    if step.is_multiple_of(2) { at(low) } else { between(at(low), at(low + 1), 1, 2) }
}

/// The step of a change in percentage points: 10 for no change, less below, more above.
pub fn change_step(points: i64) -> usize {
    let steps = points.unsigned_abs().min(100).div_ceil(10) as usize;
    if points < 0 { 10 - steps } else { 10 + steps }
}

/// The colour of a step of change.
pub fn change_colour(step: usize) -> Rgb {
    match step.min(STEPS - 1) {
        s @ 0..10 => between(SAME, LESS, 12 - s, 12),
        10 => SAME,
        s => between(SAME, MORE, s - 8, 12),
    }
}

/// The colour of the owner with so many larger ones before it.
pub fn owner_colour(rank: usize) -> Rgb {
    OWNERS.get(rank).copied().unwrap_or(NOTHING)
}

/// The letter of the owner with so many larger ones before it.
pub fn letter(rank: usize) -> char {
    u8::try_from(rank).ok().filter(|r| *r < 26).map_or('+', |r| char::from(b'A' + r))
}

/// Whether black text reads better than white on it.
pub fn is_bright(c: Rgb) -> bool {
    u32::from(c[0]) * 299 + u32::from(c[1]) * 587 + u32::from(c[2]) * 114 > 128_000
}

/// The nearest of the 216 colours of the cube that terminals of 256 colours have.
pub fn indexed(c: Rgb) -> u8 {
    const LEVELS: [u8; 6] = [0, 95, 135, 175, 215, 255];
    let nearest = |v: u8| {
        let distances = (0u8..).zip(LEVELS.map(|l| l.abs_diff(v)));
        distances.min_by_key(|(_, d)| *d).map_or(0, |(i, _)| i)
    };
    16 + 36 * nearest(c[0]) + 6 * nearest(c[1]) + nearest(c[2])
}

/// `#rrggbb`.
pub fn hex(c: Rgb) -> String {
    format!("#{:02x}{:02x}{:02x}", c[0], c[1], c[2])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_and_colours() {
        assert_eq!([0, 1, 5, 6, 99, 100, 200].map(step), [0, 1, 1, 2, 20, 20, 20]);
        assert_eq!([-100, -1, 0, 1, 100].map(change_step), [0, 9, 10, 11, 20]);
        assert_eq!((colour(0), colour(20)), ([68, 1, 84], [253, 231, 37]));
        let brightness =
            |c: Rgb| c.map(u32::from).into_iter().zip([299, 587, 114]).map(|(c, w)| c * w);
        let scale: Vec<u32> = (0..STEPS).map(|s| brightness(colour(s)).sum()).collect();
        assert!(scale.is_sorted(), "{scale:?}");
        assert_eq!((change_colour(0), change_colour(20)), (LESS, MORE));
        assert_eq!((letter(0), letter(25), letter(26)), ('A', 'Z', '+'));
        assert_eq!((indexed([0, 0, 0]), indexed([255, 255, 255]), hex([1, 2, 255])), {
            (16, 231, "#0102ff".into())
        });
    }
}
