//! `bulla share device|user|group`, `grant`, `revoke`, `accept`: who may read and write. Each is a decision in the log of
//! the volume, signed by this device.

use serde_json::{Value, json};
use trust::device::DeviceKey;
use trust_shared::decision::{Decision, Label, Role};
use trust_shared::principal::Principal;

use crate::args::{
    ShareDevice, ShareDeviceRename, ShareGrant, ShareGroup, ShareRole, ShareUserAdd, ShareVolume,
    parse_new_label,
};
use crate::config::Config;
use crate::failure::{Failure, Kind, Outcome};
use crate::output::{Done, Output, fields};
use crate::sharing::random;
use crate::sharing::reading::Opening;
use crate::sharing::session::Opened;
use bulla::members::Membership;
use bulla::shared::SharedVolume;

/// The word for a role.
pub fn word(role: Role) -> &'static str {
    match role {
        Role::Reader => "reader",
        Role::Writer => "writer",
        Role::Admin => "admin",
    }
}

/// Runs a decision that `work` makes.
pub fn decide(
    config: &Config,
    output: &mut Output,
    (volume, waiting): (&str, &crate::args::Waiting),
    work: impl AsyncFnOnce(&SharedVolume, &Membership) -> Outcome<Value>,
) -> Outcome<Done> {
    let shared = Opened::named(config, volume, waiting)?;
    let decided = shared.run(async {
        let members = shared.members().await?;
        work(&shared, &members).await
    });
    Ok(Done::ok(fields(shared.close(decided, output)?)))
}

/// Removes a device.
pub fn remove_device(args: &ShareDevice, config: &Config, output: &mut Output) -> Outcome<Done> {
    let named = (args.volume.as_str(), &args.waiting);
    decide(config, output, named, async |shared, members| {
        let member = members.device(&args.device)?;
        if member.key == DeviceKey::from(shared.home().device()) {
            let error = format!("device {} is this device", member.device.0);
            let hint = "an administrator removes it with another device. `bulla share forget VOLUME` removes its key and its \
                        memory from this machine";
            return Err(Failure::new(Kind::Usage, error).with_hint(hint));
        }
        let decision = Decision::RemoveDevice {
            device: member.device,
        };
        let about = || format!("device {}", member.device.0);
        shared.decide(decision, &about).await?;
        Ok(json!({"device": member.device.0, "user": member.user}))
    })
}

/// Gives a device a name.
pub fn name_device(
    args: &ShareDeviceRename,
    config: &Config,
    output: &mut Output,
) -> Outcome<Done> {
    let (label, args) = (&args.name, &args.of);
    let named = (args.volume.as_str(), &args.waiting);
    decide(config, output, named, async |shared, members| {
        let member = members.device(&args.device)?;
        let decision = Decision::NameDevice {
            device: member.device,
            label: label.clone(),
        };
        let about = || format!("device {}", member.device.0);
        shared.decide(decision, &about).await?;
        Ok(json!({"device": member.device.0, "user": member.user, "device_name": label.as_str()}))
    })
}

/// Accepts what a silent device wrote.
pub fn accept(args: &ShareDevice, config: &Config, output: &mut Output) -> Outcome<Done> {
    let named = (args.volume.as_str(), &args.waiting);
    decide(config, output, named, async |shared, members| {
        let member = members.device(&args.device)?;
        let decision = Decision::Accept {
            device: member.device,
        };
        let about = || format!("device {}", member.device.0);
        shared.decide(decision, &about).await?;
        Ok(json!({"device": member.device.0, "user": member.user}))
    })
}

/// Adds a user, and gives it a role in the group that owns the root directory.
pub fn add_user(args: &ShareUserAdd, config: &Config, output: &mut Output) -> Outcome<Done> {
    let named = (args.volume.as_str(), &args.waiting);
    decide(config, output, named, async |shared, members| {
        refuse_known(members, &args.name, false)?;
        let user = Principal::from_bytes(random()?);
        let role = args.role.unwrap_or(Role::Writer);
        let about = || args.name.as_str().to_owned();
        let add = Decision::AddUser {
            user,
            label: args.name.clone(),
        };
        shared.decide(add, &about).await?;
        let grant = Decision::Grant {
            group: members.everybody(),
            user,
            role,
        };
        shared.decide(grant, &about).await?;
        Ok(json!({"user": args.name.as_str(), "role": word(role)}))
    })
}

/// Adds a group. The user who adds it becomes its administrator.
pub fn add_group(args: &ShareGroup, config: &Config, output: &mut Output) -> Outcome<Done> {
    parse_new_label(args.group.as_str()).map_err(|why| Failure::new(Kind::Usage, why))?;
    let named = (args.volume.as_str(), &args.waiting);
    decide(config, output, named, async |shared, members| {
        refuse_known(members, &args.group, true)?;
        let group = Principal::from_bytes(random()?);
        let about = || args.group.as_str().to_owned();
        let add = Decision::AddGroup {
            group,
            label: args.group.clone(),
        };
        shared.decide(add, &about).await?;
        let user = members.user_of(shared.home().device())?;
        let grant = Decision::Grant {
            group,
            user,
            role: Role::Admin,
        };
        shared.decide(grant, &about).await?;
        Ok(json!({"group": args.group.as_str()}))
    })
}

fn refuse_known(members: &Membership, name: &Label, group: bool) -> Outcome<()> {
    if !members.has(name, group) {
        return Ok(());
    }
    let what = if group { "group" } else { "user" };
    let error = format!("the volume has a {what} `{}` already", name.as_str());
    Err(Failure::new(Kind::Exists, error).with_hint("choose another name"))
}

/// Removes a group.
pub fn remove_group(args: &ShareGroup, config: &Config, output: &mut Output) -> Outcome<Done> {
    let named = (args.volume.as_str(), &args.waiting);
    decide(config, output, named, async |shared, members| {
        let principal = members.group(&args.group)?;
        let about = || args.group.as_str().to_owned();
        let decision = Decision::RemovePrincipal { principal };
        shared.decide(decision, &about).await?;
        Ok(json!({"group": args.group.as_str()}))
    })
}

/// Gives a role.
pub fn grant(args: &ShareGrant, config: &Config, output: &mut Output) -> Outcome<Done> {
    let (role, args) = (args.role, &args.of);
    let named = (args.volume.as_str(), &args.waiting);
    decide(config, output, named, async |shared, members| {
        let (group, user) = (members.group(&args.group)?, members.user(&args.user)?);
        if role != Role::Admin && !args.without_admin {
            keeps_admin(members, (group, user), (&args.group, &args.user))?;
        }
        let about = || format!("{} in {}", args.user.as_str(), args.group.as_str());
        let decision = Decision::Grant { group, user, role };
        shared.decide(decision, &about).await?;
        let (group, user) = (args.group.as_str(), args.user.as_str());
        Ok(json!({"group": group, "user": user, "role": word(role)}))
    })
}

/// Refuses to take the role of a group's last administrator. For the group of all users the log's rules do.
fn keeps_admin(
    members: &Membership,
    (group, user): (Principal, Principal),
    (group_name, user_name): (&Label, &Label),
) -> Outcome<()> {
    let is_last = members.role(group, user) == Some(Role::Admin) && members.admins(group) == 1;
    if group == members.everybody() || !is_last {
        return Ok(());
    }
    let (group, user) = (group_name.as_str(), user_name.as_str());
    let error = format!("{user} in {group}: the group would have no administrator");
    let hint = format!(
        "make another user an administrator first: `bulla share grant VOLUME {group} USER admin`. With --without-admin only \
         the administrators of everybody can change its members then"
    );
    Err(Failure::new(Kind::Misfit, error).with_hint(hint))
}

/// Takes a role away.
pub fn revoke(args: &ShareRole, config: &Config, output: &mut Output) -> Outcome<Done> {
    let named = (args.volume.as_str(), &args.waiting);
    decide(config, output, named, async |shared, members| {
        let (group, user) = (members.group(&args.group)?, members.user(&args.user)?);
        let about = || format!("{} in {}", args.user.as_str(), args.group.as_str());
        if members.role(group, user).is_none() {
            let error = format!("{}: no such role", about());
            let hint = "`bulla share group list VOLUME` shows the roles";
            return Err(Failure::new(Kind::NoMember, error).with_hint(hint));
        }
        if !args.without_admin {
            keeps_admin(members, (group, user), (&args.group, &args.user))?;
        }
        let decision = Decision::Revoke { group, user };
        shared.decide(decision, &about).await?;
        Ok(json!({"group": args.group.as_str(), "user": args.user.as_str()}))
    })
}

/// The members of the volume that `args` names.
pub fn members(
    args: &ShareVolume,
    config: &Config,
    output: &mut Output,
) -> Outcome<(Membership, String)> {
    let opening = Opening::named(config, &args.volume, &args.waiting)?;
    opening.read(output, async |shared, _| {
        let own = DeviceKey::from(shared.home().device()).to_string();
        Ok((shared.members().await?, own))
    })
}

/// Lists devices.
pub fn devices(args: &ShareVolume, config: &Config, output: &mut Output) -> Outcome<Done> {
    let (members, own) = members(args, config, output)?;
    let devices = members.devices();
    for member in &devices {
        let (number, key, user) = (member.device.0, member.key.to_string(), &member.user);
        let is_own = key == own;
        if output.json() {
            let record = json!({
                "device": number, "key": key, "user": user, "device_name": member.label, "this": is_own
            });
            output.record("device", fields(record))?;
        } else {
            let this = if is_own { "  (this device)" } else { "" };
            output.raw(format!("{number:>5}  {key}  ").as_bytes())?;
            let name = match &member.label {
                Some(label) => format!("{user}/{label}"),
                None => user.clone(),
            };
            output.name(name.as_bytes())?;
            output.raw(format!("{this}\n").as_bytes())?;
        }
    }
    Ok(Done::ok(fields(json!({"devices": devices.len()}))))
}

/// Lists users, with their roles.
pub fn users(args: &ShareVolume, config: &Config, output: &mut Output) -> Outcome<Done> {
    let (members, _) = members(args, config, output)?;
    let users = members.users();
    let groups = members.groups();
    let devices = members.devices();
    for (principal, name) in &users {
        let numbers: Vec<u32> = devices
            .iter()
            .filter(|member| member.principal == *principal)
            .map(|member| member.device.0)
            .collect();
        let mut roles = Vec::new();
        for (group, label) in &groups {
            if let Some(role) = members.role(*group, *principal) {
                roles.push((label.clone(), word(role)));
            }
        }
        if output.json() {
            let roles = roles
                .iter()
                .map(|(group, role)| json!({"group": group, "role": role}));
            let roles: Vec<Value> = roles.collect();
            let record = json!({"user": name, "devices": numbers, "roles": roles});
            output.record("user", fields(record))?;
        } else {
            let numbers: Vec<String> = numbers.iter().map(u32::to_string).collect();
            let roles = roles
                .iter()
                .map(|(group, role)| format!("{role} in {group}"));
            let roles: Vec<String> = roles.collect();
            output.name(name.as_bytes())?;
            let devices = match numbers.as_slice() {
                [] => "no device".to_owned(),
                [one] => format!("device {one}"),
                several => format!("devices {}", several.join(", ")),
            };
            output.raw(b"  ")?;
            output.name(format!("{devices}; {}", roles.join(", ")).as_bytes())?;
            output.raw(b"\n")?;
        }
    }
    Ok(Done::ok(fields(json!({"users": users.len()}))))
}

/// Lists groups, with their members.
pub fn groups(args: &ShareVolume, config: &Config, output: &mut Output) -> Outcome<Done> {
    let (members, _) = members(args, config, output)?;
    let groups = members.groups();
    for (principal, name) in &groups {
        let roles = members.roles(*principal);
        if output.json() {
            let roles = roles
                .iter()
                .map(|(user, role)| json!({"user": user, "role": word(*role)}));
            let record = json!({"group": name, "members": roles.collect::<Vec<Value>>()});
            output.record("group", fields(record))?;
        } else {
            let roles = roles
                .iter()
                .map(|(user, role)| format!("{user} ({})", word(*role)));
            let roles: Vec<String> = roles.collect();
            output.name(format!("{name}  {}", roles.join(", ")).as_bytes())?;
            output.raw(b"\n")?;
        }
    }
    Ok(Done::ok(fields(json!({"groups": groups.len()}))))
}
