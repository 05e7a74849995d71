//! Signatures on which the verifiers in use disagree ("Taming the many EdDSAs", Chalkias, Garillot, Nikolaenko 2020,
//! has cases of these kinds). Each is made with curve arithmetic and carries the properties that its name claims.

use curve25519_dalek::EdwardsPoint;
use curve25519_dalek::constants::{ED25519_BASEPOINT_POINT as B, EIGHT_TORSION};
use curve25519_dalek::scalar::Scalar;
use sha2::{Digest, Sha512};
use trust::key::PublicKey;

use super::lines::hex;

const HEADER: &str = "\
# Ed25519 (docs/formats/verification.md, 1): good or bad | name | key | message | signature
";

/// L, little-endian.
const ORDER: [u8; 32] = [
    0xed, 0xd3, 0xf5, 0x5c, 0x1a, 0x63, 0x12, 0x58, 0xd6, 0x9c, 0xf7, 0xa2, 0xde, 0xf9, 0xde, 0x14,
    0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x10,
];

struct Case {
    name: &'static str,
    key: [u8; 32],
    message: Vec<u8>,
    signature: [u8; 64],
}

pub fn text() -> String {
    let mut text = HEADER.to_owned();
    for (expected, cases) in [("good", good()), ("bad", bad())] {
        for case in cases {
            let key = PublicKey::from_bytes(case.key);
            let verifies = key.is_ok_and(|key| key.verify(&case.message, &case.signature));
            let verdict = if verifies { "good" } else { "bad" };
            assert_eq!(verdict, expected, "{}", case.name);
            let (key, message) = (hex(&case.key), hex(&case.message));
            let signature = hex(&case.signature);
            text += &format!("{verdict} {} {key} {message} {signature}\n", case.name);
        }
    }
    text
}

/// A scalar that depends on a name.
fn scalar(name: &str) -> Scalar {
    Scalar::from_bytes_mod_order_wide(&Sha512::digest(name).into())
}

/// SHA-512 of R, key and message, and the same modulo L.
fn hashed(r: &[u8; 32], key: &[u8; 32], message: &[u8]) -> ([u8; 64], Scalar) {
    let hash = Sha512::new();
    let hash = hash.chain_update(r).chain_update(key).chain_update(message);
    let hash = hash.finalize().into();
    (hash, Scalar::from_bytes_mod_order_wide(&hash))
}

fn challenge(r: &[u8; 32], key: &[u8; 32], message: &[u8]) -> Scalar {
    hashed(r, key, message).1
}

fn joined(r: [u8; 32], s: [u8; 32]) -> [u8; 64] {
    let mut signature = [0; 64];
    signature[..32].copy_from_slice(&r);
    signature[32..].copy_from_slice(&s);
    signature
}

fn is_mixed(point: &EdwardsPoint) -> bool {
    !point.is_small_order() && !point.is_torsion_free()
}

/// A signature with key `a·B + key_part` and nonce point `r·B + nonce_part`, over the first of the messages
/// `NAME 0`, `NAME 1`, … that `fits` by the hash and by the challenge, both modulo 8.
fn case(
    name: &'static str,
    key_part: EdwardsPoint,
    nonce_part: EdwardsPoint,
    fits: impl Fn(u8, u8) -> bool,
) -> Case {
    let (a, r) = (scalar("key"), scalar(name));
    let key = (B * a + key_part).compress().to_bytes();
    let nonce = (B * r + nonce_part).compress().to_bytes();
    for number in 0.. {
        let message = format!("{name} {number}").into_bytes();
        let (hash, k) = hashed(&nonce, &key, &message);
        if fits(hash[0] % 8, k.as_bytes()[0] % 8) {
            let signature = joined(nonce, (r + k * a).to_bytes());
            return Case {
                name,
                key,
                message,
                signature,
            };
        }
    }
    unreachable!()
}

/// A point of order 8.
fn torsion() -> EdwardsPoint {
    EIGHT_TORSION[1]
}

fn nothing() -> EdwardsPoint {
    EIGHT_TORSION[0]
}

fn good() -> Vec<Case> {
    // The part of small order of k·A vanishes where k is a multiple of 8.
    let plain = case("plain", nothing(), nothing(), |_, _| true);
    let mixed_key = case("key-of-mixed-order", torsion(), nothing(), |hash, k| {
        hash != 0 && k == 0
    });
    assert!(is_mixed(&(B * scalar("key") + torsion())));
    // R = r·B − k·T, so that S·B − k·A = R without the cofactor.
    let minus = |k: u8| EIGHT_TORSION[usize::from((8 - k) % 8)];
    let mixed_both = case("key-and-r-of-mixed-order", torsion(), minus(1), |_, k| {
        k == 1
    });
    let mut empty = case("empty-message", nothing(), nothing(), |_, _| true);
    empty.message.clear();
    let nonce: [u8; 32] = empty.signature[..32].try_into().unwrap();
    let k = challenge(&nonce, &empty.key, b"");
    let s = scalar("empty-message") + k * scalar("key");
    empty.signature = joined(nonce, s.to_bytes());
    vec![plain, empty, mixed_key, mixed_both]
}

fn bad() -> Vec<Case> {
    let zero = [0; 32];
    let neutral = {
        let mut bytes = zero;
        bytes[0] = 1;
        bytes
    };
    let with = |name, key, r, s| Case {
        name,
        key,
        message: name.as_bytes().to_vec(),
        signature: joined(r, s),
    };
    let small = torsion().compress().to_bytes();
    let honest = (B * scalar("key")).compress().to_bytes();
    let mut cases = vec![
        // S·B = R + k·A holds for each of these, some of them with the cofactor.
        with("small-key-small-r-zero-s", neutral, neutral, zero),
        with(
            "small-key",
            small,
            (B * scalar("s")).compress().to_bytes(),
            scalar("s").to_bytes(),
        ),
        with(
            "small-key-r-of-mixed-order",
            small,
            (B * scalar("s") + torsion()).compress().to_bytes(),
            scalar("s").to_bytes(),
        ),
        small_r("small-r", honest, nothing()),
        small_r("small-r-of-order-8", honest, torsion()),
        case(
            "only-with-cofactor-key-of-mixed-order",
            torsion(),
            nothing(),
            |hash, k| hash != 0 && k != 0,
        ),
        case(
            "only-with-cofactor-r-of-mixed-order",
            nothing(),
            torsion(),
            |_, _| true,
        ),
        case(
            "only-with-cofactor-both-of-mixed-order",
            torsion(),
            torsion(),
            |_, k| k != 7,
        ),
    ];
    // Good for whoever multiplies by the hash as it is, and not by the hash modulo L.
    let unreduced = |hash: u8, k: u8| hash == 0 && k != 0;
    cases.push(case(
        "only-with-k-not-reduced",
        torsion(),
        nothing(),
        unreduced,
    ));
    cases.extend(second_encodings(honest));
    cases.extend(changed());
    cases
}

/// R of small order, S = k·a: S·B − k·A is the neutral element.
fn small_r(name: &'static str, key: [u8; 32], point: EdwardsPoint) -> Case {
    let nonce = point.compress().to_bytes();
    let message = name.as_bytes().to_vec();
    let s = challenge(&nonce, &key, &message) * scalar("key");
    Case {
        name,
        key,
        message,
        signature: joined(nonce, s.to_bytes()),
    }
}

/// The neutral element (y = 1) and the point y = 0 in encodings that are not canonical: y + p, and x = 0 with a sign.
fn second_encodings(honest: [u8; 32]) -> Vec<Case> {
    let mut plus_p = [0xff; 32];
    (plus_p[0], plus_p[31]) = (0xee, 0x7f);
    let mut signed = [0; 32];
    (signed[0], signed[31]) = (1, 0x80);
    let mut zero_plus_p = plus_p;
    zero_plus_p[0] = 0xed;
    // y = 3, written as p + 3: a point of large order in a second encoding.
    let large = (3..19u8).find_map(|y| {
        let mut canonical = [0; 32];
        canonical[0] = y;
        let point = curve25519_dalek::edwards::CompressedEdwardsY(canonical).decompress()?;
        let mut bytes = plus_p;
        bytes[0] = 0xed + y;
        (!point.is_small_order()).then_some(bytes)
    });
    let large = large.unwrap();
    let with = |name: &'static str, key, r, s: [u8; 32]| Case {
        name,
        key,
        message: name.as_bytes().to_vec(),
        signature: joined(r, s),
    };
    let as_r = |name: &'static str, r: [u8; 32]| {
        let s = challenge(&r, &honest, name.as_bytes()) * scalar("key");
        with(name, honest, r, s.to_bytes())
    };
    let nonce = (B * scalar("s")).compress().to_bytes();
    let s = scalar("s").to_bytes();
    vec![
        as_r("r-neutral-plus-p", plus_p),
        as_r("r-neutral-with-a-sign", signed),
        as_r("r-of-large-order-plus-p", large),
        with("key-neutral-plus-p", plus_p, nonce, s),
        with("key-neutral-with-a-sign", signed, nonce, s),
        with("key-zero-plus-p", zero_plus_p, nonce, s),
        with("key-of-large-order-plus-p", large, nonce, s),
    ]
}

/// Good signatures of which something was changed.
fn changed() -> Vec<Case> {
    let change = |name, with: &dyn Fn(&mut Case)| {
        let mut case = case(name, nothing(), nothing(), |_, _| true);
        with(&mut case);
        case
    };
    // s + L, and s + 8·L where the top three bits are still unset in the first.
    let add_order = |case: &mut Case, times: u16| {
        for _ in 0..times {
            let mut carry = 0u16;
            for (byte, order) in case.signature[32..].iter_mut().zip(ORDER) {
                carry += u16::from(*byte) + u16::from(order);
                *byte = carry as u8;
                carry >>= 8;
            }
        }
    };
    let mut no_point = [0; 32];
    let points = (2..=255u8).map(|y| {
        let mut bytes = [0; 32];
        bytes[0] = y;
        bytes
    });
    let decode =
        |bytes: &[u8; 32]| curve25519_dalek::edwards::CompressedEdwardsY(*bytes).decompress();
    if let Some(bytes) = points.into_iter().find(|bytes| decode(bytes).is_none()) {
        no_point = bytes;
    }
    vec![
        change("s-plus-order", &|c| add_order(c, 1)),
        change("s-plus-8-orders", &|c| add_order(c, 8)),
        change("message-changed", &|c| c.message[0] ^= 1),
        change("r-sign-changed", &|c| c.signature[31] ^= 0x80),
        change("s-changed", &|c| c.signature[32] ^= 1),
        change("key-is-no-point", &|c| c.key = no_point),
        change("r-is-no-point", &|c| {
            c.signature[..32].copy_from_slice(&no_point)
        }),
    ]
}
