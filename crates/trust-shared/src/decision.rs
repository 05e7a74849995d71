//! Changes of members, Accept, and what a server keeps: what administrators decide in the log. They take effect late
//! ([`super::members`]). Relies on [`super::key`] and [`trust::key`].

use super::key::Key;
use super::principal::{Device, Principal, Reader, Writer};
pub use super::principal::{Label, MAX_LABEL_BYTES};
use trust::error::Reject;
use trust::key::PublicKey;

/// The shortest time for which replaced versions may be asked to be kept, seconds.
pub const MIN_RETENTION_S: u64 = 24 * 3600;

/// What a user may do with the files of a group. Each role has the rights of those before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Role {
    /// Reads.
    Reader = 1,
    /// Writes.
    Writer = 2,
    /// Changes the members of the group.
    Admin = 3,
}

impl Role {
    pub(super) fn from_byte(byte: u8) -> Option<Role> {
        let all = [Role::Reader, Role::Writer, Role::Admin];
        all.into_iter().find(|role| *role as u8 == byte)
    }
}

/// What an administrator decides.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Decision {
    /// A device becomes a member.
    AdmitDevice {
        /// Its number, never used before.
        device: Device,
        /// Its key, never used before.
        key: PublicKey,
        /// The user whose device it is.
        user: Principal,
    },
    /// A device is no member any more.
    RemoveDevice {
        /// The device.
        device: Device,
    },
    /// A new user.
    AddUser {
        /// The user.
        user: Principal,
        /// Its name.
        label: Label,
    },
    /// A new group.
    AddGroup {
        /// The group.
        group: Principal,
        /// Its name.
        label: Label,
    },
    /// A user without devices, or a group, is gone. Nobody can write its files any more.
    RemovePrincipal {
        /// The user or group.
        principal: Principal,
    },
    /// A user gets a role in a group.
    Grant {
        /// The group.
        group: Principal,
        /// The user.
        user: Principal,
        /// The role.
        role: Role,
    },
    /// A user has no role in a group any more.
    Revoke {
        /// The group.
        group: Principal,
        /// The user.
        user: Principal,
    },
    /// Entries of a silent device count as far as the author has seen them.
    Accept {
        /// The device.
        device: Device,
    },
    /// A device gets a name for people, or another one. Nothing is decided by it, and several devices may have one name.
    NameDevice {
        /// The device.
        device: Device,
        /// Its name.
        label: Label,
    },
    /// The volume as it was after a prefix of the log gets a name, and the server keeps what it needs.
    Pin {
        /// The name, which no other snapshot has.
        label: Label,
        /// Size of the prefix, at least 1.
        size: u64,
    },
    /// A snapshot has no name any more.
    Unpin {
        /// The name.
        label: Label,
    },
    /// For how long the server keeps what was replaced.
    Retain {
        /// At least [`MIN_RETENTION_S`].
        seconds: u64,
    },
}

impl Decision {
    /// What it changes.
    pub fn key(&self) -> Key {
        match self {
            Decision::AdmitDevice { device, .. }
            | Decision::RemoveDevice { device }
            | Decision::NameDevice { device, .. } => Key::Device(*device),
            Decision::AddUser { user, .. } => Key::Principal(*user),
            Decision::AddGroup { group, .. } => Key::Principal(*group),
            Decision::RemovePrincipal { principal } => Key::Principal(*principal),
            Decision::Grant { group, user, .. } | Decision::Revoke { group, user } => {
                Key::Role(*group, *user)
            }
            Decision::Accept { device } => Key::Accepted(*device),
            Decision::Pin { label, .. } | Decision::Unpin { label } => Key::Pin(label.clone()),
            Decision::Retain { .. } => Key::Retention,
        }
    }

    pub(super) fn encode(&self, w: &mut Writer) {
        match self {
            Decision::AdmitDevice { device, key, user } => {
                w.out.u8(8);
                device.encode(&mut w.out);
                w.out.raw(key.as_bytes());
                w.principal(user);
            }
            Decision::RemoveDevice { device } => {
                w.out.u8(9);
                device.encode(&mut w.out);
            }
            Decision::AddUser { user, label } => {
                w.out.u8(10);
                w.principal(user);
                w.out.bytes(label.as_str().as_bytes());
            }
            Decision::AddGroup { group, label } => {
                w.out.u8(11);
                w.principal(group);
                w.out.bytes(label.as_str().as_bytes());
            }
            Decision::RemovePrincipal { principal } => {
                w.out.u8(12);
                w.principal(principal);
            }
            Decision::Grant { group, user, role } => {
                w.out.u8(13);
                w.principal(group);
                w.principal(user);
                w.out.u8(*role as u8);
            }
            Decision::Revoke { group, user } => {
                w.out.u8(14);
                w.principal(group);
                w.principal(user);
            }
            Decision::Accept { device } => {
                w.out.u8(15);
                device.encode(&mut w.out);
            }
            Decision::NameDevice { device, label } => {
                w.out.u8(18);
                device.encode(&mut w.out);
                w.out.bytes(label.as_str().as_bytes());
            }
            Decision::Pin { label, size } => {
                w.out.u8(23).bytes(label.as_str().as_bytes()).varint(*size);
            }
            Decision::Unpin { label } => {
                w.out.u8(24).bytes(label.as_str().as_bytes());
            }
            Decision::Retain { seconds } => {
                w.out.u8(25).varint(*seconds);
            }
        }
    }

    pub(super) fn decode(tag: u8, r: &mut Reader<'_>) -> Result<Decision, Reject> {
        Ok(match tag {
            8 => Decision::AdmitDevice {
                device: Device::decode(&mut r.rest)?,
                key: PublicKey::from_bytes(r.rest.array()?)?,
                user: r.principal()?,
            },
            9 => Decision::RemoveDevice {
                device: Device::decode(&mut r.rest)?,
            },
            10 => Decision::AddUser {
                user: r.principal()?,
                label: Label::decode(r)?,
            },
            11 => Decision::AddGroup {
                group: r.principal()?,
                label: Label::decode(r)?,
            },
            12 => Decision::RemovePrincipal {
                principal: r.principal()?,
            },
            13 => {
                let (group, user, byte) = (r.principal()?, r.principal()?, r.rest.u8()?);
                let role = Role::from_byte(byte).ok_or_else(|| r.rest.bad("an unknown role"))?;
                Decision::Grant { group, user, role }
            }
            14 => Decision::Revoke {
                group: r.principal()?,
                user: r.principal()?,
            },
            15 => Decision::Accept {
                device: Device::decode(&mut r.rest)?,
            },
            18 => Decision::NameDevice {
                device: Device::decode(&mut r.rest)?,
                label: Label::decode(r)?,
            },
            23 => {
                let (label, size) = (Label::decode(r)?, r.rest.varint()?);
                if size == 0 {
                    return Err(r.rest.bad("a snapshot of nothing"));
                }
                Decision::Pin { label, size }
            }
            24 => Decision::Unpin {
                label: Label::decode(r)?,
            },
            25 => {
                let seconds = r.rest.varint()?;
                if seconds < MIN_RETENTION_S {
                    return Err(r.rest.bad("a retention of less than a day"));
                }
                Decision::Retain { seconds }
            }
            _ => return Err(r.rest.bad("an unknown kind of change")),
        })
    }
}
