use proptest::prelude::*;

use super::*;

fn scatter_of(bytes: &[u8]) -> Abd {
    let mut b = AbdMut::scatter(bytes.len());
    assert_eq!(b.len(), bytes.len());
    let mut at = 0;
    for piece in b.chunks_mut() {
        piece.copy_from_slice(&bytes[at..at + piece.len()]);
        at += piece.len();
    }
    assert_eq!(at, bytes.len());
    b.freeze()
}

fn pattern(len: usize, seed: u64) -> Vec<u8> {
    (0..len as u64).map(|i| ((i ^ seed).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8).collect()
}

/// A buffer of one of the shapes, and its model.
fn any_abd() -> impl Strategy<Value = (Abd, Vec<u8>)> {
    let leaf = (0..3usize, 0..20_000usize, any::<u64>()).prop_map(|(shape, len, seed)| {
        let bytes = pattern(len, seed);
        match shape {
            0 => (Abd::from_vec(bytes.clone()), bytes),
            1 => (scatter_of(&bytes), bytes),
            _ => {
                let (at, n) = (len / 3, len / 2);
                (scatter_of(&bytes).slice(at, n).unwrap(), bytes[at..at + n].to_vec())
            }
        }
    });
    prop::collection::vec(leaf, 1..5).prop_map(|parts| {
        let (abds, models): (Vec<_>, Vec<_>) = parts.into_iter().unzip();
        (Abd::gang(abds), models.concat())
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]

    #[test]
    fn every_shape_is_its_bytes((abd, model) in any_abd(), at in 0..30_000usize, len in 0..30_000usize) {
        prop_assert_eq!(abd.len(), model.len());
        prop_assert_eq!(&*abd.bytes(), &model[..]);
        prop_assert_eq!(abd.chunks().collect::<Vec<_>>().concat(), &model[..]);
        prop_assert!(abd.chunks().all(|c| !c.is_empty()));
        let inside = at + len <= model.len();
        let mut dst = vec![0; len];
        prop_assert_eq!(abd.copy_to(at, &mut dst).is_some(), inside);
        let sliced = abd.slice(at, len);
        prop_assert_eq!(sliced.is_some(), inside);
        if let Some(sliced) = sliced {
            prop_assert_eq!(&dst[..], &model[at..at + len]);
            prop_assert_eq!(&*sliced.bytes(), &dst[..]);
            prop_assert_eq!(sliced.as_contiguous().is_some(), sliced.chunks().count() <= 1);
        }
    }

    #[test]
    fn builder_takes_bytes_anywhere(len in 0..20_000usize, at in 0..20_000usize, n in 0..20_000usize) {
        for mut b in [AbdMut::linear(len), AbdMut::scatter(len)] {
            b.chunks_mut().for_each(|c| c.fill(0));
            let src = pattern(n, 7);
            prop_assert_eq!(b.copy_from(at, &src).is_some(), at + n <= len);
            let mut model = vec![0; len];
            if at + n <= len {
                model[at..at + n].copy_from_slice(&src);
            }
            prop_assert_eq!(b.as_contiguous_mut().is_some(), b.chunks_mut().count() <= 1);
            prop_assert_eq!(b.freeze().to_vec(), model);
        }
    }
}

#[test]
fn single_chunk_scatter_is_linear() {
    let abd = scatter_of(&[7; CHUNK]);
    assert_eq!(abd.as_contiguous(), Some(&[7; CHUNK][..]));
    assert!(matches!(abd.bytes(), Cow::Borrowed(_)));
    let abd = scatter_of(&[7; CHUNK + 1]);
    assert!(abd.as_contiguous().is_none());
    assert!(abd.slice(CHUNK, 1).unwrap().as_contiguous().is_some());
}

#[test]
fn copies_are_counted() {
    let abd = scatter_of(&pattern(10_000, 1));
    let before = copies();
    let mut dst = [0; 100];
    abd.copy_to(4090, &mut dst).unwrap();
    let _ = abd.bytes();
    let made = copies().since(&before);
    // Other tests copy at the same time.
    assert!(made.bytes >= 10_100 && made.calls >= 2, "{made:?}");
}

#[test]
fn gangs_are_flat_and_shared() {
    let a = Abd::from_vec(vec![1; 10]);
    let g = Abd::gang(vec![Abd::gang(vec![a.clone(), Abd::empty(), a.clone()]), a.clone()]);
    assert_eq!(g.len(), 30);
    assert_eq!(g.chunks().count(), 3);
    let first = g.chunks().next().map(<[u8]>::as_ptr);
    assert_eq!(first, a.as_contiguous().map(<[u8]>::as_ptr), "shared, not copied");
    assert_eq!(Abd::gang(vec![]).len(), 0);
    assert_eq!(Abd::gang(vec![a]).as_contiguous(), Some(&[1; 10][..]));
}

#[test]
fn what_is_shared_is_copied_before_it_is_changed() {
    let mut a = Abd::from_vec(vec![1; 100]);
    let before = a.as_contiguous().unwrap().as_ptr();
    a.make_mut()[3] = 2;
    assert_eq!(a.as_contiguous().unwrap().as_ptr(), before);
    let b = a.clone();
    a.make_mut()[4] = 3;
    assert_eq!((b.bytes()[4], a.bytes()[3], a.bytes()[4]), (1, 2, 3));
    let mut part = a.slice(3, 2).unwrap();
    drop(a);
    part.make_mut()[0] = 9;
    assert_eq!(*part.bytes(), [9, 3]);
    let mut gang = Abd::gang(vec![b.clone(), part]);
    gang.make_mut()[101] = 7;
    assert_eq!((gang.len(), gang.bytes()[100], gang.bytes()[101]), (102, 9, 7));
    assert!(Abd::empty().make_mut().is_empty());
}

#[test]
fn what_nobody_shares_grows_and_shrinks_in_place() {
    let mut a = Abd::from_vec(vec![1; 100]);
    a.resize(150);
    let before = a.as_contiguous().unwrap().as_ptr();
    let mut moves = 0;
    for len in 151..2000 {
        a.resize(len);
        moves += usize::from(a.as_contiguous().unwrap().as_ptr() != before);
        assert_eq!((a.len(), a.bytes()[99], a.bytes()[100], a.bytes()[len - 1]), (len, 1, 0, 0));
    }
    assert!(moves < 1999 - 150, "there is room for more than one step");
    a.resize(50);
    a.resize(60);
    assert_eq!((a.bytes()[49], a.bytes()[50]), (1, 0));
    let b = a.clone();
    a.resize(70);
    assert_eq!((b.len(), a.len(), a.bytes()[..60] == *b.bytes()), (60, 70, true));
    let mut part = b.slice(10, 45).unwrap();
    part.resize(50);
    assert_eq!((b.len(), part.bytes()[39], part.bytes()[40], part.len()), (60, 1, 0, 50));
    let mut gang = Abd::gang(vec![b, part]);
    gang.resize(112);
    assert_eq!((gang.len(), gang.bytes()[99], gang.bytes()[111]), (112, 1, 0));
    let mut empty = Abd::empty();
    empty.resize(2);
    assert_eq!(*empty.bytes(), [0, 0]);
}
