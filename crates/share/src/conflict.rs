//! Names of conflict copies: what a device wrote and could not put into the file, because somebody else had changed it first,
//! lies beside it as `NAME (conflict device N DATE)`.

use trust::calendar::date;
use trust::inode::MAX_NAME_BYTES;
use trust_shared::principal::{Device, Name};

/// Begins the tail of such a name.
const MARK: &[u8] = b" (conflict device ";
/// Length of a date, bytes.
const DATE_BYTES: usize = 10;

/// The name of a conflict copy of a device: `NAME (conflict device N DATE)`, and a number where that is taken: `which`
/// counts from 0. `unix_s`: when the content was made. None if no file can have the name.
pub fn conflict_name(name: &Name, device: Device, unix_s: i64, which: u32) -> Option<Name> {
    let (device, date) = (device.0, date(unix_s));
    let more = match which {
        0 => String::new(),
        _ => format!(" {}", which.saturating_add(1)),
    };
    let tail = format!(" (conflict device {device} {date}){more}");
    let name = name.as_bytes();
    let mut end = name.len().min(MAX_NAME_BYTES.saturating_sub(tail.len()));
    // A name of UTF-8 stays one.
    while end > 0 && std::str::from_utf8(name).is_ok() && is_inside(name, end) {
        end -= 1;
    }
    Name::new(&[name.get(..end)?, tail.as_bytes()].concat()).ok()
}

/// Whether a character goes on at this place.
fn is_inside(name: &[u8], at: usize) -> bool {
    name.get(at).is_some_and(|byte| byte & 0xc0 == 0x80)
}

/// What the name of a conflict copy says. Any member can give a file such a name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Conflict {
    /// The name of the file that it is a copy of. None: the name was too long and is cut.
    pub of: Option<Name>,
    /// The device that wrote it.
    pub device: Device,
    /// When its content was made, `YYYY-MM-DD`.
    pub date: String,
}

impl Conflict {
    /// Reads the name of a copy. None: it is another name.
    pub fn of(name: &Name) -> Option<Conflict> {
        let bytes = name.as_bytes();
        let mark = bytes.windows(MARK.len()).rposition(|at| at == MARK)?;
        let (of, tail) = bytes.split_at_checked(mark)?;
        let tail = std::str::from_utf8(tail.get(MARK.len()..)?).ok()?;
        let (device, rest) = tail.split_once(' ')?;
        let (date, more) = rest.split_once(')')?;
        let is_number = |text: &str| !text.is_empty() && text.bytes().all(|it| it.is_ascii_digit());
        let is_date = date.len() == DATE_BYTES
            && date.split('-').all(is_number)
            && date.split('-').count() == 3;
        let is_more = more.is_empty() || more.strip_prefix(' ').is_some_and(is_number);
        if !is_number(device) || !is_date || !is_more {
            return None;
        }
        // The longest name and the next shorter ones may be cut.
        let is_whole = bytes.len() + 3 < MAX_NAME_BYTES;
        Some(Conflict {
            of: Name::new(of).ok().filter(|_| is_whole),
            device: Device(device.parse().ok()?),
            date: date.to_owned(),
        })
    }
}

#[cfg(test)]
mod tests {
    use sim::random::{Random, noise};

    use super::*;

    fn name(bytes: &[u8]) -> Name {
        Name::new(bytes).unwrap()
    }

    #[test]
    fn long_name_of_a_copy_is_cut_at_a_character() {
        let long = name("ä".repeat(127).as_bytes());
        let copy = conflict_name(&long, Device(3), 0, 9).unwrap();
        let text = std::str::from_utf8(copy.as_bytes()).unwrap();
        assert!(text.len() <= MAX_NAME_BYTES && text.ends_with("1970-01-01) 10"));
        assert_eq!(Conflict::of(&copy).unwrap().of, None);
    }

    #[test]
    fn other_names_are_no_copies() {
        for other in [
            "plan",
            "plan (conflict device 3 2026-11-23",
            "plan (conflict device x 2026-11-23)",
            "plan (conflict device  2026-11-23)",
            "plan (conflict device 3 2026-11)",
            "plan (conflict device 3 2026-11-2x)",
            "plan (conflict device 3 2026-11-23)x",
            "plan (conflict device 3 2026-11-23) x",
            "plan (conflict device 99999999999 2026-11-23)",
            "plan (conflict device 3 2026-11-23).txt",
        ] {
            assert_eq!(Conflict::of(&name(other.as_bytes())), None, "{other}");
        }
    }

    #[test]
    fn name_of_a_copy_says_what_it_is_of() {
        let mut random = Random::new(7);
        for seed in 0..2000 {
            let len = 1 + random.below(199) as usize;
            let Ok(of) = Name::new(&noise(seed, len)) else {
                continue;
            };
            let device = Device(random.number() as u32);
            let seconds = random.below(4_000_000_000) as i64;
            let which = random.below(200) as u32;
            let copy = conflict_name(&of, device, seconds, which).unwrap();
            let read = Conflict::of(&copy).unwrap();
            assert_eq!((read.of, read.device), (Some(of), device));
            assert_eq!(read.date, date(seconds));
        }
    }

    #[test]
    fn any_tail_is_read() {
        let mut random = Random::new(8);
        let letters = b" ()-0123456789abconflictdevice\xff";
        for _ in 0..20_000 {
            let len = random.below(40) as usize;
            let tail = (0..len).map(|_| letters[random.below(letters.len() as u64) as usize]);
            let bytes: Vec<u8> = b"plan (conflict device 3 20"
                .iter()
                .copied()
                .chain(tail)
                .collect();
            if let Some(read) = Conflict::of(&name(&bytes)) {
                assert_eq!(read.of, Some(name(b"plan")));
            }
        }
    }
}
