//! Carries decisions out, each after a look at the members as they are then.

use super::{
    DeviceRow, MAX_DEVICES, MAX_PINS, MAX_PRINCIPALS, MAX_ROLES, Members, PrincipalRow, Span,
};
use crate::decision::{Decision, Label, Role};
use crate::outcome::{NoEffect, Written};
use crate::principal::{Device, Principal};
use trust::key::PublicKey;

impl Members {
    /// Makes a decision count from the position `since` on, if it still can.
    pub(super) fn apply(
        &mut self,
        decision: &Decision,
        written: &Written,
        since: u64,
    ) -> Result<(), NoEffect> {
        if !self.may_decide(written.device, decision, since) {
            return Err(NoEffect::NotPermitted);
        }
        match decision {
            Decision::AdmitDevice { device, key, user } => self.admit(*device, *key, *user, since),
            Decision::RemoveDevice { device } => self.remove_device(*device, since),
            Decision::AddUser { user, label } => self.add(*user, false, label, since),
            Decision::AddGroup { group, label } => self.add(*group, true, label, since),
            Decision::RemovePrincipal { principal } => self.remove(*principal, since),
            Decision::Grant { group, user, role } => {
                self.set_role(*group, *user, Some(*role), since)
            }
            Decision::Revoke { group, user } => self.set_role(*group, *user, None, since),
            Decision::Accept { device } => self.accept(*device, written.seen, since),
            Decision::NameDevice { device, label } => self.name(*device, label, since),
            Decision::Pin { label, size } => self.pin(label, *size, written.position),
            Decision::Unpin { label } => {
                let pinned = self.pins.remove(label);
                pinned.map(drop).ok_or(NoEffect::NotFound)
            }
            Decision::Retain { seconds } => {
                self.retention_s = Some(*seconds);
                Ok(())
            }
        }
    }

    /// `decided`: position of the entry that gives the name. What comes after it has no name yet.
    fn pin(&mut self, label: &Label, size: u64, decided: u64) -> Result<(), NoEffect> {
        if size > decided {
            return Err(NoEffect::NotFound);
        }
        if self.pins.contains_key(label) {
            return Err(NoEffect::Exists);
        }
        if self.pins.len() >= MAX_PINS {
            return Err(NoEffect::TooMany);
        }
        self.pins.insert(label.clone(), size);
        Ok(())
    }

    fn exists(&self, principal: Principal, is_group: bool, since: u64) -> Result<(), NoEffect> {
        match self.principals.get(&principal) {
            Some(row) if row.is_group == is_group && row.exists.covers(since) => Ok(()),
            _ => Err(NoEffect::NotFound),
        }
    }

    fn admit(
        &mut self,
        device: Device,
        key: PublicKey,
        user: Principal,
        since: u64,
    ) -> Result<(), NoEffect> {
        self.exists(user, false, since)?;
        if self.devices.len() >= MAX_DEVICES {
            return Err(NoEffect::TooMany);
        }
        if self.devices.contains_key(&device) || self.numbers.contains_key(&key) {
            return Err(NoEffect::Exists);
        }
        self.numbers.insert(key, device);
        let member = Span::from(since);
        let row = DeviceRow {
            key,
            user,
            member,
            label: None,
        };
        self.devices.insert(device, row);
        Ok(())
    }

    fn remove_device(&mut self, device: Device, since: u64) -> Result<(), NoEffect> {
        if !self.active(device, since) {
            return Err(NoEffect::NotFound);
        }
        if !self.has_admin(since, |other, _| other != device) {
            return Err(NoEffect::Needed);
        }
        if let Some(row) = self.devices.get_mut(&device) {
            row.member.until = Some(since);
        }
        Ok(())
    }

    fn name(&mut self, device: Device, label: &Label, since: u64) -> Result<(), NoEffect> {
        match self.devices.get_mut(&device) {
            Some(row) if row.member.covers(since) => row.label = Some(label.clone()),
            _ => return Err(NoEffect::NotFound),
        }
        Ok(())
    }

    fn add(
        &mut self,
        principal: Principal,
        is_group: bool,
        label: &Label,
        since: u64,
    ) -> Result<(), NoEffect> {
        if self.principals.len() >= MAX_PRINCIPALS {
            return Err(NoEffect::TooMany);
        }
        let same = |row: &PrincipalRow| row.label == *label && row.exists.covers(since);
        if self.principals.contains_key(&principal) || self.principals.values().any(same) {
            return Err(NoEffect::Exists);
        }
        let row = PrincipalRow {
            is_group,
            label: label.clone(),
            exists: Span::from(since),
        };
        self.principals.insert(principal, row);
        Ok(())
    }

    fn remove(&mut self, principal: Principal, since: u64) -> Result<(), NoEffect> {
        if principal == self.volume {
            return Err(NoEffect::Needed);
        }
        let active = |device: &Device| self.user(*device) == Some(principal);
        if self.devices(since).any(|device| active(&device)) {
            return Err(NoEffect::NotEmpty);
        }
        match self.principals.get_mut(&principal) {
            Some(row) if row.exists.covers(since) => row.exists.until = Some(since),
            _ => return Err(NoEffect::NotFound),
        }
        Ok(())
    }

    fn set_role(
        &mut self,
        group: Principal,
        user: Principal,
        role: Option<Role>,
        since: u64,
    ) -> Result<(), NoEffect> {
        self.exists(group, true, since)?;
        if role.is_some() {
            self.exists(user, false, since)?;
        }
        let of_volume = group == self.volume && role != Some(Role::Admin);
        if of_volume && !self.has_admin(since, |_, other| other != user) {
            return Err(NoEffect::Needed);
        }
        if self.roles.len() >= MAX_ROLES && !self.roles.contains_key(&(group, user)) {
            return Err(NoEffect::TooMany);
        }
        let steps = self.roles.entry((group, user)).or_default();
        steps.retain(|(from, _)| *from < since);
        steps.push((since, role));
        Ok(())
    }

    fn accept(&mut self, device: Device, seen: u64, since: u64) -> Result<(), NoEffect> {
        if !self.devices.contains_key(&device) {
            return Err(NoEffect::NotFound);
        }
        let before = self.accepted(device, since);
        let steps = self.accepted.entry(device).or_default();
        steps.retain(|(from, _)| *from < since);
        steps.push((since, seen.max(before)));
        Ok(())
    }

    /// Whether a device of an administrator is left among those that `counts` names, with their users.
    fn has_admin(&self, since: u64, counts: impl Fn(Device, Principal) -> bool) -> bool {
        self.devices(since).any(|device| {
            let user = self.user(device);
            user.is_some_and(|user| counts(device, user)) && self.is_admin(device, since)
        })
    }
}
