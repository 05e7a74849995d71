//! What a command tells of going over to the log that the owners let stand after a fork
//! ([`bulla::shared::recovery`]), and files of rules.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use ::share::home;
use bulla::shared::recovery::Recovered;
use serde_json::{Map, Value, json};
use trust::statement::Signed;

use crate::failure::{Failure, Kind, Outcome};
use crate::output::{Output, fields};
use crate::text;

/// Tells people what became of a device while its volume was opened.
pub fn tell(recovered: &Recovered, output: &mut Output) {
    if recovered.epoch.is_some() {
        output.warn(
                "the owners of this volume have begun its log again after a fork; this device goes on there",
            );
    }
    if let Some(why) = &recovered.failed {
        output.warn(&format!(
            "what this device alone has did not come back yet: {why}. The next command tries again"
        ));
    }
    let Some(given) = recovered.given.as_ref().filter(|given| given.is_news()) else {
        return;
    };
    if given.entries > 0 {
        output.warn(&format!(
            "the log that stands does not have {} of this device",
            entries(given.entries)
        ));
    }
    for copy in &given.copies {
        let name = text::printable(copy.copy.as_bytes());
        let place = match copy.in_root {
            true => ", in the root directory, because its own is gone",
            false => "",
        };
        output.warn(&format!("it is here again as `{name}`{place}"));
    }
    for (path, why) in &given.lacking {
        let path = text::printable(path);
        output.warn(&format!(
            "`{path}` is not back: {why}, and this device does not have it either"
        ));
    }
    if !given.lacking.is_empty() {
        output.warn(
                "the next command tries again. If another server or a directory of one has the content, take it from there \
                 with `bulla share follow VOLUME --from LOCATION`; put what is lacking again if you have it as a file; \
                 give the rest up with `bulla share follow VOLUME --give-up`",
            );
    }
    if given.others > 0 {
        output.warn(&format!(
                "{} beside (to files that stand, moves, removals, decisions about members) did not come back: repeat what you still want",
                match given.others {
                    1 => "1 change".to_owned(),
                    count => format!("{count} changes"),
                }
            ));
    }
}

/// The same for the result record.
pub fn record(recovered: &Recovered) -> Map<String, Value> {
    let given = recovered.given.clone().unwrap_or_default();
    let names = given.lacking.iter();
    let names = names.map(|(path, _)| text::printable(path));
    fields(json!({
        "lacking_names": names.collect::<Vec<String>>(),
        "lost_entries": given.entries,
        "copies": given.copies.len(),
        "lacking": given.lacking.len(),
        "others": given.others,
    }))
}

/// So many entries.
pub fn entries(count: u64) -> String {
    match count {
        1 => "1 entry".to_owned(),
        count => format!("{count} entries"),
    }
}

/// Reads a file of rules: that of `share recover`, or the genesis policy of `share init`.
pub fn read(path: &Path) -> Outcome<Vec<Signed>> {
    let shown = path.display();
    let failed = |e: std::io::Error| Failure::io(format!("cannot read {shown}"), &e);
    let mut bytes = Vec::new();
    let file = File::open(path).map_err(failed)?;
    let limit = home::MAX_RULES_BYTES.saturating_add(1);
    file.take(limit).read_to_end(&mut bytes).map_err(failed)?;
    home::decode_rules(&bytes).map_err(|why| {
        let error = format!("{shown} has no rules of a shared volume");
        Failure::of(Kind::BadGenesis, error, &why)
    })
}
