//! Every mutant is found: a property counts once it has failed.

use reeve_protocol::mutant;

use crate::run;

/// Seeds within which a mutant must be found.
const WITHIN: u64 = 2_000;

/// The mutants, and the properties that may find them.
const MUTANTS: &[(&str, &[&str])] = &[
    ("ack before store", &["acks"]),
    ("publish before store", &["publish"]),
    ("no fence check", &["fences"]),
    ("no dedupe", &["no panic", "dense"]),
    ("apply after a gap", &["no panic", "dense"]),
    ("event after the end", &["moves"]),
    ("end twice", &["no panic", "moves"]),
    ("lock freed before its tree is empty", &["locks"]),
    ("lock is ignored", &["locks"]),
    ("last come, first served", &["locks"]),
    ("late checks count", &["leases"]),
    ("silent while heard", &["leases"]),
    ("waits for ever for who left", &["liveness", "death", "no livelock"]),
    ("second try after a grant", &["launches", "no panic"]),
    ("one slot more", &["limits"]),
    ("remembers one more", &["limits"]),
    ("forget what runs", &["limits"]),
    ("trimmed in silence", &["publish"]),
    ("waits while it runs", &["publish"]),
    ("cancel lost on coming back", &["liveness"]),
    ("resend from beside", &["liveness", "no livelock"]),
    ("seam on subscribe", &["followers"]),
    ("after is inclusive", &["followers"]),
    ("gap is one short", &["followers"]),
    ("end not told", &["followers"]),
    ("shows what is not stored", &["followers"]),
    ("offers twice", &["followers"]),
    ("other epoch goes on", &["followers"]),
    ("own end is a fence", &["worker's view", "late reports"]),
    ("ack reaches one further", &["worker's view"]),
    ("begin at each grant", &["begins"]),
];

/// Each fault that is put in is found, within a bounded number of seeds, by a property that is
/// about it.
#[test]
fn every_mutant_is_found_by_a_property() {
    let mut survivors = Vec::new();
    let only = std::env::var("REEVE_MUTANT").ok();
    for (name, properties) in MUTANTS {
        if only.as_ref().is_some_and(|only| only != name) {
            continue;
        }
        mutant::choose(name);
        let found =
            (0..WITHIN).find_map(|seed| run(seed, true, false).err().map(|why| (seed, why)));
        mutant::choose("");
        match found {
            Some((seed, why)) if properties.contains(&why.property) => {
                println!("{name}: seed {seed}: {}: {}", why.property, why.text);
            }
            Some((seed, why)) => {
                survivors.push(*name);
                println!("{name}: seed {seed}: found by another property: {why:?}");
            }
            None => {
                survivors.push(*name);
                println!("{name}: not found");
            }
        }
    }
    assert!(survivors.is_empty(), "not found as they should be: {survivors:?}");
}
