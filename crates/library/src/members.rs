//! Users, groups and devices of a shared volume by the names that people use. Two users may have one name, because two
//! administrators can add them at one time; such a name is refused where it must mean one of them.

use std::fmt;

use share::files::Roll;
use trust::device::DeviceKey;
use trust::key::PublicKey;
use trust_shared::decision::{Label, Role};
use trust_shared::principal::{Device, Principal};

/// Why a name of a user, group or device means nobody.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum MemberError {
    /// No user or group has the name.
    #[error("the volume has no {what} `{name}`")]
    None {
        /// `user` or `group`.
        what: &'static str,
        /// The name.
        name: String,
    },
    /// Several users or groups have the name.
    #[error("the volume has several {what}s `{name}`")]
    Several {
        /// `user` or `group`.
        what: &'static str,
        /// The name.
        name: String,
    },
    /// No device has the name.
    #[error("the volume has no device {0}")]
    NoDevice(String),
    /// Several devices have the name.
    #[error("the volume has several devices {name}")]
    SeveralDevices {
        /// The name.
        name: String,
        /// Numbers of two of them.
        numbers: [u32; 2],
    },
    /// This device is no member.
    #[error("this device is no member of the volume")]
    NotMember,
    /// This device's user cannot change the members of the volume.
    #[error("{0} is no administrator of the volume")]
    NotAdmin(String),
    /// The volume can have no more devices.
    #[error("the volume has too many devices")]
    TooManyDevices,
}

/// A device, as people write it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DeviceName {
    /// By its number.
    Number(Device),
    /// By its key.
    Key(PublicKey),
    /// By the name of its user and its own: `ben/laptop`.
    Named(String),
}

/// The members after a prefix of the log.
pub struct Membership(Roll);

impl fmt::Display for DeviceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DeviceName::Number(number) => write!(f, "{}", number.0),
            DeviceName::Key(key) => write!(f, "{key}"),
            DeviceName::Named(name) => write!(f, "`{name}`"),
        }
    }
}

/// A device, for people.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Member {
    /// Its number.
    pub device: Device,
    /// Its key.
    pub key: DeviceKey,
    /// Its user.
    pub principal: Principal,
    /// The name of its user.
    pub user: String,
    /// The name that an administrator has given it.
    pub label: Option<String>,
}

impl Member {
    /// Its number, its user, and its name if it has one, for people.
    pub fn shown(&self) -> String {
        let (number, user) = (self.device.0, &self.user);
        match &self.label {
            Some(label) => format!("device {number} of {user} ({label})"),
            None => format!("device {number} of {user}"),
        }
    }
}

impl Membership {
    /// The members of a roll.
    pub fn of(roll: Roll) -> Membership {
        Membership(roll)
    }

    /// Size of the log at which these are the members.
    pub fn size(&self) -> u64 {
        self.0.at
    }

    /// Names of snapshots, each with the number of the entry after which the volume was so.
    pub fn snapshots(&self) -> impl Iterator<Item = (&str, u64)> {
        let pins = self.0.members.pins().iter();
        pins.map(|(label, size)| (label.as_str(), size.saturating_sub(1)))
    }

    /// For how long the server is asked to keep what was replaced, seconds. None: nobody has decided it.
    pub fn retention_s(&self) -> Option<u64> {
        self.0.members.retention_s()
    }

    /// The number of the entry after which the volume was as a snapshot has it.
    pub fn snapshot(&self, name: &str) -> Option<u64> {
        let mut snapshots = self.snapshots();
        snapshots.find_map(|(other, entry)| (other == name).then_some(entry))
    }

    /// The name of a user or group.
    pub fn name(&self, principal: Principal) -> String {
        let label = self.0.members.label(principal);
        label.map_or("?", Label::as_str).to_owned()
    }

    /// The name of the user whose device wrote an entry, also when it is no member any more.
    pub fn author(&self, device: Device) -> String {
        let user = self.0.members.user(device);
        user.map_or_else(|| "?".to_owned(), |user| self.name(user))
    }

    /// The name of a device that wrote an entry, if it has one.
    pub fn device_label(&self, device: Device) -> Option<String> {
        let label = self.0.members.device_label(device)?;
        Some(label.as_str().to_owned())
    }

    /// The user whose device wrote an entry, with the name of the device if it has one: `ben's laptop`.
    pub fn whose(&self, device: Device) -> String {
        let user = self.author(device);
        match self.device_label(device) {
            Some(label) => format!("{user}'s {label}"),
            None => user,
        }
    }

    /// Whether this device's user may read the files of a user or group.
    pub fn may_read(&self, key: &PublicKey, owner: Principal) -> bool {
        let members = &self.0.members;
        let device = members.number(key);
        device.is_some_and(|device| members.may_read(device, owner, self.0.at))
    }

    /// The users, by name.
    pub fn users(&self) -> Vec<(Principal, String)> {
        self.named(false)
    }

    /// The groups, by name.
    pub fn groups(&self) -> Vec<(Principal, String)> {
        self.named(true)
    }

    fn named(&self, groups: bool) -> Vec<(Principal, String)> {
        let members = &self.0.members;
        let all = members.principals(self.0.at);
        let wanted = all.filter(|(principal, _)| members.is_group(*principal) == groups);
        let mut named: Vec<(Principal, String)> = wanted
            .map(|(principal, label)| (principal, label.as_str().to_owned()))
            .collect();
        named.sort_by(|a, b| (&a.1, a.0).cmp(&(&b.1, b.0)));
        named
    }

    /// The user with this name.
    pub fn user(&self, name: &Label) -> Result<Principal, MemberError> {
        one(&self.users(), name, "user")
    }

    /// The group with this name.
    pub fn group(&self, name: &Label) -> Result<Principal, MemberError> {
        one(&self.groups(), name, "group")
    }

    /// Whether a user or group has this name.
    pub fn has(&self, name: &Label, groups: bool) -> bool {
        let named = self.named(groups);
        named.iter().any(|(_, known)| known == name.as_str())
    }

    /// The group that owns the root directory.
    pub fn everybody(&self) -> Principal {
        self.0.members.volume()
    }

    /// The roles in a group: names of users, each with its role.
    pub fn roles(&self, group: Principal) -> Vec<(String, Role)> {
        let members = &self.0.members;
        let roles = members.roles(group, self.0.at);
        let mut named: Vec<(String, Role)> =
            roles.map(|(user, role)| (self.name(user), role)).collect();
        named.sort();
        named
    }

    /// How many users may change the members of a group.
    pub fn admins(&self, group: Principal) -> usize {
        let roles = self.0.members.roles(group, self.0.at);
        roles.filter(|(_, role)| *role == Role::Admin).count()
    }

    /// The devices, by number.
    pub fn devices(&self) -> Vec<Member> {
        let members = &self.0.members;
        let devices = members.devices(self.0.at);
        let member = |device| {
            let user = members.user(device)?;
            Some(Member {
                device,
                key: DeviceKey::from(members.key(device)?),
                principal: user,
                user: self.name(user),
                label: self.device_label(device),
            })
        };
        devices.filter_map(member).collect()
    }

    /// The device that a user has named.
    pub fn device(&self, name: &DeviceName) -> Result<Member, MemberError> {
        let wanted = |member: &Member| match name {
            DeviceName::Number(number) => member.device == *number,
            DeviceName::Key(key) => member.key == DeviceKey::from(key),
            DeviceName::Named(name) => {
                let label = member.label.as_deref();
                label.is_some_and(|label| *name == format!("{}/{label}", member.user))
            }
        };
        let mut found = self.devices().into_iter().filter(wanted);
        match (found.next(), found.next()) {
            (Some(member), None) => Ok(member),
            (Some(one), Some(other)) => Err(MemberError::SeveralDevices {
                name: name.to_string(),
                numbers: [one.device.0, other.device.0],
            }),
            (None, _) => Err(MemberError::NoDevice(name.to_string())),
        }
    }

    /// The device with a key.
    pub fn with_key(&self, key: &DeviceKey) -> Option<Member> {
        let mut devices = self.devices().into_iter();
        devices.find(|member| member.key == *key)
    }

    /// This device, if it is a member.
    pub fn own(&self, key: &PublicKey) -> Result<Member, MemberError> {
        self.with_key(&DeviceKey::from(key))
            .ok_or(MemberError::NotMember)
    }

    /// Refuses a device whose user cannot change the members of the volume.
    pub fn require_admin(&self, key: &PublicKey) -> Result<(), MemberError> {
        let own = self.own(key)?;
        if self.0.members.is_admin(own.device, self.0.at) {
            return Ok(());
        }
        Err(MemberError::NotAdmin(own.user))
    }

    /// The user whose device has a key.
    pub fn user_of(&self, key: &PublicKey) -> Result<Principal, MemberError> {
        self.own(key).map(|member| member.principal)
    }

    /// The role of a user in a group.
    pub fn role(&self, group: Principal, user: Principal) -> Option<Role> {
        let mut roles = self.0.members.roles(group, self.0.at);
        roles.find_map(|(member, role)| (member == user).then_some(role))
    }

    /// A number for a new device.
    pub fn next_device(&self) -> Result<Device, MemberError> {
        let next = self.0.members.next_device();
        next.ok_or(MemberError::TooManyDevices)
    }
}

fn one(
    named: &[(Principal, String)],
    name: &Label,
    what: &'static str,
) -> Result<Principal, MemberError> {
    let wanted = named.iter().filter(|(_, known)| known == name.as_str());
    let found: Vec<Principal> = wanted.map(|(principal, _)| *principal).collect();
    let name = name.as_str().to_owned();
    match found.as_slice() {
        [principal] => Ok(*principal),
        [] => Err(MemberError::None { what, name }),
        _ => Err(MemberError::Several { what, name }),
    }
}
