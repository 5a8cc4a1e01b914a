//! Patterns of the configuration, in which `*` stands for any characters and `?` for one.

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodPattern {
    pub namespace: String,
    pub pod: String,
}

impl Default for PodPattern {
    fn default() -> Self {
        Self { namespace: "*".to_owned(), pod: "*".to_owned() }
    }
}

impl PodPattern {
    pub fn matches(&self, namespace: &str, pod: &str) -> bool {
        matches_pattern(&self.namespace, namespace) && matches_pattern(&self.pod, pod)
    }
}

/// Whether the whole text matches a pattern. The time is bounded by the product of the lengths.
pub fn matches_pattern(pattern: &str, text: &str) -> bool {
    let (mut pattern, mut text) = (pattern.chars(), text.chars());
    // The rest of the pattern after the last star, and the text at which it was last tried.
    let mut retry: Option<(std::str::Chars<'_>, std::str::Chars<'_>)> = None;
    loop {
        let mut rest = pattern.clone();
        match (rest.next(), text.clone().next()) {
            (Some('*'), _) => {
                retry = Some((rest.clone(), text.clone()));
                pattern = rest;
                continue;
            }
            (None, None) => return true,
            (Some(wanted), Some(found)) if wanted == '?' || wanted == found => {
                text.next();
                pattern = rest;
                continue;
            }
            _ => {}
        }
        // The last star stands for one more character; an earlier one need not be tried again.
        let Some((after, tried)) = &mut retry else { return false };
        if tried.next().is_none() {
            return false;
        }
        (pattern, text) = (after.clone(), tried.clone());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_match_whole_texts() {
        let cases = [
            ("", "", true),
            ("", "a", false),
            ("*", "", true),
            ("*H100*", "NVIDIA H100 80GB HBM3", true),
            ("*H100", "NVIDIA H100 80GB HBM3", false),
            ("NVIDIA A?0", "NVIDIA A40", true),
            ("NVIDIA A?0", "NVIDIA A100", false),
            ("**é*", "café au lait", true),
            ("a*b*c", "a-b-b-c", true),
            ("a*b*c", "a-c-b", false),
        ];
        for (pattern, text, expected) in cases {
            assert_eq!(matches_pattern(pattern, text), expected, "{pattern} {text}");
        }
    }
}
