//! What a compilation computes with symbols, and on which conditions.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, HashMap};
use std::panic::Location;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tensorc_abi::sizes::Sign;

use super::poly::Poly;
use super::{Expr, Extent};

/// A symbol: the name of an extent that is open.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Symbol {
    /// Its name.
    pub name: Arc<str>,
    /// The least and the greatest value it may have, neither below 0.
    pub range: (i64, i64),
    /// The value with which numbers are computed.
    pub example: i64,
}

/// Whether a sign is that of all values of an interval, or of none.
fn decided(sign: Sign, (lo, hi): (i128, i128)) -> Option<bool> {
    let (positive, negative, zero) = (lo > 0, hi < 0, lo == 0 && hi == 0);
    let (not_positive, not_negative) = (hi <= 0, lo >= 0);
    let (yes, no) = match sign {
        Sign::Zero => (zero, positive || negative),
        Sign::NonZero => (positive || negative, zero),
        Sign::Negative => (negative, not_negative),
        Sign::NonNegative => (not_negative, negative),
        Sign::Positive => (positive, not_positive),
        Sign::NonPositive => (not_positive, positive),
    };
    match (yes, no) {
        (true, _) => Some(true),
        (_, true) => Some(false),
        _ => None,
    }
}

fn opposite(sign: Sign) -> Sign {
    match sign {
        Sign::Zero => Sign::NonZero,
        Sign::NonZero => Sign::Zero,
        Sign::Negative => Sign::NonNegative,
        Sign::NonNegative => Sign::Negative,
        Sign::Positive => Sign::NonPositive,
        Sign::NonPositive => Sign::Positive,
    }
}

fn text_of(sign: Sign) -> &'static str {
    match sign {
        Sign::Zero => "== 0",
        Sign::NonZero => "!= 0",
        Sign::Negative => "< 0",
        Sign::NonNegative => ">= 0",
        Sign::Positive => "> 0",
        Sign::NonPositive => "<= 0",
    }
}

/// A factor of a term of an extent.
#[derive(Clone, Copy, Debug)]
pub enum Factor {
    /// A symbol, by position.
    Symbol(usize),
    /// A quotient rounded down, of an extent that is not negative by a positive one.
    Quotient(Extent, Extent),
}

/// What expressions are made of.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Atom {
    /// A symbol, by position.
    Symbol(usize),
    /// The quotient of two expressions, rounded down. The first is not negative, the second positive.
    Quotient(u32, u32),
}

#[derive(Clone, Debug, Default)]
struct Table {
    symbols: Vec<Symbol>,
    atoms: Vec<Atom>,
    /// By atom.
    intervals: Vec<(i128, i128)>,
    examples: Vec<i64>,
    numbers: HashMap<Atom, u32>,
    polys: Vec<Poly>,
    places: HashMap<Poly, u32>,
    /// Conditions, each with where in the compiler it was first found.
    guards: BTreeMap<(u32, Sign), &'static Location<'static>>,
    /// The one of them that was found last.
    newest: Option<(u32, Sign)>,
}

/// The expressions of a compilation, and the conditions under which it is right: those on which it has depended.
///
/// Extents that depend on symbols belong to one trace, and are computed with while it is entered ([`Trace::enter`]).
#[derive(Clone, Debug)]
pub struct Trace(Arc<Mutex<Table>>);

thread_local! {
    /// The trace that computations of this thread are part of.
    static CURRENT: RefCell<Option<Trace>> = const { RefCell::new(None) };
    /// Whether comparisons decide nothing but what is faster.
    static ADVICE: Cell<bool> = const { Cell::new(false) };
}

impl Trace {
    /// A trace of these symbols.
    pub fn new(symbols: Vec<Symbol>) -> Trace {
        let mut table = Table { symbols, ..Table::default() };
        for position in 0..table.symbols.len() {
            let Symbol { range: (lo, hi), example, .. } = table.symbols[position];
            table.atom(Atom::Symbol(position), (lo.into(), hi.into()), example);
        }
        Trace(Arc::new(Mutex::new(table)))
    }

    /// A trace that goes on from here by itself: what extents are is the same in both.
    #[must_use]
    pub fn fork(&self) -> Trace {
        Trace(Arc::new(Mutex::new(self.table().clone())))
    }

    /// A trace that goes on from here by itself, with other examples: what extents of this one are in it is what the binding makes
    /// of them ([`Binding::example`]). `None` where [`Trace::bind`] gives none.
    pub fn with_examples(&self, values: &[i64]) -> Option<(Trace, Binding)> {
        let binding = self.bind(values)?;
        let mut table = self.table().clone();
        table.examples = binding.atoms.clone();
        table.symbols.iter_mut().zip(values).for_each(|(symbol, value)| symbol.example = *value);
        Some((Trace(Arc::new(Mutex::new(table))), binding))
    }

    /// The trace that this thread computes in.
    pub fn current() -> Option<Trace> {
        CURRENT.with_borrow(Clone::clone)
    }

    /// Does something as part of the trace.
    pub fn enter<T>(&self, work: impl FnOnce() -> T) -> T {
        struct Restore(Option<Trace>);
        impl Drop for Restore {
            fn drop(&mut self) {
                CURRENT.set(self.0.take());
            }
        }
        let _restore = Restore(CURRENT.replace(Some(self.clone())));
        work()
    }

    /// The symbols, in the order of their positions.
    pub fn symbols(&self) -> Vec<Symbol> {
        self.table().symbols.clone()
    }

    /// The extent that is the symbol at a position.
    pub fn symbol(&self, position: usize) -> Extent {
        let mut table = self.table();
        let value = table.symbols[position].example;
        Extent { value, expr: Some(table.expr(Poly::atom(position as u32))) }
    }

    /// The conditions as text, each with the place in the compiler that found it.
    pub fn guards(&self) -> Vec<(String, &'static Location<'static>)> {
        let table = self.table();
        let text = |poly: &u32, sign: &Sign| format!("{} {}", table.text(*poly), text_of(*sign));
        table.guards.iter().map(|((poly, sign), place)| (text(poly, sign), *place)).collect()
    }

    /// The conditions that are not sure to hold where the symbols are in these ranges, inside of their own: extents, and the sign
    /// that each has.
    pub fn conditions_within(&self, ranges: &[(i64, i64)]) -> Vec<(Extent, Sign)> {
        let table = self.table();
        let intervals = table.intervals_within(ranges);
        let open = |(poly, sign): &&(u32, Sign)| {
            decided(*sign, table.polys[*poly as usize].interval(&intervals)) != Some(true)
        };
        table.guards.keys().filter(open).map(|(poly, sign)| (table.of_place(*poly), *sign)).collect()
    }

    /// Whether all conditions hold for all values that the symbols have in these ranges, inside of their own: `Some(false)` if one
    /// holds for none of them, `None` if neither is known.
    pub fn holds_within(&self, ranges: &[(i64, i64)]) -> Option<bool> {
        let table = self.table();
        let intervals = table.intervals_within(ranges);
        let holds = |(poly, sign): &(u32, Sign)| decided(*sign, table.polys[*poly as usize].interval(&intervals));
        let decided: Vec<Option<bool>> = table.guards.keys().map(holds).collect();
        match decided.contains(&Some(false)) {
            true => Some(false),
            false => decided.iter().all(|one| *one == Some(true)).then_some(true),
        }
    }

    /// Whether the condition found last fails where the symbols have these values. Other conditions are not looked at.
    pub fn breaks_newest(&self, values: &[i64]) -> bool {
        let (table, mut atoms) = (self.table(), vec![]);
        let Some((poly, sign)) = table.newest.filter(|_| table.put_values(values, &mut atoms).is_some()) else {
            return false;
        };
        table.polys[poly as usize].value(&atoms).is_some_and(|value| !sign.holds(value))
    }

    /// A number that extents do not exceed where the symbols are in these ranges, inside of their own.
    pub fn most_within(&self, ranges: &[(i64, i64)], extents: impl Iterator<Item = Extent>) -> Vec<i64> {
        let table = self.table();
        let intervals = table.intervals_within(ranges);
        let most = |extent: Extent| match extent.expr {
            None => extent.value,
            Some(Expr(place)) => {
                let most = table.polys[place as usize].interval(&intervals).1;
                i64::try_from(most).unwrap_or(i64::MAX)
            }
        };
        extents.map(most).collect()
    }

    /// An extent as a sum of products of factors and a number.
    pub fn terms(&self, extent: Extent) -> Vec<(Vec<Factor>, i64)> {
        let table = self.table();
        let factor = |atom: &u32| match table.atoms[*atom as usize] {
            Atom::Symbol(position) => Factor::Symbol(position),
            Atom::Quotient(a, b) => Factor::Quotient(table.of_place(a), table.of_place(b)),
        };
        let poly = table.poly(extent);
        poly.0.iter().map(|(monomial, c)| (monomial.iter().map(factor).collect(), *c)).collect()
    }

    /// The text of an extent.
    pub fn display(&self, extent: Extent) -> String {
        extent.expr.map_or(extent.value.to_string(), |expr| self.table().text(expr.0))
    }

    /// What everything is where the symbols have these values; `None` if the trace does not hold there: a symbol is out of its
    /// range, a condition does not hold, or a number is too large.
    pub fn bind(&self, values: &[i64]) -> Option<Binding> {
        let mut binding = Binding::default();
        self.rebind(values, &mut binding).then_some(binding)
    }

    /// As [`Trace::bind`], in the memory of another binding. Whether the trace holds; if not, the binding has no meaning.
    pub fn rebind(&self, values: &[i64], binding: &mut Binding) -> bool {
        let (table, Binding { values: all, atoms }) = (self.table(), binding);
        all.clear();
        atoms.clear();
        if table.put_values(values, atoms).is_none() {
            return false;
        }
        for poly in &table.polys {
            let Some(value) = poly.value(atoms) else { return false };
            all.push(value);
        }
        table.guards.keys().all(|(poly, sign)| sign.holds(all[*poly as usize]))
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The values of the expressions of a trace for some values of its symbols.
#[derive(Clone, Debug, Default)]
pub struct Binding {
    /// By expression.
    values: Vec<i64>,
    /// Those that expressions are made of.
    atoms: Vec<i64>,
}

impl Binding {
    /// The value of an extent of the trace.
    #[inline]
    pub fn value(&self, extent: Extent) -> i64 {
        extent.expr.map_or(extent.value, |expr| self.values[expr.0 as usize])
    }

    /// The extent with its value here as the example.
    pub fn example(&self, extent: Extent) -> Extent {
        Extent { value: self.value(extent), ..extent }
    }
}

/// What a thread computes in, for threads that work for it.
#[derive(Clone)]
pub(crate) struct Scope {
    trace: Option<Trace>,
    advice: bool,
}

impl Scope {
    pub fn current() -> Scope {
        Scope { trace: Trace::current(), advice: ADVICE.get() }
    }

    pub fn enter<T>(&self, work: impl FnOnce() -> T) -> T {
        let work = || if self.advice { advice(work) } else { work() };
        match &self.trace {
            Some(trace) => trace.enter(work),
            None => work(),
        }
    }
}

/// Does something that decides which of several right ways is taken, and nothing else: by the numbers of the example, without
/// conditions.
pub fn advice<T>(work: impl FnOnce() -> T) -> T {
    struct Restore(bool);
    impl Drop for Restore {
        fn drop(&mut self) {
            ADVICE.set(self.0);
        }
    }
    let _restore = Restore(ADVICE.replace(true));
    work()
}

/// Whether something holds that is useful where it does: a condition is made of it in that case alone.
pub fn found(holds: impl Fn() -> bool) -> bool {
    advice(&holds) && holds()
}

impl Table {
    /// Puts down the values of the atoms for some of the symbols; `None` if one is out of its range, or a number too large.
    fn put_values(&self, symbols: &[i64], atoms: &mut Vec<i64>) -> Option<()> {
        let in_range = |(s, v): (&Symbol, &i64)| (s.range.0..=s.range.1).contains(v);
        if symbols.len() != self.symbols.len() || !self.symbols.iter().zip(symbols).all(in_range) {
            return None;
        }
        atoms.extend_from_slice(symbols);
        for atom in &self.atoms[symbols.len()..] {
            let Atom::Quotient(a, b) = atom else { return None };
            let (a, b) = (self.polys[*a as usize].value(atoms)?, self.polys[*b as usize].value(atoms)?);
            if a < 0 || b <= 0 {
                return None;
            }
            atoms.push(a / b);
        }
        Some(())
    }

    /// Intervals of the atoms where the symbols are in these ranges.
    fn intervals_within(&self, ranges: &[(i64, i64)]) -> Vec<(i128, i128)> {
        let mut intervals: Vec<(i128, i128)> = ranges.iter().map(|(lo, hi)| ((*lo).into(), (*hi).into())).collect();
        for (atom, general) in self.atoms.iter().zip(&self.intervals).skip(ranges.len()) {
            let (low, high) = match atom {
                Atom::Quotient(a, b) => {
                    let [a, b] = [a, b].map(|poly| self.polys[*poly as usize].interval(&intervals));
                    if b.0 > 0 { (a.0.max(0) / b.1, a.1.max(0) / b.0) } else { *general }
                }
                Atom::Symbol(_) => *general,
            };
            intervals.push((low.max(general.0), high.min(general.1)));
        }
        intervals
    }

    fn atom(&mut self, atom: Atom, interval: (i128, i128), example: i64) -> u32 {
        if let Some(number) = self.numbers.get(&atom) {
            return *number;
        }
        let number = self.atoms.len() as u32;
        self.numbers.insert(atom.clone(), number);
        self.atoms.push(atom);
        self.intervals.push(interval);
        self.examples.push(example);
        number
    }

    fn expr(&mut self, poly: Poly) -> Expr {
        if let Some(place) = self.places.get(&poly) {
            return Expr(*place);
        }
        let place = self.polys.len() as u32;
        self.places.insert(poly.clone(), place);
        self.polys.push(poly);
        Expr(place)
    }

    /// The extent that is the value of a polynomial.
    fn extent(&mut self, poly: Poly) -> Option<Extent> {
        match poly.as_constant() {
            Some(value) => Some(Extent { value, expr: None }),
            None => {
                let value = poly.value(&self.examples)?;
                Some(Extent { value, expr: Some(self.expr(poly)) })
            }
        }
    }

    /// The extent that is the value of the polynomial at a place.
    fn of_place(&self, place: u32) -> Extent {
        let poly = &self.polys[place as usize];
        let value = poly.value(&self.examples).unwrap_or(0);
        Extent { value, expr: poly.as_constant().is_none().then_some(Expr(place)) }
    }

    fn poly(&self, extent: Extent) -> Poly {
        extent.expr.map_or(Poly::constant(extent.value), |expr| self.polys[expr.0 as usize].clone())
    }

    fn text(&self, poly: u32) -> String {
        let atom = |atom: &u32| match &self.atoms[*atom as usize] {
            Atom::Symbol(position) => self.symbols[*position].name.to_string(),
            Atom::Quotient(a, b) => format!("floordiv({}, {})", self.text(*a), self.text(*b)),
        };
        let mut out = String::new();
        for (monomial, c) in self.polys[poly as usize].0.iter().rev() {
            let sign = match (out.is_empty(), *c < 0) {
                (true, false) => "",
                (true, true) => "-",
                (false, false) => " + ",
                (false, true) => " - ",
            };
            let size = c.unsigned_abs().to_string();
            let number = Some(size).filter(|s| s != "1" || monomial.is_empty());
            let factors: Vec<String> = monomial.iter().map(atom).chain(number).collect();
            out.push_str(sign);
            out.push_str(&factors.join(" * "));
        }
        if out.is_empty() { "0".to_owned() } else { out }
    }

    /// The quotient rounded down, where a normal form has it.
    fn quotient(&mut self, a: &Poly, b: &Poly) -> Option<Poly> {
        let (whole, rest) = a.divide(b)?;
        if rest.0.is_empty() {
            return Some(whole);
        }
        let is_term = b.0.len() == 1;
        let (whole, rest) = if is_term { (whole, rest) } else { (Poly::default(), a.clone()) };
        let (low, high) = (rest.interval(&self.intervals), b.interval(&self.intervals));
        if low.1 < 0 && rest.add(b, 1)?.interval(&self.intervals).0 >= 0 {
            return whole.add(&Poly::constant(1), -1);
        }
        if low.0 < 0 || high.0 <= 0 {
            return None;
        }
        let below = rest.add(b, -1)?.interval(&self.intervals);
        if below.1 < 0 {
            return Some(whole);
        }
        let example = rest.value(&self.examples)? / b.value(&self.examples)?;
        let interval = (low.0 / high.1, low.1 / high.0);
        let (rest, b) = (self.expr(rest), self.expr(b.clone()));
        let atom = self.atom(Atom::Quotient(rest.0, b.0), interval, example);
        whole.add(&Poly::atom(atom), 1)
    }
}

/// Computes with expressions of the current trace; `None` if a normal form does not have the result.
pub(super) fn combined(f: Combine, a: Extent, b: Extent) -> Option<Extent> {
    let trace = Trace::current();
    // Without conditions, numbers of the example would be wrong ones for other shapes.
    assert!(trace.is_some(), "extents that depend on symbols are computed with outside of their trace");
    let trace = trace?;
    let mut table = trace.table();
    let (a, b) = (table.poly(a), table.poly(b));
    let poly = match f {
        Combine::Sum => a.add(&b, 1),
        Combine::Difference => a.add(&b, -1),
        Combine::Product => a.mul(&b),
        Combine::Quotient => table.quotient(&a, &b),
        Combine::Exact => a.divide(&b).and_then(|(whole, rest)| rest.0.is_empty().then_some(whole)),
    }?;
    table.extent(poly)
}

/// An operation on two expressions.
#[derive(Clone, Copy)]
pub(super) enum Combine {
    Sum,
    Difference,
    Product,
    Quotient,
    /// The quotient of what is a multiple.
    Exact,
}

/// Whether `a - b` has a sign for all values of the symbols.
pub(super) fn surely(a: Extent, b: Extent, sign: Sign) -> bool {
    if a.expr == b.expr && (a.expr.is_some() || a.value == b.value) {
        return sign.holds(0);
    }
    if a.expr.is_none() && b.expr.is_none() {
        return sign.holds(a.value.saturating_sub(b.value));
    }
    let Some(trace) = Trace::current() else { return false };
    let table = trace.table();
    let difference = table.poly(a).add(&table.poly(b), -1);
    difference.and_then(|d| decided(sign, d.interval(&table.intervals))) == Some(true)
}

/// Whether `a - b` has a sign. Where symbols decide, the example does, and the current trace keeps it.
pub(super) fn compare(a: Extent, b: Extent, sign: Sign, place: &'static Location<'static>) -> bool {
    let by_example = sign.holds(a.value.saturating_sub(b.value));
    if a.expr == b.expr && (a.expr.is_some() || a.value == b.value) {
        return by_example;
    }
    let Some(trace) = Trace::current().filter(|_| a.expr.is_some() || b.expr.is_some()) else { return by_example };
    let mut table = trace.table();
    let Some(difference) = table.poly(a).add(&table.poly(b), -1) else {
        // Too large a number for any binding.
        return by_example;
    };
    if let Some(decided) = decided(sign, difference.interval(&table.intervals)) {
        return decided;
    }
    if !ADVICE.get() {
        let difference = table.expr(difference);
        let found = if by_example { sign } else { opposite(sign) };
        table.guards.entry((difference.0, found)).or_insert(place);
        table.newest = Some((difference.0, found));
    }
    by_example
}
