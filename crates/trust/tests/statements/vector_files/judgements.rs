//! Whole judgements: a floor, the heads that mirrors show, clocks, and what a reader makes of them. The cases are
//! in `cases`; here they are judged and written.

use trust::Reject;
use trust::floor::Floor;
use trust::head::Head;
use trust::judge::{Freshness, Offer, Terms};
use trust::signatures::Signatures;

use super::lines::{hex, verdict};
use crate::world::*;

const HEADER: &str = "\
# Whole judgements (docs/formats/verification.md, 2 to 10). Bytes as in refused.txt.
# head NAME BYTES, floor NAME BYTES: named once, used by the cases after them.
# case NAME, then what is given:
#   volume HEX
#   wall N, now N           the two clocks, unix seconds
#   freshness strict | grace SECONDS | pinned VERSION HASH
#   policy-pin HEX | -
#   before FLOOR            the reader's floor
# and what comes of it, one line for each head in the order in which they are shown:
#   judge HEAD VERDICT [UNTIL fresh | stale]     UNTIL: the end of validity, with the grace
#   after FLOOR             the floor after judging all of them together
#   adopt HEAD VERDICT [FLOOR]     for each good head: adopting it now, without any tile, after that floor
";

/// A case: the mirrors' heads and the verdict that each must get.
pub struct Case {
    pub name: &'static str,
    pub floor: Floor,
    pub terms: Terms,
    pub heads: Vec<(Head, &'static str)>,
}

impl Case {
    /// Strict, at [`NOW`].
    pub fn new(name: &'static str, floor: &Floor, heads: &[(&Head, &'static str)]) -> Case {
        Case {
            name,
            floor: floor.clone(),
            terms: Terms::strict(NOW),
            heads: heads.iter().map(|(h, v)| ((*h).clone(), *v)).collect(),
        }
    }

    pub fn at(mut self, now: u64) -> Case {
        self.terms = Terms::strict(now);
        self
    }

    pub fn on(mut self, terms: Terms) -> Case {
        self.terms = terms;
        self
    }
}

/// Text of the file, and the objects that it has named so far.
struct File {
    text: String,
    named: Vec<(&'static str, Vec<u8>)>,
    /// Verdicts that differ from those expected.
    wrong: Vec<String>,
}

impl File {
    fn name(&mut self, kind: &'static str, bytes: Vec<u8>) -> String {
        let of_kind = |named: &&(&'static str, Vec<u8>)| named.0 == kind;
        let known = self.named.iter().filter(of_kind).position(|n| n.1 == bytes);
        let number = known.unwrap_or_else(|| self.named.iter().filter(of_kind).count());
        let name = format!("{}{number}", &kind[..1]);
        if known.is_none() {
            self.text += &format!("{kind} {name} {}\n", hex(&bytes));
            self.named.push((kind, bytes));
        }
        name
    }

    fn case(&mut self, case: &Case) {
        let heads: Vec<Head> = case.heads.iter().map(|(head, _)| head.clone()).collect();
        let mut signatures = Signatures::default();
        let judged = case.floor.judge_all(&heads, &case.terms, &mut signatures);
        let before = self.name("floor", case.floor.encode());
        let after = self.name("floor", judged.floor.encode());
        let names: Vec<String> = heads
            .iter()
            .map(|head| self.name("head", head.encode().unwrap()))
            .collect();
        let mut lines = given(case, &before);
        let mut adopted = String::new();
        for ((name, offer), (_, expected)) in names.iter().zip(&judged.offers).zip(&case.heads) {
            if verdict(offer) != *expected {
                let why = offer.as_ref().err();
                self.wrong.push(format!("{}: {name}: {why:?}", case.name));
            }
            lines += &format!("judge {name} {}\n", outcome(offer));
            if let Ok(offer) = offer {
                let adopts = judged.floor.adopt(offer);
                let floor = adopts.as_ref().ok().map(Floor::encode);
                let floor = floor.map(|floor| self.name("floor", floor));
                let line = format!(
                    "adopt {name} {} {}",
                    verdict(&adopts),
                    floor.unwrap_or_default()
                );
                adopted += line.trim_end();
                adopted += "\n";
            }
        }
        self.text += &lines;
        self.text += &format!("after {after}\n{adopted}");
    }
}

fn given(case: &Case, before: &str) -> String {
    let Terms {
        wall,
        now,
        freshness,
        policy_pin,
    } = &case.terms;
    let freshness = match freshness {
        Freshness::Strict => "strict".to_owned(),
        Freshness::Grace(seconds) => format!("grace {seconds}"),
        Freshness::Pinned {
            version,
            record_hash,
        } => format!("pinned {version} {}", hex(record_hash)),
    };
    let pin = policy_pin.map_or("-".to_owned(), |hash| hex(&hash));
    let volume = hex(case.floor.volume().as_bytes());
    format!(
        "case {}\nvolume {volume}\nwall {wall}\nnow {now}\nfreshness {freshness}\npolicy-pin {pin}\nbefore {before}\n",
        case.name
    )
}

fn outcome(offer: &Result<Offer, Reject>) -> String {
    let Ok(known) = offer else {
        return verdict(offer).to_owned();
    };
    let fresh = if known.stale { "stale" } else { "fresh" };
    format!("good {} {fresh}", known.valid_until)
}

pub fn text() -> String {
    let mut file = File {
        text: HEADER.to_owned(),
        named: Vec::new(),
        wrong: Vec::new(),
    };
    for case in super::cases::all() {
        file.case(&case);
    }
    assert!(file.wrong.is_empty(), "{:#?}", file.wrong);
    file.text
}
