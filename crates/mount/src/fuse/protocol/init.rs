//! FUSE_INIT: what the kernel offers, and what is agreed on.

use super::body;
use super::fields::Fields;
use crate::fuse::request::Features;
use crate::fuse::types::{Errno, InitFlags};

/// Major version of the protocol.
pub const MAJOR: u32 = 7;
/// The oldest minor version that is served: Linux 5.4.
pub const OLDEST_MINOR: u32 = 31;
/// The newest minor version that is known: Linux 6.18.
pub const NEWEST_MINOR: u32 = 45;

/// The smallest page of a machine, bytes.
const PAGE_BYTES: u32 = 4096;
/// Flags that every file system asks for.
const ALWAYS: InitFlags = InitFlags::FUSE_ASYNC_READ
    .union(InitFlags::FUSE_BIG_WRITES)
    .union(InitFlags::FUSE_MAX_PAGES)
    .union(InitFlags::FUSE_INIT_EXT);

/// What the kernel offers: `fuse_init_in`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Offer {
    /// Major version.
    pub major: u32,
    /// Minor version.
    pub minor: u32,
    /// The most it reads ahead, bytes.
    pub max_read_ahead: u32,
    /// Its features, as far as this layer honours them.
    pub flags: InitFlags,
}

impl Offer {
    /// From the body of FUSE_INIT.
    ///
    /// # Errors
    /// EIO if it is too short.
    pub fn parse(body: &[u8]) -> Result<Offer, Errno> {
        let mut fields = Fields::new(body);
        let (major, minor) = (fields.u32()?, fields.u32()?);
        let (max_read_ahead, low) = (fields.u32()?, u64::from(fields.u32()?));
        let mut flags = low;
        if low & InitFlags::FUSE_INIT_EXT.bits() != 0 {
            flags |= u64::from(fields.u32()?) << 32;
        }
        Ok(Offer {
            major,
            minor,
            max_read_ahead,
            flags: InitFlags::from_bits_truncate(flags),
        })
    }

    /// Whether this kernel can be served.
    pub fn is_served(&self) -> bool {
        self.major == MAJOR && self.minor >= OLDEST_MINOR
    }

    /// The answer for a file system that wants `features`, and those of its flags that the kernel has.
    pub fn agree(&self, features: &Features) -> (body::Init, InitFlags) {
        let granted = features.flags & self.flags;
        let max_write = features.max_request_bytes.max(PAGE_BYTES);
        let wanted = features.max_read_ahead_bytes.max(PAGE_BYTES);
        let max_read_ahead = wanted.min(self.max_read_ahead);
        // The kernel counts in pages of its own, and sends reads of as many.
        let page_bytes = u32::try_from(rustix::param::page_size()).unwrap_or(PAGE_BYTES);
        let largest = max_write.max(max_read_ahead).div_ceil(page_bytes);
        let max_background = features.max_background.max(1);
        let agreed = body::Init {
            major: MAJOR,
            minor: self.minor.min(NEWEST_MINOR),
            max_read_ahead,
            flags: (granted | ALWAYS & self.flags).bits(),
            max_background,
            congestion_threshold: (u32::from(max_background) * 3 / 4) as u16,
            max_write,
            max_pages: u16::try_from(largest).unwrap_or(u16::MAX),
        };
        (agreed, granted)
    }
}

/// The answer to a kernel with another major version: it sends FUSE_INIT again, with this one, if it can.
pub fn only_version() -> body::Init {
    body::Init {
        major: MAJOR,
        minor: NEWEST_MINOR,
        max_read_ahead: 0,
        flags: 0,
        max_background: 0,
        congestion_threshold: 0,
        max_write: 0,
        max_pages: 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn offer(words: &[u32]) -> Vec<u8> {
        words.iter().flat_map(|word| word.to_ne_bytes()).collect()
    }

    #[test]
    fn flags_beyond_the_31st_count_only_with_init_ext() {
        let high = InitFlags::FUSE_DIRECT_IO_ALLOW_MMAP;
        let with = Offer::parse(&offer(&[7, 45, 131_072, 1 << 30, 1 << 4])).unwrap();
        assert!(with.flags.contains(high));
        let without = Offer::parse(&offer(&[7, 35, 131_072, 0, 1 << 4])).unwrap();
        assert!(!without.flags.contains(high));
        // An old kernel's is shorter.
        assert!(Offer::parse(&offer(&[7, 31, 131_072, 0])).is_ok());
        assert_eq!(Offer::parse(&offer(&[7, 31, 131_072])), Err(Errno::EIO));
        assert_eq!(Offer::parse(&offer(&[7, 45, 0, 1 << 30])), Err(Errno::EIO));
    }

    #[test]
    fn nothing_is_agreed_on_that_the_kernel_does_not_offer() {
        let low = InitFlags::FUSE_POSIX_LOCKS | InitFlags::FUSE_MAX_PAGES;
        let offer = Offer::parse(&offer(&[7, 99, 65_536, low.bits() as u32])).unwrap();
        let features = Features {
            flags: InitFlags::FUSE_POSIX_LOCKS | InitFlags::FUSE_FLOCK_LOCKS,
            max_request_bytes: 1 << 20,
            max_read_ahead_bytes: 1 << 20,
            max_background: 64,
        };
        let (agreed, granted) = offer.agree(&features);
        assert_eq!(granted, InitFlags::FUSE_POSIX_LOCKS);
        assert_eq!(agreed.flags, low.bits());
        assert_eq!((agreed.major, agreed.minor), (7, NEWEST_MINOR));
        assert_eq!((agreed.max_read_ahead, agreed.max_write), (65_536, 1 << 20));
        assert_eq!((agreed.max_pages, agreed.congestion_threshold), (256, 48));
    }

    #[test]
    fn kernels_before_7_31_are_not_served() {
        let is_served = |major, minor| {
            let offer = Offer::parse(&offer(&[major, minor, 0, 0])).unwrap();
            offer.is_served()
        };
        assert!(is_served(7, 31) && is_served(7, 45) && is_served(7, 1000));
        assert!(!is_served(7, 30) && !is_served(8, 31) && !is_served(6, 99));
    }

    #[test]
    fn answer_is_sixty_four_bytes() {
        let (agreed, _) = Offer::parse(&offer(&[7, 45, 131_072, 1 << 30 | 1, 1 << 4]))
            .unwrap()
            .agree(&Features::default());
        let fixed = body::init(&agreed);
        let bytes = fixed.as_slice();
        assert_eq!(bytes.len(), 64);
        let word = |at: usize| u32::from_ne_bytes(bytes[at..at + 4].try_into().unwrap());
        assert_eq!([word(0), word(4), word(8)], [7, 45, 131_072]);
        assert_eq!(word(12), 1 << 30 | 1);
        assert_eq!(word(20), 1 << 20, "max_write");
        assert_eq!(word(24), 1, "time_gran");
    }
}
