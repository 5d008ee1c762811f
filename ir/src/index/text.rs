//! The text of indices.

use super::{Atom, Index};

impl std::fmt::Display for Index {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.display(&|v| format!("d{v}")).fmt(f)
    }
}

impl Index {
    /// The text form, with variables named by `name`.
    pub fn display(&self, name: &dyn Fn(u32) -> String) -> String {
        let mut out = String::new();
        for (atom, c) in &self.terms {
            let body = match atom {
                Atom::Var(v) => name(*v),
                Atom::Div(x, d) => format!("floordiv({}, {d})", x.display(name)),
                Atom::Mod(x, d) => format!("mod({}, {d})", x.display(name)),
                Atom::Min(a, b) => format!("min({}, {})", a.display(name), b.display(name)),
                Atom::Max(a, b) => format!("max({}, {})", a.display(name), b.display(name)),
            };
            let (sign, size) = match c.known() {
                Some(c) if c < 0 => ("-", c.unsigned_abs().to_string()),
                Some(c) => ("+", c.to_string()),
                None => ("+", format!("({c})")),
            };
            match (out.is_empty(), sign) {
                (true, "+") => {}
                (true, _) => out.push('-'),
                _ => out.push_str(&format!(" {sign} ")),
            }
            match &size[..] {
                "1" => out.push_str(&body),
                _ => out.push_str(&format!("{body} * {size}")),
            }
        }
        match (out.is_empty(), self.constant.known()) {
            (true, _) => out.push_str(&self.constant.to_string()),
            (false, Some(0)) => {}
            (false, Some(c)) if c < 0 => out.push_str(&format!(" - {}", c.unsigned_abs())),
            (false, _) => out.push_str(&format!(" + {}", self.constant)),
        }
        out
    }
}
