//! Which open numbers of a template are not symbols of their own.

use super::Place;

/// The open numbers of a template that are not symbols: known numbers, and numbers equal to another one. Each makes the template hold for
/// fewer shapes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Restrictions {
    fixed: Vec<Place>,
    tied: Vec<(Place, Place)>,
}

impl Restrictions {
    /// The places with known numbers, which the types of the request give; ascending.
    pub fn fixed(&self) -> &[Place] {
        &self.fixed
    }

    /// Pairs of places with equal numbers: the second place is the earlier one, and a symbol. Ascending.
    pub fn tied(&self) -> &[(Place, Place)] {
        &self.tied
    }

    /// Whether every open number is a symbol of its own.
    pub fn is_empty(&self) -> bool {
        self.fixed.is_empty() && self.tied.is_empty()
    }

    /// Fixes numbers of symbols, and those that equal them. Returns whether any was not fixed before.
    pub fn fix(&mut self, places: impl IntoIterator<Item = Place>) -> bool {
        let before = self.fixed.len();
        self.fixed.extend(places);
        let fixed = &mut self.fixed;
        self.tied.retain(|(place, first)| {
            let free = !fixed.contains(first);
            if !free {
                fixed.push(*place);
            }
            free
        });
        fixed.sort_unstable();
        fixed.dedup();
        fixed.len() > before
    }

    /// Makes numbers equal to those at earlier places. Returns whether any was not before.
    pub fn tie(&mut self, pairs: impl IntoIterator<Item = (Place, Place)>) -> bool {
        let before = self.tied.len();
        self.tied.extend(pairs);
        self.tied.sort_unstable();
        self.tied.dedup_by_key(|(place, _)| *place);
        self.tied.len() > before
    }

    /// Fixes what is equal to others, and these. Returns whether there was any.
    pub fn fix_tied(&mut self) -> bool {
        let first: Vec<Place> = self.tied.iter().map(|(_, first)| *first).collect();
        self.fix(first)
    }
}
