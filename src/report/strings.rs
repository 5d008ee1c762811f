//! Texts that occur often, each stored once, and names that follow each other, without what they share.

use std::collections::BTreeMap;

use serde::Serialize;

/// A table of texts.
#[derive(Default, Serialize)]
#[serde(transparent)]
pub(super) struct Strings {
    texts: Vec<String>,
    #[serde(skip)]
    known: BTreeMap<String, u32>,
}

impl Strings {
    /// The position of a text.
    pub fn of(&mut self, text: &str) -> u32 {
        if let Some(known) = self.known.get(text) {
            return *known;
        }
        let position = self.texts.len() as u32;
        self.texts.push(text.to_owned());
        self.known.insert(text.to_owned(), position);
        position
    }

    /// The text at a position.
    pub fn text(&self, position: u32) -> &str {
        self.texts.get(position as usize).map_or("", String::as_str)
    }
}

/// Names, each as the number of characters that it shares with the one before (in units of UTF-16, as scripts count) and the rest.
#[derive(Default, Serialize)]
#[serde(transparent)]
pub(super) struct Names(Vec<(usize, String)>);

impl<S: AsRef<str>> FromIterator<S> for Names {
    fn from_iter<I: IntoIterator<Item = S>>(names: I) -> Names {
        let (mut all, mut before) = (vec![], String::new());
        for name in names {
            let name = name.as_ref();
            let shared: String = before.chars().zip(name.chars()).take_while(|(a, b)| a == b).map(|(a, _)| a).collect();
            all.push((shared.encode_utf16().count(), name[shared.len()..].to_owned()));
            name.clone_into(&mut before);
        }
        Names(all)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_leave_out_what_they_share() {
        let names: Names = ["layer/a", "layer/b", "lé𝄞x", "lé𝄞y", ""].into_iter().collect();
        let expected = [(0, "layer/a"), (6, "b"), (1, "é𝄞x"), (4, "y"), (0, "")];
        assert_eq!(names.0, expected.map(|(n, text)| (n, text.to_owned())));
    }

    #[test]
    fn texts_are_stored_once() {
        let mut strings = Strings::default();
        assert_eq!([strings.of("a"), strings.of("b"), strings.of("a")], [0, 1, 0]);
        assert_eq!((strings.text(1), strings.text(7)), ("b", ""));
    }
}
