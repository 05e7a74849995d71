//! Which run of the machine's kernel this is: after a power cut it is another one.

use store::names::FileId;

/// The run of the machine's kernel. While it lasts, a killed process has lost nothing that it wrote.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Boot(pub Option<[u8; 16]>);

impl Boot {
    /// The kernel that runs now. Nothing, where it does not say: then each kill counts as a power cut.
    pub fn current() -> Boot {
        let text = std::fs::read_to_string("/proc/sys/kernel/random/boot_id");
        let digits: Option<String> = text
            .ok()
            .map(|text| text.chars().filter(char::is_ascii_hexdigit).collect());
        let id = digits.and_then(|digits| FileId::parse(&digits, ""));
        Boot(id.map(|id| id.0))
    }
}
