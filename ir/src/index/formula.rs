//! Structural equality, order and hash of indices. They do not compare the numbers that symbols stand for, so they make no
//! conditions.

use std::cmp::Ordering;
use std::hash::{Hash, Hasher};

use super::{Atom, Index};

/// The numbers of indices as [`Ord`], [`Eq`] and [`Hash`] see them.
type Formula = (i64, Option<u32>);

impl Atom {
    /// What orders atoms: their kind, then what is in them.
    fn parts(&self) -> (u8, Option<u32>, [Option<&Index>; 2], Option<Formula>) {
        match self {
            Atom::Var(v) => (0, Some(*v), [None, None], None),
            Atom::Div(x, d) => (1, None, [Some(x), None], Some(d.formula())),
            Atom::Mod(x, d) => (2, None, [Some(x), None], Some(d.formula())),
            Atom::Min(a, b) => (3, None, [Some(a), Some(b)], None),
            Atom::Max(a, b) => (4, None, [Some(a), Some(b)], None),
        }
    }
}

impl Index {
    fn parts(&self) -> (impl Iterator<Item = (&Atom, Formula)>, Formula) {
        (self.terms.iter().map(|(atom, c)| (atom, c.formula())), self.constant.formula())
    }
}

impl Ord for Index {
    fn cmp(&self, other: &Index) -> Ordering {
        let ((a, x), (b, y)) = (self.parts(), other.parts());
        a.cmp(b).then(x.cmp(&y))
    }
}

macro_rules! by_formula {
    ($t:ty) => {
        impl PartialEq for $t {
            fn eq(&self, other: &$t) -> bool {
                self.cmp(other) == Ordering::Equal
            }
        }

        impl Eq for $t {}

        impl PartialOrd for $t {
            fn partial_cmp(&self, other: &$t) -> Option<Ordering> {
                Some(self.cmp(other))
            }
        }
    };
}
by_formula!(Atom);
by_formula!(Index);

impl Ord for Atom {
    fn cmp(&self, other: &Atom) -> Ordering {
        self.parts().cmp(&other.parts())
    }
}

impl Hash for Atom {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.parts().hash(state);
    }
}

impl Hash for Index {
    fn hash<H: Hasher>(&self, state: &mut H) {
        let (terms, constant) = self.parts();
        terms.for_each(|term| term.hash(state));
        constant.hash(state);
    }
}
