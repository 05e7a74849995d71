//! Hints: every kind has a short one, and it is true for the errors that lead there.

use super::*;

#[test]
fn every_kind_has_a_hint() {
    for kind in Kind::ALL {
        let hint = kind.hint();
        assert!(hint.len() >= 30, "{kind:?}: {hint}");
        assert!(!hint.ends_with('.'), "{kind:?}: hints are phrases");
        let words = hint.split_whitespace().count();
        assert!(words <= 40, "{kind:?}: {words} words");
        assert_ne!(kind.exit(), Exit::Ok, "{kind:?}");
    }
}

#[test]
fn full_disk_and_used_up_descriptors_are_told_as_such_whatever_fails_by_them() {
    for (code, kind) in [
        (28, Kind::DiskFull),
        (122, Kind::DiskFull),
        (23, Kind::Descriptors),
        (24, Kind::Descriptors),
    ] {
        let error = std::io::Error::from_raw_os_error(code);
        assert_eq!(io_kind(&error), kind, "{code}");
        for other in [Kind::State, Kind::LogDevice, Kind::Unavailable, Kind::Mount] {
            let as_cause = Failure::of(other, "x", &error);
            let as_text = Failure::new(other, format!("x: {error}"));
            for failure in [as_cause, as_text] {
                assert_eq!(failure.hint(), kind.hint(), "{code}");
                assert_eq!(failure.exit(), other.exit(), "{code}");
            }
        }
    }
    let denied = std::io::Error::from_raw_os_error(13);
    let other = Failure::of(Kind::State, "x", &denied);
    assert_eq!(other.hint(), Kind::State.hint());
}

#[test]
fn causes_are_not_repeated() {
    let inner = std::io::Error::from_raw_os_error(28);
    let failure = Failure::io("writing the head", &inner);
    assert_eq!(failure.kind, Kind::DiskFull);
    assert_eq!(failure.causes.len(), 1);
    let mut failure = Failure::new(Kind::System, format!("x: {inner}"));
    failure.push_cause(inner.to_string());
    assert!(failure.causes.is_empty());
}
