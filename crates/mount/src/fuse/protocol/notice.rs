//! The bytes of notifications: what the kernel's caches must drop, or take.

use super::{OUT_HEADER_BYTES, out_header};
use crate::fuse::types::INodeNo;

const INVAL_INODE: i32 = 2;
const STORE: i32 = 4;
const INC_EPOCH: i32 = 8;
const PRUNE: i32 = 9;

/// From which minor version on the kernel knows INC_EPOCH: Linux 6.16.
pub const INC_EPOCH_MINOR: u32 = 44;
/// From which minor version on the kernel knows PRUNE: Linux 6.18.
pub const PRUNE_MINOR: u32 = 45;

/// Every name is stale. There is no body.
pub fn inc_epoch() -> [u8; OUT_HEADER_BYTES] {
    out_header(0, INC_EPOCH, 0)
}

/// Attributes of `inode` are stale, and `length` bytes of its pages from `offset` on. A negative offset keeps all
/// pages.
pub fn inval_inode(inode: INodeNo, offset: i64, length: i64) -> Vec<u8> {
    let mut message = out_header(24, INVAL_INODE, 0).to_vec();
    message.extend(inode.0.to_ne_bytes());
    message.extend(offset.to_ne_bytes());
    message.extend(length.to_ne_bytes());
    message
}

/// What comes before `bytes` that the page cache of `inode` takes.
pub fn store(inode: INodeNo, offset: u64, bytes: u32) -> Vec<u8> {
    let mut message = out_header(24 + bytes as usize, STORE, 0).to_vec();
    message.extend(inode.0.to_ne_bytes());
    message.extend(offset.to_ne_bytes());
    message.extend(bytes.to_ne_bytes());
    message.extend([0; 4]);
    message
}

/// The inodes are dropped if nothing uses them, with what is cached of them.
pub fn prune(inodes: &[INodeNo]) -> Vec<u8> {
    let count = u32::try_from(inodes.len()).unwrap_or(u32::MAX);
    let inodes = &inodes[..count as usize];
    let mut message = out_header(16 + 8 * inodes.len(), PRUNE, 0).to_vec();
    message.extend(count.to_ne_bytes());
    message.extend([0; 12]);
    for inode in inodes {
        message.extend(inode.0.to_ne_bytes());
    }
    message
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_has_its_code_and_its_length() {
        let header = |message: &[u8]| {
            let length = u32::from_ne_bytes(message[..4].try_into().unwrap());
            let code = i32::from_ne_bytes(message[4..8].try_into().unwrap());
            assert_eq!(message[8..16], [0; 8], "no request has the number 0");
            (length as usize, code)
        };
        let inode = INodeNo(5);
        assert_eq!(header(&inc_epoch()), (16, 8));
        assert_eq!(header(&inval_inode(inode, -1, 0)), (40, 2));
        assert_eq!(header(&store(inode, 0, 100)), (140, 4));
        assert_eq!(store(inode, 0, 100).len(), 40);
        let two = prune(&[inode, INodeNo(6)]);
        assert_eq!(header(&two), (two.len(), 9));
        assert_eq!(two[16..20], 2_u32.to_ne_bytes());
        assert_eq!(two[32..40], 5_u64.to_ne_bytes());
    }
}
