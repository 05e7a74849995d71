//! The file `about` of a home: lines of text, in this order.
//!
//! ```text
//! bulla-home-1
//! name photos
//! server bulla://host:28553
//! begins 0 1234 <64 hex digits>        epoch, size, root; only for a device that was invited
//! ```

use std::fmt::Write;

use trust::history::LogPoint;

const HEADER: &str = "bulla-home-1";

/// What a home says about its volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct About {
    pub(super) name: String,
    pub(super) server: String,
    pub(super) begins: Option<LogPoint>,
}

impl About {
    pub(super) fn encode(&self) -> String {
        let mut text = format!("{HEADER}\nname {}\nserver {}\n", self.name, self.server);
        if let Some(LogPoint { epoch, size, root }) = &self.begins {
            let _ = write!(text, "begins {epoch} {size} ");
            for byte in root {
                let _ = write!(text, "{byte:02x}");
            }
            text.push('\n');
        }
        text
    }

    pub(super) fn decode(text: &str) -> Option<About> {
        let mut lines = text.strip_suffix('\n')?.split('\n');
        if lines.next()? != HEADER {
            return None;
        }
        let name = lines.next()?.strip_prefix("name ")?;
        let server = lines.next()?.strip_prefix("server ")?;
        let begins = match lines.next() {
            None => None,
            Some(line) => Some(begins(line.strip_prefix("begins ")?)?),
        };
        let about = About {
            name: super::check_name(name).ok()?.to_owned(),
            server: super::check_server(server).ok()?.to_owned(),
            begins,
        };
        // One text for one home.
        (about.encode() == text).then_some(about)
    }
}

fn begins(text: &str) -> Option<LogPoint> {
    let mut words = text.split(' ');
    let (epoch, size) = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
    let digits = words.next()?;
    let mut root = [0; 32];
    if digits.len() != 64 || !digits.is_ascii() {
        return None;
    }
    for (at, byte) in root.iter_mut().enumerate() {
        let digits = digits.get(2 * at..2 * at + 2)?;
        *byte = u8::from_str_radix(digits, 16).ok()?;
    }
    Some(LogPoint { epoch, size, root })
}
