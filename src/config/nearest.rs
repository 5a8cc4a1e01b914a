//! The word that somebody probably meant.
//!
//! In: what was written and the words there are. Out: the nearest by edit distance, if it is near at all.

/// The word nearest to what was written, at most a third of its letters away.
pub(crate) fn nearest<'a>(written: &str, words: &[&'a str]) -> Option<&'a str> {
    let written = written.to_ascii_lowercase();
    // Nothing as long as this can be a misspelt key, and the distance costs the product of the lengths.
    if written.len() > 64 {
        return None;
    }
    let near = |word: &&str| distance(&written, word);
    let best = words.iter().copied().min_by_key(near)?;
    (distance(&written, best) <= (best.len() / 3).max(1)).then_some(best)
}

/// How many letters must be added, removed, replaced or swapped with their neighbour.
fn distance(from: &str, to: &str) -> usize {
    let (from, to): (Vec<char>, Vec<char>) = (from.chars().collect(), to.chars().collect());
    let mut before: Vec<usize> = Vec::new();
    let mut above: Vec<usize> = (0..=to.len()).collect();
    for i in 1..=from.len() {
        let mut row = vec![i];
        for j in 1..=to.len() {
            let replace = above[j - 1] + usize::from(from[i - 1] != to[j - 1]);
            let mut least = replace.min(above[j] + 1).min(row[j - 1] + 1);
            if i > 1 && j > 1 && from[i - 1] == to[j - 2] && from[i - 2] == to[j - 1] {
                least = least.min(before[j - 2] + 1);
            }
            row.push(least);
        }
        before = std::mem::replace(&mut above, row);
    }
    above[to.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slip_of_the_finger_finds_its_word() {
        let words = ["interval", "medium", "slow", "level"];
        for (written, expected) in [
            ("intervall", Some("interval")),
            ("inetrval", Some("interval")),
            ("Slow", Some("slow")),
            ("levle", Some("level")),
            ("colour", None),
            ("", None),
        ] {
            assert_eq!(nearest(written, &words), expected, "{written}");
        }
        assert_eq!(nearest(&"x".repeat(1_000_000), &words), None);
    }
}
